"""BatchNorm that can leave padding out, so that clients of unequal size can share one batched call.

In a batched call the last batch of a small client is padded with rows of weight 0. Ordinary
BatchNorm would let them into its statistics. `RowBatchNorm` reads the weights of the rows from the
surrounding call; without weights it is PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

_KNOWN = {_BatchNorm.forward, nn.SyncBatchNorm.forward}

_weights: ContextVar[Tensor | None] = ContextVar("row weights", default=None)


@contextmanager
def row_weights(weights: Tensor | None) -> Iterator[None]:
    """Within: `weights` [rows] says which rows of the batch are real (1) and which are padding (0)."""
    token = _weights.set(weights)
    try:
        yield
    finally:
        _weights.reset(token)


class RowBatchNorm(nn.Module):
    """A BatchNorm layer with the same names and numbers as the one it replaces."""

    def __init__(self, like: _BatchNorm) -> None:
        super().__init__()
        self.eps, self.momentum = like.eps, like.momentum
        self.weight, self.bias = like.weight, like.bias
        self.register_buffer("running_mean", like.running_mean)
        self.register_buffer("running_var", like.running_var)
        self.register_buffer("num_batches_tracked", like.num_batches_tracked)
        self.training = like.training
        self.running_mean: Tensor | None
        self.running_var: Tensor | None
        self.num_batches_tracked: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise; in training, by the statistics of the real rows of this batch."""
        by_batch = self.training or self.running_mean is None
        weights = _weights.get() if by_batch else None
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        if weights is None and (self.momentum is not None or not by_batch):
            return self._plain(x, by_batch)
        return self._by_rows(x, weights if weights is not None else x.new_ones(x.shape[0]))

    def _plain(self, given: Tensor, by_batch: bool) -> Tensor:
        # PyTorch takes half precision beside statistics in float32, but its rules for vmap do not.
        apart = given.element_size() < 4 and torch._C._functorch.maybe_current_level() is not None
        out = F.batch_norm(
            given.float() if apart else given,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            by_batch,
            self.momentum or 0.0,
            self.eps,
        )
        return out.to(given.dtype)

    def _by_rows(self, given: Tensor, weights: Tensor) -> Tensor:
        # Half precision saves bytes elsewhere; sums over many rows would lose digits by it.
        x = given.float() if given.element_size() < 4 else given
        across = [0, *range(2, x.dim())]
        shape = [1, -1, *[1] * (x.dim() - 2)]
        w = weights.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))
        count = (w.sum() * (x[0, 0].numel())).clamp(min=1)
        mean = (x * w).sum(across) / count
        apart = x - mean.reshape(shape)
        var = (apart * apart * w).sum(across) / count
        if self.training and self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                assert self.num_batches_tracked is not None
                share: Tensor | float = (
                    1 / self.num_batches_tracked.to(x.dtype) if self.momentum is None else self.momentum
                )
                spread = var * (count / (count - 1).clamp(min=1))
                self.running_mean.copy_(self.running_mean * (1 - share) + mean * share)
                self.running_var.copy_(self.running_var * (1 - share) + spread * share)
        out = apart * (var + self.eps).rsqrt().reshape(shape)
        if self.weight is not None:
            out = out * self.weight.reshape(shape) + self.bias.reshape(shape)
        return out.to(given.dtype)


def without_padding(layer: nn.Module) -> nn.Module:
    """The layer, or if it is a BatchNorm one that leaves padding out.

    One whose `forward` is the user's own is kept.
    """
    known = isinstance(layer, _BatchNorm) and type(layer).forward in _KNOWN
    return RowBatchNorm(cast(_BatchNorm, layer)) if known else layer


def by_the_batch(module: nn.Module) -> bool:
    """Whether a row's score depends on the rows beside it: BatchNorm without running statistics.

    >>> [by_the_batch(nn.BatchNorm1d(2, track_running_stats=kept)) for kept in (True, False)]
    [False, True]
    """
    kinds = (_BatchNorm, RowBatchNorm)
    return any(isinstance(m, kinds) and m.running_mean is None for m in module.modules())


def has_batch_norm(module: nn.Module) -> bool:
    """Whether training needs at least two rows in a batch: BatchNorm that is not in scoring mode.

    >>> has_batch_norm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    True
    """
    return any(isinstance(m, (_BatchNorm, RowBatchNorm)) and m.training for m in module.modules())
