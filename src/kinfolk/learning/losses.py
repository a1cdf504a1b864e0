"""Losses, one value per row: the caller decides how rows are averaged and which are padding.

A loss is a frozen dataclass: its fields are its options, `takes` names the kinds of targets it can be given,
and `row_loss(out, y)` gives one value per row. It is added to LOSSES and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from kinfolk.by_path import made_by_name, one_line
from kinfolk.errors import KinfolkError
from kinfolk.types import IGNORED

# What targets are, and what they look like.
TARGETS = {
    "class": "whole numbers [rows], a class each",
    "soft": "probabilities of classes [rows, classes]",
    "positions": "whole numbers [rows, positions...], a class per position",
    "binary": "0 or 1 (for bce also between) [rows], for a network with one output",
    "labels": "0 or 1 (for bce also between) [rows, labels], several labels",
    "numbers": "numbers [rows, ...], as many as the network gives",
    "any": "anything",
}


@dataclass(frozen=True)
class Loss:
    """A loss and the kind of targets it is for; `row_loss(out, y)` gives one value per row."""

    name: str
    row_loss: Callable[[Tensor, Any], Tensor]
    target: str = "any"
    class_axis: int = -1  # of a class per position: which axis of the outputs is that of the classes
    ignored: int = (
        IGNORED  # the label that `ignore_index` names; if it is that of a class, no score counts it
    )

    @property
    def classification(self) -> bool:
        """Whether each row has one class and the network gives a logit for each."""
        return self.target == "class"


def residual(out: Tensor, y: Tensor) -> Tensor:
    """`out - y` as [rows, outputs], whether or not a single output has an axis of its own.

    >>> import torch
    >>> residual(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 5.0]))
    tensor([[ 0.],
            [-3.]])
    """
    out, y = _paired(out, y)
    return out - y


def _paired(out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both as [rows, outputs]."""
    out, y = (t.unsqueeze(1) if t.dim() == 1 else t.flatten(1) for t in (out, y))
    # Unequal shapes would broadcast, and every row would be compared with every other.
    if out.shape != y.shape:
        raise KinfolkError(
            "model outputs", tuple(out.shape), f"the targets are {tuple(y.shape)}; both must be of one shape"
        )
    return out, y if y.is_floating_point() else y.to(out.dtype)


@lru_cache(maxsize=32)
def _constants(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Weights on a device, made once: nothing may be copied to a GPU while steps are recorded."""
    return torch.tensor(values, device=device)


def _weights(values: tuple[float, ...], like: Tensor) -> Tensor:
    return _constants(tuple(map(float, values)), like.device).to(like.dtype)


def logits_last(out: Tensor, axis: int) -> Tensor:
    """Outputs with their classes on the last axis.

    >>> logits_last(torch.zeros(2, 5, 3), 1).shape
    torch.Size([2, 3, 5])
    """
    return out if axis == -1 else out.movedim(axis, -1)


def _counted(y: Tensor, ignore_index: int) -> Tensor:
    """Which labels count: what pads a sequence never does."""
    keep = y != IGNORED
    return keep if ignore_index == IGNORED else keep & (y != ignore_index)


def _check_weights(name: str, values: tuple[float, ...]) -> None:
    wrong = [one for one in values if not isinstance(one, int | float) or not 0 <= one < math.inf]
    if wrong:
        raise KinfolkError(name, wrong[0], "give numbers of 0 or more")


def _row_mean(values: Tensor, keep: Tensor) -> Tensor:
    """The mean over a row's positions, without those that are left out."""
    if values.dim() == 1:
        return values
    return values.flatten(1).sum(1) / keep.flatten(1).sum(1).clamp(min=1)


@dataclass(frozen=True)
class CrossEntropy:
    """Cross entropy of logits against classes, classes per position, or probabilities.

    As `torch.nn.functional.cross_entropy` with `reduction="none"`; a row of positions counts with the mean
    over those that are not `ignore_index`.

    >>> CrossEntropy().row_loss(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor([1.3863, 1.3863])
    """

    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] = ()
    ignore_index: int = IGNORED
    class_axis: int = 0  # of a class per position: 1 or -1; 0: by the shapes

    takes: ClassVar[tuple[str, ...]] = ("class", "soft", "positions")

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise KinfolkError("label_smoothing", self.label_smoothing, "give a number from 0 to below 1")
        _check_axis(self.class_axis)
        _check_weights("class_weights", self.class_weights)

    def row_loss(self, out: Tensor, y: Tensor) -> Tensor:
        """One value per row."""
        if y.is_floating_point():
            return self._soft(out.log_softmax(1), y)
        if y.dim() == 1 and not (self.label_smoothing or self.class_weights or self.ignore_index != IGNORED):
            # Not F.cross_entropy, which asks of every label whether it is to be ignored: four more steps in a
            # batch.
            return -F.log_softmax(out, 1).gather(1, y[:, None]).squeeze(1)
        logp = logits_last(out, self.class_axis or -1).log_softmax(-1)
        keep = _counted(y, self.ignore_index)
        own = torch.where(keep, y, 0)
        value = -logp.gather(-1, own.unsqueeze(-1)).squeeze(-1)
        weight = _weights(self.class_weights, logp) if self.class_weights else None
        value = value if weight is None else value * weight[own]
        if self.label_smoothing:
            even = -(logp if weight is None else logp * weight).mean(-1)
            value = (1 - self.label_smoothing) * value + self.label_smoothing * even
        return _row_mean(torch.where(keep, value, 0), keep)

    def _soft(self, logp: Tensor, y: Tensor) -> Tensor:
        y = y * (1 - self.label_smoothing) + self.label_smoothing / logp.shape[1]
        y = y * _weights(self.class_weights, logp) if self.class_weights else y
        return -(y * logp).sum(1)


