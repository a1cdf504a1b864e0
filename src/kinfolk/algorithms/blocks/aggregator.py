"""How the models of a group's members become one: their mean, or what a few attackers cannot move far.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates. ICML 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from kinfolk.algorithms.blocks.many_models import GroupMeans, GroupOf
from kinfolk.clustering.trimmed import median, trimmed_mean
from kinfolk.errors import KinfolkError
from kinfolk.fold import Weights, client_weights
from kinfolk.types import Client, Stack, Tree

# (models of a group [members, ...], their weights or None) -> one model
CentreOf = Callable[[Tensor, Tensor | None], Tensor]

# What stands for the members of a group.
Centre = Literal["mean", "trimmed", "median"]


@dataclass(frozen=True)
class RobustMean:
    """Options `[algorithm.aggregate]`: what stands for the models of a group's members."""

    # "mean" sums as replies come; "trimmed" and "median" hold the models of the cohort.
    name: Centre = "mean"
    trim: float = 0.1  # share of a group's members that "trimmed" cuts off each side

    def __post_init__(self) -> None:
        check_trim("algorithm.aggregate.trim", self.trim)

    @property
    def centre(self) -> CentreOf | None:
        """What is taken in place of a mean, coordinate by coordinate."""
        if self.name == "trimmed":
            return lambda models, weights: trimmed_mean(models, self.trim, weights)
        return median if self.name == "median" else None


@dataclass(frozen=True)
class Aggregator(RobustMean):
    """Options `[algorithm.aggregate]`: how the models of a group's members become the model of the group.

    >>> Aggregator("trimmed", trim=0.5)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.aggregate.trim = 0.5: give 0 or more and less than 0.5
    """

    weights: Weights = "uniform"  # of clients in their group: all alike, or by their rows

    def fold(self, keep: Tree, group: GroupOf) -> GroupMeans | RobustGroupMean:
        """The fold of replies with a "model" into the models of their groups; empty groups keep theirs.

        What the script receives: (models [K, ...], group of each client that replied, weight of each group).

        >>> Aggregator().fold({}, len) == GroupMeans({}, "uniform", len)
        True
        """
        if self.centre is None:
            return GroupMeans(keep, self.weights, group)
        return RobustGroupMean(keep, self.weights, group, self.centre)

    def of(self, got: Stack, keep: Tree, group: GroupOf) -> Tree:
        """The models of groups out of replies that are all there."""
        by = self.fold(keep, group)
        return by.end(by.add(by.begin(), got))[0]


def check_trim(field: str, value: float) -> None:
    """Refuse a share that leaves nobody in the middle.

    >>> check_trim("algorithm.cluster_trim", 0.5)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.cluster_trim = 0.5: give 0 or more and less than 0.5
    """
    if not 0 <= value < 0.5:
        raise KinfolkError(field, value, "give 0 or more and less than 0.5")


@dataclass(frozen=True)
class RobustGroupMean:
    """A fold as `GroupMeans`, with the coordinate-wise trimmed mean or median of each group.

    What is in the middle is known only when everybody is there, so the models of the whole cohort are
    held until the end: cohort x model numbers, where sums would take groups x model.

    >>> ones = lambda chunk: torch.ones(3).long()
    >>> fold = RobustGroupMean({"w": torch.zeros(2, 1)}, "uniform", ones, median)
    >>> replies = {c: (1, {"model": {"w": torch.tensor([v])}}) for c, v in zip("abc", (2.0, 3.0, 99.0))}
    >>> fold.end(fold.add(fold.begin(), Stack.of(replies)))[0]
    {'w': tensor([[0.],
            [3.]])}
    """

    keep: Tree  # the models of the groups as they are, [K, ...]
    weights: Weights
    group: GroupOf
    centre: CentreOf

    def begin(self) -> tuple[tuple[Stack, Tensor], ...]:
        """Nobody yet."""
        return ()

    def add(self, total: Any, chunk: Stack) -> Any:
        """Hold the models of a chunk, and who belongs where."""
        models = Stack(chunk.clients, chunk.size, {"model": chunk.tree("model")})
        return *total, (models, self.group(chunk).cpu())

    def end(self, total: Any) -> tuple[Tree, dict[Client, int], Tensor]:
        """(models of the groups, group of each client that replied, total weight of each group)."""
        mass = torch.zeros(len(next(iter(self.keep.values()))), dtype=torch.float64)
        if not total:
            return self.keep, {}, mass
        who = [c for chunk, _ in total for c in chunk.clients]
        # By name: the order of chunks is the engine's, and among equals the first counts.
        order = torch.tensor(sorted(range(len(who)), key=who.__getitem__))
        group = torch.cat([g for _, g in total])[order]
        weights = torch.cat([client_weights(chunk, self.weights) for chunk, _ in total])[order]
        shares = weights if self.weights == "size" else None
        models = {}
        for name, old in self.keep.items():  # leaf by leaf: all models are never there twice
            leaf = torch.cat([chunk.tree("model")[name] for chunk, _ in total])[order.to(old.device)]
            models[name] = leaf_centres(leaf, group, old, self.centre, shares)
        member = {who[i]: g for i, g in zip(order.tolist(), group.tolist(), strict=True)}
        return models, member, mass.index_add(0, group, weights)


def leaf_centres(
    leaf: Tensor, group: Tensor, keep: Tensor, centre: CentreOf, weights: Tensor | None = None
) -> Tensor:
    """One leaf of the models of all groups, [K, ...], from that of all members, [members, ...].

    A group of nobody, or of members without weight, keeps what it has. Buffers are treated like
    parameters; integer entries are not averaged: the largest is taken.

    >>> leaf, group = torch.tensor([[1.0], [2.0], [9.0], [7.0]]), torch.tensor([0, 0, 0, 2])
    >>> leaf_centres(leaf, group, torch.zeros(3, 1), median).T
    tensor([[2., 0., 7.]])
    """

    def one(g: int) -> Tensor:
        here = torch.nonzero(group == g).flatten()
        mine, shares = leaf[here.to(leaf.device)], None if weights is None else weights[here]
        if not len(mine) or (shares is not None and not bool(shares.any())):
            return keep[g]
        if not mine.is_floating_point():
            return mine.amax(0)
        return centre(mine.double(), shares).to(keep.dtype)

    return torch.stack([one(g) for g in range(len(keep))])
