"""Fully connected layers for many clients: the gradient of the weights comes out in the weights' own layout.

PyTorch's batching rule gives it transposed, and an update that reads one layout and writes another
takes several times as long as one that runs straight through memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class ClientLinear(nn.Linear):
    """A fully connected layer; within vmap over clients, where each has weights of its own, our own rule."""

    def forward(self, x: Tensor) -> Tensor:
        """x @ weight.T + bias."""
        if x.dim() != 2 or not torch._C._functorch.is_batchedtensor(self.weight):
            return super().forward(x)
        out: Tensor = _ManyClients.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return out


def for_clients(layer: nn.Module) -> nn.Module:
    """The layer, or if it is fully connected one for many clients; it keeps its numbers and names.

    >>> for_clients(nn.Linear(2, 3))
    ClientLinear(in_features=2, out_features=3, bias=True)
    """
    if type(layer) is nn.Linear:
        layer.__class__ = ClientLinear
    return layer


class _ManyClients(torch.autograd.Function):
    """Hands a vmapped layer, clients in front, to `_Products`."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        return torch.nn.functional.linear(x, w, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: gradients are taken outside vmap, of what `_Products` recorded."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, w: Tensor, bias: Tensor | None) -> Any:
        """All clients' rows at once."""

        def in_front(t: Tensor, dim: int | None) -> Tensor:
            return t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)

        shift = None if bias is None else in_front(bias, in_dims[2])
        return _Products.apply(in_front(x, in_dims[0]), in_front(w, in_dims[1]), shift), 0  # type: ignore[no-untyped-call]


class _Products(torch.autograd.Function):
    """One matrix product per client: x [clients, rows, in], w [clients, out, in], bias [clients, out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.bias = bias is not None
        if bias is None:
            return x.bmm(w.transpose(1, 2))
        return torch.baddbmm(bias[:, None], x, w.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, w = ctx.saved_tensors
        gy = grads[0]
        gx = gy.bmm(w) if ctx.needs_input_grad[0] else None
        gw = gy.transpose(1, 2).bmm(x) if ctx.needs_input_grad[1] else None
        return gx, gw, gy.sum(1) if ctx.bias else None
