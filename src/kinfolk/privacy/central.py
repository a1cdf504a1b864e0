"""A trusted server's means: of updates that are clipped, over a fixed number of clients, with noise.

McMahan, Ramage, Talwar, Zhang: Learning differentially private recurrent language models. ICLR 2018: the sum
of clipped updates over the number of clients that were asked, whoever answers. All clients count alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.algorithms.blocks.many_models import GroupOf
from kinfolk.fold import Fold, Weights
from kinfolk.privacy.gaussian import clipped, noised
from kinfolk.types import Client, Stack, Tree

# A client's place in the count of its group, over the longest update: the noise of models grows by 5 %.
COUNT = 1 / 3


@dataclass(frozen=True)
class Noise:
    """How long an update may be, and the noise over what one client can change of all that is released."""

    clip: float
    multiplier: float
    cohort: int  # clients that a round asks


@dataclass(frozen=True)
class NoisyMean:
    """A fold as `Mean`: w + (sum of clipped w_i - w, plus noise) / cohort.

    Without one client the sum differs by `clip` at most.

    >>> fold = NoisyMean("model", {"w": torch.zeros(1)}, Noise(clip=1.0, multiplier=0.0, cohort=4))
    >>> replies = {Client(c): (1, {"model": {"w": torch.tensor([v])}}) for c, v in (("a", 9.0), ("b", 0.5))}
    >>> fold.end(fold.add(fold.begin(), Stack.of(replies)))
    {'w': tensor([0.3750])}
    """

    key: str
    keep: Tree
    noise: Noise

    def begin(self) -> Tree:
        """Nobody yet."""
        return {n: torch.zeros_like(t, dtype=torch.float64) for n, t in self.keep.items()}

    def add(self, total: Tree, chunk: Stack) -> Tree:
        """Add the clipped updates of a chunk."""
        tree = chunk.tree(self.key)
        updates = clipped({n: tree[n].double() - t.double() for n, t in self.keep.items()}, self.noise.clip)
        return {n: t + updates[n].sum(0) for n, t in total.items()}

    def end(self, total: Tree) -> Tree:
        """The model moved by the mean of all who were asked, and by noise."""
        moved = noised(total, self.noise.multiplier * self.noise.clip)
        return {n: (t.double() + moved[n] / self.noise.cohort).to(t.dtype) for n, t in self.keep.items()}


@dataclass(frozen=True)
class NoisyGroupMeans:
    """A fold as `GroupMeans`, by updates from what each group has and by counts of members, both with noise.

    A client adds its update to one group and COUNT x clip to that group's count, so that without it all sums
    together differ by clip x sqrt(1 + COUNT^2). Counts are held between half an even share and the cohort.

    >>> noise = Noise(clip=1.0, multiplier=0.0, cohort=4)
    >>> fold = NoisyGroupMeans({"w": torch.zeros(2, 1)}, lambda chunk: torch.tensor([1, 1]), noise)
    >>> replies = {Client(c): (1, {"model": {"w": torch.tensor([v])}}) for c, v in (("a", 9.0), ("b", 0.5))}
    >>> fold.end(fold.add(fold.begin(), Stack.of(replies)))[0]
    {'w': tensor([[0.0000],
            [0.7500]])}
    """

    keep: Tree  # the models of the groups as they are, [K, ...]
    group: GroupOf
    noise: Noise

    def begin(self) -> tuple[Tree, Tensor, dict[Client, int]]:
        """Nobody yet."""
        k = len(next(iter(self.keep.values())))
        sums = {n: torch.zeros_like(t, dtype=torch.float64) for n, t in self.keep.items()}
        return sums, torch.zeros(k, dtype=torch.float64), {}

    def add(self, total: Any, chunk: Stack) -> Any:
        """Add a chunk, each update to the sum of its group."""
        sums, counts, member = total
        group, tree = self.group(chunk).cpu(), chunk.tree("model")
        own = {n: t.double()[group.to(t.device)] for n, t in self.keep.items()}
        updates = clipped({n: tree[n].double() - t for n, t in own.items()}, self.noise.clip)
        sums = {n: t.index_add(0, group.to(t.device), updates[n]) for n, t in sums.items()}
        counts = counts + group.bincount(minlength=len(counts))
        return sums, counts, member | dict(zip(chunk.clients, group.tolist(), strict=True))

    def end(self, total: Any) -> tuple[Tree, dict[Client, int], Tensor]:
        """(models of the groups, group of each client that replied, count of each group with its noise)."""
        sums, counts, member = total
        std = self.noise.multiplier * self.noise.clip * math.sqrt(1 + COUNT**2)
        counts = noised({"": counts}, std / (COUNT * self.noise.clip))[""]
        counts = counts.clamp(self.noise.cohort / (2 * len(counts)), self.noise.cohort)
        moved, models = noised(sums, std), {}
        for n, old in self.keep.items():
            over = counts.to(old.device).reshape(-1, *[1] * (old.dim() - 1))
            models[n] = (old.double() + moved[n] / over).to(old.dtype)
        return models, member, counts


@dataclass(frozen=True)
class NoisyAggregator(Aggregator):
    """In place of a method's `aggregate`: every mean that it takes of clients' models has noise.

    >>> NoisyAggregator(noise=Noise(1.0, 2.0, 4)).tree_fold("model", {}, "uniform")
    NoisyMean(key='model', keep={}, noise=Noise(clip=1.0, multiplier=2.0, cohort=4))
    """

    noise: Noise = field(kw_only=True)

    def tree_fold(self, key: str, keep: Tree, weights: Weights) -> Fold[Tree]:
        """The fold of one tree of everybody's replies; all count alike, whatever the weights."""
        return NoisyMean(key, keep, self.noise)

    def fold(self, keep: Tree, group: GroupOf) -> Any:
        """The fold of replies with a "model" into the models of their groups."""
        return NoisyGroupMeans(keep, group, self.noise)
