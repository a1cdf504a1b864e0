"""Max-pooling, and with a ReLU beside it, in as few passes over memory as can be."""

from __future__ import annotations

import importlib
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def relu_pool(x: Tensor) -> Tensor:
    """The larger of 0 and the largest of every two by two values of x [rows, channels, height, width].

    >>> relu_pool(torch.tensor([[[[1.0, 5.0], [-2.0, 0.0]]]]))
    tensor([[[[5.]]]])
    """
    # Pooled first: the same numbers and gradients, and a quarter of them to cut off at 0.
    return _pooled(x, True) if x.is_cuda and _kernels() else _innermost(F.relu(F.max_pool2d(x, 2)))


class Pool2(nn.MaxPool2d):
    """Max-pooling by two."""

    def forward(self, x: Tensor) -> Tensor:
        """The largest of every two by two values."""
        return _pooled(x, False) if x.is_cuda and _kernels() else _innermost(super().forward(x))


def fast_pool(layer: nn.Module) -> nn.Module:
    """The layer, or if it pools by two one that is fast.

    >>> fast_pool(nn.MaxPool2d(2))
    Pool2(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)
    """
    if _by_two(layer):
        layer.__class__ = Pool2
    return layer


class ReluPool2(nn.Module):
    """A ReLU and max-pooling by two in one."""

    def forward(self, x: Tensor) -> Tensor:
        """The larger of 0 and the largest of every two by two values."""
        return relu_pool(x)


def join_relu_and_pool(layer: nn.Module) -> nn.Module:
    """The layer; in a sequence a ReLU and the pooling by two right behind it become one.

    >>> join_relu_and_pool(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)))
    Sequential(
      (0): Identity()
      (1): ReluPool2()
    )
    """
    if type(layer) is nn.Sequential:
        for (here, relu), (there, pool) in pairwise(list(layer._modules.items())):
            if type(relu) is nn.ReLU and _by_two(pool) and not any(_watched(m) for m in (relu, pool)):
                layer._modules[here], layer._modules[there] = nn.Identity(), ReluPool2()
    return layer


def _watched(layer: nn.Module | None) -> bool:
    """Whether somebody looks at what goes in or out of the layer."""
    return layer is None or bool(layer._forward_hooks or layer._forward_pre_hooks)


def _by_two(layer: nn.Module | None) -> bool:
    if type(layer) is not nn.MaxPool2d or layer.return_indices or layer.ceil_mode:
        return False
    how = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return how in ((2, 2, 0, 1), ((2, 2), (2, 2), 0, 1), ((2, 2), (2, 2), (0, 0), 1))


def _innermost(pooled: Tensor) -> Tensor:
    """The same, on a CPU with a gradient whose channels lie innermost.

    Convolutions leave their results so. A gradient of another layout makes the pooling write its own
    in that layout, four times as large, and then turn it round.
    """
    if pooled.is_cuda or not torch.is_grad_enabled() or pooled.stride(0) == 1:  # rows innermost: leave it
        return pooled
    out: Tensor = _Innermost.apply(pooled)  # type: ignore[no-untyped-call]
    return out


class _Innermost(torch.autograd.Function):
    """Works on any number of leading axes, so clients are one more."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """The gradient depends on nothing."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0].movedim(-3, -1).contiguous().movedim(-1, -3)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return _Innermost.apply(x.movedim(in_dims[0], 0)), 0  # type: ignore[no-untyped-call]


def _pooled(x: Tensor, relu: bool) -> Tensor:
    out: Tensor = _Pooled.apply(x, relu)[0]  # type: ignore[no-untyped-call]
    return out


class _Pooled(torch.autograd.Function):
    """Works on any number of leading axes, so clients are one more."""

    @staticmethod
    def forward(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
        y, which = _kernels().forward(x.contiguous(), relu)
        return y, which

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.size = inputs[0].shape[-2:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (which,) = ctx.saved_tensors
        return _kernels().backward(grads[0].contiguous(), which, *ctx.size), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, relu: bool) -> Any:
        return _Pooled.apply(x.movedim(in_dims[0], 0), relu), (0, 0)  # type: ignore[no-untyped-call]


@lru_cache(maxsize=1)
def _kernels() -> Any:
    """The kernels, or None where Triton is missing: it comes with most of PyTorch's CUDA builds."""
    try:
        return importlib.import_module("kinfolk.learning.pool_kernels")
    except ImportError:
        return None