def _check_axis(axis: int) -> None:
    if axis not in (-1, 0, 1):
        raise KinfolkError(
            "class_axis", axis, "give 1 (classes before positions), -1 (after them) or 0 (by shape)"
        )


@dataclass(frozen=True)
class BCE:
    """Binary cross entropy of logits, the mean over a row's labels, as `binary_cross_entropy_with_logits`.

    >>> BCE().row_loss(torch.zeros(2, 3), torch.ones(2, 3))
    tensor([0.6931, 0.6931])
    """

    pos_weight: tuple[float, ...] = ()  # what a label that is there counts, one number or one for each label

    takes: ClassVar[tuple[str, ...]] = ("labels", "binary")

    def __post_init__(self) -> None:
        _check_weights("pos_weight", self.pos_weight)

    def row_loss(self, out: Tensor, y: Tensor) -> Tensor:
        """One value per row."""
        z, y = _paired(out, y)
        # log(1 + exp(-z)), of which nothing overflows.
        there, not_there = F.softplus(-z), F.softplus(z)
        weight = _weights(self.pos_weight, z) if self.pos_weight else 1.0
        return (weight * y * there + (1 - y) * not_there).mean(1)


@dataclass(frozen=True)
class Focal:
    """Focal loss (Lin et al. 2017): (1 - p)^gamma times the cross entropy, p the probability of the truth.

    Of classes by softmax, of labels and one-output networks by a sigmoid each.

    >>> Focal(gamma=1.0).row_loss(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor([1.0397, 1.0397])
    """

    gamma: float = 2.0
    class_weights: tuple[float, ...] = ()
    ignore_index: int = IGNORED
    class_axis: int = 0

    takes: ClassVar[tuple[str, ...]] = ("class", "positions", "labels", "binary")
    each: ClassVar[bool] = False  # whether targets are labels, each there or not

    def __post_init__(self) -> None:
        if not self.gamma >= 0:
            raise KinfolkError("gamma", self.gamma, "give 0 or more")
        _check_axis(self.class_axis)
        _check_weights("class_weights", self.class_weights)

    def row_loss(self, out: Tensor, y: Tensor) -> Tensor:
        """One value per row."""
        if self.each or y.is_floating_point():
            z, y = _paired(out, y)
            nll = y * F.softplus(-z) + (1 - y) * F.softplus(z)
            return ((1 - torch.exp(-nll)) ** self.gamma * nll).mean(1)
        logp = logits_last(out, self.class_axis or -1).log_softmax(-1)
        keep = _counted(y, self.ignore_index)
        own = torch.where(keep, y, 0)
        nll = -logp.gather(-1, own.unsqueeze(-1)).squeeze(-1)
        value = (1 - torch.exp(-nll)) ** self.gamma * nll
        value = value * _weights(self.class_weights, logp)[own] if self.class_weights else value
        return _row_mean(torch.where(keep, value, 0), keep)


