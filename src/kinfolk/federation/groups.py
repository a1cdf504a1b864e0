"""Known groups: what one group sees differently from another, in training and in tests alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.federation.pool import Pool
from kinfolk.federation.shifts import (
    COLOURS,
    PAIRS,
    How,
    colour,
    contrast,
    label_permutation,
    label_swap,
    noise,
)

# (rows, labels, number of the group, what else matters) -> rows and labels as this group sees them.
# The last may be left out.
See = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Shift:
    """A way to set groups apart: `see(x, y, g)` are the rows and labels as group `g` sees them."""

    line: str  # what it does, in one line
    see: See
    most: int | None = None  # largest number of groups that differ; None: no limit


def alike(x: Tensor, y: Tensor, g: int, how: How | None = None) -> tuple[Tensor, Tensor]:
    """Every group sees the same.

    >>> alike(torch.zeros(1, 2), torch.tensor([3]), 1)[1]
    tensor([3])
    """
    return x, y


def rotation(x: Tensor, y: Tensor, g: int, how: How | None = None) -> tuple[Tensor, Tensor]:
    """Group `g` sees images [rows, channels, side, side] after `g` quarter turns, anticlockwise and exact.

    >>> rotation(torch.tensor([[[[1, 2], [3, 4]]]]), torch.tensor([0]), 1)[0]
    tensor([[[[2, 4],
              [1, 3]]]])
    """
    if x.dim() != 4 or x.shape[-1] != x.shape[-2]:
        remedy = f"only square images [rows, channels, side, side] can turn, not {list(x.shape)}; use 'none'"
        raise KinfolkError("data.shift", "rotation", remedy)
    return torch.rot90(x, g, dims=(-2, -1)), y


def rotation_swap(x: Tensor, y: Tensor, g: int, how: How | None = None) -> tuple[Tensor, Tensor]:
    """Group `g` sees images after `g` quarter turns and has pair `g` of the classes the other way round.

    >>> rotation_swap(torch.zeros(2, 1, 3, 3), torch.tensor([1, 2]), 0)[1]
    tensor([2, 1])
    """
    turned, _ = rotation(x, y, g)
    return turned, label_swap(x, y, g, how or How())[1]


def source(x: Tensor, y: Tensor, g: int, how: How | None = None) -> tuple[Tensor, Tensor]:
    """Refused: only a source that makes the groups itself can set them apart so.

    >>> source(torch.zeros(1, 2), torch.tensor([3]), 1)
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.shift = 'source': these rows come from one source; use another shift
    """
    raise KinfolkError("data.shift", "source", "these rows come from one source; use another shift")


GROUPS: dict[str, Shift] = {
    "none": Shift("all clients are one group", alike, most=1),
    "rotation": Shift("group g sees images after g quarter turns", rotation, most=4),
    "label_swap": Shift("group g has two classes the other way round", label_swap, most=len(PAIRS)),
    "rotation_swap": Shift("rotation and label_swap together", rotation_swap, most=4),
    "label_permutation": Shift("each group calls the classes by an order of its own", label_permutation),
    "colour": Shift("each group sees the three colours in another order", colour, most=len(COLOURS)),
    "contrast": Shift("group g sees images with less contrast, by g steps", contrast, most=8),
    "noise": Shift("group g sees g times as much Gaussian noise", noise),
    "source": Shift("the source makes the groups itself", source),
}


def shifted(pool: Pool, shift: str, count: int, how: How | None = None) -> list[Pool]:
    """The pool as each of `count` groups sees it; training and test rows keep their places.

    All lie end to end in one tensor, group by group: the pool of a federation, without another copy.

    >>> from kinfolk.federation.digits import digits
    >>> a, b = shifted(digits(), "rotation", 2)
    >>> torch.equal(torch.rot90(b.x, -1, (-2, -1)), a.x)
    True
    """
    if count == 1 and shift == "none":
        return [pool]
    n = len(pool.x)
    whole = torch.empty((count * n, *pool.x.shape[1:]), dtype=pool.x.dtype)
    pools = []
    for g in range(count):
        x, y = GROUPS[shift].see(pool.x, pool.y, g, how or How(pool.classes))
        whole[g * n : (g + 1) * n] = x
        pools.append(replace(pool, x=whole[g * n : (g + 1) * n], y=y))
    return pools


def end_to_end(parts: list[Tensor]) -> Tensor:
    """The parts as one tensor: without a copy where they already lie so in memory.

    >>> whole = torch.arange(6)
    >>> end_to_end([whole[:2], whole[2:]]).data_ptr() == whole.data_ptr()
    True
    """
    first, place = parts[0], parts[0].storage_offset()
    for part in parts:
        apart = part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
        if apart or part.storage_offset() != place or not part.is_contiguous():
            return torch.cat(parts)
        place += part.numel()
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())
