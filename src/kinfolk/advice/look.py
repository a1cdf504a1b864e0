"""A look at the data before anything trains: how many rows, of what classes, and how clients differ.

What it finds is told; only what no trial could mend is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation, labels_of
from kinfolk.federation.scaling import uneven
from kinfolk.streams import Seed
from kinfolk.types import plain_rows

# Of two methods that are each right about half of the time, 50 rows tell a difference of 20 points at best.
FEWEST_ROWS = 50
# One class with so large a share makes accuracy a poor judge.
RARE = 0.8
# Clients much larger than the usual one.
UNEVEN = 5.0
# Parts of the clients' label distributions that are not chance: below the first few, above the second many.
SKEWED, STRONGLY = 0.1, 0.35
# Shuffled labels: how far clients would be from one another by chance.
DRAWS = 20
# Rows of a client, evenly spaced, whose columns are looked at.
LOOKED_AT = 100
# Part of a column's variance that lies between clients, beyond chance.
SHIFTED = 0.1
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Look:
    """What there is to say of the rows of a federation."""

    facts: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    too_little: str = ""  # why no trial could tell anything

    def described(self) -> dict[str, Any]:
        """The same for `advice.json`."""
        return {**self.facts, "notes": self.notes, "too_little": self.too_little}


def look(federation: Federation, of: int, seed: Seed, score: str = "accuracy") -> Look:
    """Look at a federation that has validation rows; `of` is how many clients there are in all.

    `score` is what methods will be judged by.

    >>> from kinfolk.federation.own_data.arrays import from_arrays
    >>> draw = np.random.default_rng(0)
    >>> rows = [(draw.normal(size=(100, 2)), np.arange(100) % 2) for _ in range(4)]
    >>> found = look(from_arrays(rows, valid=0.2), 4, Seed(0))
    >>> found.facts["validation rows"], found.facts["label skew"], found.notes
    (64, 0.0, [])
    """
    held = federation.among(federation.clients)
    train = held.splits["train"].counts().numpy(force=True)
    valid = held.splits["valid"].counts().numpy(force=True)
    facts: dict[str, Any] = {
        "clients": len(train),
        "of": of,
        "training rows": [int(train.min()), float(np.median(train)), int(train.max())],
        "validation rows": int(valid.sum()),
        "clients without validation rows": int((valid == 0).sum()),
        "classes": held.classes,
    }
    notes = [f"{len(train)} of {of:,} clients, drawn evenly, take part"] if len(train) < of else []
    if train.max() > UNEVEN * np.median(train):
        ratio = f"{train.max() / np.median(train):.0f} times as many rows as the median client"
        notes.append(f"quantity skew: the largest client has {ratio}")
    if facts["clients without validation rows"]:
        notes.append(f"{facts['clients without validation rows']} clients have no validation row")
    for found, told in (_labels(held, seed, score), _columns(held)):
        facts |= found
        notes += told
    if sizes := uneven(federation):
        notes.append(sizes)
    few = int(valid.sum())
    too_little = ""
    if few < FEWEST_ROWS:
        too_little = (
            f"there are {few} validation rows in all, and methods cannot be told apart by fewer than "
            f"{FEWEST_ROWS}; {int(np.ceil(FEWEST_ROWS / max(few, 1)))} times as many rows would do"
        )
    return Look(facts, notes, too_little)


def check_clients(federation: Federation) -> None:
    """Refuse a federation of one client, and labels that are all the same.

    >>> from kinfolk.federation.own_data.arrays import from_arrays
    >>> check_clients(from_arrays({"ann": (np.zeros((9, 2)), np.arange(9) % 2)}))
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: data.clients = 1: nobody to learn with; advice is about two clients or more
    """
    if len(federation.clients) < 2:
        raise KinfolkError("data.clients", 1, "nobody to learn with; advice is about two clients or more")
    if federation.maker is not None or not isinstance(federation.y, Tensor):
        return
    rows = torch.unique(federation.splits["train"].row)
    y = federation.y[rows]
    if len(y) > 1 and bool((y == y[:1]).all()):
        value = f"{len(y):,} labels, all of them the same"
        raise KinfolkError("data.y", value, "there is nothing to predict; is it the right label column?")


def _labels(held: Federation, seed: Seed, score: str) -> tuple[dict[str, Any], list[str]]:
    """How uneven the classes are, and how far clients' label distributions lie apart beyond chance."""
    if not held.classes:
        return {}, []
    train = held.splits["train"]
    counts = np.stack(
        [
            np.bincount(labels_of(held, train.rows(i)).numpy(force=True), minlength=held.classes)
            for i in range(len(held.clients))
        ]
    )
    share = counts.sum(0) / max(counts.sum(), 1)
    draw, sizes = seed.numpy("advice", "labels"), counts.sum(1)
    drawn = [np.stack([draw.multinomial(n, share) for n in sizes]) for _ in range(DRAWS)]
    by_chance = float(np.mean([_apart(one, share) for one in drawn]))
    skew = max(0.0, (_apart(counts, share) - by_chance) / max(1 - by_chance, 1e-9))
    facts = {"largest class": float(share.max()), "label skew": round(skew, 3)}
    notes = []
    if share.max() > RARE and score == "accuracy":
        notes.append(
            f"{share.max():.0%} of the rows are of one class, so that accuracy says little; a better judge: "
            '--set run.metrics=["balanced_accuracy"] --set run.monitor=balanced_accuracy'
        )
    if skew > SKEWED:
        word = "strong label skew" if skew > STRONGLY else "label skew"
        notes.append(f"{word}: {skew:.2f}, where 0 is alike and 1 is no class in common")
    return facts, notes


