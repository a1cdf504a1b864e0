"""How the models of a group's members become one: their mean, or what a few attackers cannot move far.

Coordinate by coordinate: `clustering.trimmed`. By whole models: `clustering.vector_centres`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from kinfolk.algorithms.blocks.many_models import GroupMeans, GroupOf
from kinfolk.algorithms.blocks.one_body import OneBody, Share, check_head, one_body
from kinfolk.clustering.trimmed import median, trimmed_mean
from kinfolk.clustering.vector_centres import clipped, geometric_median, krum, krum_needs
from kinfolk.errors import KinfolkError, at_least
from kinfolk.fold import Fold, Mean, Weights, client_weights, weighted_sum
from kinfolk.types import Client, Stack, Tree

# (models of a group [members, ...], their weights or None) -> one model
CentreOf = Callable[[Tensor, Tensor | None], Tensor]

# What stands for the members of a group.
Centre = Literal["mean", "trimmed", "median", "geometric", "krum", "clipped"]


@dataclass(frozen=True)
class RobustMean:
    """Options `[algorithm.aggregate]`: what stands for the models of a group's members.

    >>> RobustMean("krum", attackers=2).least
    7
    """

    # "mean" sums as replies come; all others hold the models of the cohort. "trimmed" and "median" go by
    # coordinates; "geometric" (median), "krum" and "clipped" (updates, to a median length) by whole models.
    name: Centre = "mean"
    trim: float = 0.1  # share of a group's members that "trimmed" cuts off each side
    attackers: int = field(default=1, kw_only=True)  # f of "krum", which needs 2 f + 3 members in a group
    chosen: int = field(default=1, kw_only=True)  # members whose mean "krum" takes: more than 1 is multi-Krum
    clip: float = field(default=1.0, kw_only=True)  # "clipped": length of an update in medians of the group's

    def __post_init__(self) -> None:
        check_trim("algorithm.aggregate.trim", self.trim)
        at_least("algorithm.aggregate.attackers", self.attackers, 0)
        at_least("algorithm.aggregate.chosen", self.chosen, 1)
        if not self.clip > 0:
            raise KinfolkError("algorithm.aggregate.clip", self.clip, "give a number above 0")

    @property
    def centre(self) -> CentreOf | None:
        """What is taken in place of a mean, coordinate by coordinate; None if it is not taken so."""
        if self.name == "trimmed":
            return lambda models, weights: trimmed_mean(models, self.trim, weights)
        return median if self.name == "median" else None

    @property
    def least(self) -> int:
        """Members that a group must have; one with fewer keeps its model."""
        return krum_needs(self.attackers, self.chosen) if self.name == "krum" else 1

    def check_room(self, cohort: int, groups: int) -> None:
        """Refuse a rule that the groups of a round would have too few members for.

        >>> RobustMean("krum", attackers=2).check_room(24, 4)
        Traceback (most recent call last):
        kinfolk.errors.KinfolkError: algorithm.aggregate.attackers = 2: krum needs 7 members in a group, not 6
        """
        members = cohort // max(groups, 1)
        if self.least > 1 and members < self.least:
            which = "chosen" if self.least > 2 * self.attackers + 3 else "attackers"
            remedy = f"krum needs {self.least} members in a group, not {members}"
            raise KinfolkError(f"algorithm.aggregate.{which}", getattr(self, which), remedy)

    def tree_fold(self, key: str, keep: Tree, weights: Weights) -> Fold[Tree]:
        """The fold of one tree of everybody's replies into one; if nobody answers, `keep` stands.

        An update is what a reply adds to `keep`.

        >>> RobustMean().tree_fold("model", {}, "size")
        Mean(key='model', keep={}, weights='size')
        """
        return Mean(key, keep, weights) if self.name == "mean" else RobustTree(key, keep, weights, self)


@dataclass(frozen=True)
class Aggregator(RobustMean):
    """Options `[algorithm.aggregate]`: how the models of a group's members become the model of the group.

    >>> Aggregator("trimmed", trim=0.5)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.aggregate.trim = 0.5: give 0 or more and less than 0.5
    """

    weights: Weights = "uniform"  # of clients in their group: all alike, or by their rows
    # "body": groups have one body, all layers but the last, and their own last layer, which is called 'head'.
    share: Share = field(default="nothing", kw_only=True)

    def begun(self, centres: Tree) -> Tree:
        """The models that groups begin with, leaves [K, ...]: on the first one's body if they share it."""
        if self.share == "nothing":
            return centres
        first = torch.zeros(len(next(iter(centres.values()))), dtype=torch.float64)
        return one_body(centres, first.index_fill(0, torch.tensor([0]), 1.0))

    def check_layers(self, names: Collection[str]) -> None:
        """Refuse to share a body where there is nothing else."""
        if self.share == "body":
            check_head(names)

    def fold(self, keep: Tree, group: GroupOf) -> GroupMeans | RobustGroupMean | OneBody:
        """The fold of replies with a "model" into the models of their groups; empty groups keep theirs.

        What the script receives: (models [K, ...], group of each client that replied, weight of each group).

        >>> Aggregator().fold({}, len) == GroupMeans({}, "uniform", len)
        True
        """
        mean = self.name == "mean"
        by: GroupMeans | RobustGroupMean
        by = (
            GroupMeans(keep, self.weights, group)
            if mean
            else RobustGroupMean(keep, self.weights, group, self)
        )
        return OneBody(by) if self.share == "body" else by

    def of(self, got: Stack, keep: Tree, group: GroupOf) -> Tree:
        """The models of groups out of replies that are all there."""
        by = self.fold(keep, group)
        return by.end(by.add(by.begin(), got))[0]


