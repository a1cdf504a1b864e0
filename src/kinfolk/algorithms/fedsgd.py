"""FedSGD: one gradient per client and round, over all of its rows; the server takes the step.

McMahan et al., AISTATS 2017, section 2. The gradient is summed over batches, so a client's rows need
not fit into one; with BatchNorm each batch is normalised by its own statistics. `local.clip` limits the
whole gradient of a client; momentum, weight decay and Adam are the server's, whose step it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from kinfolk.algorithms.blocks import one_model
from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.fold import Weights
from kinfolk.learning.learner import Learner
from kinfolk.learning.optim import SumGradients, clip
from kinfolk.script import Script, fold
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Carry, ClientInfo, Fit, Table, Task
from kinfolk.types import Client, Message, Tree, tree_of


@dataclass(frozen=True)
class State:
    """The common model, and what the server's optimiser keeps from step to step."""

    model: Tree  # w
    moments: Tree  # "<part>/<parameter>": a velocity, or Adam's two moments
    steps: int  # that were taken


@dataclass(frozen=True)
class FedSGD:
    """One model for everyone, moved by the mean of the clients' full gradients."""

    learner: Learner
    weights: Weights = "size"  # n_i / n, or the same for every client
    aggregate: RobustMean = RobustMean()  # of gradients
    summed: ClassVar[tuple[str, ...]] = ("gradient",)

    eval_inputs, eval_tasks = one_model.eval_inputs, one_model.eval_tasks

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """The common initial model, at rest."""
        return State(first, joined(self.learner.optimiser.init(self.learner.params(first))), 0)

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """w <- w - lr sum_i (n_i / n) g_i, or what the optimiser makes of that; buffers become their mean."""
        w, lr = state.model, self.learner.descent().rate(context.round)
        still: Tree = {n: torch.zeros_like(t) if n in self.learner.names else t for n, t in w.items()}
        by = self.aggregate.tree_fold("gradient", still, self.weights)
        g = yield from fold(by, "gradient", cohort, shared={"model": w})
        if g is still:  # nobody answered: no step, which momentum and weight decay would take all the same
            return state, {}
        moved, moments = self.learner.optimiser.update(
            self.learner.params(w), self.learner.params(g), split_up(state.moments), state.steps, lr, 1
        )
        return State({n: moved.get(n, g[n]) for n in w}, joined(moments), state.steps + 1), {}

    def tasks(self) -> Table:
        """The gradient of the mean loss over all rows, with the buffers as they are afterwards."""
        plan = replace(self.learner.plan, epochs=1, steps=0, shuffle=False, drop_last=False)
        summed = replace(self.learner.descent(), optimiser=SumGradients(), clip=0.0)
        return {
            "gradient": Task(
                self.start,
                self.finish,
                (Fit((summed,), plan),),
                {"gradient": self.learner.first},
                sent={"model": self.learner.first},
            )
        }

    def start(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        """Start at w; a single row left over is skipped where BatchNorm could not use it."""
        left_over = facts.rows % self.learner.plan.batch == 1
        skipped = left_over.long() if self.learner.plan.drop_single else 0
        return {"model": tree_of(message, "model"), "rows": (facts.rows - skipped).clamp(min=1)}

    def finish(self, carry: Carry) -> tuple[Message, None]:
        """g_i = (1 / n_i) sum over rows of the row's gradient, as long as `clip` allows."""
        g = {n: total / carry["rows"] for n, total in carry["optimiser.0.sum"].items()}
        g = clip(g, self.learner.clip) if self.learner.clip else g
        return {"gradient": {**carry["model"], **g}}, None


def joined(moments: Message) -> Tree:
    """An optimiser's state as one tree.

    >>> joined({"velocity": {"w": torch.zeros(1)}})
    {'velocity/w': tensor([0.])}
    """
    return {f"{part}/{name}": t for part, tree in moments.items() for name, t in tree.items()}


def split_up(moments: Tree) -> Message:
    """The optimiser's state behind `joined`.

    >>> split_up({"velocity/w": torch.zeros(1)})
    {'velocity': {'w': tensor([0.])}}
    """
    out: dict[str, Tree] = {}
    for path, t in moments.items():
        part, _, name = path.partition("/")
        out.setdefault(part, {})[name] = t
    return dict(out)