def _apart(counts: NDArray[Any], share: Floats) -> float:
    """The mean total variation distance of clients' distributions from that of all rows."""
    own = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return float((np.abs(own - share).sum(1) / 2).mean())


def _columns(held: Federation) -> tuple[dict[str, Any], list[str]]:
    """How much of the rows' variance lies between clients beyond chance, a mean over columns."""
    if not isinstance(held.x, Tensor) or held.x.dtype == torch.int64:
        return {}, []
    own = [held.splits["train"].rows(i) for i in range(len(held.clients))]
    some = [rows[:: math.ceil(len(rows) / LOOKED_AT)] for rows in own]
    parts = [plain_rows(held.take(rows)[0]).double().flatten(1) for rows in some]
    x, sizes = torch.cat(parts), torch.tensor([len(part) for part in parts], dtype=torch.float64)
    total = ((x - x.mean(0)) ** 2).sum(0)
    means = torch.stack([part.mean(0) for part in parts])
    between = (sizes[:, None] * (means - x.mean(0)) ** 2).sum(0)
    varied = total > 0
    if not bool(varied.any()) or len(x) <= len(parts):
        return {}, []
    by_chance = (len(parts) - 1) / (len(x) - 1)
    share = float((between[varied].sum() / total[varied].sum() - by_chance) / (1 - by_chance))
    share = round(max(0.0, share), 3)
    told = f"feature shift: {share:.0%} of the rows' variance lies between clients"
    return {"feature shift": share}, [told] if share > SHIFTED else []


def constant_scores(federation: Federation, score: str) -> pd.Series | None:
    """What a constant answer scores on each client's validation rows; None where that is not so simple.

    The most frequent class among the client's own training rows, or their mean.

    >>> from kinfolk.federation.own_data.arrays import from_arrays
    >>> rows = {"ann": (np.zeros((20, 1)), np.zeros(20, int)), "bob": (np.ones((20, 1)), [1, 0] * 10)}
    >>> float(constant_scores(from_arrays(rows, valid=0.5), "accuracy")["ann"])
    1.0
    """
    held = federation.among(federation.clients)
    if not isinstance(held.y, Tensor) or held.y.dim() != 1 or score not in ("accuracy", "mse"):
        return None
    if (score == "accuracy") != bool(held.classes):
        return None
    y, train, valid = held.y, held.splits["train"], held.splits["valid"]
    target = held.scaling.target if held.scaling else None
    if target is not None:  # scores are in the units of the data
        y = target.undo(y.reshape(-1, 1)).reshape(-1)
    found = {}
    for i, who in enumerate(held.clients):
        mine, others = y[train.rows(i)], y[valid.rows(i)]
        if score == "accuracy":
            right = others == torch.bincount(mine).argmax()
        else:
            right = (others.double() - mine.double().mean()) ** 2
        found[str(who)] = float(right.double().mean()) if len(others) else float("nan")
    return pd.Series(found)
