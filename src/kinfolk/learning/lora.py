"""Low-rank adapters (Hu et al., 2022): beside a frozen matrix W, a trained one B A of low rank.

A layer gives W x + (alpha / rank) B A x, and the sum of the two matrices is never written down: with many
clients, W is one tensor for all, and only A and B are each client's own. B begins at zero, so that the first
model is the pretrained one. Layers change their class and keep their names, so that weights still fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinfolk.errors import KinfolkError
from kinfolk.learning.dropout import attention_weights
from kinfolk.learning.freezing import matched

FIELD = "model.lora.layers"


class LoRA:
    """What an adapted layer has besides: `lora_A` [rank, inputs], `lora_B` [outputs, rank] and a scale."""

    lora_A: nn.Parameter
    lora_B: nn.Parameter
    lora_scale: float
    lora_base: type[nn.Module]  # the class that the layer had

    def adapter(self, x: Tensor) -> Tensor:
        """scale B A x, [..., outputs]."""
        # As one matrix of rows: clients are then the one axis in front of all that is multiplied.
        rows = x.reshape(-1, x.shape[-1])
        out = F.linear(F.linear(rows, self.lora_A) * self.lora_scale, self.lora_B)
        return out.reshape(*x.shape[:-1], -1)


class LoRALinear(LoRA, nn.Linear):
    """A linear layer with an adapter."""

    def forward(self, x: Tensor) -> Tensor:
        """x @ weight.T + bias, and the adapter's part."""
        return super().forward(x) + self.adapter(x)


class LoRAAttention(LoRA, nn.MultiheadAttention):
    """Multi-head attention with adapters: its own on the three products of the input, `out_proj`'s behind."""

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
        """As PyTorch's, which would read the matrices past their adapters."""
        single = query.dim() == 2
        q, k, v = (self._heads(self._rows_first(t)) for t in self._projected(query, key, value))
        if is_causal and attn_mask is None:
            attn_mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        mask = self._mask(q, key_padding_mask, attn_mask)
        dropped = self.dropout if self.training else 0.0
        weights = None
        # Fused kernels know one network, and are not to be had where clients share a call.
        if need_weights or torch._C._functorch.is_batchedtensor(q):
            weights = attention_weights(q, k, mask)
            weights = F.dropout(weights, dropped) if dropped else weights
            out = weights @ v
        else:
            out = F.scaled_dot_product_attention(q, k, v, mask, dropped)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        weights = weights if need_weights else None
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if single:
            return out[0], None if weights is None else weights[0]
        return (out if self.batch_first else out.transpose(0, 1)), weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if query is key and key is value:
            both = F.linear(query, self.in_proj_weight, self.in_proj_bias) + self.adapter(query)
            return both.chunk(3, -1)  # type: ignore[return-value]
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        parts = zip(
            (query, key, value), self.in_proj_weight.chunk(3), biases, self.lora_B.chunk(3), strict=True
        )
        return tuple(  # type: ignore[return-value]
            F.linear(x, w, b) + F.linear(F.linear(x, self.lora_A) * self.lora_scale, up)
            for x, w, b, up in parts
        )

    def _rows_first(self, x: Tensor) -> Tensor:
        return x[None] if x.dim() == 2 else x if self.batch_first else x.transpose(0, 1)

    def _heads(self, x: Tensor) -> Tensor:
        """[rows, heads, places, width of a head]."""
        return x.reshape(*x.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2)

    def _mask(self, q: Tensor, padding: Tensor | None, mask: Tensor | None) -> Tensor | None:
        """What is added to the scores, or nothing: of places that may not be looked at, minus infinity."""
        added: Tensor | None = None
        if mask is not None:
            added = _as_added(mask, q.dtype)
            if added.dim() == 3:  # [rows x heads, places, places]
                added = added.reshape(-1, self.num_heads, *added.shape[1:])
        if padding is not None:
            padding = padding if padding.dim() == 2 else padding[None]
            hidden = _as_added(padding, q.dtype)[:, None, None]
            added = hidden if added is None else added + hidden
        return added


def _as_added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)


class _Conv1D(LoRA):
    """The adapted form of transformers' `Conv1D`, a linear layer whose weight is [inputs, outputs]."""

    def forward(self, x: Tensor) -> Tensor:
        """As it was, and the adapter's part."""
        return super().forward(x) + self.adapter(x)  # type: ignore[misc, no-any-return]


@lru_cache(maxsize=4)
def _adapted_conv1d(kind: Any) -> type[nn.Module]:
    return type("LoRAConv1D", (_Conv1D, kind), {})


def _is_conv1d(layer: nn.Module) -> bool:
    return type(layer).__name__ == "Conv1D" and type(layer).__module__ == "transformers.pytorch_utils"