@dataclass(frozen=True)
class LabelFocal(Focal):
    """The focal loss of labels, whatever type they are stored as."""

    each: ClassVar[bool] = True


@dataclass(frozen=True)
class MSE:
    """Squared error of each row, the mean over its outputs.

    >>> MSE().row_loss(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 5.0]))
    tensor([0., 9.])
    """

    takes: ClassVar[tuple[str, ...]] = ("numbers",)

    def row_loss(self, out: Tensor, y: Tensor) -> Tensor:
        """One value per row."""
        return residual(out, y).square().mean(1)


@dataclass(frozen=True)
class L1:
    """Absolute error of each row, the mean over its outputs.

    >>> L1().row_loss(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 5.0]))
    tensor([0., 3.])
    """

    takes: ClassVar[tuple[str, ...]] = ("numbers",)

    def row_loss(self, out: Tensor, y: Tensor) -> Tensor:
        """One value per row."""
        return residual(out, y).abs().mean(1)


@dataclass(frozen=True)
class Huber:
    """Squared error near zero, straight from `delta` on, as `torch.nn.functional.huber_loss`.

    >>> Huber().row_loss(torch.tensor([[1.0], [2.0]]), torch.tensor([1.5, 5.0]))
    tensor([0.1250, 2.5000])
    """

    delta: float = 1.0

    takes: ClassVar[tuple[str, ...]] = ("numbers",)

    def __post_init__(self) -> None:
        if not self.delta > 0:
            raise KinfolkError("delta", self.delta, "give a number above 0")

    def row_loss(self, out: Tensor, y: Tensor) -> Tensor:
        """One value per row."""
        out, y = _paired(out, y)
        return F.huber_loss(out, y, reduction="none", delta=self.delta).mean(1)


# By the name that `local.loss` gives.
LOSSES: dict[str, type[Any]] = {
    "cross_entropy": CrossEntropy,
    "mse": MSE,
    "bce": BCE,
    "focal": Focal,
    "huber": Huber,
    "l1": L1,
}


def ignored_label(options: Mapping[str, Any]) -> int:
    """The label that a loss with these options leaves out.

    >>> ignored_label({"ignore_index": 255}), ignored_label({})
    (255, -100)
    """
    mark = options.get("ignore_index", IGNORED)
    return mark if isinstance(mark, int) else IGNORED


def find_loss(
    name: str, options: Mapping[str, Any] | None = None, target: str = "", class_axis: int = -1
) -> Loss:
    """The loss of this name or import path, for a kind of targets; the first that it takes if none is named.

    >>> find_loss("mse").classification
    False
    """
    options = options or {}
    ignored = ignored_label(options)
    if name not in LOSSES and ignored != IGNORED:  # by the time that a loss sees labels
        options = {**options, "ignore_index": IGNORED}
    made = made_by_name("local.loss", name, LOSSES, options)
    if name not in LOSSES:
        return Loss(name, _own(name, made), target or "any", class_axis, ignored)
    target = target or made.takes[0]
    known = {f.name: getattr(made, f.name) for f in fields(made)}
    if "class_axis" in known:
        known["class_axis"] = class_axis
    if isinstance(made, Focal) and target in ("labels", "binary"):
        made = LabelFocal(**known)
    elif known:
        made = type(made)(**known)
    return Loss(name, made.row_loss, target, class_axis, ignored)


def _own(name: str, loss: Any) -> Callable[[Tensor, Any], Tensor]:
    """A user's function of outputs and targets, held to one value per row."""

    def row_loss(out: Tensor, y: Any) -> Tensor:
        try:
            value = loss(out, y)
        except KinfolkError:
            raise
        except Exception as error:  # whatever a user's function raises
            raise KinfolkError("local.loss", name, f"failed: {one_line(error)}") from error
        if not isinstance(value, Tensor) or not value.dim() or len(value) != len(out):
            said = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            remedy = f'gives {said} for {len(out)} rows; give one value per row, as with reduction="none"'
            raise KinfolkError("local.loss", name, remedy)
        return value if value.dim() == 1 else value.flatten(1).mean(1)

    return row_loss
