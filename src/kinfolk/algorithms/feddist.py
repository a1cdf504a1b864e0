"""FedDist and FedDWS: Reptile across clients, a step from the common model towards the mean of theirs.

Nichol, Achiam, Schulman: On First-Order Meta-Learning Algorithms. 2018. The two differ in the mean:
FedDist's is uniform, FedDWS's (FedDist + weighted sum) goes by rows; both as compared by Long et al.,
Multi-center federated learning, World Wide Web 2022.
"""

from __future__ import annotations

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
from kinfolk.types import Client, Tree


def step_towards(w: Tree, mean: Tree, epsilon: float) -> Tree:
    """w + epsilon (mean - w); integer entries are taken from the mean.

    >>> import torch
    >>> step_towards({"w": torch.tensor([0.0])}, {"w": torch.tensor([2.0])}, 0.5)
    {'w': tensor([1.])}
    """
    return {n: t + epsilon * (mean[n] - t) if t.is_floating_point() else mean[n] for n, t in w.items()}


@dataclass(frozen=True)
class FedDist:
    """One model, moved part of the way to the plain mean of the clients' models."""

    learner: Learner
    epsilon: float = 0.6  # length of the step; 1 gives FedAvg with uniform weights
    aggregate: RobustMean = RobustMean()
    mean: ClassVar[Weights] = "uniform"
    summed: ClassVar[tuple[str, ...]] = ("update",)

    def __post_init__(self) -> None:
        at_least("algorithm.epsilon", self.epsilon, 0)

    init, tasks = one_model.init, one_model.tasks
    eval_inputs, eval_tasks = one_model.eval_inputs, one_model.eval_tasks

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """w <- w + epsilon mean_i(w_i - w); in FedDWS the mean is sum_i (n_i / n) (w_i - w)."""
        towards = yield from average(state.model, cohort, self.mean, self.aggregate)
        return State(step_towards(state.model, towards, self.epsilon)), {}


@dataclass(frozen=True)
class FedDWS(FedDist):
    """One model, moved part of the way to the clients' mean weighted by rows."""

    mean: ClassVar[Weights] = "size"
