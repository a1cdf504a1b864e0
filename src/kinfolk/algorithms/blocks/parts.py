"""Parts of a network that methods treat apart: its head, which is its last layer, and its BatchNorm layers.

A part is a set of leaves of the model, buffers included. What is frozen is in no model, and so in no part.
"""

from __future__ import annotations

from collections.abc import Collection

from torch.nn.modules.batchnorm import _BatchNorm

from kinfolk.learning.learner import Learner
from kinfolk.types import Tree


def head_of(learner: Learner, layers: int = 1) -> tuple[str, ...]:
    """The leaves of the last layer, which is called `head`, and of so many layers in all, counted from there.

    Layers are those with something to train, in the order in which the network defines them. Without a layer
    called `head`: nothing.

    >>> from torch import nn
    >>> from kinfolk.learning.losses import find_loss
    >>> net = nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.Linear(3, 3), "head": nn.Linear(3, 2)})
    >>> learner = Learner(net, find_loss("cross_entropy"), 2)
    >>> head_of(learner), head_of(learner, 2)[:2]
    (('head.weight', 'head.bias'), ('b.weight', 'b.bias'))
    """
    if not learner.head:
        return ()
    body = [name.rpartition(".")[0] for name in learner.names if name not in learner.head]
    last = list(dict.fromkeys(body))[::-1][: layers - 1]
    return _inside(learner, [*last, "head"])


def norms_of(learner: Learner) -> tuple[str, ...]:
    """The leaves of all BatchNorm layers: scales, shifts and running statistics.

    >>> from torch import nn
    >>> from kinfolk.learning.losses import find_loss
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    >>> norms_of(Learner(net, find_loss("cross_entropy"), 3))[:3]
    ('1.weight', '1.bias', '1.running_mean')
    """
    return _inside(learner, [path for path, m in learner.module.named_modules() if isinstance(m, _BatchNorm)])


def _inside(learner: Learner, layers: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in learner.first if any(name.startswith(f"{one}.") for one in layers))


def part(model: Tree, names: Collection[str]) -> Tree:
    """Those leaves of a model, in its order.

    >>> import torch
    >>> part({"a": torch.zeros(1), "b": torch.ones(1)}, ["b"])
    {'b': tensor([1.])}
    """
    return {name: leaf for name, leaf in model.items() if name in names}
