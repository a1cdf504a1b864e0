"""What was left out of a federation, filled in or is unusual: nothing is dropped in silence."""

from __future__ import annotations

import torch

from kinfolk.federation.data.rows import Rows
from kinfolk.federation.federation import Federation
from kinfolk.federation.natural import sample
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed


def count(number: int, word: str) -> str:
    """A number and what it counts.

    >>> count(1, "client"), count(12000, "row")
    ('1 client', '12,000 rows')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def of_rows(rows: Rows, spec: DataSpec, seed: Seed) -> list[str]:
    """What the loader left out or filled in, and which natural clients take no part.

    >>> import numpy as np
    >>> rows = Rows(np.zeros((3, 2), np.float32), np.zeros(3, np.int64), 1, (1.0, 0.0), left_out={"torn": 4},
    ...     client=np.array([0, 0, 1]), client_names=("ann", "bob"))
    >>> of_rows(rows, DataSpec("wisdm", clients=1, partition="natural", min_rows=2), Seed(0))
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


def of_federation(federation: Federation) -> list[str]:
    """Rows that are nobody's, and clients with nothing to test on, a single row or a single class.

    >>> from kinfolk.federation.own import from_arrays
    >>> two = {"ann": (torch.zeros(9, 2), torch.arange(9) % 2), "bob": (torch.zeros(1, 2), [1])}
    >>> of_federation(from_arrays(two))
    ['1 client has no test rows', '1 client has a single training row']
    """
    notes = []
    if federation.maker is None:
        used = torch.zeros(len(federation.x), dtype=torch.bool)
        for split in federation.splits.values():
            used[split.row] = True
        if idle := int((~used).sum()):
            notes.append(f"{count(idle, 'row')} of {len(used):,} in the pool are nobody's")
    train = federation.splits["train"].counts()
    for number, what in (
        (int((federation.splits["test"].counts() == 0).sum()), "no test rows"),
        (int((train == 1).sum()), "a single training row"),
        (_one_class(federation), "several training rows and a single class"),
    ):
        if number:
            notes.append(f"{count(number, 'client')} {'has' if number == 1 else 'have'} {what}")
    return notes


def _one_class(federation: Federation) -> int:
    """Clients with more than one training row whose labels are all one."""
    if federation.maker is not None or federation.classes == 0:
        return 0
    split = federation.splits["train"]
    labels = [federation.y[split.rows(i)] for i in range(len(federation.clients))]
    return sum(len(y) > 1 and bool((y == y[0]).all()) for y in labels)
