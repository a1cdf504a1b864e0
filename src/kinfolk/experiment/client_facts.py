"""What a run writes down about its clients' data once, so that groups can be described from records alone.

Only a simulation can: between organisations nobody sees the rows of others. Algorithms never read it.
"""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import torch

from kinfolk.experiment.record import CLIENT_FACTS, write_bytes
from kinfolk.federation.federation import Federation

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
    y = federation.y[rows]
    x = federation.take(rows[:MOST_ROWS])[0].double()
    if federation.classes:
        share = y.bincount(minlength=federation.classes).double() / len(y)
        facts = {f"label {c}": float(s) for c, s in enumerate(share)}
    else:
        facts = {
            "target mean": float(y.double().mean()),
            "target spread": float(y.double().std(correction=0)),
        }
    if x.dim() == 2 and x.shape[1] <= MOST_COLUMNS:
        return facts | {f"column {j}": float(m) for j, m in enumerate(x.mean(0))}
    return facts | {"input mean": float(x.mean()), "input spread": float(x.std(correction=0))}


def write_client_facts(federation: Federation, folder: Path) -> None:
    """Write them into a run folder."""
    buffer = io.BytesIO()
    client_facts(federation).to_parquet(buffer, index=False)
    write_bytes(folder / CLIENT_FACTS, buffer.getvalue())
