"""What methods share whose clients keep their own mean gradient: its length, the fold of what they send."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.errors import KinfolkError
from kinfolk.fold import Weights
from kinfolk.learning.learner import Learner
from kinfolk.task import Carry, ClientInfo
from kinfolk.types import Stack, Tree


def one_rate(name: str, learner: Learner) -> None:
    """Refuse rates that change within a round: corrections are about the length of its path."""
    if learner.by_step is not None:
        raise KinfolkError("local.step_schedule", None, f"{name} needs the same rate in all steps of a round")


def path(learner: Learner, facts: ClientInfo) -> Carry:
    """What a carry needs to know how far a client goes: its steps, and their rate over `lr`."""
    return {"steps": facts.steps, "rate": facts.steps * 0.0 + learner.descent().factor(facts.round)}


def length(learner: Learner, carry: Carry) -> Tensor:
    """steps eta / lr: how many plain steps of length lr go as far; one for who takes none."""
    momentum = getattr(learner.optimiser, "momentum", 0.0)
    steps: Tensor = carry["steps"]
    far: Tensor = plain_steps(steps.clamp(min=1), momentum) * carry["rate"]
    return far


def plain_steps(steps: Tensor, momentum: float) -> Tensor:
    """How many plain steps go as far as so many with momentum, along a gradient that stays.

    Step k is 1 + m + ... + m^(k-1) plain ones long.

    >>> import torch
    >>> plain_steps(torch.tensor([1, 2, 3]), 0.5)
    tensor([1.0000, 2.5000, 4.2500])
    """
    if not momentum:
        return steps
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


class Means:
    """A fold: (mean model, mean change by its own weights, replies, their rows)."""

    def __init__(self, w: Tree, none: Tree, aggregate: RobustMean, weights: Weights) -> None:
        self.model = aggregate.tree_fold("model", w, "uniform")
        self.change = aggregate.tree_fold("change", none, weights)

    def begin(self) -> tuple[Any, Any, int, float]:
        """Nothing summed yet."""
        return self.model.begin(), self.change.begin(), 0, 0.0

    def add(self, total: tuple[Any, Any, int, float], chunk: Stack) -> tuple[Any, Any, int, float]:
        """Add a chunk to both sums."""
        model, change, replies, rows = total
        counted = replies + len(chunk), rows + float(chunk.size.double().sum())
        return self.model.add(model, chunk), self.change.add(change, chunk), *counted

    def end(self, total: tuple[Any, Any, int, float]) -> tuple[Tree, Tree, int, float]:
        """Both means, and over how much they were taken."""
        model, change, replies, rows = total
        return self.model.end(model), self.change.end(change), replies, rows
