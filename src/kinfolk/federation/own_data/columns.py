"""Columns of a table into numbers and labels; what is not a number is named by column and row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from kinfolk.errors import KinfolkError, near
from kinfolk.federation.own_data.loaded import Array, ClientRows

# How pandas calls what it sees in a column, and what it is to us.
_SEEN = {
    "integer": "whole",
    "floating": "float",
    "mixed-integer-float": "float",
    "decimal": "float",
    "boolean": "bool",
    "string": "text",
    "empty": "empty",
}


def column_kind(column: pd.Series) -> str:
    """What a column holds: "whole", "float", "bool", "text", "empty", or pandas' word for anything else.

    >>> column_kind(pd.Series([1, None], dtype="Int64")), column_kind(pd.Series(["a", None]))
    ('whole', 'text')
    """
    for kind, holds in (
        ("bool", types.is_bool_dtype),
        ("whole", types.is_integer_dtype),
        ("float", types.is_float_dtype),
    ):
        if holds(column.dtype) and not isinstance(column.dtype, pd.CategoricalDtype):
            return kind
    seen = str(types.infer_dtype(column.astype(object), skipna=True))
    return _SEEN.get(seen, seen)


def choose_label(columns: Sequence[str], label: str | None, other: str | None = None) -> tuple[str, str]:
    """The label column and how it was chosen; `other` is a column it cannot be.

    >>> choose_label(["a", "label"], None)
    ('label', "label column: 'label', by its name")
    >>> choose_label(["a", "b"], None)
    ('b', "label column: 'b', the last one, as none is named 'y' or 'label'")
    """
    columns = [name for name in columns if name != other]
    if label is not None:
        if label not in columns:
            raise KinfolkError("label", label, "no such column; " + near(label, columns))
        return label, f"label column: {label!r}, as asked"
    for name in ("y", "label"):
        if name in columns:
            return name, f"label column: {name!r}, by its name"
    if not columns:
        raise KinfolkError("label", None, "the table has no column left for it")
    return columns[-1], f"label column: {columns[-1]!r}, the last one, as none is named 'y' or 'label'"


def table_part(
    field: str, frame: pd.DataFrame, label: str, features: Sequence[str], row: NDArray[np.int64] | None = None
) -> ClientRows:
    """Rows out of a table; `row` says where they stand in what was read, `field` what errors call it.

    >>> part = table_part("data", pd.DataFrame({"a": [1, 2], "b": [0.5, None], "y": [0, 1]}), "y", ["a", "b"])
    >>> part.x.tolist(), part.y
    ([[1.0, 0.5], [2.0, nan]], array([0, 1]))
    """
    row = np.arange(1, len(frame) + 1, dtype=np.int64) if row is None else row
    y, absent = label_values(frame[label], f"{field}.{label}", row)
    x = np.empty((len(frame), len(features)), dtype=np.float32)
    rounded = set()
    for i, name in enumerate(features):
        values = _numbers(frame[name], f"{field}.{name}", row)
        with np.errstate(over="ignore"):  # beyond float32 is infinity, which is refused by name later
            x[:, i] = values
        far = np.abs(values) > 2.0**24  # nan compares false
        if (x[far, i] != values[far]).any() and column_kind(frame[name]) == "whole":
            rounded.add(name)
    return ClientRows(x, y, absent, row, frozenset(rounded))


def _numbers(column: pd.Series, field: str, row: NDArray[np.int64]) -> NDArray[np.float64]:
    """A column as floats, nan where a value is missing."""
    kind = column_kind(column)
    if kind == "empty":
        return np.full(len(column), np.nan)
    if kind in ("whole", "float", "bool"):
        column = column if types.is_numeric_dtype(column.dtype) else column.astype(object)
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    column = column.astype(object)
    place, value = _first_strange(column)
    if kind == "text":
        remedy = f"row {row[place]} is text; give numbers, or an empty cell where a value is missing"
    else:
        remedy = f"row {row[place]} is not a number; give numbers or leave the column out"
    raise KinfolkError(field, value, remedy)


def _first_strange(column: pd.Series) -> tuple[int, Any]:
    """The first value that stands for no number: the stray word among numbers, if it is one."""
    there = column.notna().to_numpy(dtype=bool)
    words = column.map(lambda value: isinstance(value, str) and value.strip() != "").to_numpy(dtype=bool)
    numbers = pd.to_numeric(column.where(words, None), errors="coerce").notna().to_numpy(dtype=bool)
    strange = words & ~numbers
    place = int((strange if strange.any() else there).argmax())
    return place, column.iloc[place]


def label_values(column: pd.Series, field: str, row: NDArray[np.int64]) -> tuple[Array, NDArray[np.bool_]]:
    """Labels in their own kind, and where they are missing.

    >>> label_values(pd.Series(["a", None, " "]), "data.ann.y", np.arange(1, 4))
    (array(['a', '', ' '], dtype=object), array([False,  True,  True]))
    """
    kind = column_kind(column)
    absent = column.isna().to_numpy(dtype=bool)
    if kind == "text":
        values = column.astype(object).where(~absent, "").to_numpy(dtype=object)
        return values, absent | np.array([value.strip() == "" for value in values], dtype=bool)
    if kind == "empty":  # no label at all, of whatever kind the others are
        return np.full(len(column), np.nan), absent
    if kind == "float":
        values = _numbers(column, field, row)
        # pandas keeps whole numbers with gaps as floats; Arrow does not, and means floats by floats.
        gapped = isinstance(column.dtype, np.dtype) and absent.any()
        whole = gapped and bool((values[~absent] == np.rint(values[~absent])).all())
        return np.where(absent, 0, values).astype(np.int64) if whole else values, absent
    if kind in ("whole", "bool"):
        filled = column.astype(object).where(~absent, 0)
        return filled.to_numpy(dtype=np.int64 if kind == "whole" else np.bool_), absent
    place = int((~absent).argmax())
    remedy = f"row {row[place]} is no label; give whole numbers, floats or text"
    raise KinfolkError(field, column.iloc[place], remedy)
