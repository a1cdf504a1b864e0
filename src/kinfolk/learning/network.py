"""How a network is run: prepared once, then called with a tree of numbers in place of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kinfolk.learning.dropout import dropping
from kinfolk.learning.norm import row_weights, without_padding
from kinfolk.types import Tree

# What makes a network fit to be run for clients: it keeps its names, and gives the same up to rounding.
Prepare = Callable[[nn.Module], nn.Module]


def plain(network: nn.Module) -> nn.Module:
    """The network as it is, but for BatchNorm, which leaves padding out.

    >>> plain(nn.Sequential(nn.BatchNorm1d(2)))
    Sequential(
      (0): RowBatchNorm()
    )
    """
    return exchange_layers(network, without_padding)


class ReluPool2(nn.Module):
    """A ReLU and max-pooling by two."""

    def forward(self, x: Tensor) -> Tensor:
        """The larger of 0 and the largest of every two by two values of x [rows, channels, height, width]."""
        # Pooled first: the same numbers and gradients, and a quarter of them to cut off at 0.
        return F.relu(F.max_pool2d(x, 2))


def call(
    network: nn.Module, tree: Tree, x: Tensor, weight: Tensor | None = None, key: Tensor | None = None
) -> Tensor:
    """The network's output with the numbers of a tree; `weight` [rows] is 0 for rows that are padding.

    With a `key` dropout follows from it. Within vmap attention is made of plain products: fused kernels
    know no clients, and what vmap makes of them fails or goes over clients one by one.
    """
    with row_weights(weight), dropping(key), _plain_attention():
        out: Tensor = functional_call(network, tree, (x,))
    return out


def _plain_attention() -> AbstractContextManager[None]:
    within_vmap = torch._C._functorch.maybe_current_level() is not None
    return sdpa_kernel(SDPBackend.MATH) if within_vmap else nullcontext()


def exchange_layers(module: nn.Module, equal: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Replace every layer inside a module by what `equal` gives for it; names stay.

    A layer that stands in several places stays one layer.

    >>> exchange_layers(nn.Sequential(nn.ReLU()), lambda old: nn.Tanh() if isinstance(old, nn.ReLU) else old)
    Sequential(
      (0): Tanh()
    )
    """
    made: dict[nn.Module, nn.Module] = {}

    def fresh(old: nn.Module) -> nn.Module:
        if old not in made:
            made[old] = equal(old)
            for name, child in list(old._modules.items()):
                if child is not None:
                    setattr(old, name, fresh(child))
        return made[old]

    return fresh(module)
