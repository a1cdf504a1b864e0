"""FedProx: FedAvg whose clients are held near the common model by a penalty.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks.
MLSys 2020, Algorithm 2. The penalty is squared and has a gradient, which two public copies forget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kinfolk.algorithms.blocks import one_model
from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.algorithms.blocks.one_model import State, average
from kinfolk.errors import at_least
from kinfolk.fold import Weights
from kinfolk.learning.learner import Learner
from kinfolk.script import Script, TuneSpace
from kinfolk.streams import RoundContext
from kinfolk.task import Batch, Carry, ClientInfo, Table
from kinfolk.types import Client, Message, Tree, tree_of


@dataclass(frozen=True)
class FedProx:
    """One model for everyone; clients pay (mu / 2) |w_i - w|^2 for leaving it."""

    learner: Learner
    mu: float = 0.1  # strength of the penalty; 0 gives FedAvg
    weights: Weights = "size"  # n_i / n, or the same for every client
    aggregate: RobustMean = RobustMean()
    summed: ClassVar[tuple[str, ...]] = ("update",)
    tune_space: ClassVar[TuneSpace] = {"mu": (0.001, 0.01, 0.1, 1.0)}

    def __post_init__(self) -> None:
        at_least("algorithm.mu", self.mu, 0)

    init, eval_inputs, eval_tasks = one_model.init, one_model.eval_inputs, one_model.eval_tasks

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """w <- sum_i (n_i / n) w_i, where w_i minimises F_i(w_i) + (mu / 2) |w_i - w|^2."""
        return State((yield from average(state.model, cohort, self.weights, self.aggregate))), {}

    def tasks(self) -> Table:
        """Train the received model on the client's own rows, with the penalty."""
        sent = {"model": self.learner.first}
        return {"update": self.learner.train(self.objective, self.start, sent=sent)}

    def start(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        """Start at w, and remember where that was."""
        return {"model": tree_of(message, "model"), "w": tree_of(message, "model")}

    def objective(self, model: Tree, batch: Batch, carry: Carry) -> Tensor:
        """F_i(w_i) + (mu / 2) |w_i - w|^2 over the trainable parameters."""
        w_i, w = self.learner.params(model), self.learner.params(carry["w"])
        apart = sum(((w_i[name] - w[name]) ** 2).sum() for name in w_i)
        return self.learner.objective(model, batch, carry) + self.mu / 2 * apart
