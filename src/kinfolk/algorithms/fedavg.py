"""FedAvg: clients train from the common model, the server takes the weighted mean.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinfolk.algorithms.blocks import one_model
from kinfolk.algorithms.blocks.one_model import State, average
from kinfolk.fold import Weights
from kinfolk.learning.learner import Learner
from kinfolk.script import Script
from kinfolk.streams import RoundContext
from kinfolk.types import Client


@dataclass(frozen=True)
class FedAvg:
    """One model for everyone: the weighted mean of what the clients trained."""

    learner: Learner
    weights: Weights = "size"  # n_i / n, or the same for every client

    init, tasks = one_model.init, one_model.tasks
    eval_inputs, eval_tasks = one_model.eval_inputs, one_model.eval_tasks

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """w <- sum_i (n_i / n) w_i, where w_i is w after E local epochs on client i."""
        return State((yield from average(state.model, cohort, self.weights))), {}
