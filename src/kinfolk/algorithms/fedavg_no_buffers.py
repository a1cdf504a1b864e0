"""FedAvg that forgets buffers: only what is trained is averaged, BatchNorm keeps its first statistics.

A slip of many published programs, here on purpose: the model learns as FedAvg's does and is then scored by
running means and variances that nobody has updated. Compare it with FedAvg to see what the slip costs.
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
class FedAvgNoBuffers:
    """FedAvg whose server never averages the buffers: a fault on purpose, to measure what it costs."""

    learner: Learner
    weights: Weights = "size"  # n_i / n, or the same for every client

    init, tasks = one_model.init, one_model.tasks
    eval_inputs, eval_tasks = one_model.eval_inputs, one_model.eval_tasks

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """w <- sum_i (n_i / n) w_i over the trainable parameters; all else stays as it was at first."""
        mean = yield from average(state.model, cohort, self.weights)
        return State({**state.model, **self.learner.params(mean)}), {}
