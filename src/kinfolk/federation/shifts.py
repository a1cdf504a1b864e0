"""What one group sees differently from another: labels, colours, contrast, noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
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


def label_order(g: int, how: How) -> Tensor:
    """What group `g` calls each class: its own order of the classes, that of group 0 as it is.

    >>> label_order(0, How(classes=4)), sorted(label_order(1, How(classes=4)).tolist())
    (tensor([0, 1, 2, 3]), [0, 1, 2, 3])
    """
    if g >= math.factorial(min(how.classes, 20)):
        remedy = (
            f"{how.classes} classes have {math.factorial(how.classes)} orders; give as many groups at most"
        )
        raise KinfolkError("data.shift", "label_permutation", remedy)
    taken = [list(range(how.classes))]
    rng = how.seed.numpy("data", "permutation")
    while len(taken) <= g:
        order = rng.permutation(how.classes).tolist()
        taken += [order] if order not in taken else []
    return torch.tensor(taken[g])


def label_permutation(x: Tensor, y: Tensor, g: int, how: How = _USUAL) -> tuple[Tensor, Tensor]:
    """Group `g` calls the classes by an order of its own.

    >>> label_permutation(torch.zeros(2, 1), torch.tensor([1, 0]), 0)[1]
    tensor([1, 0])
    """
    return x, label_order(g, how)[y]


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
    low, high = value_range(x)
    middle, factor = (low + high) / 2, how.contrast**g
    return (_by_chunks(x, lambda part: middle + (part - middle) * factor) if g else x), y


def noise(x: Tensor, y: Tensor, g: int, how: How = _USUAL) -> tuple[Tensor, Tensor]:
    """Group `g` sees Gaussian noise, `g` times as strong as group 1; a row's noise is always the same.

    >>> x = torch.full((2, 3), 128, dtype=torch.uint8)
    >>> torch.equal(noise(x, torch.zeros(2), 1)[0], x), torch.equal(noise(x, torch.zeros(2), 0)[0], x)
    (False, True)
    """
    low, high = value_range(x)
    # One stream for each group, read row by row: what a row gets depends on its place alone.
    rng, strength = how.seed.numpy("data", "noise", g), g * how.noise * (high - low)

    def noisy(part: Tensor) -> Tensor:
        drawn = rng.standard_normal(tuple(part.shape), dtype=np.float32)
        return torch.from_numpy(drawn).mul_(strength).add_(part)

    return (_by_chunks(x, noisy) if g else x), y


def value_range(x: Tensor) -> tuple[float, float]:
    """Smallest and largest value there may be: of bytes 0 and 255, of floats those that occur.

    >>> value_range(torch.tensor([[-1.0, 3.0]])), value_range(torch.tensor([[7]], dtype=torch.uint8))
    ((-1.0, 3.0), (0.0, 255.0))
    """
    return (0.0, 255.0) if x.dtype == torch.uint8 else (float(x.min()), float(x.max()))


def _by_chunks(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """The rows changed as floats and stored as they were; bytes are rounded and kept in their range."""
    out = torch.empty_like(x)
    for start in range(0, len(x), _CHUNK):
        changed = change(x[start : start + _CHUNK].float())
        out[start : start + _CHUNK] = changed.round_().clamp_(0, 255) if x.dtype == torch.uint8 else changed
    return out
