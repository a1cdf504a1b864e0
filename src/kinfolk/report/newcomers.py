"""Where newcomers were put and what they gain by it, as a table and as a frame."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table
from rich.text import Text

from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import write_bytes
from kinfolk.report.read import shown
from kinfolk.report.whole import WholeTable

# A table on the screen lists this many newcomers and counts the others.
LISTED = 40
SCORES = {
    "one_model": "mean of all",
    "worst_centre": "worst group",
    "centre": "its group",
    "fine_tuned": "fine-tuned",
}


def newcomers_frame(facts: Mapping[str, Any]) -> pd.DataFrame:
    """One row per newcomer; how badly each centre fits it is in the columns fit_0, fit_1, ...

    >>> row = {"newcomer": "ann", "group": 1, "fit": [0.5, 0.25]}
    >>> newcomers_frame({"newcomers": [row]}).loc[0].to_dict()
    {'newcomer': 'ann', 'group': 1, 'fit_0': 0.5, 'fit_1': 0.25}
    """
    return pd.DataFrame(
        [
            {key: value for key, value in row.items() if key != "fit"}
            | {f"fit_{k}": value for k, value in enumerate(row["fit"])}
            for row in facts["newcomers"]
        ]
    )


def newcomers_table(facts: Mapping[str, Any]) -> tuple[Table, list[str]]:
    """(table, notes): a row for each newcomer, and their mean.

    >>> row = dict(newcomer="ann", rows=9, group=1, one_model=0.2, worst_centre=0.1, centre=0.9)
    >>> facts = {"newcomers": [{**row, "fine_tuned": 0.9, "fit": []}], "score": "accuracy", "by": "loss"}
    >>> newcomers_table({**facts, "run": "runs/a", "round": 5})[0].row_count
    2
    """
    score, frame = facts["score"], newcomers_frame(facts)
    table = WholeTable(box=None, padding=(0, 2, 0, 0), title=_title(score), title_justify="left")
    table.add_column("newcomer")
    for column in ("rows", "group", *SCORES.values()):
        table.add_column(column, justify="right", no_wrap=True)
    for row in frame.head(LISTED).to_dict("records"):
        cells = (shown(_number(row[key]), score) for key in SCORES)
        table.add_row(Text(row["newcomer"]), f"{row['rows']:,}", str(row["group"]), *cells)
    means = (shown(float(pd.to_numeric(frame[key]).mean()), score) for key in SCORES)
    table.add_row("mean", f"{frame['rows'].mean():,.0f}", "", *means, style="bold")
    more = len(frame) - LISTED
    notes = (
        [f"and {more:,} more: in Python `frame` has all of them, in a shell --out FILE or --json"]
        if more > 0
        else []
    )
    how = {"loss": "lowest loss on its training rows", "distance": "centre nearest to what it trained"}
    epochs = facts.get("tune_epochs", 1)
    return table, [
        *notes,
        f"group: {how[facts['by']]}. mean of all: of the groups' models; no model for all was trained. "
        f"fine-tuned: {'one epoch' if epochs == 1 else f'{epochs} epochs'} more.",
        f"models: {facts['run']}, round {facts['round']}",
    ]


def _title(score: str) -> str:
    return "Accuracy in %, on the newcomers' test rows" if score == "accuracy" else f"{score}, on test rows"


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def write_newcomers(facts: Mapping[str, Any], path: str | Path) -> Path:
    """Write the frame as CSV or Parquet, by the name of the file.

    >>> write_newcomers({}, "newcomers.xls")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: --out = 'newcomers.xls': give a name that ends in .csv or .parquet
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in (".csv", ".parquet"):
        raise KinfolkError("--out", str(path), "give a name that ends in .csv or .parquet")
    buffer, frame = io.BytesIO(), newcomers_frame(facts)
    _ = frame.to_csv(buffer, index=False) if kind == ".csv" else frame.to_parquet(buffer, index=False)
    write_bytes(path, buffer.getvalue(), "--out")
    return path
