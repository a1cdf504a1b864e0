"""The gradient of a convolution's input on a CPU, for inputs of few channels.

Training never needs it for the first layer, and oneDNN takes many times as long for it there as for the
convolution itself. One matrix product and a shifted sum for each tap of the kernel take a tenth of that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Beyond so many channels the library's own way is the faster one.
FEW = 3


class cheap_input_gradients(TorchFunctionMode):
    """Within it, convolutions whose weights need no gradient give that of their input cheaply.

    >>> x, w = torch.ones(1, 1, 3, 3, requires_grad=True), torch.ones(2, 1, 3, 3)
    >>> with cheap_input_gradients():
    ...     out = torch.conv2d(x, w)
    >>> torch.autograd.grad(out.sum(), x)[0].sum()
    tensor(18.)
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Take over the convolutions that are meant, leave all else alone."""
        if func is torch.conv2d and not kwargs and _meant(*args):
            return _Conv.apply(*args[:2], *(args[2:3] or (None,)))  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


def _meant(x: Tensor, w: Tensor, *rest: Any) -> bool:
    plain = (None, 1, 0, 1, 1)  # bias, stride, padding, dilation, groups
    usual = all(_same(got, want) for got, want in zip(rest[1:], plain[1:], strict=False))
    few = x.dim() == 4 and x.shape[1] <= FEW and not x.is_cuda
    return usual and few and x.requires_grad and not w.requires_grad


def _same(got: Any, want: int) -> bool:
    return bool(got == want or got in ((want, want), [want, want]))


class _Conv(torch.autograd.Function):
    """A convolution of stride 1 without padding, x [rows, in, h, w] with w [out, in, k, k]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(w)
        ctx.size = x.shape
        return torch.conv2d(x, w, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (w,) = ctx.saved_tensors
        return input_gradient(grads[0], w, ctx.size), None, None


def input_gradient(gy: Tensor, w: Tensor, size: tuple[int, ...]) -> Tensor:
    """The gradient of an input of this size, from that of the output gy [rows, out, h', w'].

    >>> gy, w = torch.ones(1, 1, 1, 1), torch.arange(4.0).reshape(1, 1, 2, 2)
    >>> input_gradient(gy, w, (1, 1, 2, 2))
    tensor([[[[0., 1.],
              [2., 3.]]]])
    """
    rows, out, high, wide = gy.shape
    # [taps * in, rows * h' * w']: every tap's share of all gradients, in one product.
    shares = w.permute(2, 3, 1, 0).reshape(-1, out) @ gy.permute(1, 0, 2, 3).reshape(out, -1)
    taps = shares.reshape(w.shape[2], w.shape[3], w.shape[1], rows, high, wide)
    gx = gy.new_zeros(w.shape[1], rows, *size[2:])
    for i in range(w.shape[2]):
        for j in range(w.shape[3]):
            gx[:, :, i : i + high, j : j + wide] += taps[i, j]
    return gx.transpose(0, 1)