@dataclass(frozen=True)
class RobustGroupMean:
    """A fold as `GroupMeans`, with something more robust than the mean of each group.

    What is in the middle is known only when everybody is there, so the models of the whole cohort are
    held until the end: cohort x model numbers, where sums would take groups x model.

    >>> ones = lambda chunk: torch.ones(3).long()
    >>> fold = RobustGroupMean({"w": torch.zeros(2, 1)}, "uniform", ones, RobustMean("median"))
    >>> replies = {c: (1, {"model": {"w": torch.tensor([v])}}) for c, v in zip("abc", (2.0, 3.0, 99.0))}
    >>> fold.end(fold.add(fold.begin(), Stack.of(replies)))[0]
    {'w': tensor([[0.],
            [3.]])}
    """

    keep: Tree  # the models of the groups as they are, [K, ...]
    weights: Weights
    group: GroupOf
    rule: RobustMean
    key: str = "model"

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

        def leaf(name: str) -> Tensor:  # leaf by leaf: all models are never there twice
            return torch.cat([chunk.tree(self.key)[name] for chunk, _ in total])[
                order.to(self.keep[name].device)
            ]

        models = centres(leaf, self.keep, group, self.rule, weights if self.weights == "size" else None)
        member = {who[i]: g for i, g in zip(order.tolist(), group.tolist(), strict=True)}
        return models, member, mass.index_add(0, group, weights)


@dataclass(frozen=True)
class RobustTree:
    """A fold as `Mean`, with something more robust than the mean.

    >>> fold = RobustTree("model", {"w": torch.zeros(1)}, "uniform", RobustMean("median"))
    >>> replies = {c: (1, {"model": {"w": torch.tensor([v])}}) for c, v in zip("abc", (2.0, 3.0, 99.0))}
    >>> fold.end(fold.add(fold.begin(), Stack.of(replies)))
    {'w': tensor([3.])}
    """

    key: str
    keep: Tree
    weights: Weights
    rule: RobustMean

    @property
    def _of_all(self) -> RobustGroupMean:
        one = {name: t[None] for name, t in self.keep.items()}
        everybody = lambda chunk: torch.zeros(len(chunk), dtype=torch.int64)  # noqa: E731
        return RobustGroupMean(one, self.weights, everybody, self.rule, self.key)

    def begin(self) -> Any:
        """Nobody yet."""
        return self._of_all.begin()

    def add(self, total: Any, chunk: Stack) -> Any:
        """Hold the trees of a chunk."""
        return self._of_all.add(total, chunk)

    def end(self, total: Any) -> Tree:
        """What stands for them; if nobody answered, what was there."""
        if not total:
            return self.keep
        return {name: t[0] for name, t in self._of_all.end(total)[0].items()}