def _form(layer: nn.Module) -> type[nn.Module] | None:
    """The class that a layer has with an adapter, or nothing if it can have none."""
    if type(layer) in (nn.Linear, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return LoRALinear
    if type(layer) is nn.MultiheadAttention:
        return LoRAAttention
    kind: Any = type(layer)
    return _adapted_conv1d(kind) if _is_conv1d(layer) else None


def add_lora(
    network: nn.Module, rank: int, alpha: float = 16.0, layers: Sequence[str] = ("*",), train: bool = False
) -> list[str]:
    """Freeze a network and give an adapter to all linear and attention layers that a pattern names.

    With `train`, what requires a gradient stays trained, and layers whose matrix does get no adapter. Nor do
    layers whose matrix is another layer's too, since the adapter would move both when it is merged.

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> add_lora(network, rank=2, layers=["0"])
    ['0']
    >>> [(name, list(p.shape)) for name, p in network.named_parameters() if p.requires_grad]
    [('0.lora_A', [2, 4]), ('0.lora_B', [8, 2])]
    """
    if not train:
        network.requires_grad_(False)
    fit = {path: layer for path, layer in network.named_modules() if _form(layer) is not None}
    if not fit:
        raise KinfolkError(
            FIELD, list(layers), "the network has no linear or attention layer; leave model.lora out"
        )
    chosen = matched(FIELD, layers, list(fit))
    whole = [path for path, layer in fit.items() if isinstance(layer, nn.MultiheadAttention)]
    added = []
    for path, layer in fit.items():
        # An attention and the matrix behind it are one layer.
        owner = path.removesuffix(".out_proj") if path.removesuffix(".out_proj") in whole else path
        if {path, owner, f"{owner}.out_proj"} & chosen and _free(network, layer):
            _adapt(path, layer, rank, alpha)
            added.append(path)
    if not added:
        raise KinfolkError(FIELD, list(layers), "these layers are trained whole or tied; name others")
    return added


def _free(network: nn.Module, layer: nn.Module) -> bool:
    """Whether a layer's matrix is frozen and its own."""
    matrix = _matrix(layer)
    names = [n for n, p in network.named_parameters(remove_duplicate=False) if p is matrix]
    return matrix is None or (not matrix.requires_grad and len(names) == 1)


def _matrix(layer: nn.Module) -> nn.Parameter | None:
    found: Any = layer.in_proj_weight if isinstance(layer, nn.MultiheadAttention) else layer.weight
    return found  # type: ignore[no-any-return]


def _adapt(path: str, layer: nn.Module, rank: int, alpha: float) -> None:
    matrix = _matrix(layer)
    odd = isinstance(layer, nn.MultiheadAttention) and (layer.bias_k is not None or layer.add_zero_attn)
    if matrix is None or odd:
        remedy = "has inputs of several widths or added keys, which adapters cannot take; name other layers"
        raise KinfolkError(FIELD, path, remedy)
    outputs, inputs = reversed(matrix.shape) if _is_conv1d(layer) else matrix.shape
    form = _form(layer)
    assert form is not None
    layer.lora_base = type(layer)  # type: ignore[assignment]
    layer.__class__ = form
    down, up = matrix.new_empty(rank, inputs), matrix.new_zeros(outputs, rank)
    nn.init.kaiming_uniform_(down, a=math.sqrt(5))  # as PyTorch draws linear layers
    layer.lora_A, layer.lora_B = nn.Parameter(down), nn.Parameter(up)
    layer.lora_scale = alpha / rank  # type: ignore[assignment]
    # PyTorch's short cuts in scoring read matrices past the layer, unless somebody looks at what goes in.
    layer.register_forward_pre_hook(_look)


def _look(layer: nn.Module, given: object) -> None:
    """Nothing is changed."""


def merge_lora(network: nn.Module) -> nn.Module:
    """The network with adapters added into its matrices: layers of the classes they had, nothing besides.

    W + scale B A is computed in float64 and rounded once, so that its bits do not depend on the machine.

    >>> network = nn.Sequential(nn.Linear(2, 2))
    >>> _ = add_lora(network, rank=1)
    >>> merge_lora(network)
    Sequential(
      (0): Linear(in_features=2, out_features=2, bias=True)
    )
    """
    for layer in network.modules():
        if isinstance(layer, LoRA):
            matrix = _matrix(layer)
            assert matrix is not None
            with torch.no_grad():
                change = layer.lora_B.double() @ layer.lora_A.double() * layer.lora_scale
                matrix.copy_(matrix.double() + (change.T if isinstance(layer, _Conv1D) else change))
            matrix.requires_grad_()
            _restore(layer)
    return network


def _restore(layer: Any) -> None:
    layer.__class__ = layer.lora_base
    del layer.lora_A, layer.lora_B, layer.lora_scale, layer.lora_base
    for key, hook in list(layer._forward_pre_hooks.items()):
        if hook is _look:
            del layer._forward_pre_hooks[key]
