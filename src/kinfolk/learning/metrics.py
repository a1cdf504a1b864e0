"""Scores of each client, computed from tallies that add up over batches in any order.

A score is a `Rule` here and a line in `kinfolk.scores`: what counts, records or shows scores goes by both.
Scores that need all rows of a client at once are in `kinfolk.learning.row_metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.learning.losses import logits_last, residual
from kinfolk.learning.told import TOLD, untold
from kinfolk.scores import Floats
from kinfolk.task import Batch
from kinfolk.types import IGNORED, Message

# The sums of all clients, each with a leading client axis.
Sums = Mapping[str, NDArray[Any]]


class Outcome:
    """What a model said of some rows, and the truth; rules share what they derive from it.

    Whatever has one class per row looks alike: logits [rows, classes] and classes [rows]. A class per
    position has its classes on the last axis. What is counted class by class leaves out the class `ignored`.
    """

    def __init__(
        self,
        out: Tensor,
        y: Any,
        row_loss: Tensor,
        target: str = "class",
        class_axis: int = -1,
        ignored: int = IGNORED,
    ) -> None:
        if target == "binary":
            z, y = out.reshape(len(out), 1), (y.reshape(len(out)) > 0.5).long()
            out = torch.cat([torch.zeros_like(z), z], 1)
        elif target == "soft":
            y = y.argmax(1)
        elif target == "positions":
            out = logits_last(out, class_axis)
        self.out, self.row_loss, self.target, self.ignored = out, row_loss, target, ignored
        self.y: Tensor = y  # or what a user's loss takes, which no rule here looks at

    @cached_property
    def names(self) -> Tensor:
        """The classes that are counted, [classes]."""
        every = torch.arange(self.out.shape[-1], device=self.out.device)
        # In two pieces: what depends on values could not be recorded.
        return _without(every, self.ignored) if 0 <= self.ignored < len(every) else every

    @cached_property
    def is_true(self) -> Tensor:
        """Which class is a row's own, [rows, classes]; of labels, which are there."""
        if self.target == "labels":
            return self.y.flatten(1) > 0.5
        return self.y.unsqueeze(1) == self.names

    @cached_property
    def is_said(self) -> Tensor:
        """Which class is predicted, [rows, classes]; of labels, which are likelier there than not."""
        if self.target == "labels":
            return self.out.flatten(1) > 0
        return self.out.argmax(1, keepdim=True) == self.names

    @cached_property
    def right(self) -> Tensor:
        """Whether a row's class is predicted, [rows]; of labels, the share of them that is."""
        if self.target == "labels":
            return (self.is_true == self.is_said).double().mean(1)
        return (self.is_true & self.is_said).any(1)

    @cached_property
    def placed(self) -> Tensor:
        """Positions that have a class, [rows, positions]."""
        return ((self.y >= 0) & (self.y < self.out.shape[-1])).flatten(1)

    @cached_property
    def class_at(self) -> tuple[Tensor, Tensor]:
        """(true, predicted) class of each position, [rows, positions]; 0 where there is none."""
        y = self.y.flatten(1)
        return torch.where(self.placed, y, 0), self.out.argmax(-1).flatten(1)

    @cached_property
    def error(self) -> Tensor:
        """Prediction less truth, of regression, [rows, numbers]."""
        return residual(self.out.double(), self.y.double())


@dataclass(frozen=True)
class Rule:
    """How a score comes about: what is summed over a client's rows, and what the sums come to."""

    sums: tuple[str, ...]
    # The values of each row, [rows] or [rows, classes]: one tensor for each name in `sums`.
    rows: Callable[[Outcome], tuple[Tensor, ...]]
    # One number per client.
    value: Callable[[Sums], Floats]
    # Whether clients with so many classes have this score; 0 is regression.
    has: Callable[[int], bool] = bool
    # The score of all rows of all clients together, where sums allow it and it is no mean over rows.
    pooled: Callable[[Message], float] | None = None
    # What a client tells instead of `sums` if it keeps to itself what it has of each class.
    private: str = ""


def mean_of(name: str) -> Callable[[Sums], Floats]:
    """A sum over the rows behind it; NaN for a client without rows.

    >>> mean_of("correct")({"correct": np.array([3, 0]), "rows": np.array([4, 0])})
    array([0.75,  nan])
    """
    return lambda t: _ratio(t[name], t["rows"])


