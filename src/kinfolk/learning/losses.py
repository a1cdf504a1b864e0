"""Losses, one value per row: the caller decides how rows are averaged and which are padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from kinfolk.errors import KinfolkError, near


@dataclass(frozen=True)
class Loss:
    """A loss by name; `row_loss(out, y)` gives one value per row."""

    name: str
    row_loss: Callable[[Tensor, Any], Tensor]  # (outputs, targets: Rows) -> [rows]
    classification: bool


def cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    """Cross entropy of logits [rows, classes] against whole-number labels [rows].

    >>> import torch
    >>> cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor([1.3863, 1.3863])
    """
    # Not F.cross_entropy, which asks of every label whether it is to be ignored: four more steps in a batch.
    return -F.log_softmax(out, 1).gather(1, y[:, None]).squeeze(1)


def residual(out: Tensor, y: Tensor) -> Tensor:
    """`out - y` as [rows, outputs], whether or not a single output has an axis of its own.

    >>> import torch
    >>> residual(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 5.0]))
    tensor([[ 0.],
            [-3.]])
    """
    out, y = (t.unsqueeze(1) if t.dim() == 1 else t.flatten(1) for t in (out, y))
    # Unequal shapes would broadcast, and every row would be compared with every other.
    if out.shape != y.shape:
        raise KinfolkError(
            "model outputs", tuple(out.shape), f"the targets are {tuple(y.shape)}; both must be of one shape"
        )
    return out - y


def mse(out: Tensor, y: Tensor) -> Tensor:
    """Squared error of each row, the mean over its outputs.

    >>> import torch
    >>> mse(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 5.0]))
    tensor([0., 9.])
    """
    return residual(out, y).square().mean(1)


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        Loss("cross_entropy", cross_entropy, classification=True),
        Loss("mse", mse, classification=False),
    )
}


def find_loss(name: str) -> Loss:
    """The loss of this name.

    >>> find_loss("mse").classification
    False
    """
    if name not in LOSSES:
        raise KinfolkError("loss", name, near(name, LOSSES))
    return LOSSES[name]
