"""Random numbers without a generator: a hash of a key and of where the number stands.

A step that is run for many clients at once, traced or recorded may not draw. It can count, and the same
key and count give the same numbers for one client and for many.

Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators. OOPSLA 2014 (SplitMix64).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def bits(key: Tensor, shape: tuple[int, ...], *where: int | Tensor) -> Tensor:
    """64 bits for each place of a tensor, as int64; `where` are numbers that tell one use from another.

    >>> a, b = (bits(torch.tensor(7), (2,), step) for step in (0, 1))
    >>> bool((a == b).any()), bool((a == bits(torch.tensor(7), (2,), 0)).all())
    (False, True)
    """
    for word in where:
        key = _mixed(key ^ _mixed((word + torch.ones_like(key)) * _GAMMA))
    count = torch.arange(1, math.prod(shape) + 1, device=key.device)
    return _mixed(key + count * _GAMMA).reshape(shape)


def uniform(key: Tensor, shape: tuple[int, ...], *where: int | Tensor) -> Tensor:
    """Numbers between 0 and 1, both left out, in float64.

    >>> uniform(torch.tensor(7), (3,), 0).dtype
    torch.float64
    """
    return (_right(bits(key, shape, *where), 12).double() + 0.5) * 2.0**-52


def normal(key: Tensor, shape: tuple[int, ...], *where: int | Tensor) -> Tensor:
    """Standard normal numbers in float64 (Box and Muller's transform).

    >>> normal(torch.tensor(7), (2, 3), 0).shape
    torch.Size([2, 3])
    """
    radius = (-2 * uniform(key, shape, *where, 0).log()).sqrt()
    return radius * (2 * math.pi * uniform(key, shape, *where, 1)).cos()


def _mixed(z: Tensor) -> Tensor:
    """SplitMix64's last steps; products wrap round at 64 bits."""
    z = (z ^ _right(z, 30)) * _FIRST
    z = (z ^ _right(z, 27)) * _SECOND
    return z ^ _right(z, 31)


def _right(z: Tensor, places: int) -> Tensor:
    """Shift to the right and fill with zeros: torch would fill with the sign."""
    return (z >> places) & ((1 << (64 - places)) - 1)