def mean_loss(name: str) -> Callable[[Sums], Floats]:
    """As `mean_of`, but infinite where the loss of a row was not finite: such a model has diverged.

    >>> mean_loss("loss")({"loss": np.array([3.0, 3.0]), "rows": np.array([4, 4]), "lost": np.array([0, 1])})
    array([0.75,  inf])
    """
    return lambda t: np.where(t["lost"] > 0, np.inf, _ratio(t[name], t["rows"]))


def _without(classes: Tensor, one: int) -> Tensor:
    return torch.cat([classes[:one], classes[one + 1 :]])


def _in_top5(seen: Outcome) -> tuple[Tensor, ...]:
    out, y = seen.out, seen.y.unsqueeze(1)
    every = torch.arange(out.shape[1], device=out.device)
    own = torch.where(y == every, out, 0).sum(1, keepdim=True)
    # Ties go to the lower class, as in argmax. Counting the beaten and not the beating makes a
    # row of NaN, which beats nothing, the last and not the first.
    beaten = (own > out) | ((own == out) & (every > y))
    return (beaten.sum(1) >= out.shape[1] - 5,)


def _macro_f1(t: Sums) -> Floats:
    """The mean over the classes that a client has or predicts."""
    if "f1" in t:  # made by the client, who keeps its counts to itself
        return np.where(t["f1"] < 0, np.nan, t["f1"])
    met = t["said"] + t["true"]
    return _ratio(np.nansum(_ratio(2 * t["hit"], met), axis=-1), (met > 0).sum(-1))


def pooled_macro_f1(tally: Message) -> float:
    """F1 on the rows of all clients together, the mean over all classes; a class nobody met counts 0.

    >>> tally = {k: torch.tensor([v]) for k, v in {"hit": [2, 0], "said": [3, 0], "true": [2, 1]}.items()}
    >>> pooled_macro_f1(tally)
    0.4
    """
    hit, met = tally["hit"].sum(0), (tally["said"] + tally["true"]).sum(0)
    if not met.any():
        return float("nan")
    return float((2 * hit.double() / met.clamp(min=1)).mean())


# What is counted class by class tells which labels a client has: true positives, predictions, labels.
BY_CLASS = ("hit", "said", "true")

# By the names in `kinfolk.scores.SCORES`, in the order of the records.
RULES: dict[str, Rule] = {
    # A tally is a reply, and replies are finite: rows whose loss is not are counted apart.
    "loss": Rule(
        ("loss", "lost"),
        lambda seen: (seen.row_loss, ~seen.row_loss.isfinite()),
        mean_loss("loss"),
        has=lambda classes: True,
    ),
    "accuracy": Rule(("correct",), lambda seen: (seen.right,), mean_of("correct")),
    "top5": Rule(("top5",), _in_top5, mean_of("top5"), has=lambda classes: classes > 5),
    "macro_f1": Rule(
        BY_CLASS,
        lambda seen: (seen.is_true & seen.is_said, seen.is_said, seen.is_true),
        _macro_f1,
        pooled=pooled_macro_f1,
        private="f1",
    ),
    "mse": Rule(
        ("squared",),
        lambda seen: (seen.error.square().mean(1),),
        mean_loss("squared"),
        has=lambda classes: not classes,
    ),
    "mae": Rule(
        ("absolute",),
        lambda seen: (seen.error.abs().mean(1),),
        mean_loss("absolute"),
        has=lambda classes: not classes,
    ),
}


def _surprise(seen: Outcome) -> tuple[Tensor, ...]:
    """(sum of -log p of the true classes, how many there are)."""
    own = seen.class_at[0].unsqueeze(-1)
    nll = -seen.out.log_softmax(-1).flatten(1, -2).gather(-1, own).squeeze(-1)
    return torch.where(seen.placed, nll, 0).sum(1), seen.placed.sum(1)


def _perplexity(t: Sums) -> Floats:
    with np.errstate(over="ignore"):
        return np.where(t["lost"] > 0, np.inf, np.exp(_ratio(t["surprise"], t["places"])))


