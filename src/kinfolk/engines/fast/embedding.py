"""Tables of vectors for many clients: one table of all, in which each client's rows follow another's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.engines.fast.layers import has_clients


class ClientEmbedding(nn.Embedding):
    """An embedding that serves many clients in one call."""

    def forward(self, input: Tensor) -> Tensor:
        """The vector of every number."""
        if not has_clients(self.weight):
            return super().forward(input)
        return _looked_up(input, self.weight, self.padding_idx)


class ClientEmbeddingBag(nn.EmbeddingBag):
    """The sum, mean or largest of the vectors of each row of numbers."""

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """One vector for each row."""
        if not has_clients(input, self.weight) or input.dim() != 2 or offsets is not None:
            return super().forward(input, offsets, per_sample_weights)
        out = _looked_up(input, self.weight, self.padding_idx)
        if per_sample_weights is not None:
            out = out * per_sample_weights[..., None]
        real = None if self.padding_idx is None else (input != self.padding_idx)[..., None]
        if self.mode == "max":
            if real is None:
                return out.amax(1)
            largest = out.masked_fill(~real, -torch.inf).amax(1)
            return largest.masked_fill(~real.any(1), 0.0)
        total = out.sum(1) if real is None else (out * real).sum(1)
        if self.mode == "sum":
            return total
        return total / (out.shape[1] if real is None else real.sum(1).clamp(min=1))


def fast_embedding(layer: nn.Module) -> nn.Module:
    """The layer, or if it is a plain table of vectors, one for many clients.

    >>> fast_embedding(nn.Embedding(5, 2))
    ClientEmbedding(5, 2)
    """
    kind = {nn.Embedding: ClientEmbedding, nn.EmbeddingBag: ClientEmbeddingBag}.get(type(layer))
    if kind is not None and layer.max_norm is None and not (layer.scale_grad_by_freq or layer.sparse):
        layer.__class__ = kind
    return layer


def _looked_up(ids: Tensor, table: Tensor, padding: int | None) -> Tensor:
    if not has_clients(table):
        return torch.nn.functional.embedding(ids, table, padding)
    out: Tensor = _ManyTables.apply(ids, table, padding)  # type: ignore[no-untyped-call]
    return out


class _ManyTables(torch.autograd.Function):
    """Hands a vmapped table, clients in front, to `_Tables`."""

    @staticmethod
    def forward(ids: Tensor, table: Tensor, padding: int | None) -> Tensor:
        return torch.nn.functional.embedding(ids, table, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: gradients are taken outside vmap, of what `_Tables` recorded."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, ids: Tensor, table: Tensor, padding: int | None) -> Any:
        table = table.movedim(in_dims[1], 0)
        ids = ids.movedim(in_dims[0], 0) if in_dims[0] is not None else ids.expand(len(table), *ids.shape)
        first = torch.arange(len(table), device=ids.device) * table.shape[1]
        places = ids + first.reshape(-1, *[1] * (ids.dim() - 1))
        return _Tables.apply(places, table, padding), 0  # type: ignore[no-untyped-call]


class _Tables(torch.autograd.Function):
    """Rows of table [clients, numbers, width]; `places` count through all clients' rows."""

    @staticmethod
    def forward(ctx: Any, places: Tensor, table: Tensor, padding: int | None) -> Tensor:
        ctx.save_for_backward(places)
        ctx.shape, ctx.padding = table.shape, padding
        return table.flatten(0, 1)[places]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        clients, numbers = ctx.shape[:2]
        # Sorted on a GPU, so equal runs add in one order.
        flat = torch.ops.aten.embedding_dense_backward(grads[0], places, clients * numbers, -1, False)
        table = flat.reshape(ctx.shape)
        if ctx.padding is not None:
            keeps = torch.arange(numbers, device=table.device) != ctx.padding % numbers
            table = table * keeps[:, None]
        return None, table, None
