"""A federation at a glance: counts, label skew, a few images of each group, and what was left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kinfolk.federation.datasets.rows import Rows
from kinfolk.federation.federation import Federation, labels_of
from kinfolk.federation.pool import sample
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed
from kinfolk.types import plain_rows

# More clients than this are not drawn one by one, and rows that are made on demand are not made for all.
MOST_CLIENTS = 500
IMAGES = 6  # of each group


@dataclass(frozen=True, eq=False)
class Summary:
    """What a table and a figure of a federation need."""

    name: str
    facts: dict[str, Any]
    counts: NDArray[np.int64]  # [clients, classes] training rows by label; one column for regression
    group: NDArray[np.int64]  # [clients] known group, zeros where there is none
    images: list[
        NDArray[np.float64]
    ]  # per group [images, height, width, channels]; empty if rows are not images


def summarize(federation: Federation) -> Summary:
    """Count what a federation holds, for the first clients where there are very many.

    >>> from kinfolk.federation.sources import DataSpec, build
    >>> from kinfolk.streams import Seed
    >>> summarize(build(DataSpec(clients=4, rows=10), Seed(0))).counts.sum()
    np.int64(40)
    """
    shown = federation.clients[:MOST_CLIENTS]
    held = federation.among(shown)
    train, classes = held.splits["train"], max(federation.classes, 1)
    places = [held.place(c) for c in shown]
    labels = [
        labels_of(held, train.rows(i)).numpy() if federation.classes else np.zeros(train.count(i), int)
        for i in places
    ]
    counts = np.stack([np.bincount(y.astype(np.int64), minlength=classes) for y in labels]).astype(np.int64)
    truth = federation.truth
    group = np.zeros(len(shown), int) if truth is None else truth[: len(shown)].numpy().astype(np.int64)
    return Summary(federation.name, _facts(federation, counts), counts, group, _images(held, places, group))


def _facts(federation: Federation, counts: NDArray[np.int64]) -> dict[str, Any]:
    rows = {name: split.counts() for name, split in federation.splits.items()}
    train = rows["train"].double()
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    facts: dict[str, Any] = {
        "clients": len(federation.clients),
        "row": federation.row_text,
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
        x = plain_rows(held.take(rows)[0]).double().numpy().transpose(0, 2, 3, 1)
        low, high = x.min(), x.max()
        found.append((x - low) / max(high - low, 1e-12))
    return found


def count(number: int, word: str) -> str:
    """A number and what it counts.

    >>> count(1, "client"), count(12000, "row")
    ('1 client', '12,000 rows')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def row_notes(rows: Rows, spec: DataSpec, seed: Seed) -> list[str]:
    """What the loader left out or filled in, and which natural clients take no part.

    >>> import numpy as np
    >>> rows = Rows(np.zeros((3, 2), np.float32), np.zeros(3, np.int64), 1, (1.0, 0.0), left_out={"torn": 4},
    ...     client=np.array([0, 0, 1]), client_names=("ann", "bob"))
    >>> row_notes(rows, DataSpec("wisdm", clients=1, partition="natural", min_rows=2), Seed(0))
    ['left out 4 rows: torn', 'left out 1 client with fewer than 2 rows (1 row)']
    """
    notes = [f"left out {count(number, 'row')}: {why}" for why, number in rows.left_out.items()]
    if rows.filled:
        columns = f"{count(len(rows.filled), 'column')} ({', '.join(list(rows.filled)[:3])}"
        columns += ", ...)" if len(rows.filled) > 3 else ")"
        notes.append(f"filled in {count(sum(rows.filled.values()), 'missing value')} in {columns}")
    if spec.partition == "natural":
        sampled = sample(rows, spec, seed)
        for (clients, left), why in (
            (sampled.few, f"with fewer than {count(spec.min_rows, 'row')}"),
            (sampled.undrawn, "not drawn"),
        ):
            if clients:
                notes.append(f"left out {count(clients, 'client')} {why} ({count(left, 'row')})")
    return notes


def federation_notes(federation: Federation) -> list[str]:
    """Unassigned rows, and clients with nothing to test on, a single row or a single class.

    >>> from kinfolk.federation.own_data.arrays import from_arrays
    >>> two = {"ann": (torch.zeros(9, 2), torch.arange(9) % 2), "bob": (torch.zeros(1, 2), [1])}
    >>> federation_notes(from_arrays(two))
    ['1 client has no test rows', '1 client has a single training row']
    """
    notes = []
    if federation.maker is None:
        used = torch.zeros(federation.rows, dtype=torch.bool)
        for split in federation.splits.values():
            used[split.row] = True
        if idle := int((~used).sum()):
            notes.append(f"{count(idle, 'row')} of {len(used):,} in the pool are unassigned")
    train = federation.splits["train"].counts()
    for number, what in (
        (int((federation.splits["test"].counts() == 0).sum()), "no test rows"),
        (int((train == 1).sum()), "a single training row"),
        (_single_class(federation), "several training rows and a single class"),
    ):
        if number:
            notes.append(f"{count(number, 'client')} {'has' if number == 1 else 'have'} {what}")
    return notes


def _single_class(federation: Federation) -> int:
    """Clients with more than one training row whose labels are all one."""
    if federation.maker is not None or federation.classes == 0:
        return 0
    split = federation.splits["train"]
    labels = [labels_of(federation, split.rows(i)) for i in range(len(federation.clients))]
    return sum(len(y) > 1 and bool((y == y[0]).all()) for y in labels)
