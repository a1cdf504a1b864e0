"""Attention for many clients, by plain products.

Fused kernels know one network, and are not to be had within vmap. Rows of many clients keep a device busy
without them. PyTorch's short cuts for scoring are left out too: they have no rule for vmap, and where a row
is padded they give other numbers than training does.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.engines.fast.layers import client_linear, has_clients
from kinfolk.learning.dropout import attention_weights


class ClientAttention(nn.MultiheadAttention):
    """Attention that serves many clients in one call; one client's is PyTorch's, unless it drops."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """(what each place finds, where it looked if that is asked for)."""
        among = has_clients(query, key, value, key_padding_mask, attn_mask, *self.parameters())
        if query.dim() != 3 or not (among or (self.training and self.dropout > 0)):
            masks = key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            return super().forward(query, key, value, *masks)
        if self.batch_first:
            q, k, v = self._projected(query, key, value)
        else:
            q, k, v = (t.transpose(0, 1) for t in self._projected(query, key, value))
        q, k, v = (t.reshape(*t.shape[:2], self.num_heads, -1).transpose(1, 2) for t in (q, k, v))
        mask = added_mask(q, key_padding_mask, attn_mask)
        drop = self.dropout if self.training else 0.0
        causal = is_causal and attn_mask is None
        weights = None
        if need_weights:
            weights = F.dropout(attention_weights(q, k, mask, causal), drop, self.training)
            out = weights @ v
        else:
            out = attend(q, k, v, mask, causal, drop)
        out = out.transpose(1, 2).flatten(-2)
        out = client_linear(out, self.out_proj.weight, self.out_proj.bias)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        return out if self.batch_first else out.transpose(0, 1), weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        w, b = self.in_proj_weight, self.in_proj_bias
        if query is key and key is value:
            return list(client_linear(query, w, b).chunk(3, -1))
        biases = [None] * 3 if b is None else list(b.chunk(3))
        return [client_linear(*one) for one in zip((query, key, value), w.chunk(3), biases, strict=True)]


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, drop: float) -> Tensor:
    """`F.scaled_dot_product_attention`, within vmap by plain products."""
    if drop > 0 or not has_clients(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, mask, drop, causal)
    return attention_weights(q, k, mask, causal) @ v


def added_mask(q: Tensor, padding: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """Both masks of an attention layer as one that is added to products [rows, heads, places, places].

    True in them, or minus infinity, is where nobody may look.

    >>> added_mask(torch.zeros(1, 1, 2, 4), torch.tensor([[False, True]]), None)
    tensor([[[[0., -inf]]]])
    """
    parts = []
    if mask is not None:
        parts.append(mask.reshape(len(q), -1, *mask.shape[1:]) if mask.dim() == 3 else mask)
    if padding is not None:
        parts.append(padding[:, None, None, :])
    added = [
        torch.zeros_like(part, dtype=q.dtype).masked_fill(part, -math.inf)
        if part.dtype == torch.bool
        else part
        for part in parts
    ]
    return None if not added else added[0] if len(added) == 1 else added[0] + added[1]


class ClientEncoderLayer(nn.TransformerEncoderLayer):
    """An encoder's layer in training and in scoring alike."""

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Attention, then the two linear layers, with what came in added to each."""
        masks = src_mask, src_key_padding_mask
        if self.norm_first:
            x = src + self._sa_block(self.norm1(src), *masks, is_causal=is_causal)
            return x + self._ff_block(self.norm2(x))
        x = self.norm1(src + self._sa_block(src, *masks, is_causal=is_causal))
        return self.norm2(x + self._ff_block(x))  # type: ignore[no-any-return]


class ClientEncoder(nn.TransformerEncoder):
    """Layers in turn. PyTorch's looks into a mask to see whether it is causal, which waits for the device."""

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """What the last layer gives, normalised if there is a norm."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal=bool(is_causal))
        return src if self.norm is None else self.norm(src)


class ClientDecoder(nn.TransformerDecoder):
    """As `ClientEncoder`, with what the encoder gave."""

    def forward(self, tgt: Tensor, memory: Tensor, *masks: Any, **named: Any) -> Tensor:
        """What the last layer gives, normalised if there is a norm."""
        named["tgt_is_causal"] = bool(named.get("tgt_is_causal"))
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, **named)
        return tgt if self.norm is None else self.norm(tgt)


_FAST = {
    nn.TransformerEncoderLayer: ClientEncoderLayer,
    nn.TransformerEncoder: ClientEncoder,
    nn.TransformerDecoder: ClientDecoder,
}


def fast_attention(layer: nn.Module) -> nn.Module:
    """The layer, or if it is one with attention that is known here, one for many clients.

    >>> type(fast_attention(nn.MultiheadAttention(4, 2))).__name__
    'ClientAttention'
    """
    if type(layer) is nn.MultiheadAttention:
        if layer._qkv_same_embed_dim and layer.bias_k is None and not layer.add_zero_attn:
            layer.__class__ = ClientAttention
    elif type(layer) in _FAST:
        layer.__class__ = _FAST[type(layer)]
    return layer
