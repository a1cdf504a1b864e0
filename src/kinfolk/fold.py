"""Folds: server-side reducers over chunks of replies, so that a round never holds every model at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from kinfolk.types import Stack, Tree

R_co = TypeVar("R_co", covariant=True)

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

    def begin(self) -> tuple[float, Tree]:
        """Nothing summed yet."""
        return 0.0, {}

    def add(self, total: tuple[float, Tree], chunk: Stack) -> tuple[float, Tree]:
        """Add the weighted sum of a chunk."""
        weight, sums = total
        weights = client_weights(chunk, self.weights)
        return weight + float(weights.sum()), {
            name: _join(sums.get(name), _sum(weights, leaf)) for name, leaf in chunk.tree(self.key).items()
        }

    def end(self, total: tuple[float, Tree]) -> Tree:
        """Sums over weights, in the types of `keep`."""
        weight, sums = total
        if weight == 0:
            return self.keep
        return {
            name: (sums[name] / weight if old.is_floating_point() else sums[name]).to(old.dtype)
            for name, old in self.keep.items()
        }


def _sum(weights: Tensor, leaf: Tensor) -> Tensor:
    """Weighted sum over clients for floats, the largest for integers."""
    if not leaf.is_floating_point():
        return leaf.amax(0)
    total: Tensor = torch.tensordot(weights.to(leaf.device), leaf.double(), dims=1)
    return total


def _join(old: Tensor | None, new: Tensor) -> Tensor:
    if old is None:
        return new
    return old + new if new.is_floating_point() else torch.maximum(old, new)
