"""FedAvg: clients train from the common model, the server takes the weighted mean.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017, Algorithm 1. Two variants, for comparisons, go by the same rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kinfolk.algorithms.blocks import one_model
from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.algorithms.blocks.one_model import State, average
from kinfolk.errors import at_least
from kinfolk.fold import Weights
from kinfolk.learning.learner import Learner
from kinfolk.script import Script
from kinfolk.streams import RoundContext
from kinfolk.task import Task
from kinfolk.types import Client


@dataclass(frozen=True)
class FedAvg:
    """One model for everyone: the weighted mean of what the clients trained."""

    learner: Learner
    weights: Weights = "size"  # n_i / n, or the same for every client
    aggregate: RobustMean = RobustMean()
    summed: ClassVar[tuple[str, ...]] = ("update",)

    init, tasks = one_model.init, one_model.tasks
    eval_inputs, eval_tasks = one_model.eval_inputs, one_model.eval_tasks

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """w <- sum_i (n_i / n) w_i, where w_i is w after E local epochs on client i."""
        return State((yield from average(state.model, cohort, self.weights, self.aggregate))), {}


@dataclass(frozen=True)
class FedAvgNoBuffers(FedAvg):
    """FedAvg whose server never averages the buffers: a fault on purpose, to measure what it costs.

    A slip of many published programs: the model learns as FedAvg's does and is then scored by BatchNorm's
    running means and variances that nobody has updated.
    """

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """w <- sum_i (n_i / n) w_i over the trainable parameters; all else stays as it was at first."""
        mean = yield from average(state.model, cohort, self.weights, self.aggregate)
        return State({**state.model, **self.learner.params(mean)}), {}


@dataclass(frozen=True)
class FedAvgTuned(FedAvg):
    """FedAvg's model after some epochs on the client's own rows; both are scored.

    It belongs in every comparison: it rivals clustered methods wherever clients have enough own rows.
    """

    tune_epochs: int = 1  # epochs before the model is scored, unless local.tune_epochs says otherwise

    def __post_init__(self) -> None:
        at_least("algorithm.tune_epochs", self.tune_epochs, 1)

    def eval_tasks(self) -> Mapping[str, Task]:
        """The tuned model and, beside it, the common one."""
        return {
            "fine-tuned": self.learner.score(tune=self.learner.tuning(self.tune_epochs)),
            "centre": self.learner.score(),
        }
