"""FedDANE: clients correct their local gradients by how far they stand from the common one.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: FedDANE: A Federated Newton-Type Method. Asilomar 2019.
The two samples of a round are drawn independently, which the authors' code does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import one_model
from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.algorithms.blocks.one_model import State
from kinfolk.errors import at_least
from kinfolk.fold import Weights
from kinfolk.learning.learner import Learner, reply_model
from kinfolk.learning.optim import SumGradients
from kinfolk.script import Script, TuneSpace, fold
from kinfolk.streams import RoundContext
from kinfolk.task import Batch, Carry, ClientInfo, Fit, Plan, Table, Task
from kinfolk.types import Client, Message, Tree, tree_of


@dataclass(frozen=True)
class FedDANE:
    """One model; a first sample of clients gives the gradient by which a second corrects its own."""

    learner: Learner
    mu: float = 0.5  # strength of the penalty (mu / 2) |v - w|^2
    weights: Weights = "size"  # n_i / n, or the same for every client
    aggregate: RobustMean = RobustMean()  # of gradients, and of models
    summed: ClassVar[tuple[str, ...]] = ("gradient", "update")
    tune_space: ClassVar[TuneSpace] = {"mu": (0.01, 0.1, 0.5, 1.0)}

    def __post_init__(self) -> None:
        at_least("algorithm.mu", self.mu, 0)

    init, eval_inputs, eval_tasks = one_model.init, one_model.eval_inputs, one_model.eval_tasks

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """g = sum (n_i / n) grad F_i(w) over one sample; w <- sum (n_i / n) v_i over another."""
        w = state.model
        none: Tree = {name: torch.zeros_like(w[name]) for name in self.learner.names}
        first = self.sample(len(cohort), context)
        mean = self.aggregate.tree_fold("gradient", none, self.weights)
        g = yield from fold(mean, "gradient", first, shared={"model": w})
        if g is none:  # nobody answered: there is nothing to correct by
            return state, {}
        mean = self.aggregate.tree_fold("model", w, self.weights)
        return State((yield from fold(mean, "update", cohort, shared={"model": w, "g": g}))), {}

    def sample(self, count: int, context: RoundContext) -> tuple[Client, ...]:
        """As many clients as the cohort has, drawn without regard to it."""
        drawn = context.seed.numpy("feddane", context.round).permutation(len(context.clients))[:count]
        return tuple(context.clients[i] for i in sorted(drawn.tolist()))

    def tasks(self) -> Table:
        """grad F_i(w); and v_i, which takes grad F_i(w) first."""
        own = replace(self.learner.descent(self.loss_at_rest), optimiser=SumGradients(), clip=0.0)
        usual = self.learner.plan
        once = Plan(usual.batch, shuffle=False, augment=usual.augment, draws=usual.draws)
        gradient = Fit((own,), once)
        corrected = Fit((self.learner.descent(self.objective),), self.learner.plan)
        model, g = {"model": self.learner.first}, self.learner.params(self.learner.first)
        passes = (gradient, corrected)
        return {
            "gradient": Task(self.start, self.reply_gradient, (gradient,), {"gradient": g}, sent=model),
            "update": Task(self.start_at, reply_model, passes, model, sent={**model, "g": g}),
        }

    def start(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        """Start at w."""
        return {"model": tree_of(message, "model"), "rows": facts.rows}

    def start_at(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        """Start at w, and remember where that was and what the common gradient is."""
        return {
            "model": tree_of(message, "model"),
            "rows": facts.rows,
            "w": tree_of(message, "model"),
            "g": message["g"],
        }

    def loss_at_rest(self, model: Tree, batch: Batch, carry: Carry) -> Tensor:
        """F_i in scoring mode: BatchNorm by its running statistics, the same in every batch."""
        out = self.learner.apply(model, batch)
        return batch.mean(self.learner.loss.row_loss(out, batch.y))

    def objective(self, model: Tree, batch: Batch, carry: Carry) -> Tensor:
        """F_i(v) + <g - grad F_i(w), v> + (mu / 2) |v - w|^2 over the trainable parameters."""
        v, own = self.learner.params(model), own_gradient(carry)
        w: Tree = carry["w"]
        g: Tree = carry["g"]
        linear = sum(((g[n] - own[n]) * v[n]).sum() for n in v)
        apart = sum(((v[n] - w[n]) ** 2).sum() for n in v)
        return self.learner.objective(model, batch, carry) + linear + self.mu / 2 * apart

    def reply_gradient(self, carry: Carry) -> tuple[Message, None]:
        """Send grad F_i(w)."""
        return {"gradient": own_gradient(carry)}, None


def own_gradient(carry: Carry) -> Tree:
    """grad F_i(w) = (1 / n_i) sum over rows, which the first pass has left in the carry.

    >>> own_gradient({"optimiser.0.sum": {"w": torch.tensor([6.0])}, "rows": torch.tensor(3)})
    {'w': tensor([2.])}
    """
    return {name: total / carry["rows"] for name, total in carry["optimiser.0.sum"].items()}