def _overlap(seen: Outcome) -> tuple[Tensor, ...]:
    """By class, [rows, classes]: positions of it that are said to be, all that are said to be, all of it."""
    truth, said = (t.unsqueeze(-1) == seen.names for t in seen.class_at)
    there = seen.placed.unsqueeze(-1)
    return (truth & said & there).sum(1), (said & there).sum(1), (truth & there).sum(1)


def _iou(t: Sums) -> Floats:
    """Intersection over union, the mean over the classes that a client has or predicts."""
    union = t["places_said"] + t["places_true"] - t["places_hit"]
    return _ratio(np.nansum(_ratio(t["places_hit"], union), axis=-1), (union > 0).sum(-1))


# Scores of targets with a class per position; positions count, not rows.
POSITIONS: dict[str, Rule] = {
    "accuracy": Rule(
        ("right", "places"),
        lambda seen: (((seen.class_at[0] == seen.class_at[1]) & seen.placed).sum(1), seen.placed.sum(1)),
        lambda t: _ratio(t["right"], t["places"]),
    ),
    "perplexity": Rule(("surprise", "places"), _surprise, _perplexity),
}
# Scores of such targets that are asked for; their sums tell what classes a client has, and stay with it.
KEPT_SUMS: dict[str, Rule] = {
    "iou": Rule(("places_hit", "places_said", "places_true"), _overlap, _iou),
}


def rules(classes: int, target: str = "") -> dict[str, Rule]:
    """The scores that a kind of targets has; `classes` are outputs, 0 for numbers.

    >>> list(rules(3, "labels")), list(rules(3, "positions"))
    (['loss', 'accuracy', 'macro_f1'], ['loss', 'accuracy', 'perplexity'])
    """
    if target == "positions":
        return {"loss": RULES["loss"], **POSITIONS}
    if target in ("labels", "any"):
        return {name: RULES[name] for name in ("loss", "accuracy", "macro_f1")[: 1 if target == "any" else 3]}
    return {name: rule for name, rule in RULES.items() if rule.has(classes)}


def blank(
    classes: int,
    device: torch.device | str = "cpu",
    target: str = "",
    kept: tuple[str, ...] = (),
    ignored: int = IGNORED,
) -> Message:
    """Tallies of one client before the first batch; `classes = 0` is regression.

    `kept` names scores of KEPT_SUMS that are tallied besides; the class `ignored` has no counts.

    >>> sorted(blank(0)), blank(3)["hit"]
    (['absolute', 'loss', 'lost', 'rows', 'squared'], tensor([0, 0, 0]))
    """
    layout = _layout(classes, target, (*names(classes, target), *kept), ignored)
    return {name: torch.zeros(shape, dtype=dtype, device=device) for name, shape, dtype in layout}


@cache
def _layout(
    classes: int, target: str, scored: tuple[str, ...], ignored: int
) -> tuple[tuple[str, torch.Size, torch.dtype], ...]:
    """Name, shape and type of every sum, as the rules give them for no rows at all."""
    labels = torch.zeros(0, dtype=torch.int64 if classes else torch.float32)
    out, known = torch.zeros(0, classes or 1), rules(classes, target) | KEPT_SUMS
    if target in ("labels", "soft"):
        labels = torch.zeros(0, classes)
    elif target == "positions":
        out, labels = torch.zeros(0, 1, classes), torch.zeros(0, 1, dtype=torch.int64)
    out = out[:, :1] if target == "binary" else out
    nothing = Outcome(out, labels, torch.zeros(0), target or "class", ignored=ignored)
    sums = {"rows": torch.zeros(0, dtype=torch.int64)}
    for score in scored:
        sums |= dict(zip(known[score].sums, known[score].rows(nothing), strict=True))
    return tuple((name, values.shape[1:], _wide(values).dtype) for name, values in sums.items())


def _wide(values: Tensor) -> Tensor:
    # Doubles and whole numbers: the tally of a million rows must not lose the last row.
    return values.double() if values.is_floating_point() else values.long()


