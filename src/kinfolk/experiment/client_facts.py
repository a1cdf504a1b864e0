"""What a run writes down about its clients' data once, so that groups can be described from records alone.

Only a simulation can: between organisations nobody sees the rows of others. Algorithms never read it.
"""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from kinfolk.experiment.record import CLIENT_FACTS, write_bytes
from kinfolk.federation.federation import Federation, labels_of
from kinfolk.types import named_leaves

# Rows of a client that are looked at; more would not change a mean that people read.
MOST_ROWS = 200
# A table with more columns than this is described as a picture is, by its mean and spread.
MOST_COLUMNS = 64


def client_facts(federation: Federation) -> pd.DataFrame:
    """(client, fact, value): training rows, shares of labels, means of columns, and the known group.

    >>> from kinfolk.federation.own_data.arrays import from_arrays
    >>> rows = {"ann": (torch.tensor([[0.0], [2.0]] * 5), torch.tensor([0, 1] * 5))}
    >>> client_facts(from_arrays(rows, test={"ann": rows["ann"]})).set_index("fact")["value"].to_dict()
    {'rows': 10.0, 'label 0': 0.5, 'label 1': 0.5, 'column 0': 1.0}
    """
    train = federation.splits["train"]
    found: list[tuple[str, str, float]] = []
    for i, who in enumerate(federation.clients):
        found.append((who, "rows", float(train.count(i))))
        if federation.truth is not None:
            found.append((who, "known group", float(federation.truth[i])))
        if federation.maker is None and train.count(i):  # rows that are made on demand are not made for this
            found += [(who, fact, value) for fact, value in _of_rows(federation, train.rows(i)).items()]
    return pd.DataFrame(found, columns=["client", "fact", "value"])


def _of_rows(federation: Federation, rows: torch.Tensor) -> dict[str, float]:
    """Labels of all of a client's rows; inputs of the first ones."""
    facts: dict[str, float] = {}
    if federation.classes:
        y = labels_of(federation, rows)
        share = y.bincount(minlength=federation.classes).double() / max(len(y), 1)
        facts = {f"label {c}": float(s) for c, s in enumerate(share)}
    else:
        for name, t in named_leaves("target", federation.y).items():
            own = t[rows].double()
            facts |= {f"{name} mean": float(own.mean()), f"{name} spread": float(own.std(correction=0))}
    x = federation.take(rows[:MOST_ROWS])[0]
    if isinstance(x, Tensor) and x.is_floating_point() and x.dim() == 2 and x.shape[1] <= MOST_COLUMNS:
        return facts | {f"column {j}": float(m) for j, m in enumerate(x.double().mean(0))}
    for name, t in named_leaves("input", x).items():
        if t.is_floating_point():  # the mean of token numbers tells nothing
            facts |= {f"{name} mean": float(t.double().mean())}
            facts |= {f"{name} spread": float(t.double().std(correction=0))}
    return facts


def write_client_facts(federation: Federation, folder: Path) -> None:
    """Write them into a run folder."""
    buffer = io.BytesIO()
    client_facts(federation).to_parquet(buffer, index=False)
    write_bytes(folder / CLIENT_FACTS, buffer.getvalue())
