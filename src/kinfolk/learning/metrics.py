"""Scores of each client, computed from tallies that add up over batches in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.learning.losses import residual
from kinfolk.task import Batch
from kinfolk.types import Message

# Scores of which a large value is bad.
LOWER_IS_BETTER: frozenset[str] = frozenset({"loss", "mse", "mae"})

Floats = NDArray[np.float64]


def blank(classes: int, device: torch.device | str = "cpu") -> Message:
    """Tallies of one client before the first batch; `classes = 0` is regression.

    >>> sorted(blank(0)), blank(3)["hit"]
    (['absolute', 'loss', 'lost', 'rows', 'squared'], tensor([0, 0, 0]))
    """
    # Doubles and whole numbers: the tally of a million rows must not lose the last row.
    total = torch.zeros((), dtype=torch.float64, device=device)
    number = torch.zeros((), dtype=torch.int64, device=device)
    # A tally is a reply, and replies are finite: rows whose loss is not are counted apart.
    common = {"rows": number, "loss": total, "lost": number.clone()}
    if classes == 0:
        return {**common, "squared": total.clone(), "absolute": total.clone()}
    per_class = torch.zeros(classes, dtype=torch.int64, device=device)
    return {
        **common,
        "correct": number.clone(),
        "top5": number.clone(),
        "hit": per_class,  # true positives
        "said": per_class.clone(),  # predictions
        "true": per_class.clone(),  # labels
    }


def count(tally: Message, out: Tensor, batch: Batch, row_loss: Tensor) -> Message:
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
        wide = values.double() if values.is_floating_point() else values.long()
        return torch.where(keep & wide.isfinite(), wide, 0).sum(0)

    lost = ~row_loss.isfinite()
    added = {"rows": total(torch.ones_like(real)), "loss": total(row_loss), "lost": total(lost)}
    if "hit" in tally:
        added |= {name: total(values) for name, values in _outcomes(out, batch.y).items()}
    else:
        error = residual(out.double(), batch.y.double())
        added |= {"squared": total(error.square().mean(1)), "absolute": total(error.abs().mean(1))}
    return {name: value + added[name] for name, value in tally.items()}


def _outcomes(out: Tensor, y: Tensor) -> dict[str, Tensor]:
    """What happened to each row, as truth values [rows] and [rows, classes]."""
    name = torch.arange(out.shape[1], device=out.device)
    is_true = y.unsqueeze(1) == name
    is_said = out.argmax(1, keepdim=True) == name
    own = torch.where(is_true, out, 0).sum(1, keepdim=True)
    # Ties go to the lower class, as in argmax. Counting the beaten and not the beating makes a
    # row of NaN, which beats nothing, the last and not the first.
    beaten = (own > out) | ((own == out) & (name > y.unsqueeze(1)))
    return {
        "correct": (is_true & is_said).any(1),
        "top5": beaten.sum(1) >= out.shape[1] - 5,
        "hit": is_true & is_said,
        "said": is_said,
        "true": is_true,
    }


# What is counted class by class: it tells which labels a client has.
BY_CLASS = ("hit", "said", "true")


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
    gone = BY_CLASS if met.shape[-1] > 5 else (*BY_CLASS, "top5")
    return {name: value for name, value in tally.items() if name not in gone} | {"f1": mean}


def _ratio(above: NDArray[Any], below: NDArray[Any]) -> Floats:
    """above / below, NaN where nothing was counted."""
    result: Floats = np.full(np.shape(below), np.nan)
    np.divide(above, below, out=result, where=below > 0)
    return result


def scores(tally: Message) -> dict[str, Floats]:
    """One score per client from tallies with a leading client axis; NaN for a client without rows.

    `macro_f1` is the mean over the classes that a client has or predicts. Where the loss of a row was
    not finite, losses are reported as infinite: a model that diverged must not be mistaken for no model.

    >>> batch = Batch(torch.zeros(2, 1), torch.tensor([0, 1]), torch.arange(2), None)
    >>> one = count(blank(2), torch.tensor([[2., 1.], [2., 1.]]), batch, torch.tensor([0.5, 1.5]))
    >>> {k: v.round(3).tolist() for k, v in scores({k: v[None] for k, v in one.items()}).items()}
    {'loss': [1.0], 'accuracy': [0.5], 'macro_f1': [0.333]}
    """
    t = {name: value.cpu().numpy() for name, value in tally.items()}
    rows = t["rows"]

    def mean_loss(name: str) -> Floats:
        return np.where(t["lost"] > 0, np.inf, _ratio(t[name], rows))

    found = {"loss": mean_loss("loss")}
    if "correct" not in t:
        return found | {"mse": mean_loss("squared"), "mae": mean_loss("absolute")}
    found["accuracy"] = _ratio(t["correct"], rows)
    if "f1" in t:  # made by the client, who keeps its counts to itself
        more = {"top5": _ratio(t["top5"], rows)} if "top5" in t else {}
        return found | more | {"macro_f1": np.where(t["f1"] < 0, np.nan, t["f1"])}
    if t["hit"].shape[-1] > 5:
        found["top5"] = _ratio(t["top5"], rows)
    met = t["said"] + t["true"]
    f1 = _ratio(2 * t["hit"], met)
    found["macro_f1"] = _ratio(np.nansum(f1, axis=-1), (met > 0).sum(-1))
    return found


def names(classes: int) -> tuple[str, ...]:
    """The scores that a client gets; `classes = 0` is regression.

    >>> names(10), names(0)
    (('loss', 'accuracy', 'top5', 'macro_f1'), ('loss', 'mse', 'mae'))
    """
    one_client = {name: tally[None] for name, tally in blank(classes).items()}
    return tuple(scores(one_client))


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


def summary(values: Floats, rows: NDArray[Any], lower_is_better: bool = False) -> dict[str, float]:
    """One score over all clients: means, extremes and spread. Clients whose score is NaN are left out.

    `micro` weighs clients by their test rows, `macro` does not; `p10` is the value that one client in
    ten does no better than (the 90th percentile where lower is better); `spread` is the sample
    standard deviation.

    >>> summary(np.array([0.5, 1.0, np.nan]), np.array([3, 1, 0]))["micro"]
    0.625
    """
    values, rows = np.asarray(values, dtype=np.float64), np.asarray(rows, dtype=np.float64)
    here = ~np.isnan(values)
    values, rows = values[here], rows[here]
    if not values.size or rows.sum() == 0:
        return dict.fromkeys(("micro", "macro", "worst", "p10", "spread", "best"), float("nan"))
    low, high = float(values.min()), float(values.max())
    # An infinite loss has no spread; NaN says so.
    with np.errstate(invalid="ignore"):
        return {
            "micro": float((values * rows).sum() / rows.sum()),
            "macro": float(values.mean()),
            "worst": high if lower_is_better else low,
            "p10": float(np.percentile(values, 90 if lower_is_better else 10)),
            "spread": float(values.std(ddof=1)) if values.size > 1 else 0.0,
            "best": low if lower_is_better else high,
        }