def count(
    tally: Message,
    out: Tensor,
    batch: Batch,
    row_loss: Tensor,
    target: str = "class",
    class_axis: int = -1,
    ignored: int = IGNORED,
) -> Message:
    """The tally with one more batch in it; rows of weight 0 are padding and change nothing.

    >>> batch = Batch(torch.zeros(2, 1), torch.tensor([0, 1]), torch.arange(2), None)
    >>> after = count(blank(2), torch.tensor([[2., 1.], [2., 1.]]), batch, torch.tensor([0.5, 1.5]))
    >>> after["rows"].item(), after["correct"].item(), after["loss"].item(), after["said"].tolist()
    (2, 1, 2.0, [2, 0])
    """
    real = torch.ones_like(row_loss, dtype=torch.bool) if batch.weight is None else batch.weight > 0

    def total(values: Tensor) -> Tensor:
        # Chosen, not multiplied: whatever stands in a padding row, were it NaN, must not count.
        keep = real.reshape(-1, *[1] * (values.dim() - 1))
        wide = _wide(values)
        return torch.where(keep & wide.isfinite(), wide, 0).sum(0)

    values, seen = (
        {"rows": torch.ones_like(real)},
        Outcome(out, batch.y, row_loss, target, class_axis, ignored),
    )
    for rule in (*RULES.values(), *POSITIONS.values(), *KEPT_SUMS.values()):
        if rule.sums[0] in tally:
            values |= dict(zip(rule.sums, rule.rows(seen), strict=True))
    return {name: value + total(values[name]) for name, value in tally.items()}


def without_classes(tally: Message) -> Message:
    """A tally whose counts by class have become one number, the client's own macro F1; NaN is told as -1.

    >>> batch = Batch(torch.zeros(2, 1), torch.tensor([0, 1]), torch.arange(2), None)
    >>> one = count(blank(2), torch.tensor([[2., 1.], [2., 1.]]), batch, torch.tensor([0.5, 1.5]))
    >>> sorted(without_classes(one)), round(float(without_classes(one)["f1"]), 3)
    (['correct', 'f1', 'loss', 'lost', 'rows'], 0.333)
    """
    if "hit" not in tally:
        return tally
    met = tally["said"] + tally["true"]
    f1 = torch.where(met > 0, 2 * tally["hit"].double() / met.clamp(min=1), 0.0)
    known = (met > 0).sum(-1)
    mean = torch.where(known > 0, f1.sum(-1) / known.clamp(min=1), -1.0)
    return {name: value for name, value in tally.items() if name not in BY_CLASS} | {"f1": mean}


def _ratio(above: NDArray[Any], below: NDArray[Any]) -> Floats:
    """above / below, NaN where nothing was counted."""
    result: Floats = np.full(np.shape(below), np.nan)
    np.divide(above, below, out=result, where=below > 0)
    return result


def scores(tally: Message) -> dict[str, Floats]:
    """One score per client from tallies with a leading client axis; NaN for a client without rows.

    Where the loss of a row was not finite, losses are reported as infinite: a model that diverged must not
    be mistaken for no model.

    >>> batch = Batch(torch.zeros(2, 1), torch.tensor([0, 1]), torch.arange(2), None)
    >>> one = count(blank(2), torch.tensor([[2., 1.], [2., 1.]]), batch, torch.tensor([0.5, 1.5]))
    >>> {k: v.round(3).tolist() for k, v in scores({k: v[None] for k, v in one.items()}).items()}
    {'loss': [1.0], 'accuracy': [0.5], 'macro_f1': [0.333]}
    """
    t = {name: value.cpu().numpy() for name, value in tally.items()}
    known = (*RULES.items(), *POSITIONS.items())
    found = {name: rule.value(t) for name, rule in known if rule.sums[0] in t or rule.private in t}
    return found | {key.removeprefix(TOLD): untold(v) for key, v in t.items() if key.startswith(TOLD)}


def pooled(score: str, tally: Message) -> dict[str, float | None]:
    """The score of the rows of all clients together, where it has one; None where clients keep it back.

    >>> pooled("accuracy", {}), pooled("macro_f1", {})
    ({}, {'pooled': None})
    """
    rule = RULES.get(score)
    if rule is None or rule.pooled is None:
        return {}
    return {"pooled": rule.pooled(tally) if rule.sums[0] in tally else None}


def names(classes: int, target: str = "") -> tuple[str, ...]:
    """The scores that a client gets; `classes = 0` is regression.

    >>> names(10), names(0)
    (('loss', 'accuracy', 'top5', 'macro_f1'), ('loss', 'mse', 'mae'))
    """
    return tuple(rules(classes, target))
