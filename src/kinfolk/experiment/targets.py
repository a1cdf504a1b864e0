"""What kind of targets a federation has, by their type and shape, the loss that is asked for and the network.

A rule that guesses says so in one line.
Targets that no rule fits are an error that names what the loss takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation
from kinfolk.learning.losses import LOSSES, TARGETS, Loss, find_loss, ignored_label
from kinfolk.types import IGNORED

AUTO = "auto"


@dataclass(frozen=True)
class Target:
    """How targets are taken: with which loss, of which kind, by how many outputs of a network."""

    loss: str
    kind: str
    outputs: int  # of a network that is built for them
    note: str = ""  # what was guessed
    class_axis: int = -1

    def made(self, options: Mapping[str, Any]) -> Loss:
        """The loss itself."""
        if self.loss in LOSSES:
            self._check_weights(options)
        mark = ignored_label(options)
        if mark != IGNORED and self.loss in LOSSES and self.kind not in ("class", "positions"):
            remedy = f"targets here are {TARGETS[self.kind]}, of which none is left out; leave the option out"
            raise KinfolkError("local.loss_options.ignore_index", mark, remedy)
        return find_loss(self.loss, options, self.kind, self.class_axis)

    def _check_weights(self, options: Mapping[str, Any]) -> None:
        """As many weights as classes or labels; one weight of what is there may serve all labels."""
        for name in ("class_weights", "pos_weight"):
            given, fits = options.get(name), {self.outputs, 1} if name == "pos_weight" else {self.outputs}
            if not isinstance(given, list | tuple) or not given:
                continue
            where = f"local.loss_options.{name}"
            if name == "class_weights" and self.kind in ("labels", "binary"):
                raise KinfolkError(where, list(given), "labels have no classes; leave it out")
            if len(given) not in fits:
                what = "classes" if name == "class_weights" else "labels"
                raise KinfolkError(
                    where, f"{len(given)} numbers", f"give one for each of {self.outputs} {what}"
                )


def wanted(name: str, federation: Federation, sample: Any) -> Target:
    """What targets ask for before there is a network; `sample` are some of them.

    >>> from kinfolk.federation.own_data.arrays import from_arrays
    >>> y = torch.tensor([[0.0, 1.0, 1.0]] * 5)
    >>> wanted("auto", from_arrays({"ann": (torch.zeros(5, 2), y)}), y).note
    "targets [rows, 3] are all 0 or 1: taken as labels with loss 'bce'; local.loss='mse' makes them numbers"
    """
    if isinstance(sample, Mapping):
        if name in {AUTO, *LOSSES}:
            parts = ", ".join(sample)
            remedy = f"targets of several parts ({parts}) need a loss of your own, 'package.module:name'"
            raise KinfolkError("local.loss", name, remedy)
        return Target(name, "any", federation.classes or 1)
    if name not in {AUTO, *LOSSES}:
        return Target(name, "any", _width(federation, sample))
    kind, note = _kind(name, federation, sample)
    loss = name if name != AUTO else _USUAL[kind]
    if kind not in LOSSES[loss].takes:
        raise _misfit(loss, sample, federation)
    by_class = kind in ("class", "positions")
    return Target(loss, kind, federation.classes if by_class else int(sample[0].numel()), note)


_USUAL = {
    "class": "cross_entropy", "positions": "cross_entropy", "soft": "cross_entropy", "labels": "bce",
    "binary": "bce", "numbers": "mse",
}  # fmt: skip


def _kind(name: str, federation: Federation, y: Tensor) -> tuple[str, str]:
    """(kind of the targets, what was guessed) by their type, their shape and the loss."""
    whole, several = bool(federation.classes), y.dim() > 1
    binary = _is_binary(federation, y)
    by_label = name in ("bce", "focal")
    chances = binary or (name == "bce" and not whole and _are_chances(federation, y))
    if not several:
        if name == "bce" or (name == "focal" and not whole):
            if not chances:
                raise _misfit(name, y, federation)
            return "binary", ""
        return ("class" if whole else "numbers"), ""
    if chances and name in (AUTO, "bce", "focal"):
        note = f"targets {_shape(y)} are all 0 or 1: taken as labels with loss 'bce'; "
        return "labels", note + "local.loss='mse' makes them numbers" if name == AUTO else ""
    if whole and "numbers" not in LOSSES.get(name, LOSSES["cross_entropy"]).takes:
        return "positions", ""
    if name == "cross_entropy":
        fits = not whole and y.dim() == 2 and bool((y >= 0).all())
        fits = fits and bool(((y.double().sum(1) - 1).abs() < 1e-3).all())
        if not fits:
            raise _misfit(name, y, federation)
        return "soft", ""
    if by_label:
        raise _misfit(name, y, federation)
    return "numbers", ""


def _is_binary(federation: Federation, sample: Tensor) -> bool:
    y = _known(federation, sample)
    return bool(torch.logical_or(y == 0, y == 1).all())


def _are_chances(federation: Federation, sample: Tensor) -> bool:
    y = _known(federation, sample)
    return bool(torch.logical_and(y >= 0, y <= 1).all())


def _known(federation: Federation, sample: Tensor) -> Tensor:
    return federation.y if federation.maker is None and isinstance(federation.y, Tensor) else sample


def _width(federation: Federation, y: Tensor) -> int:
    if y.dim() > 1:
        return (
            int(y[0].numel()) if not federation.classes or _is_binary(federation, y) else federation.classes
        )
    return federation.classes or 1


def _shape(y: Tensor) -> str:
    return f"[{', '.join(['rows', *map(str, y.shape[1:])])}]"


def _misfit(loss: str, y: Tensor, federation: Federation) -> KinfolkError:
    takes = "; or ".join(TARGETS[kind] for kind in LOSSES[loss].takes)
    kind = "numbers to predict" if not federation.classes else f"{federation.classes} classes"
    seen = f"{str(y.dtype).removeprefix('torch.')} {_shape(y)}"
    whole = "; write y as floats" if federation.classes and "numbers" in LOSSES[loss].takes else ""
    remedy = f"the data have {kind} ({seen}); it takes {takes}{whole}; or use 'auto'"
    return KinfolkError("local.loss", loss, remedy)


def settled(
    target: Target, options: Mapping[str, Any], asked: str, out: Tensor, y: Any
) -> tuple[Target, str]:
    """(the target once it is known what the network gives for one row, why it does not fit or nothing).

    `asked` is the loss that the spec names.
    """
    if isinstance(y, Mapping):
        return target, ""
    own = target.loss not in LOSSES
    if target.kind == "labels" and out.dim() == y.dim() + 1 and asked == AUTO and not y.is_floating_point():
        target = replace(target, loss="cross_entropy", kind="positions", note="")
    if own:
        target = replace(target, kind=_seen(out, y, target.outputs))
    if target.kind == "positions":
        return _with_axis(target, options, out, y)
    gives = out.numel() // max(len(out), 1)
    if target.kind == "class" and gives == ignored_label(options) + 1 > target.outputs:
        target = replace(target, outputs=gives)  # the last class of the network is left out
    one = target.kind == "class" and gives == 1 and target.outputs == 2 and not own
    if one and (asked == AUTO or "binary" in LOSSES[target.loss].takes):
        loss = "bce" if asked == AUTO else target.loss
        note = f"two classes and a network with one output: its output is the logit of class 1, loss {loss!r}"
        return replace(target, loss=loss, kind="binary", outputs=1, note=note), ""
    if target.kind == "any":
        return replace(target, outputs=gives), ""
    flat = out.dim() <= 2 or target.kind in ("numbers", "labels")
    if len(out) != 1 or not flat or gives != target.outputs:
        wants = f"{target.outputs} {_WORD[target.kind]}"
        remedy = (
            f"gives outputs of shape {tuple(out.shape[1:])}, the data need {wants}; change the last layer"
        )
        return target, remedy
    return target, ""


_WORD = {
    "class": "classes", "soft": "classes", "binary": "number", "labels": "labels", "numbers": "numbers",
}  # fmt: skip


def _seen(out: Tensor, y: Tensor, classes: int) -> str:
    """The kind of targets that a user's loss is given, as far as shapes tell it."""
    if not y.is_floating_point():
        if y.dim() == 1 and out.dim() == 2 and out.shape[1] == classes > 1:
            return "class"
        return "positions" if out.dim() == y.dim() + 1 and y.dim() > 1 else "any"
    return "numbers" if out.numel() == y.numel() else "any"


