"""Short sketches of models that keep squared distances, without ever holding a projection matrix.

A sparse sign embedding: each coordinate is added, with random signs, to `signs` of the `width` numbers
(Kane, Nelson: Sparser Johnson-Lindenstrauss Transforms. J. ACM 61(1), 2014).

The width falls into `signs` blocks. For each block and leaf, coordinates are cut into runs as long as a
block, and every run is spread over the block by a permutation of its own: coordinates of one run never
meet, those of different runs meet with chance 1 / block. The squared length of a sketch is therefore
unbiased with a relative variance of at most 2 / width, as for a Gaussian projection. All that is stored
is a permutation and a sign for each coordinate and block; applying it is a gather and a sum, so the same
bits come out every time, on a GPU too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log, prod

import numpy as np
import torch
from torch import Tensor

from kinfolk.errors import KinfolkError, near
from kinfolk.streams import Seed
from kinfolk.types import Tree

# Numbers gathered at once.
BLOCK = 1 << 23


def width_for(points: int, error: float, signs: int = 4) -> int:
    """A width that keeps all squared distances among `points` within a factor of 1 +- `error`.

    The bound of Dasgupta and Gupta (2003) for Gaussian projections, 4 ln N / (e^2 / 2 - e^3 / 3), rounded
    up to a multiple of `signs`. Sparse signs follow it closely where no coordinate dominates a vector.

    >>> width_for(3550, 0.25), width_for(100, 0.2)
    (1256, 1064)
    """
    if not 0 < error < 1:
        raise KinfolkError("error", error, "give a number between 0 and 1")
    if points < 2:
        raise KinfolkError("points", points, "distances need two points or more")
    least = 4 * log(points) / (error**2 / 2 - error**3 / 3)
    return signs * ceil(least / signs)


@dataclass(frozen=True)
class Sketch:
    """A fixed random linear map from models to `width` numbers; made by `Sketch.of`."""

    width: int
    signs: int
    places: Mapping[str, Tensor]  # by leaf, int16 [signs, runs * block]: who goes to each place of its run
    flips: Mapping[str, Tensor]  # by leaf, int8, as long: 1 or -1

    @staticmethod
    def of(shapes: Mapping[str, Sequence[int]], width: int, seed: Seed, signs: int = 4) -> Sketch:
        """The sketch of leaves of these shapes (of one model). Each leaf has a stream of its own.

        >>> s = Sketch.of({"w": (2, 3)}, 8, Seed(0))
        >>> s.apply({"w": torch.ones(5, 2, 3)}).shape
        torch.Size([5, 8])
        """
        block = width // max(signs, 1)
        if signs < 1 or width < signs or width % signs or block > np.iinfo(np.int16).max:
            raise KinfolkError("width", width, f"give a multiple of signs = {signs}, below 32768 times it")
        if not shapes:
            raise KinfolkError("shapes", None, "name at least one floating-point leaf")
        places, flips = {}, {}
        for name, shape in shapes.items():
            runs = ceil(prod(shape) / block)
            draw = seed.numpy("sketch", name, width, signs)
            row = np.arange(block, dtype=np.int16)
            order = draw.permuted(np.tile(row, (signs * runs, 1)), axis=1)
            places[name] = torch.from_numpy(order.reshape(signs, runs * block))
            coins = draw.integers(0, 2, order.size, dtype=np.int8) * 2 - 1
            flips[name] = torch.from_numpy(coins.reshape(signs, runs * block))
        return Sketch(width, signs, places, flips)

    def apply(self, stack: Tree) -> Tensor:
        """The sketches [n, width] of a stack of models (every leaf [n, ...]), in the leaves' type."""
        for name in self.places:
            if name not in stack:
                raise KinfolkError("stack", name, f"the sketch needs this leaf; {near(name, stack)}")
        first = stack[next(iter(self.places))]
        total = torch.zeros(self.signs, len(first), self.width // self.signs, dtype=torch.float64,
                            device=first.device)  # fmt: skip
        for name in self.places:
            self._add(total, name, stack[name].reshape(len(first), -1))
        joined: Tensor = total.movedim(0, 1).reshape(len(first), self.width)
        return joined.div(self.signs**0.5).to(first.dtype)

    def _add(self, total: Tensor, name: str, leaf: Tensor) -> None:
        """Add one leaf [n, P] to the sums [signs, n, block], some runs at a time."""
        signs, number, block = total.shape
        length = self.places[name].shape[1]
        if not length - block < leaf.shape[1] <= length:
            raise KinfolkError(
                f"stack.{name}", tuple(leaf.shape), "another size than the sketch was made for"
            )
        step = block * max(1, BLOCK // (block * max(number, 1)))
        run = torch.arange(length, device=leaf.device) // block * block
        for begin in range(0, length, step):
            part = leaf[:, begin : begin + step]
            end = min(begin + step, length)
            part = torch.nn.functional.pad(part, (0, end - begin - part.shape[1]))
            for i in range(signs):
                place = self.places[name][i, begin:end].to(leaf.device).long() + run[begin:end] - begin
                flip = self.flips[name][i, begin:end].to(leaf)
                total[i] += (part[:, place] * flip).reshape(number, -1, block).sum(1)
