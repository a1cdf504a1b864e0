"""Triton kernels for a convolution in which every client has weights of its own.

Each is a matrix product per client whose second factor, the columns of the image, is gathered while
it is multiplied and never written to memory. `x` is [clients, rows, in, height, width], `w` is
[clients, out, in, kernel, kernel], all contiguous. Sums run in float32; with `tf32x3` each product of
float32 numbers is made of three on tensor cores, which keeps nearly all of their digits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

# Programs that keep every multiprocessor of a large GPU busy.
_PROGRAMS = 1056


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _forward(  # type: ignore[no-untyped-def]
    x, w, bias, y, rows,
    CI: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, BIAS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    g = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(CO, BM)
    co = (tl.program_id(0) % tiles) * BM + tl.arange(0, BM)
    place = (tl.program_id(0) // tiles) * BN + tl.arange(0, BN)
    K: tl.constexpr = CI * KH * KW
    AREA: tl.constexpr = OH * OW
    b, at = place // AREA, place % AREA
    top, left = (at // OW) * STRIDE - PAD, (at % OW) * STRIDE - PAD
    real = place < rows * AREA
    x += g * rows * (CI * H * W)
    w += g * (CO * K)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        ci, tap = k // (KH * KW), k % (KH * KW)
        i, j = top[None, :] + (tap // KW)[:, None], left[None, :] + (tap % KW)[:, None]
        inside = (k < K)[:, None] & real[None, :]
        if PAD > 0:
            inside = inside & (i >= 0) & (i < H) & (j >= 0) & (j < W)
        weight = tl.load(
            w + co[:, None] * K + k[None, :], mask=(co < CO)[:, None] & (k < K)[None, :], other=0.0
        )
        column = tl.load(
            x + (b * (CI * H * W))[None, :] + (ci * (H * W))[:, None] + i * W + j, mask=inside, other=0.0
        )
        total = tl.dot(weight, column, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + g * CO + co, mask=co < CO, other=0.0).to(tl.float32)[:, None]
    to = y + g * rows * (CO * AREA) + (b * (CO * AREA) + at)[None, :] + (co * AREA)[:, None]
    tl.store(to, total.to(y.dtype.element_ty), mask=(co < CO)[:, None] & real[None, :])


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _to_weight(  # type: ignore[no-untyped-def]
    gy, x, gw, rows, clients,
    CI: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    g = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    tiles = tl.cdiv(CO, BM)
    co = (tl.program_id(0) % tiles) * BM + tl.arange(0, BM)
    k = (tl.program_id(0) // tiles) * BN + tl.arange(0, BN)
    K: tl.constexpr = CI * KH * KW
    AREA: tl.constexpr = OH * OW
    ci, tap = k // (KH * KW), k % (KH * KW)
    down, right = tap // KW - PAD, tap % KW - PAD
    x += g * rows * (CI * H * W)
    gy += g * rows * (CO * AREA)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, SPAN, BK):
        place = part * SPAN + first + tl.arange(0, BK)
        b, at = place // AREA, place % AREA
        real = place < rows * AREA
        i, j = (at // OW * STRIDE)[None, :] + down[:, None], (at % OW * STRIDE)[None, :] + right[:, None]
        inside = (k < K)[:, None] & real[None, :]
        if PAD > 0:
            inside = inside & (i >= 0) & (i < H) & (j >= 0) & (j < W)
        out = tl.load(
            gy + (b * (CO * AREA) + at)[None, :] + (co * AREA)[:, None],
            mask=(co < CO)[:, None] & real[None, :], other=0.0,
        )  # fmt: skip
        column = tl.load(
            x + (b * (CI * H * W))[None, :] + (ci * (H * W))[:, None] + i * W + j, mask=inside, other=0.0
        )
        total = tl.dot(out, tl.trans(column), total, input_precision=PRECISION)
    to = gw + (part * clients + g) * (CO * K) + co[:, None] * K + k[None, :]
    tl.store(to, total, mask=(co < CO)[:, None] & (k < K)[None, :])


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _to_columns(  # type: ignore[no-untyped-def]
    gy, w, columns, rows, CO: tl.constexpr, K: tl.constexpr, AREA: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of the columns: each client's transposed weights times the gradient of its output."""
    g = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(K, BM)
    k = (tl.program_id(0) % tiles) * BM + tl.arange(0, BM)
    place = (tl.program_id(0) // tiles) * BN + tl.arange(0, BN)
    b, at = place // AREA, place % AREA
    real = place < rows * AREA
    gy += g * rows * (CO * AREA)
    w += g * (CO * K)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, CO, BK):
        co = first + tl.arange(0, BK)
        weight = tl.load(
            w + co[:, None] * K + k[None, :], mask=(co < CO)[:, None] & (k < K)[None, :], other=0.0
        )
        out = tl.load(
            gy + (b * (CO * AREA) + at)[None, :] + (co * AREA)[:, None],
            mask=(co < CO)[:, None] & real[None, :], other=0.0,
        )  # fmt: skip
        total = tl.dot(tl.trans(weight), out, total, input_precision=PRECISION)
    to = columns + g * rows * (K * AREA) + (b * (K * AREA) + at)[None, :] + (k * AREA)[:, None]
    tl.store(to, total.to(columns.dtype.element_ty), mask=(k < K)[:, None] & real[None, :])


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _fold(  # type: ignore[no-untyped-def]
    columns, gx, count,
    CI: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each value of the input collects its gradient from the columns it went into."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = at < count
    plane, inside = at // (H * W), (at % (H * W)).to(tl.int32)
    top, left = inside // W + PAD, inside % W + PAD
    start = columns + plane * (KH * KW * OH * OW)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for tap in range(0, KH * KW):
        i, j = top - tap // KW, left - tap % KW
        ok = real & (i >= 0) & (j >= 0)
        if STRIDE > 1:
            ok = ok & (i % STRIDE == 0) & (j % STRIDE == 0)
            i, j = i // STRIDE, j // STRIDE
        ok = ok & (i < OH) & (j < OW)
        total += tl.load(start + tap * (OH * OW) + i * OW + j, mask=ok, other=0.0).to(tl.float32)
    tl.store(gx + at, total.to(gx.dtype.element_ty), mask=real)


def _shape(x: Tensor, w: Tensor, stride: int, pad: int) -> dict[str, int]:
    height, width, kh, kw = x.shape[3], x.shape[4], w.shape[3], w.shape[4]
    return {
        **{"CI": x.shape[2], "H": height, "W": width, "CO": w.shape[1], "KH": kh, "KW": kw},
        **{"OH": (height + 2 * pad - kh) // stride + 1, "OW": (width + 2 * pad - kw) // stride + 1},
        **{"STRIDE": stride, "PAD": pad},
    }


def _power(n: int, least: int, most: int) -> int:
    return max(least, min(most, 1 << (n - 1).bit_length()))


def _coarse(x: Tensor) -> bool:
    return torch.backends.cuda.matmul.allow_tf32 or x.dtype != torch.float32


def _how(x: Tensor, **tiles: int) -> dict[str, Any]:
    """How a program is run. Three products in place of one need more registers, so smaller tiles."""
    return {"num_warps": 4, "num_stages": 3, "PRECISION": "tf32" if _coarse(x) else "tf32x3", **tiles}


def forward(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, pad: int, **other: Any) -> Tensor:
    """The convolution, [clients, rows, out, height, width]."""
    shape = _shape(x, w, stride, pad)
    clients, rows = x.shape[:2]
    y = x.new_empty((clients, rows, shape["CO"], shape["OH"], shape["OW"]))
    taps = shape["CI"] * shape["KH"] * shape["KW"]
    height = _power(shape["CO"], 16, 128 if _coarse(x) else 64)
    how = _how(x, BM=height, BN=64, BK=32 if taps <= 32 else 16) | other
    places = triton.cdiv(rows * shape["OH"] * shape["OW"], how["BN"])
    grid = (places * triton.cdiv(shape["CO"], how["BM"]), clients)
    _forward[grid](x, w, x if bias is None else bias, y, rows, **shape, BIAS=bias is not None, **how)
    return y


def to_input(gy: Tensor, x: Tensor, w: Tensor, stride: int, pad: int, **other: Any) -> Tensor:
    """The gradient with respect to `x`, by way of the gradient of its columns."""
    shape = _shape(x, w, stride, pad)
    clients, rows = x.shape[:2]
    area, taps = shape["OH"] * shape["OW"], shape["CI"] * shape["KH"] * shape["KW"]
    columns = x.new_empty((clients, rows, taps, area))
    inner = _power(shape["CO"], 16, 32 if _coarse(x) else 16)
    how = _how(x, BM=_power(taps, 16, 64), BN=128, BK=inner) | other
    grid = (triton.cdiv(taps, how["BM"]) * triton.cdiv(rows * area, how["BN"]), clients)
    _to_columns[grid](gy, w, columns, rows, CO=shape["CO"], K=taps, AREA=area, **how)
    gx = torch.empty_like(x)
    del shape["CO"]
    _fold[(triton.cdiv(gx.numel(), 512),)](columns, gx, gx.numel(), **shape, BLOCK=512)
    return gx


def to_input_turned(gy: Tensor, x: Tensor, w: Tensor, stride: int, pad: int, **other: Any) -> Tensor:
    """The same for kernels that move by one place: a convolution of `gy` with the weights turned round."""
    assert stride == 1
    return forward(gy, w.flip(3, 4).transpose(1, 2).contiguous(), None, 1, w.shape[3] - 1 - pad, **other)


def to_weight(gy: Tensor, x: Tensor, w: Tensor, stride: int, pad: int, **other: Any) -> Tensor:
    """The gradient with respect to `w`.

    The sum over rows and places is cut into parts where there are too few clients and channels to
    keep the device busy; the parts are added in a fixed order, so the result repeats bit for bit.
    """
    shape = _shape(x, w, stride, pad)
    clients, rows = x.shape[:2]
    taps = shape["CI"] * shape["KH"] * shape["KW"]
    few, coarse = taps <= 32, _coarse(x)
    how = _how(
        x,
        BM=_power(shape["CO"], 16, 64),
        BN=_power(taps, 16, 64 if coarse and not few else 32),
        BK=64 if few and coarse else 32,
        num_warps=4 if coarse else 2,
    )
    how |= other
    tiles = triton.cdiv(shape["CO"], how["BM"]) * triton.cdiv(taps, how["BN"])
    steps = triton.cdiv(rows * shape["OH"] * shape["OW"], how["BK"])
    parts = max(1, min(triton.cdiv(_PROGRAMS, tiles * clients), steps // 8))
    span = triton.cdiv(steps, parts) * how["BK"]
    gw = w.new_empty((parts, *w.shape), dtype=torch.float32)
    _to_weight[(tiles, clients, parts)](gy, x, gw, rows, clients, SPAN=span, **shape, **how)
    return (gw[0] if parts == 1 else gw.sum(0)).to(w.dtype)
