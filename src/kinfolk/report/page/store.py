"""The numbers of a page, packed: by column, each column once, however many charts and tables it serves.

Numbers keep four digits, which is more than a picture shows. `assets/data.js` unpacks them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import pandas as pd

DIGITS = 4
# What is not worth the letters that say how it is packed.
SHORT = 12


class Store:
    """Columns by number; equal columns have the same number.

    >>> store = Store()
    >>> store.rows([{"client": "ann", "value": 0.123456}, {"client": "bob", "value": 0.5}])
    {'rows': 2, 'columns': {'client': 0, 'value': 1}}
    >>> store.rows([{"client": "ann"}, {"client": "bob"}])["columns"], store.columns[1]
    ({'client': 0}, [0.1235, 0.5])
    """

    def __init__(self) -> None:
        self.columns: list[Any] = []
        self._known: dict[str, int] = {}

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Rows as a reference to their columns; a cell that a row does not have is null."""
        names = dict.fromkeys(name for row in rows for name in row)
        return {
            "rows": len(rows),
            "columns": {name: self.column([row.get(name) for row in rows]) for name in names},
        }

    def column(self, values: Sequence[Any]) -> int:
        """The number of a column with these values."""
        packed = pack([cell(value) for value in values])
        key = json.dumps(packed)
        if key not in self._known:
            self._known[key] = len(self.columns)
            self.columns.append(packed)
        return self._known[key]


def cell(value: Any) -> Any:
    """A value in JSON's own types, with as many digits as a page shows; what is no number is null.

    >>> cell(0.123456), cell(float("nan")), cell(123456.7), cell(7), cell("ann"), cell(pd.NA)
    (0.1235, None, 123500, 7, 'ann', None)
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or value is pd.NA:  # which is neither equal to itself nor not
        return None
    if isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        short = float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
        return int(short) if short is not None and short.is_integer() and abs(short) < 2**53 else short
    if isinstance(value, Mapping):
        return {str(key): cell(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [cell(inner) for inner in value]
    return None if value != value else str(value)


def pack(values: list[Any]) -> Any:
    """A column in the shortest of a few forms: as it is, by its runs, or by its words and where they stand.

    >>> pack([3] * 100), pack(["ann", "bob"] * 50)
    ({'runs': [3, 100]}, {'tile': ['ann', 'bob'], 'times': 50})
    >>> pack(["a", "b", "b", "a", "c"] * 5 + ["a"])["words"]
    ['a', 'b', 'c']
    """
    kinds = {type(value) for value in values}
    if len(values) < SHORT or (bool in kinds and kinds & {int, float}):
        return values  # True equals 1, and what is packed must come out as it was
    runs = [part for value, group in groupby(values) for part in (value, sum(1 for _ in group))]
    if len(runs) <= len(values) / 2:
        return {"runs": runs}
    period = _period(values)
    if period:
        return {"tile": pack(values[:period]), "times": len(values) // period}
    words = dict.fromkeys(value for value in values if isinstance(value, str))
    if words and len(words) <= len(values) / 2 and all(isinstance(value, str) for value in values):
        places = {word: place for place, word in enumerate(words)}
        return {"words": list(words), "at": [places[value] for value in values]}
    return values


def _period(values: list[Any]) -> int:
    """After how many values they begin again, to the end; 0 if they do not."""
    first, many = values[0], len(values)
    if isinstance(first, list | dict):
        return 0
    tried = 0
    for period in range(1, many // 2 + 1):
        if values[period] != first or many % period:
            continue
        tried += 1
        if values[period:] == values[:-period]:
            return period
        if tried > 20:
            break
    return 0


def as_json(value: Any) -> str:
    """JSON that can stand inside a page: nothing in it can end a script or begin one.

    >>> as_json("</script><script>alert(1)</script>")
    '"\\\\u003c/script\\\\u003e\\\\u003cscript\\\\u003ealert(1)\\\\u003c/script\\\\u003e"'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text.encode("utf-8", "replace").decode()
