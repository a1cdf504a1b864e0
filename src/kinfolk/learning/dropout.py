"""Dropout without a generator: what is dropped follows from a key of the step and from where a number stands.

A step that is run for many clients at once, traced or recorded may not draw. Within `dropping(key)` PyTorch's
dropout, in layers and in functions, is a hash of the key, of how often dropout was called before in the
network, and of the place of each number in its tensor. So one client alone, among others, in a padded batch
and on another device drops the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Odd numbers without a pattern: what a place counts for along each axis, the number of the call first.
_AXES = [
    number - 2**64 if number >= 2**63 else number
    for number in (
        *(0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0xABC98388FB8FAC03, 0x8CB92BA72F3D8DD7),
        *(0xDB4F0B9175AE2165, 0xBBE0563303A4615F, 0xA0F2EC75A1FE1575, 0x89E182857D9ED689),
    )
]
# Of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators. OOPSLA 2014).
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def kept(key: Tensor, shape: tuple[int, ...], p: float, call: int = 0) -> Tensor:
    """Which numbers of a tensor of this shape stay, each with probability 1 - p.

    A place has its answer by its coordinates, whatever the size of the tensor.

    >>> few, many = (kept(torch.tensor(7), (rows, 3), 0.5) for rows in (2, 5))
    >>> bool((few == many[:2]).all())
    True
    """
    place = torch.full((), (call + 1) * _AXES[0] % 2**63, dtype=torch.int64, device=key.device)
    for axis, size in enumerate(shape, 1):
        place = place[..., None] + torch.arange(size, device=key.device) * _AXES[axis % len(_AXES)]
    z = key + place
    z = (z ^ (z >> 30)) * _FIRST
    z = (z ^ (z >> 27)) * _SECOND
    # The upper bits are the well mixed ones: as a signed number they are compared with a limit.
    return z < min(int((1 - p) * 2**64) - 2**63, 2**63 - 1)


def dropping(key: Tensor | None) -> AbstractContextManager[object]:
    """Within: dropout drops by this key (a whole number); without one it draws as PyTorch does."""
    return nullcontext() if key is None else _Hashed(key)


class _Hashed(TorchFunctionMode):
    """Dropout by a key. Every call has a number of its own, in the order of the network."""

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key, self.calls = key, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ours = _OURS.get(func, func)
        return ours(self, *args, **(kwargs or {})) if ours is not func else func(*args, **(kwargs or {}))

    def drop(self, x: Tensor, p: float, shape: tuple[int, ...], inplace: bool = False) -> Tensor:
        """x with some numbers 0 and the others larger; `shape` has 1 where all along an axis share a fate."""
        call, self.calls = self.calls, self.calls + 1
        stays, scale = kept(self.key, shape, p, call), 1 / (1 - p) if p < 1 else 0.0
        if inplace:
            return x.mul_(stays.to(x.dtype) * scale)
        return torch.where(stays, x * scale, torch.zeros((), dtype=x.dtype, device=x.device))


def _dropout(
    mode: _Hashed, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    return mode.drop(input, p, tuple(input.shape), inplace) if training and p > 0 else input


def _by_channel(
    mode: _Hashed, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    if not training or p <= 0:
        return input
    shape = (*input.shape[:2], *[1] * (input.dim() - 2))
    return mode.drop(input, p, shape, inplace)


def _attention(
    mode: _Hashed,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p <= 0:
        how = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        return F.scaled_dot_product_attention(query, key, value, attn_mask, **how)  # type: ignore[arg-type]
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    weights = attention_weights(query, key, attn_mask, is_causal, scale)
    return mode.drop(weights, dropout_p, tuple(weights.shape)) @ value


def attention_weights(
    query: Tensor, key: Tensor, mask: Tensor | None = None, causal: bool = False, scale: float | None = None
) -> Tensor:
    """How much each place of `query` [..., places, width] looks at each of `key`.

    A mask says where it may look, or is added to the products.

    >>> attention_weights(torch.zeros(2, 4), torch.zeros(2, 4), causal=True)
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    scores = (query * (scale or 1 / math.sqrt(query.shape[-1]))) @ key.transpose(-2, -1)
    if causal:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(ahead, -math.inf)
    if mask is None:
        return scores.softmax(-1)
    # Not infinity: a place that may look nowhere would find no number. It finds 0, as in PyTorch.
    least = torch.finfo(scores.dtype).min / 2
    if mask.dtype == torch.bool:
        looks, scores = mask, scores.masked_fill(~mask, least)
    else:
        looks, scores = mask > least, scores + mask.clamp(min=least)
    return scores.softmax(-1) * looks.any(-1, keepdim=True)


_OURS: dict[Any, Callable[..., Tensor]] = {
    F.dropout: _dropout,
    torch.dropout: _dropout,
    F.dropout1d: _by_channel,
    F.dropout2d: _by_channel,
    F.dropout3d: _by_channel,
    F.scaled_dot_product_attention: _attention,
}


def has_dropout(network: nn.Module) -> bool:
    """Whether a layer drops in training; `drops` also sees functions that the network calls by itself.

    >>> [has_dropout(layer) for layer in (nn.Dropout(0.1), nn.Dropout(0.0), nn.LSTM(2, 2, 2, dropout=0.1))]
    [True, False, True]
    """
    rates = (
        m.p if isinstance(m, nn.modules.dropout._DropoutNd) else getattr(m, "dropout", 0)
        for m in network.modules()
        if m.training
    )
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


class _Watching(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.dropped = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        watched = _Hashed(torch.zeros((), dtype=torch.int64))
        out = (
            _OURS[func](watched, *args, **(kwargs or {})) if func in _OURS else func(*args, **(kwargs or {}))
        )
        self.dropped |= watched.calls > 0
        return out


@contextmanager
def watching() -> Iterator[_Watching]:
    """Within: notices whether anything is dropped.

    >>> with watching() as watched:
    ...     _ = F.dropout(torch.ones(2), 0.5)
    >>> watched.dropped
    True
    """
    with _Watching() as mode:
        yield mode
