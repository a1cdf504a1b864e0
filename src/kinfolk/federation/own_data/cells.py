"""What the cells of a column hold: numbers, words or dates; what they are not is named with its row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from kinfolk.errors import KinfolkError

Floats = NDArray[np.float64]

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


def categories(column: pd.Series) -> NDArray[np.object_]:
    """The values of a column as words, None where one is missing.

    >>> categories(pd.Series([1.0, 2.5, None])).tolist(), categories(pd.Series([" a", ""])).tolist()
    (['1', '2.5', None], ['a', None])
    """
    codes, distinct = pd.factorize(column.astype(object))
    words = [word(value).strip() or None for value in distinct]
    return np.asarray(np.array([*words, None], dtype=object)[codes])


def word(value: object) -> str:
    """A value as text; pandas turns whole numbers into floats where one is missing.

    >>> word(7.0), word(True), word("x")
    ('7', 'True', 'x')
    """
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def points_in_time(column: pd.Series, field: str, row: NDArray[np.int64]) -> pd.Series:
    """Dates and times in UTC, missing where the cell is empty.

    >>> points_in_time(pd.Series(["2024-02-29", ""]), "data.seen", np.array([1, 2])).dt.month.tolist()
    [2.0, nan]
    """
    values = column.astype(object)
    values = values.where(values.map(lambda value: not (isinstance(value, str) and not value.strip())), None)
    there = values.notna().to_numpy(dtype=bool)
    number = values.map(lambda value: isinstance(value, int | float | np.number | bool)).to_numpy(dtype=bool)
    text = values.map(str).where(there & ~number, None)
    stamps = pd.Series(pd.to_datetime(text, format="ISO8601", utc=True, errors="coerce"))
    wrong = there & stamps.isna().to_numpy(dtype=bool)
    if wrong.any():
        place = int(wrong.argmax())
        remedy = f"row {row[place]} is no date; write dates as 2024-01-31 or 2024-01-31T08:30 (ISO 8601)"
        raise KinfolkError(field, values.iloc[place], remedy)
    return stamps


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


def numbers(column: pd.Series, field: str, row: NDArray[np.int64]) -> Floats:
    """A column as floats, nan where a value is missing; `field` and `row` are what errors call its values.

    >>> numbers(pd.Series([True, None]), "data.ill", np.array([1, 2]))
    array([ 1., nan])
    """
    kind = column_kind(column)
    if kind == "empty":
        return np.full(len(column), np.nan)
    if kind in ("whole", "float", "bool"):
        column = column if types.is_numeric_dtype(column.dtype) else column.astype(object)
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    column = column.astype(object)
    place, value = _first_strange(column)
    name = field.rpartition(".")[2]
    if kind in ("date", "datetime", "datetime64"):
        value, remedy = str(value), f"row {row[place]} is a date; --date {name} counts its days"
    elif kind == "text":
        remedy = (
            f"row {row[place]} is text; give numbers, or an empty cell where a value is missing; "
            f"--categorical {name} takes words as categories, --date {name} dates"
        )
    else:
        remedy = f"row {row[place]} is not a number; give numbers or leave the column out with --columns"
    raise KinfolkError(field, value, remedy)


def _first_strange(column: pd.Series) -> tuple[int, Any]:
    """The first value that stands for no number: the stray word among numbers, if it is one."""
    there = column.notna().to_numpy(dtype=bool)
    words = column.map(lambda value: isinstance(value, str) and value.strip() != "").to_numpy(dtype=bool)
    numeric = pd.to_numeric(column.where(words, None), errors="coerce").notna().to_numpy(dtype=bool)
    strange = words & ~numeric
    place = int((strange if strange.any() else there).argmax())
    return place, column.iloc[place]
