"""Networks made fast for many clients: layers exchanged for equals that serve all of them in one call."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import nn

from kinfolk.engines.fast.attention import fast_attention
from kinfolk.engines.fast.conv import ClientConv2d, fast_conv
from kinfolk.engines.fast.embedding import fast_embedding
from kinfolk.engines.fast.layers import fast_layer, join_relu_and_pool
from kinfolk.engines.fast.recurrent import fast_recurrent
from kinfolk.learning.dropout import watching
from kinfolk.learning.hugging_face import eager
from kinfolk.learning.learner import Learner
from kinfolk.learning.network import exchange_layers
from kinfolk.learning.norm import without_padding
from kinfolk.types import Rows

_EQUALS = (fast_layer, fast_conv, fast_recurrent, fast_attention, fast_embedding)


def prepare(network: nn.Module, usual_layout: bool = False) -> nn.Module:
    """The network with layers that are fast for many clients; for `Learner.prepare`.

    With `usual_layout` what convolutions give lies in memory as PyTorch's does, not as is fastest.

    >>> prepare(nn.Sequential(nn.Linear(2, 3)))
    Sequential(
      (0): ClientLinear(in_features=2, out_features=3, bias=True)
    )
    """
    for equal in (eager, without_padding, join_relu_and_pool, *_EQUALS):
        network = exchange_layers(network, equal)
    for layer in network.modules():
        if isinstance(layer, ClientConv2d):
            layer.usual_layout = usual_layout
    return network


def accelerated(learner: Learner, rows: Rows) -> Learner:
    """The learner with a prepared network, tried on a few rows.

    Whether it calls dropout by itself is noticed on the way. A `view` of what a convolution gives takes the
    usual layout for granted.

    >>> from kinfolk.learning.losses import find_loss
    >>> class View(nn.Module):
    ...     def forward(self, x):
    ...         return x.view(len(x), -1)
    >>> for last in (nn.Flatten(), View()):
    ...     learner = Learner(nn.Sequential(nn.Conv2d(3, 2, 3), last), find_loss("cross_entropy"), 8)
    ...     accelerated(learner, torch.zeros(2, 3, 4, 4)).prepare is prepare
    True
    False
    """
    fast = replace(learner, prepare=prepare)
    try:
        with torch.no_grad():
            with watching() as watched:
                fast.apply(fast.first, rows, training=True)
            if watched.dropped:
                learner, fast = (replace(one, draws=True) for one in (learner, fast))
            fast.apply(fast.first, rows)
    except RuntimeError as problem:
        if "view size is not compatible" in str(problem):
            return replace(learner, prepare=partial(prepare, usual_layout=True))
    return fast
