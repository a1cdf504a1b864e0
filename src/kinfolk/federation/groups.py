"""Known groups: what one group sees differently from another, in training and in tests alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.federation.pool import Pool


@dataclass(frozen=True)
class Shift:
    """A way to set groups apart: `see(x, y, g)` are the rows and labels as group `g` sees them."""

    line: str  # what it does, in one line
    see: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
    most: int | None = None  # largest number of groups that differ; None: no limit


def alike(x: Tensor, y: Tensor, g: int) -> tuple[Tensor, Tensor]:
    """Every group sees the same.

    >>> alike(torch.zeros(1, 2), torch.tensor([3]), 1)[1]
    tensor([3])
    """
    return x, y


def rotation(x: Tensor, y: Tensor, g: int) -> tuple[Tensor, Tensor]:
    """Group `g` sees images [rows, channels, side, side] after `g` quarter turns, anticlockwise and exact.

    >>> rotation(torch.tensor([[[[1, 2], [3, 4]]]]), torch.tensor([0]), 1)[0]
    tensor([[[[2, 4],
              [1, 3]]]])
    """
    if x.dim() != 4 or x.shape[-1] != x.shape[-2]:
        remedy = f"only square images [rows, channels, side, side] can turn, not {list(x.shape)}; use 'none'"
        raise KinfolkError("data.shift", "rotation", remedy)
    return torch.rot90(x, g, dims=(-2, -1)), y


GROUPS: dict[str, Shift] = {
    "none": Shift("all clients are one group", alike, most=1),
    "rotation": Shift("group g sees images after g quarter turns", rotation, most=4),
}


def shifted(pool: Pool, shift: str, count: int) -> list[Pool]:
    """The pool as each of `count` groups sees it; training and test rows keep their places.

    >>> from kinfolk.federation.digits import digits
    >>> a, b = shifted(digits(), "rotation", 2)
    >>> torch.equal(torch.rot90(b.x, -1, (-2, -1)), a.x)
    True
    """
    seen = (GROUPS[shift].see(pool.x, pool.y, g) for g in range(count))
    return [replace(pool, x=x, y=y) for x, y in seen]
