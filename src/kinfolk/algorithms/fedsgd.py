"""FedSGD: one gradient per client and round, over all of its rows; the server takes the step.

McMahan et al., AISTATS 2017, section 2. The gradient is summed over batches, so a client's rows need
not fit into one; with BatchNorm each batch is normalised by its own statistics.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kinfolk.algorithms import one_model
from kinfolk.algorithms.one_model import State
from kinfolk.fold import Mean, Weights
from kinfolk.learning.learner import Learner
from kinfolk.learning.optim import SumGradients
from kinfolk.script import Script, fold
from kinfolk.streams import Turn
from kinfolk.task import Carry, Facts, Fit, Table, Task
from kinfolk.types import Client, Message, Tree


@dataclass(frozen=True)
class FedSGD:
    """One model for everyone, moved by the mean of the clients' full gradients."""

    learner: Learner
    weights: Weights = "size"  # n_i / n, or the same for every client

    init, serve, scored = one_model.init, one_model.serve, one_model.scored

    def round(self, state: State, cohort: tuple[Client, ...], turn: Turn) -> Script[State]:
        """w <- w - lr sum_i (n_i / n) g_i; buffers become their mean."""
        w, lr = state.model, self.learner.descent().rate(turn.round)
        still: Tree = {n: torch.zeros_like(t) if n in self.learner.names else t for n, t in w.items()}
        g = yield from fold(Mean("gradient", still, self.weights), "gradient", cohort, shared={"model": w})
        return State({n: w[n] - lr * g[n] if n in self.learner.names else g[n] for n in w}), {}

    def tasks(self) -> Table:
        """The gradient of the mean loss over all rows, with the buffers as they are afterwards."""
        plan = replace(self.learner.plan, epochs=1, steps=0, shuffle=False, drop_last=False)
        summed = replace(self.learner.descent(), optimiser=SumGradients())
        return {
            "gradient": Task(
                self.start, self.finish, (Fit((summed,), plan),), {"gradient": self.learner.first}
            )
        }

    def start(self, message: Message, memory: Message, facts: Facts) -> Carry:
        """Start at w; a single row left over is skipped where BatchNorm could not use it."""
        left_over = facts.rows % self.learner.plan.batch == 1
        skipped = left_over.long() if self.learner.plan.drop_single else 0
        return {"model": message["model"], "rows": (facts.rows - skipped).clamp(min=1)}

    def finish(self, carry: Carry) -> tuple[Message, None]:
        """g_i = (1 / n_i) sum over rows of the row's gradient."""
        total, model = carry["optimiser.0.sum"], carry["model"]
        return {"gradient": {n: total[n] / carry["rows"] if n in total else model[n] for n in model}}, None