def centres(
    leaf: Callable[[str], Tensor],
    keep: Tree,
    group: Tensor,
    rule: RobustMean,
    weights: Tensor | None = None,
) -> Tree:
    """The models of all groups, every leaf [K, ...], from those of all members, [members, ...] leaf by leaf.

    A group of nobody, of fewer members than the rule needs, or of members without weight, keeps what it has.
    Buffers are treated like parameters; integer entries are not averaged: the largest is taken.

    >>> models, group = {"w": torch.tensor([[1.0], [2.0], [9.0], [7.0]])}, torch.tensor([0, 0, 0, 2])
    >>> centres(models.get, {"w": torch.zeros(3, 1)}, group, RobustMean("median"))["w"].T
    tensor([[2., 0., 7.]])
    """
    here = {g: torch.nonzero(group == g).flatten() for g in range(len(next(iter(keep.values()))))}
    own = {g: None if weights is None else weights[at] for g, at in here.items()}
    large = [g for g, at in here.items() if len(at) >= rule.least]
    able = [g for g in large if own[g] is None or bool(own[g].any())]  # type: ignore[union-attr]
    if rule.centre is None:
        apart = _distances(leaf, keep, {g: here[g] for g in able}, to_keep=rule.name == "clipped")
        shares = {g: _shares(rule, apart[g], own[g]) for g in able}
    made = {}
    for name, old in keep.items():
        all_of_them, new = leaf(name), list(old)
        for g in able:
            mine = all_of_them[here[g].to(all_of_them.device)]
            if not mine.is_floating_point():
                new[g] = mine.amax(0)
            elif rule.centre is not None:
                new[g] = rule.centre(mine.double(), own[g]).to(old.dtype)
            else:
                rest = (1 - shares[g].sum()).to(old.device)
                new[g] = (weighted_sum(shares[g], mine) + rest * old[g]).to(old.dtype)
        made[name] = torch.stack(new)
    return made


def _shares(rule: RobustMean, apart: Tensor, weights: Tensor | None) -> Tensor:
    """The shares of a group's members in its model; of distances among them, or of the lengths of updates."""
    if rule.name == "geometric":
        return geometric_median(apart, weights)
    if rule.name == "krum":
        return krum(apart, rule.attackers, rule.chosen, weights)
    return clipped(apart.sqrt(), rule.clip, weights)


def _distances(
    leaf: Callable[[str], Tensor], keep: Tree, here: Mapping[int, Tensor], to_keep: bool
) -> dict[int, Tensor]:
    """Squared distances of each group's members, [n, n] among them, or [n] to what the group has."""
    sums = {
        g: torch.zeros((len(at),) if to_keep else (len(at),) * 2, dtype=torch.float64)
        for g, at in here.items()
    }
    for name, old in keep.items():
        if not old.is_floating_point():
            continue
        all_of_them = leaf(name)
        for g, at in here.items():
            # Around what the group has: of numbers that are large and alike, products lose the difference.
            mine = (all_of_them[at.to(all_of_them.device)].double() - old[g].double()).flatten(1)
            sums[g] += (mine.square().sum(1) if to_keep else mine @ mine.T).cpu()
    if to_keep:
        return sums
    return {g: _apart(products) for g, products in sums.items()}


def _apart(products: Tensor) -> Tensor:
    """|a - b|^2 from a . b of every two."""
    own = products.diagonal()
    return (own[:, None] + own - 2 * products).clamp(min=0).fill_diagonal_(0)


def check_trim(field: str, value: float) -> None:
    """Refuse a share that leaves nobody in the middle.

    >>> check_trim("algorithm.cluster_trim", 0.5)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.cluster_trim = 0.5: give 0 or more and less than 0.5
    """
    if not 0 <= value < 0.5:
        raise KinfolkError(field, value, "give 0 or more and less than 0.5")