def _with_axis(target: Target, options: Mapping[str, Any], out: Tensor, y: Tensor) -> tuple[Target, str]:
    """Which axis of the outputs is that of the classes: the last, or the second as PyTorch has it."""
    places, shape = tuple(y.shape[1:]), tuple(out.shape[1:])
    fits = [axis for axis, rest in ((1, shape[1:]), (-1, shape[:-1])) if len(shape) > 1 and rest == places]
    said = int(options.get("class_axis", 0))
    fits = [axis for axis in fits if said in (0, axis)]
    if not fits:
        want = f"{list(places)} positions with {target.outputs} classes each, before or after them"
        return target, f"gives outputs of shape {shape}, the data need {want}; change the last layer"
    if len(fits) > 1:
        remedy = (
            "classes and positions are as many; say which axis of the outputs is that of classes, 1 or -1"
        )
        raise KinfolkError("local.loss_options.class_axis", 0, remedy)
    classes = out.shape[fits[0]]
    if classes < target.outputs and target.loss in LOSSES:
        last = target.outputs - 1
        remedy = f"the data have {target.outputs}; if {last} marks positions without a class, set "
        remedy += f"local.loss_options.ignore_index = {last}, or change the last layer"
        return target, f"gives {classes} classes for each position, {remedy}"
    return replace(target, outputs=classes, class_axis=fits[0]), ""


def check_loss(loss: Loss, out: Tensor, y: Any) -> None:
    """Try the loss on a row: a value for it, or an error that names the loss and the targets."""
    try:
        with torch.no_grad():
            value = loss.row_loss(out, y)
        right = value.shape == (len(out),)
    except KinfolkError:
        raise
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        where = f"targets of {y.dtype} {_shape(y)} and outputs of shape {tuple(out.shape[1:])}"
        remedy = f"does not fit {where}: {said}"
        raise KinfolkError("local.loss", loss.name, remedy) from error
    if not right:
        raise KinfolkError("local.loss", loss.name, f"gives {tuple(value.shape)}, not one value per row")
