"""Missing values: where they are, and what to do about them. Nothing is filled or dropped unasked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import KinfolkError, near
from kinfolk.federation.own_data.columns import FillRule
from kinfolk.federation.own_data.loaded import Array, ClientRows, MissingValue

MISSING = ("refuse", "drop", "median")
# What resolving gives: the parts without missing values, what was left out, what is to be said about it.
Resolved = tuple[dict[str, ClientRows], dict[str, int], list[str]]


def check_missing(missing: str) -> None:
    """Refuse an unknown rule for missing values.

    >>> check_missing("drops")
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: missing = 'drops': did you mean 'drop'?
    """
    if missing not in MISSING:
        raise KinfolkError("missing", missing, near(missing, MISSING))


def missing_values(parts: Mapping[str, ClientRows], names: Sequence[str], label: str) -> list[MissingValue]:
    """Every column with missing values, in the order of columns, the label last.

    >>> x = np.array([[0.0, 1.0], [2.0, np.nan]])
    >>> part = ClientRows(x, np.array([0, 0]), np.zeros(2, bool), np.array([1, 2]))
    >>> missing_values({"ann": part}, ["age", "size"], "y")
    [MissingValue(column='size', values=1, client='ann', row=2)]
    """
    count = np.zeros(len(names) + 1, dtype=np.int64)
    first: dict[int, tuple[str, int]] = {}  # the lowest row, which in one table is the first
    for who, part in parts.items():
        gaps = _gaps(part, len(names))
        for column in np.flatnonzero(gaps.any(0)).tolist():
            here = int(part.row[gaps[:, column].argmax()])
            if column not in first or here < first[column][1]:
                first[column] = who, here
        count += gaps.sum(0)
    return [MissingValue([*names, label][c], int(count[c]), *first[c]) for c in sorted(first)]


def resolve(
    parts: dict[str, ClientRows],
    names: Sequence[str],
    label: str,
    found: Sequence[MissingValue],
    missing: str,
    fill: FillRule = "",
) -> Resolved:
    """Refuse the missing values that were found, or drop their rows, or fill them, as `missing` says.

    With `fill` those of features stay: they are filled when it is known which rows are for training.

    >>> x = np.array([[1.0], [np.nan], [5.0]])
    >>> part = ClientRows(x, np.zeros(3, int), np.zeros(3, bool), np.arange(1, 4))
    >>> parts, _, said = resolve({"ann": part}, ["age"], "y", [MissingValue("age", 1, "ann", 2)], "median")
    >>> parts["ann"].x[:, 0], said
    (array([1., 3., 5.]), ["1 missing values filled with the median of the client's own column"])
    """
    if not found:
        return parts, {}, []
    last = found[-1]
    if fill != "":
        return _keep(parts, label, found, missing, fill)
    if missing == "median" and any(part.unlabelled.any() for part in parts.values()):
        remedy = f"row {last.row} has no label, which no median can fill; missing='drop' leaves such rows out"
        raise KinfolkError(f"data.{last.client}.{label}", None, remedy)
    if missing == "refuse":
        first, total = found[0], sum(h.values for h in found)
        columns = f"{len(found)} column{'s' * (len(found) > 1)}"
        remedy = (
            f"empty or NaN in row {first.row} ({total} missing in {columns}: "
            f"{listed(h.column for h in found)}); fill them, or take missing='drop', 'median' or --fill mean"
        )
        raise KinfolkError(f"data.{first.client}.{first.column}", None, remedy)
    return _drop(parts, len(names)) if missing == "drop" else _fill(parts, names)


def _keep(
    parts: dict[str, ClientRows], label: str, found: Sequence[MissingValue], missing: str, fill: FillRule
) -> Resolved:
    """Rows without a label are refused or dropped, gaps in features are left for `fill_in`."""
    gaps = sum(gap.values for gap in found if gap.column != label)
    by = f"the {fill} of training rows" if isinstance(fill, str) else "given values"
    said = [f"{gaps} missing values are filled with {by}"] if gaps else []
    if not any(part.unlabelled.any() for part in parts.values()):
        return parts, {}, said
    last = found[-1]
    if missing != "drop":
        remedy = f"row {last.row} has no label, which nothing can fill; missing='drop' leaves such rows out"
        raise KinfolkError(f"data.{last.client}.{label}", None, remedy)
    kept = {who: part.take(~part.unlabelled) for who, part in parts.items() if not part.unlabelled.all()}
    rows = sum(int(part.unlabelled.sum()) for part in parts.values())
    return kept, {"rows without a label": rows}, said


def listed(names: Iterable[str], most: int = 6) -> str:
    """A few names in one line, and how many more there are.

    >>> listed("abcd", most=2)
    'a, b and 2 more'
    """
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def flat(x: Array, columns: int) -> Array:
    """[rows, columns, values per column]: a table and a stack of images are treated the same.

    >>> flat(np.zeros((2, 28, 28)), 1).shape
    (2, 1, 784)
    """
    return x.reshape(len(x), columns, -1)


def _gaps(part: ClientRows, columns: int) -> NDArray[np.bool_]:
    """[rows, columns + 1]: where a value is missing, the label last."""
    if part.x.dtype.kind == "f":
        inside = np.isnan(flat(part.x, columns)).any(2)
    else:
        inside = np.zeros((len(part.x), columns), dtype=bool)
    return np.column_stack([inside, part.unlabelled])


def _drop(parts: dict[str, ClientRows], columns: int) -> Resolved:
    kept: dict[str, ClientRows] = {}
    rows = 0
    for who, part in parts.items():
        keep = np.asarray(~_gaps(part, columns).any(1))
        rows += int((~keep).sum())
        if keep.any():
            kept[who] = part.take(keep)
    gone = [who for who in parts if who not in kept]
    if not kept:
        raise KinfolkError("missing", "drop", "every row misses a value; fill them, or take missing='median'")
    if not gone:
        return kept, {"rows with a missing value": rows}, []
    left_out = {"rows with a missing value": rows, "clients without a complete row": len(gone)}
    return kept, left_out, [f"left out, as none of their rows is complete: {listed(gone)}"]


def _fill(parts: dict[str, ClientRows], names: Sequence[str]) -> Resolved:
    """The median of the client's own column, or of everybody's where the client has no value in it."""
    tables = {who: part.x.reshape(len(part.x), -1).copy() for who, part in parts.items()}
    gaps = {who: np.isnan(table) for who, table in tables.items()}
    filled = {"the client's own column": 0, "all clients' column, its own being empty": 0}
    # Everybody's median first, before any gap is filled.
    empty = {c for gap in gaps.values() for c in np.flatnonzero(gap.all(0)).tolist()}
    common = {c: _median(tables, gaps, c, names) for c in sorted(empty)}
    for who, gap in gaps.items():
        table = tables[who]
        for c in np.flatnonzero(gap.any(0)).tolist():
            alone = bool(gap[:, c].all())
            table[gap[:, c], c] = common[c] if alone else np.median(table[~gap[:, c], c])
            filled[[*filled][alone]] += int(gap[:, c].sum())
    said = [f"{n} missing values filled with the median of {what}" for what, n in filled.items() if n]
    return {who: replace(part, x=tables[who].reshape(part.x.shape)) for who, part in parts.items()}, {}, said


def _median(
    tables: Mapping[str, Array], gaps: Mapping[str, NDArray[np.bool_]], column: int, names: Sequence[str]
) -> float:
    present = np.concatenate([table[~gaps[who][:, column], column] for who, table in tables.items()])
    if not len(present):
        per_name = next(iter(tables.values())).shape[1] // len(names)
        name = names[column // per_name]
        raise KinfolkError("missing", "median", f"column {name!r} has no value at all; leave it out")
    return float(np.median(present))
