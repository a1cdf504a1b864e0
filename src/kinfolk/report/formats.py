"""A run or a comparison in the formats of papers, pages and spreadsheets, from its folder alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kinfolk.markup import as_latex, as_markdown
from kinfolk.report.read import load_runs
from kinfolk.report.tables import comparison_frame, comparison_table, run_table

FORMATS = ("md", "latex", "csv")


def written(folder: str | Path, format: str, score: str | None = None) -> str:
    """What `kinfolk show` prints, in one of FORMATS; CSV has the numbers themselves, a row per model.

    >>> written("nowhere", "csv")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run = 'nowhere': holds no run; ...
    """
    runs = load_runs(folder)
    if format == "csv":
        return str(comparison_frame(runs, score).to_csv(index=False, lineterminator="\n")).rstrip()
    parts: tuple[Any, ...]
    if (Path(folder) / "run.json").exists():
        parts = (run_table(runs[0]),)
    else:
        table, notes = comparison_table(runs, score)
        parts = (table, *notes)
    return as_markdown(*parts) if format == "md" else as_latex(*parts)
