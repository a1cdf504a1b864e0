"""How known groups differ: what one group sees differently from another, in training and in tests alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.federation.pool import Pool
from kinfolk.streams import Seed

# Disjoint pairs, so that any two groups disagree on four classes.
PAIRS = ((1, 2), (3, 4), (5, 6), (7, 8))
# Group 0 sees colours as they are; the first three share no place with one another.
COLOURS = ((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1), (2, 1, 0), (1, 0, 2))
# Rows that become floats at a time, so that bytes stay small.
_CHUNK = 4096


@dataclass(frozen=True)
class How:
    """What a shift may depend on besides the number of the group."""

    classes: int = 10
    seed: Seed = Seed(0)  # noqa: RUF009 - a Seed never changes
    noise: float = 0.1
    contrast: float = 0.6


_USUAL = How()
# (rows, labels, number of the group, what else matters) -> rows and labels as this group sees them.
# The last may be left out.
See = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Shift:
    """A way to set groups apart: `see(x, y, g)` are the rows and labels as group `g` sees them."""

    see: See
    most: int | None = None  # largest number of groups that differ; None: no limit


def unchanged(x: Tensor, y: Tensor, g: int, how: How = _USUAL) -> tuple[Tensor, Tensor]:
    """Every group sees the same.

    >>> unchanged(torch.zeros(1, 2), torch.tensor([3]), 1)[1]
    tensor([3])
    """
    return x, y


def rotation(x: Tensor, y: Tensor, g: int, how: How = _USUAL) -> tuple[Tensor, Tensor]:
    """Group `g` sees images [rows, channels, side, side] after `g` quarter turns, anticlockwise and exact.

    >>> rotation(torch.tensor([[[[1, 2], [3, 4]]]]), torch.tensor([0]), 1)[0]
    tensor([[[[2, 4],
              [1, 3]]]])
    """
    if x.dim() != 4 or x.shape[-1] != x.shape[-2]:
        remedy = f"only square images [rows, channels, side, side] can turn, not {list(x.shape)}; use 'none'"
        raise KinfolkError("data.shift", "rotation", remedy)
    return torch.rot90(x, g, dims=(-2, -1)), y


def rotation_swap(x: Tensor, y: Tensor, g: int, how: How = _USUAL) -> tuple[Tensor, Tensor]:
    """Group `g` sees images after `g` quarter turns and has pair `g` of the classes the other way round.

    >>> rotation_swap(torch.zeros(2, 1, 3, 3), torch.tensor([1, 2]), 0)[1]
    tensor([2, 1])
    """
    turned, _ = rotation(x, y, g)
    return turned, label_swap(x, y, g, how)[1]


def label_swap(x: Tensor, y: Tensor, g: int, how: How = _USUAL) -> tuple[Tensor, Tensor]:
    """Group `g` has two classes the other way round: pair `g` of (1, 2), (3, 4), (5, 6), (7, 8).

    >>> label_swap(torch.zeros(4, 1), torch.tensor([1, 3, 4, 0]), 1)[1]
    tensor([1, 4, 3, 0])
    """
    a, b = PAIRS[g]
    if how.classes <= b:
        way = f"give at most {g} groups" if g else "use another shift"
        remedy = f"group {g} swaps classes {a} and {b}, the rows have {how.classes}; {way}"
        raise KinfolkError("data.shift", "label_swap", remedy)
    return x, torch.where(y == a, b, torch.where(y == b, a, y))


def label_permutation(x: Tensor, y: Tensor, g: int, how: How = _USUAL) -> tuple[Tensor, Tensor]:
    """Group `g` calls the classes by an order of its own, group 0 by the usual one.

    >>> label_permutation(torch.zeros(2, 1), torch.tensor([1, 0]), 0)[1]
    tensor([1, 0])
    """
    if g >= math.factorial(min(how.classes, 20)):
        orders = math.factorial(how.classes)
        remedy = f"{how.classes} classes have {orders} orders; give as many groups at most"
        raise KinfolkError("data.shift", "label_permutation", remedy)
    taken = [list(range(how.classes))]
    rng = how.seed.numpy("data", "permutation")
    while len(taken) <= g:
        order = rng.permutation(how.classes).tolist()
        taken += [order] if order not in taken else []
    return x, torch.tensor(taken[g])[y]


def colour(x: Tensor, y: Tensor, g: int, how: How = _USUAL) -> tuple[Tensor, Tensor]:
    """Group `g` sees the three colours of images [rows, 3, height, width] in another order.

    >>> colour(torch.arange(3).reshape(1, 3, 1, 1), torch.tensor([0]), 1)[0].flatten()
    tensor([1, 2, 0])
    """
    if x.dim() != 4 or x.shape[1] != 3:
        remedy = f"only images [rows, 3, height, width] have colours, not {list(x.shape)}; use 'contrast'"
        raise KinfolkError("data.shift", "colour", remedy)
    return x[:, list(COLOURS[g])], y


def contrast(x: Tensor, y: Tensor, g: int, how: How = _USUAL) -> tuple[Tensor, Tensor]:
    """Group `g` sees values nearer to the middle of their range, by a factor for every group.

    >>> contrast(torch.tensor([[0, 255]], dtype=torch.uint8), torch.tensor([0]), 1, How(contrast=0.6))[0]
    tensor([[ 51, 204]], dtype=torch.uint8)
    """
    low, high = _value_range(x)
    middle, factor = (low + high) / 2, how.contrast**g
    return (_by_chunks(x, lambda part: middle + (part - middle) * factor) if g else x), y


def noise(x: Tensor, y: Tensor, g: int, how: How = _USUAL) -> tuple[Tensor, Tensor]:
    """Group `g` sees Gaussian noise, `g` times as strong as group 1; a row's noise is always the same.

    >>> x = torch.full((2, 3), 128, dtype=torch.uint8)
    >>> torch.equal(noise(x, torch.zeros(2), 1)[0], x), torch.equal(noise(x, torch.zeros(2), 0)[0], x)
    (False, True)
    """
    low, high = _value_range(x)
    # One stream for each group, read row by row: what a row gets depends on its place alone.
    rng, strength = how.seed.numpy("data", "noise", g), g * how.noise * (high - low)

    def noisy(part: Tensor) -> Tensor:
        drawn = rng.standard_normal(tuple(part.shape), dtype=np.float32)
        return torch.from_numpy(drawn).mul_(strength).add_(part)

    return (_by_chunks(x, noisy) if g else x), y


def _value_range(x: Tensor) -> tuple[float, float]:
    """Smallest and largest value there may be: of bytes 0 and 255, of floats those that occur."""
    return (0.0, 255.0) if x.dtype == torch.uint8 else (float(x.min()), float(x.max()))


def _by_chunks(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """The rows changed as floats and stored as they were; bytes are rounded and kept in their range."""
    out = torch.empty_like(x)
    for start in range(0, len(x), _CHUNK):
        changed = change(x[start : start + _CHUNK].float())
        out[start : start + _CHUNK] = changed.round_().clamp_(0, 255) if x.dtype == torch.uint8 else changed
    return out


SHIFTS: dict[str, Shift] = {
    "none": Shift(unchanged, most=1),
    "rotation": Shift(rotation, most=4),
    "label_swap": Shift(label_swap, most=len(PAIRS)),
    "rotation_swap": Shift(rotation_swap, most=4),
    "label_permutation": Shift(label_permutation),
    "colour": Shift(colour, most=len(COLOURS)),
    "contrast": Shift(contrast, most=8),
    "noise": Shift(noise),
    "source": Shift(unchanged),  # the source makes the groups itself; `bounds` allows it for no other
}


def shifted(pool: Pool, shift: str, count: int, how: How | None = None) -> list[Pool]:
    """The pool as each of `count` groups sees it; training and test rows keep their places.

    All lie end to end in one tensor, group by group: the pool of a federation, without another copy.

    >>> pool = Pool(torch.rand(3, 1, 4, 4), torch.arange(3), np.arange(2), np.array([2]), classes=3)
    >>> a, b = shifted(pool, "rotation", 2)
    >>> torch.equal(torch.rot90(b.x, -1, (-2, -1)), a.x)
    True
    """
    if count == 1 and shift == "none":
        return [pool]
    n = len(pool.x)
    whole = torch.empty((count * n, *pool.x.shape[1:]), dtype=pool.x.dtype)
    pools = []
    for g in range(count):
        x, y = SHIFTS[shift].see(pool.x, pool.y, g, how or How(pool.classes))
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
