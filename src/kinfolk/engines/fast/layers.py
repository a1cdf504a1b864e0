"""Layers that are fast when every client has weights of its own, exchanged for PyTorch's.

Pooling, also with a ReLU beside it, goes over memory as few times as possible. For a fully connected layer,
PyTorch's batching rule gives the gradient of the weights transposed, and an update that reads one layout and
writes another takes several times as long as one that runs straight through memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _WeightNorm

from kinfolk.learning.network import ReluPool2


class Pool2(nn.MaxPool2d):
    """Max-pooling by two."""

    def forward(self, x: Tensor) -> Tensor:
        """The largest of every two by two values."""
        return _pooled(x, False) if x.is_cuda and _kernels() else _innermost(super().forward(x))


class FastReluPool2(ReluPool2):
    """A ReLU and max-pooling by two in one pass."""

    def forward(self, x: Tensor) -> Tensor:
        """The larger of 0 and the largest of every two by two values."""
        return _pooled(x, True) if x.is_cuda and _kernels() else _innermost(super().forward(x))


def join_relu_and_pool(layer: nn.Module) -> nn.Module:
    """The layer; in a sequence a ReLU and the pooling by two right behind it become one.

    >>> join_relu_and_pool(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)))
    Sequential(
      (0): Identity()
      (1): FastReluPool2()
    )
    """
    if type(layer) is nn.Sequential:
        for (here, relu), (there, pool) in pairwise(list(layer._modules.items())):
            if type(relu) is nn.ReLU and _by_two(pool) and not any(_watched(m) for m in (relu, pool)):
                layer._modules[here], layer._modules[there] = nn.Identity(), FastReluPool2()
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
        return importlib.import_module("kinfolk.engines.fast.pool_kernels")
    except ImportError:
        return None


class ClientLinear(nn.Linear):
    """A fully connected layer; within vmap over clients, where each has weights of its own, our own rule."""

    def forward(self, x: Tensor) -> Tensor:
        """x @ weight.T + bias."""
        return client_linear(x, self.weight, self.bias)


def client_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias, of rows that may have axes of their own.

    >>> client_linear(torch.ones(2, 5, 3), torch.ones(4, 3), None).shape
    torch.Size([2, 5, 4])
    """
    if x.dim() < 2 or not has_clients(weight):
        return torch.nn.functional.linear(x, weight, bias)
    out: Tensor = _ManyLinear.apply(x.flatten(0, -2), weight, bias)  # type: ignore[no-untyped-call]
    return out.reshape(*x.shape[:-1], -1) if x.dim() > 2 else out


def has_clients(*given: Tensor | None) -> bool:
    """Whether this is a call for many clients, and one of these is a tensor that each has its own of."""
    return any(t is not None and torch._C._functorch.is_batchedtensor(t) for t in given)


def in_front(info: Any, dims: Sequence[int | None], *given: Tensor | None) -> Any:
    """What a rule for vmap is given, with clients in front of every tensor."""
    return (
        t if t is None else t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(given, dims, strict=True)
    )


class _ManyLinear(torch.autograd.Function):
    """Hands a vmapped layer, clients in front, to `Products`."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        return torch.nn.functional.linear(x, w, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: gradients are taken outside vmap, of what `Products` recorded."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor, bias: Tensor | None) -> Any:
        """All clients' rows at once."""
        return Products.apply(*in_front(info, in_dims, x, w, bias)), 0  # type: ignore[no-untyped-call]


class Products(torch.autograd.Function):
    """One matrix product per client: x [clients, rows, in], w [clients, out, in], bias [clients, out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """x @ w.T + bias of each client."""
        ctx.save_for_backward(x, w)
        ctx.bias = bias is not None
        if bias is None:
            return x.bmm(w.transpose(1, 2))
        return torch.baddbmm(bias[:, None], x, w.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Of weights in the layout that they have."""
        x, w = ctx.saved_tensors
        gy = grads[0]
        gx = gy.bmm(w) if ctx.needs_input_grad[0] else None
        gw = gy.transpose(1, 2).bmm(x) if ctx.needs_input_grad[1] else None
        return gx, gw, gy.sum(1) if ctx.bias else None


class OrderedGroupNorm(nn.GroupNorm):
    """GroupNorm of rows in whatever order in memory: of what convolutions of many clients give, too."""

    def forward(self, x: Tensor) -> Tensor:
        """As PyTorch's, whose rule for vmap fails where channels lie innermost."""
        return super().forward(x.contiguous())


class ClientRMSNorm(nn.RMSNorm):
    """RMSNorm; for many clients in operations that all have rules for vmap."""

    def forward(self, x: Tensor) -> Tensor:
        """x over the root of its mean square, times the weights."""
        if not has_clients(x, self.weight):
            return super().forward(x)
        axes = tuple(range(-len(self.normalized_shape), 0))
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        out = x * (x.square().mean(axes, keepdim=True) + eps).rsqrt()
        return out if self.weight is None else out * self.weight


class ClientMean(nn.AdaptiveAvgPool2d):
    """The mean of each channel, where one place is asked for; PyTorch's goes over clients one by one."""

    def forward(self, x: Tensor) -> Tensor:
        """x pooled to the output size."""
        whole = self.output_size in (1, (1, 1))
        return x.mean((-2, -1), keepdim=True) if whole and has_clients(x) else super().forward(x)


class ClientBilinear(nn.Bilinear):
    """A layer of products of two inputs; for many clients in operations that all have rules for vmap."""

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        """One output for each matrix of weights, and the bias."""
        if not has_clients(input1, input2, self.weight):
            return super().forward(input1, input2)
        out = torch.einsum("...i,oij,...j->...o", input1, self.weight, input2)
        return out if self.bias is None else out + self.bias


class ClientWeightNorm(_WeightNorm):
    """A weight as a length times a direction (`torch.nn.utils.parametrizations.weight_norm`)."""

    def forward(self, length: Tensor, direction: Tensor) -> Tensor:
        """length * direction / |direction|, each along an axis of its own."""
        if not has_clients(length, direction):
            return super().forward(length, direction)  # type: ignore[no-any-return, no-untyped-call]
        whole = self.dim is None or self.dim == -1
        across = [a for a in range(direction.dim()) if whole or a != self.dim % direction.dim()]
        return direction * (length / direction.square().sum(across, keepdim=True).sqrt())


_FAST = {
    nn.Linear: ClientLinear,
    nn.AdaptiveAvgPool2d: ClientMean,
    nn.Bilinear: ClientBilinear,
    nn.GroupNorm: OrderedGroupNorm,
    nn.RMSNorm: ClientRMSNorm,
    ReluPool2: FastReluPool2,
    _WeightNorm: ClientWeightNorm,
}


def fast_layer(layer: nn.Module) -> nn.Module:
    """The layer, or if one here is its equal, that one; it keeps its numbers and names.

    >>> [fast_layer(layer) for layer in (nn.MaxPool2d(2), nn.Linear(2, 3))]  # doctest: +NORMALIZE_WHITESPACE
    [Pool2(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False),
     ClientLinear(in_features=2, out_features=3, bias=True)]
    """
    kind = Pool2 if _by_two(layer) else _FAST.get(type(layer))
    if kind is not None:
        layer.__class__ = kind
    return layer
