"""Max-pooling by two, and with a ReLU before it, in one pass over memory where Triton can run."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def relu_pool(x: Tensor) -> Tensor:
    """The larger of 0 and the largest of every two by two values of x [rows, channels, height, width].

    >>> relu_pool(torch.tensor([[[[1.0, 5.0], [-2.0, 0.0]]]]))
    tensor([[[[5.]]]])
    """
    return _pooled(x, True) if x.is_cuda and _kernels() else F.max_pool2d(F.relu(x), 2)


class Pool2(nn.MaxPool2d):
    """Max-pooling by two."""

    def forward(self, x: Tensor) -> Tensor:
        """The largest of every two by two values."""
        return _pooled(x, False) if x.is_cuda and _kernels() else super().forward(x)


def fast_pool(layer: nn.Module) -> nn.Module:
    """The layer, or if it pools by two one that is fast on a GPU.

    >>> fast_pool(nn.MaxPool2d(2))
    Pool2(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)
    """
    if type(layer) is nn.MaxPool2d and not layer.return_indices and not layer.ceil_mode:
        how = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        if how in ((2, 2, 0, 1), ((2, 2), (2, 2), 0, 1), ((2, 2), (2, 2), (0, 0), 1)):
            layer.__class__ = Pool2
    return layer


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
