"""Predictions as a frame, a short table and a csv file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table
from rich.text import Text

from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import write_text

SHOWN = 10  # rows of the table
LIKELY = 3  # classes of a row in the table


def predictions_frame(
    name: tuple[str, list[Any]], said: Any, chances: Any, classes: Sequence[str]
) -> pd.DataFrame:
    """One row per row: its name, what is predicted, and the probability of every class.

    >>> predictions_frame(("row", [1]), ["yes"], [[0.25, 0.75]], ["no", "yes"]).to_dict("records")
    [{'row': 1, 'prediction': 'yes', 'p(no)': 0.25, 'p(yes)': 0.75}]
    """
    column, names = name
    if getattr(said, "ndim", 1) > 1:
        flat = said.reshape(len(said), -1)
        several = {f"prediction {i}": flat[:, i] for i in range(flat.shape[1])}
        return pd.DataFrame({column: names, **several})
    frame = pd.DataFrame({column: names, "prediction": said})
    if chances is None:
        return frame
    return frame.join(pd.DataFrame(chances, columns=[f"p({one})" for one in classes]))


def predictions_table(frame: pd.DataFrame) -> Table:
    """The first rows, each with its likeliest classes."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    chances = [name for name in frame.columns if name.startswith("p(")]
    plain = [name for name in frame.columns if name not in chances]
    for name in [*plain, *(["probability"] if chances else [])]:
        table.add_column(Text(name), overflow="fold")
    for _, row in frame.head(SHOWN).iterrows():
        best = row[chances].astype(float).sort_values(ascending=False).head(LIKELY)
        likely = ", ".join(f"{name[2:-1]} {value:.1%}" for name, value in best.items())
        cells = [f"{row[name]:.6g}" if isinstance(row[name], float) else str(row[name]) for name in plain]
        table.add_row(*map(Text, [*cells, *([likely] if chances else [])]))
    return table


def write_predictions(frame: pd.DataFrame, path: Path) -> None:
    """Write a csv file, whole or not at all."""
    if path.suffix.lower() != ".csv":
        raise KinfolkError("--out", str(path), "give the name of a .csv file")
    write_text(path, frame.to_csv(index=False))
