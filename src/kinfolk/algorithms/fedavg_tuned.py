"""FedAvg + fine-tuning: FedAvg's model, trained a little on each client before it is used there.

The rounds are FedAvg's (McMahan et al., AISTATS 2017); only what is scored differs. It belongs in
every comparison: it rivals clustered methods wherever clients have enough rows of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kinfolk.algorithms.blocks import one_model
from kinfolk.algorithms.blocks.one_model import State, average
from kinfolk.errors import at_least
from kinfolk.fold import Weights
from kinfolk.learning.learner import Learner
from kinfolk.script import Script
from kinfolk.streams import RoundContext
from kinfolk.task import Task
from kinfolk.types import Client


@dataclass(frozen=True)
class FedAvgTuned:
    """FedAvg's model after some epochs on the client's own rows; both are scored."""

    learner: Learner
    tune_epochs: int = 1  # epochs before the model is scored, unless local.tune_epochs says otherwise
    weights: Weights = "size"  # n_i / n, or the same for every client

    def __post_init__(self) -> None:
        at_least("algorithm.tune_epochs", self.tune_epochs, 1)

    init, tasks, eval_inputs = one_model.init, one_model.tasks, one_model.eval_inputs

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """w <- sum_i (n_i / n) w_i."""
        return State((yield from average(state.model, cohort, self.weights))), {}

    def eval_tasks(self) -> Mapping[str, Task]:
        """The tuned model and, beside it, the common one."""
        return {
            "fine-tuned": self.learner.score(tune=self.learner.tuning(self.tune_epochs)),
            "centre": self.learner.score(),
        }
