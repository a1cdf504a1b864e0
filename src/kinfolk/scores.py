"""The scores that there are: what each is called, which end is the good one, and one number over all clients.

Needs no torch, so that reports open at once. How a score is computed stands in `kinfolk.learning.metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """What a report must know about a score."""

    title: str
    percent: bool = False  # a fraction, shown in percent
    lower_is_better: bool = False


# The most telling first: the first that a run has is the one it is judged by.
SCORES: dict[str, Score] = {
    "accuracy": Score("Accuracy", percent=True),
    "macro_f1": Score("Macro F1", percent=True),
    "top5": Score("Top-5 accuracy", percent=True),
    "auroc": Score("AUROC", percent=True),
    "average_precision": Score("Average precision", percent=True),
    "balanced_accuracy": Score("Balanced accuracy", percent=True),
    "iou": Score("Mean IoU", percent=True),
    "perplexity": Score("Perplexity", lower_is_better=True),
    "mse": Score("Mean squared error", lower_is_better=True),
    "mae": Score("Mean absolute error", lower_is_better=True),
    "r2": Score("R²"),
    "c_index": Score("C-index"),
    "loss": Score("Loss", lower_is_better=True),
}
_OURS = frozenset(SCORES)
# Ways to make one number of all clients.
OVER = ("micro", "macro", "worst", "p10", "spread", "best")


def learn(known: Mapping[str, Mapping[str, Any]]) -> None:
    """Know scores that a run has of its own, as its `run.json` describes them; ours stay what they are.

    >>> learn({"bias": {"title": "Bias", "percent": False, "lower_is_better": True}})
    >>> about("bias").title, SCORES.pop("bias").lower_is_better
    ('Bias', True)
    """
    for name, facts in known.items():
        if name not in _OURS:
            SCORES[name] = Score(
                str(facts.get("title", name)),
                bool(facts.get("percent", False)),
                bool(facts.get("lower_is_better", False)),
            )


def about(name: str) -> Score:
    """What is known of a score; of one that another program has recorded, only its name.

    >>> about("loss").lower_is_better, about("recall").title
    (True, 'recall')
    """
    return SCORES.get(name, Score(name))


def of_all(by: Mapping[str, Any]) -> float | None:
    """The mean over clients in a summary, to judge by; None where it is no number, or is not about all.

    Whose model is no number cannot be scored, and must not flatter the mean by being left out.

    >>> of_all({"macro": 0.5}), of_all({"macro": 0.9, "lost": 7}), of_all({})
    (0.5, None, None)
    """
    value = by.get("macro")
    return None if by.get("lost") or value is None or value != value else float(value)


def over(by: Mapping[str, Any]) -> str:
    """Over how many clients a summary is, if some were lost.

    >>> over({"macro": 0.9, "clients": 5, "lost": 7}), over({"macro": 0.9, "clients": 12})
    ('5 of 12 clients', '')
    """
    return f"{by['clients']} of {by['clients'] + by['lost']} clients" if by.get("lost") else ""


def summary(values: ArrayLike, rows: ArrayLike, lower_is_better: bool = False) -> dict[str, float]:
    """One score over all clients, by the words of OVER. Clients whose score is NaN are left out.

    `micro` weighs clients by their test rows, `macro` does not; `p10` is the value that one client in
    ten does no better than (the 90th percentile where lower is better); `spread` is the sample
    standard deviation.

    >>> {k: round(v, 3) for k, v in summary([0.5, 1.0, float("nan")], [3, 1, 0]).items()}
    {'micro': 0.625, 'macro': 0.75, 'worst': 0.5, 'p10': 0.55, 'spread': 0.354, 'best': 1.0}
    """
    value: Floats = np.asarray(values, dtype=np.float64)
    weight: NDArray[Any] = np.asarray(rows, dtype=np.float64)
    here = ~np.isnan(value)
    value, weight = value[here], weight[here]
    if not value.size or weight.sum() == 0:
        return dict.fromkeys(OVER, float("nan"))
    low, high = float(value.min()), float(value.max())
    # An infinite loss has no spread, and between two of them there is no percentile; NaN says so.
    with np.errstate(invalid="ignore"):
        return {
            "micro": float((value * weight).sum() / weight.sum()),
            "macro": float(value.mean()),
            "worst": high if lower_is_better else low,
            "p10": float(np.percentile(value, 90 if lower_is_better else 10)),
            "spread": float(value.std(ddof=1)) if value.size > 1 else 0.0,
            "best": low if lower_is_better else high,
        }


def plus_minus(mean: str, deviation: str) -> str:
    """A mean with its deviation behind it, if there is one: of one value it is "nan".

    >>> plus_minus("87.1", f"{1.2345:.1f}"), plus_minus("87.1", f"{float('nan'):.1f}")
    ('87.1 ± 1.2', '87.1')
    """
    return mean if deviation == "nan" else f"{mean} ± {deviation}"
