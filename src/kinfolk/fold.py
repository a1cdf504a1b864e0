"""Folds: server-side reducers over chunks of replies, so that a round never holds every model at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

from kinfolk.types import Client, Message, Stack, Tree

R_co = TypeVar("R_co", covariant=True)

# Numbers that are summed as doubles at a time: on a CPU, what a core's cache holds.
_BLOCK = {"cpu": 1 << 16, "cuda": 1 << 26}

Weights = Literal["size", "uniform"]


class Fold(Protocol[R_co]):
    """Any reducer: `end(add(add(begin(), chunk), chunk))`. Chunks arrive checked; there may be none."""

    def begin(self) -> Any:
        """The total before the first chunk."""
        ...

    def add(self, total: Any, chunk: Stack) -> Any:
        """The total with one more chunk of replies."""
        ...

    def end(self, total: Any) -> R_co:
        """What the script receives."""
        ...


@runtime_checkable
class Mergeable(Protocol):
    """A fold that several processes can do a part of: its totals are messages and can be joined."""

    def spec(self) -> dict[str, str]:
        """What another process must know to begin and add: see `from_spec`."""
        ...

    def begin(self) -> Message:
        """The total before the first chunk."""
        ...

    def add(self, total: Message, chunk: Stack) -> Message:
        """The total with one more chunk of replies."""
        ...

    def merge(self, total: Message, other: Message) -> Message:
        """One total out of two."""
        ...

    def end(self, total: Message) -> Any:
        """What the script receives."""
        ...


@runtime_checkable
class MeansOfGroups(Protocol):
    """A fold that of models needs no more than their weighted means by groups: secure sums can serve it."""

    @property
    def key(self) -> str:
        """Under which key of a reply the models are."""
        ...

    @property
    def weights(self) -> Weights:
        """How much each client counts."""
        ...

    def groups_of(self, chunk: Stack) -> Tensor:
        """The group of each reply, [replies] int64, from replies without their models."""
        ...

    def of_means(
        self, means: Mapping[int, Tree], mass: Mapping[int, float], member: dict[Client, int]
    ) -> Any:
        """What the script receives, from the means and weights of those groups that have a mean."""
        ...


def client_weights(chunk: Stack, weights: Weights) -> Tensor:
    """One float64 weight per reply: its training rows, or one."""
    return chunk.size.double() if weights == "size" else torch.ones(len(chunk), dtype=torch.float64)


@dataclass(frozen=True)
class Mean:
    """The weighted mean of one tree of the replies.

    Sums run in float64. Buffers are averaged like parameters; integer entries (BatchNorm's counter
    of batches) are not averaged: the largest is taken. If nobody answers, `keep` stands.

    >>> from kinfolk.types import Client
    >>> def reply(v): return {"model": {"w": torch.tensor([v])}}
    >>> chunk = Stack.of({Client("a"): (1, reply(0.0)), Client("b"): (3, reply(4.0))})
    >>> fold = Mean("model", keep={"w": torch.zeros(1)})
    >>> fold.end(fold.add(fold.begin(), chunk))
    {'w': tensor([3.])}
    """

    key: str
    keep: Tree
    weights: Weights = "size"

    def groups_of(self, chunk: Stack) -> Tensor:
        """All in one."""
        return torch.zeros(len(chunk), dtype=torch.int64)

    def of_means(
        self, means: Mapping[int, Tree], mass: Mapping[int, float], member: dict[Client, int]
    ) -> Tree:
        """The mean, in the types of `keep`; without one, `keep`."""
        return {name: means[0][name].to(old) for name, old in self.keep.items()} if means else self.keep

    def spec(self) -> dict[str, str]:
        """All that a part of the sum depends on; `keep` matters at the end only."""
        return {"fold": "mean", "key": self.key, "weights": self.weights}

    def begin(self) -> Message:
        """Nothing summed yet."""
        return {"weight": torch.zeros((), dtype=torch.float64), "sums": {}}

    def add(self, total: Message, chunk: Stack) -> Message:
        """Add the weighted sum of a chunk."""
        weights = client_weights(chunk, self.weights)
        sums = {name: _sum(weights, leaf) for name, leaf in chunk.tree(self.key).items()}
        return self.merge(total, {"weight": weights.sum(), "sums": sums})

    def merge(self, total: Message, other: Message) -> Message:
        """Add two sums."""
        old: Tree = total["sums"]
        sums = {name: _join(old.get(name), leaf) for name, leaf in other["sums"].items()}
        return {"weight": total["weight"] + other["weight"], "sums": {**old, **sums}}

    def end(self, total: Message) -> Tree:
        """Sums over weights, in the types of `keep`."""
        weight, sums = float(total["weight"]), total["sums"]
        if weight == 0:
            return self.keep
        return {
            name: (sums[name] / weight if old.is_floating_point() else sums[name]).to(old.dtype)
            for name, old in self.keep.items()
        }


def _sum(weights: Tensor, leaf: Tensor) -> Tensor:
    """Weighted sum over clients for floats, the largest for integers."""
    return weighted_sum(weights, leaf) if leaf.is_floating_point() else leaf.amax(0)


def weighted_sum(weights: Tensor, leaf: Tensor) -> Tensor:
    """Sums over the leading axis of `leaf` in float64, by weights [clients] or several sets of them.

    >>> weighted_sum(torch.tensor([[1.0, 0.0], [1.0, 2.0]], dtype=torch.float64), torch.tensor([3.0, 4.0]))
    tensor([ 3., 11.], dtype=torch.float64)
    """
    rows = weights.to(leaf.device).reshape(-1, len(leaf))
    flat = leaf.reshape(len(leaf), -1)
    sums = flat.new_empty((len(rows), flat.shape[1]), dtype=torch.float64)
    # In blocks of columns, so that the doubles of a chunk never exist all at once; all in one place, which
    # stays near the core.
    width = max(1, _BLOCK.get(leaf.device.type, 1 << 26) // len(leaf))
    place = flat.new_empty(len(leaf) * min(width, flat.shape[1]), dtype=torch.float64)
    for part, into in zip(torch.split(flat, width, 1), torch.split(sums, width, 1), strict=True):
        doubles = place[: part.numel()].view(part.shape)
        torch.mm(rows, doubles.copy_(part), out=into)
    return sums.reshape((*weights.shape[:-1], *leaf.shape[1:]))


def _join(old: Tensor | None, new: Tensor) -> Tensor:
    if old is None:
        return new
    return old + new if new.is_floating_point() else torch.maximum(old, new)


def from_spec(words: dict[str, str]) -> Mergeable:
    """A fold that begins and adds as the one whose `words` these are; only that one can end.

    >>> from_spec(Mean("model", keep={"w": torch.zeros(1)}).spec())
    Mean(key='model', keep={}, weights='size')
    """
    if words["fold"] != "mean":
        raise KeyError(f"no fold is called {words['fold']}")
    return Mean(words["key"], {}, cast(Weights, words["weights"]))
