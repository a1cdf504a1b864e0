"""Ditto: FedAvg, and beside it a model for each client that is held near the common one.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021,
Algorithm 1.

    common     w_i <- w after local epochs on F_i;  w <- sum_i (n_i / n) w_i
    personal   v_i <- v_i - eta (grad F_i(v_i) + lambda (v_i - w)), as many epochs, with w as it was sent

The personal model stays with its client and never moves the common one: it costs as much training again and
no byte. lambda = 0 is Local, a large one FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from kinfolk.algorithms.blocks import one_model
from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.algorithms.blocks.one_model import State, average
from kinfolk.errors import at_least
from kinfolk.fold import Weights
from kinfolk.learning.learner import Learner, own_model
from kinfolk.script import Script, TuneSpace
from kinfolk.streams import RoundContext
from kinfolk.task import Batch, Carry, ClientInfo, Fit, Table, Task
from kinfolk.types import Client, Message, Tree, tree_of


@dataclass(frozen=True)
class Ditto:
    """A model for each client, which pays (lambda / 2) |v_i - w|^2 for leaving FedAvg's model."""

    learner: Learner
    lam: float = 0.1  # lambda: how strongly personal models are held; 0: each client alone
    weights: Weights = "size"  # n_i / n, or the same for every client
    aggregate: RobustMean = RobustMean()
    summed: ClassVar[tuple[str, ...]] = ("update",)
    tune_space: ClassVar[TuneSpace] = {"lam": (0.01, 0.1, 0.3, 1.0)}

    def __post_init__(self) -> None:
        at_least("algorithm.lam", self.lam, 0)

    init, eval_inputs = one_model.init, one_model.eval_inputs

    def init_client(self, who: Client) -> Message:
        """v_i starts as the common initial model."""
        return {"model": self.learner.first}

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """w <- sum_i (n_i / n) w_i; personal models are none of the server's business."""
        return State((yield from average(state.model, cohort, self.weights, self.aggregate))), {}

    def tasks(self) -> Table:
        """Train the received model and then the own one."""
        near = replace(self.learner.descent(self.objective), part="own")
        passes = (Fit((self.learner.descent(),), self.learner.plan), Fit((near,), self.learner.plan))
        model = {"model": self.learner.first}
        return {"update": Task(self.start, self.finish, passes, model, sent=model)}

    def start(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        """w to be trained, w as it was sent, v_i."""
        w = tree_of(message, "model")
        return {"model": w, "w": w, "own": tree_of(memory, "model")}

    def objective(self, model: Tree, batch: Batch, carry: Carry) -> Tensor:
        """F_i(v) + (lambda / 2) |v - w|^2 over the trainable parameters."""
        v, w = self.learner.params(model), carry["w"]
        apart = sum(((v[n] - w[n]) ** 2).sum() for n in v)
        penalty: Tensor = self.lam / 2 * apart
        return self.learner.objective(model, batch, carry) + penalty

    def finish(self, carry: Carry) -> tuple[Message, Message]:
        """Send w_i, keep v_i."""
        return {"model": carry["model"]}, {"model": carry["own"]}

    def eval_tasks(self) -> Mapping[str, Task]:
        """Each client's own model and, beside it, the common one."""
        return {"personal": self.learner.score(start=own_model), "centre": self.learner.score()}
