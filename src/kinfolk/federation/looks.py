"""A federation at a glance: counts, label skew and a few images of each group, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.federation.federation import Federation

# More clients than this are not drawn one by one, and rows that are made on demand are not made for all.
MOST_CLIENTS = 500
IMAGES = 6  # of each group


@dataclass(frozen=True, eq=False)
class Look:
    """What a table and a figure of a federation need."""

    name: str
    facts: dict[str, Any]
    counts: NDArray[np.int64]  # [clients, classes] training rows by label; one column for regression
    group: NDArray[np.int64]  # [clients] known group, zeros where there is none
    images: list[
        NDArray[np.float64]
    ]  # per group [images, height, width, channels]; empty if rows are not images


def look(federation: Federation) -> Look:
    """Count what a federation holds, for the first clients where there are very many.

    >>> from kinfolk.federation.sources import DataSpec, build
    >>> from kinfolk.streams import Seed
    >>> look(build(DataSpec(clients=4, rows=10), Seed(0))).counts.sum()
    np.int64(40)
    """
    shown = federation.clients[:MOST_CLIENTS]
    held = federation.among(shown)
    train, classes = held.splits["train"], max(federation.classes, 1)
    places = [held.place(c) for c in shown]
    labels = [
        held.y[train.rows(i)].numpy() if federation.classes else np.zeros(train.count(i), int) for i in places
    ]
    counts = np.stack([np.bincount(y.astype(np.int64), minlength=classes) for y in labels]).astype(np.int64)
    truth = federation.truth
    group = np.zeros(len(shown), int) if truth is None else truth[: len(shown)].numpy().astype(np.int64)
    return Look(federation.name, _facts(federation, counts), counts, group, _images(held, places, group))


def _facts(federation: Federation, counts: NDArray[np.int64]) -> dict[str, Any]:
    rows = {name: split.counts() for name, split in federation.splits.items()}
    train = rows["train"].double()
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    facts: dict[str, Any] = {
        "clients": len(federation.clients),
        "row": " x ".join(map(str, federation.shape)),
        "training rows": int(train.sum()),
        "rows of a client": f"{int(train.min())} to {int(train.max())}, mean {float(train.mean()):.1f}",
        "validation rows": int(rows["valid"].sum()),
        "test rows of a client": f"{int(rows['test'].min())} to {int(rows['test'].max())}",
    }
    if federation.classes:
        facts["classes"] = federation.classes
        facts["classes with 5 % or more, per client"] = f"{float((share >= 0.05).sum(1).mean()):.1f}"
        facts["largest share of a class, per client"] = f"{float(share.max(1).mean()):.2f}"
    if federation.truth is not None:
        sizes = np.bincount(federation.truth.numpy())
        facts["known groups"] = f"{len(sizes)} of {int(sizes.min())} to {int(sizes.max())} clients"
    return facts


def _images(held: Federation, places: list[int], group: NDArray[np.int64]) -> list[NDArray[np.float64]]:
    if len(held.shape) != 3 or held.shape[0] not in (1, 3):
        return []
    found = []
    for g in range(int(group.max()) + 1):
        mine = [place for place, its in zip(places, group, strict=True) if its == g]
        if not mine:
            continue
        rows = held.splits["train"].rows(mine[0])[:IMAGES]
        x = held.take(rows)[0].double().numpy().transpose(0, 2, 3, 1)
        low, high = x.min(), x.max()
        found.append((x - low) / max(high - low, 1e-12))
    return found
