"""Numbers out of text tables: what is not a number is named by row and column; missing values are filled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinfolk.federation.datasets.files import corrupt
from kinfolk.federation.datasets.rows import Array, Floats
from kinfolk.federation.partition.holdout import Ints

Doubles = NDArray[np.float64]
MISSING = "?"


def cells(text: str, name: Path | str, columns: Sequence[str]) -> list[list[str]]:
    """Comma-separated lines as lists of words, one for each column; blank lines and `%` comments pass.

    >>> cells("1, a\\n\\n2, b\\n", "a", ["n", "letter"])
    [['1', 'a'], ['2', 'b']]
    >>> cells("1, a\\n2", "a", ["n", "letter"])
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: data.file = 'a': not used: line 2 has 1 columns instead of 2; replace it
    """
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("%"):
            continue
        row = [word.strip().strip("\"'") for word in line.split(",")]
        if len(row) != len(columns):
            wrong = f"line {number} has {len(row)} columns instead of {len(columns)}"
            raise corrupt(name, wrong)
        rows.append(row)
    if not rows:
        raise corrupt(name, "it has no rows")
    return rows


def numbers(rows: Sequence[Sequence[str]], name: Path | str, columns: Sequence[str]) -> Doubles:
    """Words as numbers, [rows, columns]; `?` is NaN, and any other text is an error.

    >>> numbers([["1", "?"]], "a", ["age", "chol"])
    array([[ 1., nan]])
    >>> numbers([["1", "2"], ["3", "high"]], "a", ["age", "chol"])
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: data.file = 'a': not used: row 2, column 'chol' holds 'high'; give a number
    """
    out = np.empty((len(rows), len(columns)))
    for r, row in enumerate(rows):
        for c, word in enumerate(row):
            try:
                out[r, c] = np.nan if word == MISSING else float(word)
            except ValueError:
                wrong = f"row {r + 1}, column {columns[c]!r} holds {word!r}"
                raise corrupt(name, wrong, "give a number") from None
    return out


def labels(values: Doubles, name: Path | str, column: str, last: int) -> Ints:
    """A column of whole numbers from 0 to `last`.

    >>> labels(np.array([0.0, 4.0]), "a", "num", 4)
    array([0, 4])
    >>> labels(np.array([0.0, np.nan]), "a", "num", 4)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: data.file = 'a': not used: row 2, column 'num' holds nan; labels are 0 to 4
    """
    bad = np.flatnonzero(~((values >= 0) & (values <= last) & (values == np.floor(values))))
    if len(bad):
        wrong = f"row {bad[0] + 1}, column {column!r} holds {values[bad[0]]:g}"
        raise corrupt(name, wrong, f"labels are 0 to {last}")
    return values.astype(np.int64)


def filled(
    x: Array, client: Ints, columns: Sequence[str], name: Path | str
) -> tuple[Doubles, dict[str, int]]:
    """Missing values filled: by the median of the client's own values, or of everybody's if it has none.

    Also gives how many were filled in each column that had any missing.

    >>> x = np.array([[1.0], [3.0], [np.nan], [np.nan]])
    >>> x, counts = filled(x, np.array([0, 0, 0, 1]), ["age"], "a")
    >>> x.ravel().tolist(), counts
    ([1.0, 3.0, 2.0, 2.0], {'age': 2})
    """
    x = np.array(x, dtype=np.float64)
    missing = np.isnan(x)
    counts = {column: int(n) for column, n in zip(columns, missing.sum(0), strict=True) if n}
    for c in np.flatnonzero(missing.any(0)).tolist():
        if missing[:, c].all():
            raise corrupt(name, f"column {columns[c]!r} has no value in any row", "leave it out")
        known, everybody = x[:, c].copy(), float(np.nanmedian(x[:, c]))
        for who in np.unique(client[missing[:, c]]):
            own = known[(client == who) & ~missing[:, c]]
            x[(client == who) & missing[:, c], c] = np.median(own) if len(own) else everybody
    return x, counts


def standardised(x: Array) -> Floats:
    """Every column with mean 0 and variance 1 over all rows, whosever they are; a constant column becomes 0.

    >>> standardised(np.array([[1.0, 5.0], [3.0, 5.0]])).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """
    x = np.asarray(x, dtype=np.float64)
    centred, spread = x - x.mean(0), x.std(0)
    # Rounding leaves a trace of spread in a constant column; it must not be blown up to variance 1.
    constant = spread <= 1e-12 * np.maximum(np.abs(x).max(0), 1e-300)
    return np.where(constant, 0.0, centred / np.where(constant, 1.0, spread)).astype(np.float32)
