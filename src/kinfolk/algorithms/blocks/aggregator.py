"""The models of groups as trimmed means or medians of their members', which a few attackers can not move far.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates. ICML 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from kinfolk.algorithms.blocks.many_models import GroupMeans
from kinfolk.clustering.trimmed import median, trimmed_mean
from kinfolk.errors import KinfolkError
from kinfolk.fold import Weights, client_weights
from kinfolk.types import Client, Stack, Tree

# What stands for the members of a group.
Centre = Literal["mean", "trimmed", "median"]

# (models of a group [members, ...], their weights or None) -> one model
Middle = Callable[[Tensor, Tensor | None], Tensor]


def check_trim(field: str, value: float) -> None:
    """Refuse a share that leaves nobody in the middle.

    >>> check_trim("algorithm.trim", 0.5)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.trim = 0.5: give 0 or more and less than 0.5
    """
    if not 0 <= value < 0.5:
        raise KinfolkError(field, value, "give 0 or more and less than 0.5")


def group_fold(
    mean: Centre, trim: float, key: str, keep: Tree, weights: Weights, group: Any
) -> GroupMeans | GroupMiddles:
    """The fold for the models of groups: "mean" sums as replies come, the others hold all of them.

    >>> group_fold("mean", 0.1, "model", {}, "size", None) == GroupMeans("model", {}, "size", None)
    True
    """
    if mean == "mean":
        return GroupMeans(key, keep, weights, group)
    return GroupMiddles(key, keep, weights, group, mean, trim)


@dataclass(frozen=True)
class GroupMiddles:
    """A fold as `GroupMeans`, with the coordinate-wise trimmed mean or median of each group.

    What is in the middle is known only when everybody is there, so the models of the whole cohort are
    held until the end: cohort x model numbers, where sums would take groups x model.

    >>> fold = GroupMiddles("model", {"w": torch.zeros(2, 1)}, "uniform", lambda chunk: torch.ones(3).long())
    >>> replies = {c: (1, {"model": {"w": torch.tensor([v])}}) for c, v in zip("abc", (2.0, 3.0, 99.0))}
    >>> fold.end(fold.add(fold.begin(), Stack.of(replies)))[0]
    {'w': tensor([[0.],
            [3.]])}
    """

    key: str
    keep: Tree  # the models of the groups as they are, [K, ...]
    weights: Weights
    group: Any  # (chunk) -> [replies] int64
    mean: Literal["trimmed", "median"] = "median"
    trim: float = 0.1  # share of a group's members cut off each side of a trimmed mean

    def begin(self) -> tuple[tuple[Stack, Tensor], ...]:
        """Nobody yet."""
        return ()

    def add(self, total: Any, chunk: Stack) -> Any:
        """Hold the models of a chunk, and who belongs where."""
        models = Stack(chunk.clients, chunk.size, {self.key: chunk.tree(self.key)})
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
            leaf = torch.cat([chunk.tree(self.key)[name] for chunk, _ in total])[order.to(old.device)]
            models[name] = leaf_middles(leaf, group, old, self.middle, shares)
        member = {who[i]: g for i, g in zip(order.tolist(), group.tolist(), strict=True)}
        return models, member, mass.index_add(0, group, weights)

    def middle(self, mine: Tensor, weights: Tensor | None) -> Tensor:
        """One model for the members of a group."""
        return median(mine, weights) if self.mean == "median" else trimmed_mean(mine, self.trim, weights)


def leaf_middles(
    leaf: Tensor, group: Tensor, keep: Tensor, middle: Middle, weights: Tensor | None = None
) -> Tensor:
    """One leaf of the models of all groups, [K, ...], from that of all members, [members, ...].

    A group of nobody, or of members without weight, keeps what it has. Buffers are treated like
    parameters; integer entries are not averaged: the largest is taken.

    >>> leaf, group = torch.tensor([[1.0], [2.0], [9.0], [7.0]]), torch.tensor([0, 0, 0, 2])
    >>> leaf_middles(leaf, group, torch.zeros(3, 1), median).T
    tensor([[2., 0., 7.]])
    """

    def one(g: int) -> Tensor:
        here = torch.nonzero(group == g).flatten()
        mine, shares = leaf[here.to(leaf.device)], None if weights is None else weights[here]
        if not len(mine) or (shares is not None and not bool(shares.any())):
            return keep[g]
        if not mine.is_floating_point():
            return mine.amax(0)
        return middle(mine.double(), shares).to(keep.dtype)

    return torch.stack([one(g) for g in range(len(keep))])
