"""Small networks on a CPU, many rows at a time, when only the input needs a gradient.

With rows innermost in memory ([height, channels, width, rows]; to everybody else the tensor is the usual
[rows, channels, height, width]) all arithmetic runs over long stretches: pooling compares whole rows of
numbers, and a convolution is one matrix product for each line of the image, of which everything under the
kernel lies in one piece. oneDNN has to make do with the channels, of which a small network has few.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# An input of more channels is left to the library, unless it lies in memory with rows innermost already.
FEW = 3
_CHANNELS_LAST = {"memory_format": torch.channels_last}


class rows_innermost(TorchFunctionMode):
    """Within it, convolutions of few channels turn to rows innermost, and what follows goes on so.

    >>> x, w = torch.ones(2, 1, 3, 3, requires_grad=True), torch.ones(2, 1, 3, 3)
    >>> with rows_innermost():
    ...     out = torch.conv2d(x, w)
    >>> out.stride(0), torch.autograd.grad(out.sum(), x)[0].sum()
    (1, tensor(36.))
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Take over the convolutions and pools that are meant, leave all else alone."""
        given = kwargs or {}
        if func is torch.conv2d and not given:
            if _plain(*args):
                return _Conv.apply(*args[:2], *(args[2:3] or (None,)))  # type: ignore[no-untyped-call]
            x = args[0].contiguous(memory_format=torch.channels_last) if _ours(args[0]) else args[0]
            return func(x, *args[1:])
        if func is F.max_pool2d and _by_two(args, given):
            return _Pool.apply(args[0])  # type: ignore[no-untyped-call]
        if func is F.pad and _border(*args, **given):
            return _Pad.apply(*args[:2])  # type: ignore[no-untyped-call]
        if func is torch.Tensor.contiguous and given == _CHANNELS_LAST and _ours(args[0]):
            return args[0]  # a convolution would put channels innermost; whether it should, it tells next
        return func(*args, **given)


def _plain(x: Tensor, w: Tensor, *rest: Any) -> bool:
    """Whether it is a convolution without stride, padding and groups that our way is good for."""
    usual = all(_same(got, want) for got, want in zip(rest[1:], (1, 0, 1, 1), strict=False))
    fixed = not any(isinstance(t, Tensor) and t.requires_grad for t in (w, *rest[:1]))
    return usual and fixed and _near(x)


def _by_two(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether every two by two values are pooled that lie in memory as ours do."""
    defaults = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}
    names = ("kernel_size", *defaults)
    how = defaults | dict(zip(names, args[1:], strict=False)) | kwargs
    stride = how.pop("stride")
    plain = _same(how.pop("kernel_size", 0), 2) and (stride is None or _same(stride, 2))
    rest = all(got == defaults[name] or _same(got, int(defaults[name] or 0)) for name, got in how.items())
    x = args[0]
    return plain and rest and _ours(x) and x.shape[2] % 2 == x.shape[3] % 2 == 0


def _border(x: Tensor, pad: Any, mode: str = "constant", value: Any = None) -> bool:
    """Whether images get a border that repeats their edge."""
    return mode == "replicate" and len(pad) == 4 and min(pad) >= 0 and _near(x)


def _same(got: Any, want: int) -> bool:
    return bool(got == want or got in ((want, want), [want, want]))


def _near(x: Tensor) -> bool:
    """Whether images lie as ours do or are easily turned; not in half precision, as sums come in pieces."""
    exact = x.dim() == 4 and not x.is_cuda and x.dtype in (torch.float32, torch.float64)
    return exact and (x.shape[1] <= FEW or _ours(x))


def _ours(x: Tensor) -> bool:
    return x.dim() == 4 and not x.is_cuda and x.stride(0) == 1 and x.permute(2, 1, 3, 0).is_contiguous()


def rows_last(x: Tensor) -> Tensor:
    """The same rows, images laid out as `rows_innermost` has them.

    >>> rows_last(torch.zeros(5, 1, 4, 3)).stride(0), rows_last(torch.zeros(5, 2)).stride(0)
    (1, 2)
    """
    return _back(_turned(x)) if x.dim() == 4 else x


def _turned(x: Tensor) -> Tensor:
    """[rows, channels, height, width] as [height, channels, width, rows] in this order in memory."""
    return x.permute(2, 1, 3, 0).contiguous()


def _back(x: Tensor) -> Tensor:
    """The usual order of axes, nothing moved."""
    return x.permute(3, 1, 0, 2)


