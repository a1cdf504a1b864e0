"""Triton kernels for the largest of every two by two values, with or without a ReLU before it.

The place of the largest is kept in one byte; going back, each window is written once.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

_BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _forward(  # type: ignore[no-untyped-def]
    x, y, which, count, H: tl.constexpr, W: tl.constexpr, RELU: tl.constexpr, BLOCK: tl.constexpr
):
    OH: tl.constexpr = H // 2
    OW: tl.constexpr = W // 2
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = at < count
    first = x + (at // (OH * OW)) * (H * W) + (at // OW % OH) * (2 * W) + at % OW * 2
    a, b = tl.load(first, mask=real, other=0.0), tl.load(first + 1, mask=real, other=0.0)
    c, d = tl.load(first + W, mask=real, other=0.0), tl.load(first + W + 1, mask=real, other=0.0)
    # The first of equals, as PyTorch has it.
    top, low = tl.where(b > a, b, a), tl.where(d > c, d, c)
    best = tl.where(low > top, low, top)
    place = tl.where(low > top, tl.where(d > c, 3, 2), tl.where(b > a, 1, 0))
    if RELU:
        place = tl.where(best > 0, place, 4)
        best = tl.where(best > 0, best, 0.0)
    lost = (a != a) | (b != b) | (c != c) | (d != d)
    best = tl.where(lost, float("nan"), best)
    tl.store(y + at, best.to(y.dtype.element_ty), mask=real)
    tl.store(which + at, place.to(tl.int8), mask=real)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _backward(  # type: ignore[no-untyped-def]
    gy, which, gx, count, H: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr
):
    OH: tl.constexpr = H // 2
    OW: tl.constexpr = W // 2
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = at < count
    g = tl.load(gy + at, mask=real, other=0.0)
    place = tl.load(which + at, mask=real, other=4)
    first = gx + (at // (OH * OW)) * (H * W) + (at // OW % OH) * (2 * W) + at % OW * 2
    tl.store(first, tl.where(place == 0, g, 0.0), mask=real)
    tl.store(first + 1, tl.where(place == 1, g, 0.0), mask=real)
    tl.store(first + W, tl.where(place == 2, g, 0.0), mask=real)
    tl.store(first + W + 1, tl.where(place == 3, g, 0.0), mask=real)


def forward(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    """(largest values, their places 0 to 3 or 4 for none) of x [..., height, width], contiguous."""
    height, width = x.shape[-2:]
    y = x.new_empty((*x.shape[:-2], height // 2, width // 2))
    which = torch.empty_like(y, dtype=torch.int8)
    count = y.numel()
    _forward[(triton.cdiv(count, _BLOCK),)](x, y, which, count, H=height, W=width, RELU=relu, BLOCK=_BLOCK)
    return y, which


def backward(gy: Tensor, which: Tensor, height: int, width: int) -> Tensor:
    """The gradient with respect to x."""
    make = torch.zeros if height % 2 or width % 2 else torch.empty
    gx = make((*gy.shape[:-2], height, width), dtype=gy.dtype, device=gy.device)
    count = gy.numel()
    _backward[(triton.cdiv(count, _BLOCK),)](gy, which, gx, count, H=height, W=width, BLOCK=_BLOCK)
    return gx
