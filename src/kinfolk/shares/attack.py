"""What a curious member makes of one layer-wise share: the victim's model, up to a handful of numbers.

A share is the victim's model with every layer times an unknown positive number. The attacker starts from
the sizes of its own layers and fits those numbers, one for each layer, on a few rows of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kinfolk.types import Tree

# (model, inputs) -> logits, in evaluation mode.
Predict = Callable[[Tree, Tensor], Tensor]


def rebuild(share: Tree, own: Tree, predict: Predict, x: Tensor, y: Tensor, sweeps: int = 15) -> Tree:
    """The model behind a share, as far as one number per tensor can undo the cutting.

    `own` is the attacker's model, `y` the classes of its rows `x`, or probabilities [rows, classes] where
    it matches predictions instead. Tensors of whole numbers are taken from `own`. The search goes from
    tensor to tensor, tries it larger and smaller, and needs no gradients: buffers have none.

    >>> victim = {"w": torch.tensor([[1.0, 0.0], [0.0, 1.0]])}
    >>> share, rows = {"w": victim["w"] * 0.01}, torch.eye(2)
    >>> found = rebuild(share, victim, lambda model, x: x @ model["w"], rows, torch.arange(2))
    >>> bool((found["w"].diagonal() >= 1).all())
    True
    """
    names = [name for name, leaf in share.items() if leaf.is_floating_point()]
    model = {**own, **{name: _sized_like(share[name].detach(), own[name]) for name in names}}
    factor = 2.0
    with torch.no_grad():
        best = _loss(predict(model, x), y)
        for _ in range(sweeps):
            before = best
            for name, scale in ((name, scale) for name in names for scale in (factor, 1 / factor)):
                tried = {**model, name: model[name] * scale}
                loss = _loss(predict(tried, x), y)
                if loss < best:
                    model, best = tried, loss
            factor = factor if best < before * 0.99 else factor**0.5
    return model


def _loss(logits: Tensor, y: Tensor) -> float:
    # Smoothed: on few rows that are all read rightly, the plain loss falls for ever as scales grow.
    return float(torch.nn.functional.cross_entropy(logits, y, label_smoothing=0.1))


def _sized_like(leaf: Tensor, own: Tensor) -> Tensor:
    """The leaf, as long as the attacker's own; a leaf of zeros stays."""
    length = leaf.double().norm()
    scale = torch.where(length > 0, own.double().norm() / length.clamp(min=1e-300), torch.ones_like(length))
    return (leaf.double() * scale).to(own)