class _Conv(torch.autograd.Function):
    """A convolution of stride 1 without padding, x [rows, in, h, w] with w [out, in, k, k']."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(w)
        ctx.size = x.shape
        return _back(convolve(_turned(x), w, bias))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (w,) = ctx.saved_tensors
        return _back(input_gradient(_turned(grads[0]), w, ctx.size[2:])), None, None


class _Pool(torch.autograd.Function):
    """The largest of every two by two values, and its gradient to the first that is the largest."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = _turned(x)
        wide = torch.maximum(x[:, :, ::2], x[:, :, 1::2])
        ctx.save_for_backward(x, wide)
        return _back(torch.maximum(wide[::2], wide[1::2]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, wide = ctx.saved_tensors
        mid, gx = torch.empty_like(wide), torch.empty_like(x)
        _shared(_turned(grads[0]), *(t[i::2] for t in (wide, mid) for i in (0, 1)))
        _shared(mid, *(t[:, :, i::2] for t in (x, gx) for i in (0, 1)))
        return _back(gx)


def _shared(g: Tensor, one: Tensor, other: Tensor, to_one: Tensor, to_other: Tensor) -> None:
    """Write a gradient to the larger of two, to the first if they are equal."""
    none, second = torch.zeros((), dtype=g.dtype), other > one
    torch.where(second, g, none, out=to_other)
    torch.where(second, none, g, out=to_one)


class _Pad(torch.autograd.Function):
    """A border of pad = (left, right, above, below) that repeats the edge."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pad: Any) -> Tensor:
        ctx.pad, x = pad, _turned(x)
        for dim, before, after in ((2, *pad[:2]), (0, *pad[2:])):
            first, last = (x.narrow(dim, at, 1) for at in (0, x.shape[dim] - 1))
            x = torch.cat([first] * before + [x] + [last] * after, dim)
        return _back(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        g, pad = _turned(grads[0]), ctx.pad
        for dim, before, after in ((0, *pad[2:]), (2, *pad[:2])):
            kept = g.narrow(dim, before, g.shape[dim] - before - after).clone()
            for edge, at, many in ((0, 0, before), (kept.shape[dim] - 1, g.shape[dim] - after, after)):
                kept.narrow(dim, edge, 1).add_(g.narrow(dim, at, many).sum(dim, keepdim=True))
            g = kept
        return _back(g), None


def convolve(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution of x [h, in, w, rows] with w [out, in, k, k']: [h - k + 1, out, w - k' + 1, rows].

    >>> convolve(torch.ones(2, 1, 2, 3), torch.ones(1, 1, 2, 2), torch.ones(1))
    tensor([[[[5., 5., 5.]]]])
    """
    out, into, tall, across = w.shape
    # [h, k', in, ...]: what each column of the kernel sees of a line. Its lines follow one another in memory.
    shown = x.unfold(2, across, 1).permute(0, 4, 1, 2, 3).contiguous()
    high, line = x.shape[0] - tall + 1, shown.shape[3] * shown.shape[4]
    under = shown.as_strided((high, tall * across * into, line), (across * into * line, line, 1))
    kernel = w.permute(0, 2, 3, 1).reshape(1, out, -1).expand(high, -1, -1)
    found = kernel.bmm(under) if bias is None else torch.baddbmm(bias[:, None], kernel, under)
    return found.view(high, out, -1, x.shape[3])


def input_gradient(gy: Tensor, w: Tensor, size: tuple[int, int]) -> Tensor:
    """The gradient of an input of this height and width, from that of the output gy [h', out, w', rows].

    >>> gy, w = torch.ones(1, 1, 1, 1), torch.arange(4.0).reshape(1, 1, 2, 2)
    >>> input_gradient(gy, w, (2, 2)).squeeze()
    tensor([[0., 1.],
            [2., 3.]])
    """
    (high, out, wide, rows), (into, tall, across) = gy.shape, w.shape[1:]
    line, edge = wide * rows, tall - 1
    around = gy.new_empty(high + 2 * edge, out, line)
    around[:edge].zero_()
    around[edge + high :].zero_()
    around[edge : edge + high].copy_(gy.reshape(high, out, line))
    over = around.as_strided((size[0], tall * out, line), (out * line, line, 1))
    kernel = w.flip(2).permute(3, 1, 2, 0).reshape(1, across * into, -1).expand(size[0], -1, -1)
    shares = kernel.bmm(over).view(size[0], across, into, wide, rows)
    gx = gy.new_empty(size[0], into, size[1], rows)
    gx[:, :, :wide].copy_(shares[:, 0])
    gx[:, :, wide:].zero_()
    for j in range(1, across):
        gx[:, :, j : j + wide].add_(shares[:, j])
    return gx
