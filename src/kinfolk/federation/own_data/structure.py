"""Rows of several arrays, and sequences of differing length: read as they are given, padded to one length.

A dict of arrays names a network's inputs; a tuple of arrays gives them by place, "0", "1", ... A list of
arrays is one row after another: where their lengths differ, all are padded to the longest of all clients and
their lengths are kept beside them, out of which a network gets a mask if it asks for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.gather import check_present, gather, no_numbers
from kinfolk.federation.own_data.loaded import Array, Arrays, ClientRows, LoadedClients, array_rows
from kinfolk.types import IGNORED, LENGTHS


@dataclass(frozen=True, eq=False)
class Sequences:
    """Rows that were given one by one, and may differ in length."""

    rows: list[Array]


Leaf = Array | Sequences
# What one client gives as x or y, before it is known what the others give.
OneClient = Leaf | dict[str, Leaf]


def parsed(value: Any, field: str) -> OneClient:
    """What somebody gave as x or y: one array, one row after another, or several of these by name or place.

    >>> parsed({"age": [31, 47]}, "data.ann.x")
    {'age': array([31, 47])}
    >>> parsed((np.zeros((2, 3)), np.ones(2)), "data.ann.x")["1"]
    array([1., 1.])
    """
    if isinstance(value, Mapping):
        named = {str(name): inner for name, inner in value.items()}
    elif isinstance(value, tuple) and value and all(_sized(inner) for inner in value):
        named = {str(place): inner for place, inner in enumerate(value)}
    else:
        return _leaf(value, field)
    if not named:
        raise KinfolkError(field, {}, "give at least one array")
    for name, inner in named.items():
        if isinstance(inner, Mapping):
            remedy = "a dict in a dict; give one flat dict of arrays, and let forward put them together"
            raise KinfolkError(f"{field}.{name}", [*map(str, inner)], remedy)
    return {name: _leaf(inner, f"{field}.{name}") for name, inner in named.items()}


def from_items(items: Sequence[Any], field: str) -> OneClient:
    """The same out of a list of rows, each of which may be a dict or a tuple.

    >>> from_items([{"age": 31}, {"age": 47}], "data.ann.x")
    {'age': array([31, 47])}
    """
    first = items[0] if items else None
    if isinstance(first, tuple) and all(isinstance(inner, Tensor | np.ndarray) for inner in first):
        items = [{str(place): inner for place, inner in enumerate(item)} for item in items]
        first = items[0]
    if not isinstance(first, Mapping):
        return _stacked([_array(item, field) for item in items], field)
    for item in items:
        if not isinstance(item, Mapping) or set(item) != set(first):
            raise KinfolkError(field, sorted(map(str, item)), f"give every row {', '.join(map(str, first))}")
    return {
        str(name): _stacked([_array(item[name], f"{field}.{name}") for item in items], f"{field}.{name}")
        for name in first
    }


def _sized(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray) and value.ndim > 0


def _leaf(value: Any, field: str) -> Leaf:
    if isinstance(value, list) and value and all(_sized(row) for row in value):
        return _stacked([_array(row, field) for row in value], field)
    try:
        return _array(value, field)
    except KinfolkError:
        if isinstance(value, list | tuple) and all(
            isinstance(row, list | tuple) or _sized(row) for row in value
        ):
            return Sequences(_one_type([_array(row, field) for row in value], field))
        raise


def _one_type(rows: list[Array], field: str) -> list[Array]:
    """Rows that were lists of Python: all numbers are floats if one of them is; an empty list has no type."""
    kinds = [row.dtype for row in rows if row.size]
    if len({kind.kind == "U" for kind in kinds}) > 1:
        raise KinfolkError(field, "numbers and text", "give every row the same type")
    common = np.result_type(*kinds) if kinds else np.dtype(np.int64)
    return [row.astype(common) for row in rows]


def _stacked(rows: list[Array], field: str) -> Leaf:
    """One array of rows that are alike; rows that are arrays may be found to differ from other clients'."""
    types = sorted({str(row.dtype) for row in rows if row.dtype.kind != "U"})
    if len(types) > 1:
        raise KinfolkError(field, " and ".join(types[:2]), "give every row the same type and shape")
    if rows and rows[0].ndim:
        return Sequences(rows)
    if len({row.shape for row in rows}) > 1:
        raise KinfolkError(field, "numbers and lists", "give every row the same type and shape")
    return np.stack(rows) if rows else np.zeros((0, 1))


def _array(value: Any, field: str) -> Array:
    """Numbers or text as an array on the CPU."""
    try:
        if isinstance(value, Tensor):
            value = value.detach().cpu()
            value = value.float() if value.dtype == torch.bfloat16 else value  # unknown to NumPy
        found = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise KinfolkError(field, type(value).__name__, "give numbers, rows of equal shape") from problem
    if found.dtype == object and found.size and all(isinstance(one, str) for one in found.flat):
        return found.astype(np.str_)
    return found


def settled(given: Mapping[str, OneClient], field: str) -> dict[str, Arrays]:
    """What all clients give, in one form: rows stacked where all are alike, padded where lengths differ.

    >>> rows = {"ann": Sequences([np.array([1, 2]), np.array([3])]), "bob": np.array([[4, 5, 6]])}
    >>> {who: x["0"].tolist() for who, x in settled(rows, "x").items()}
    {'ann': [[1, 2, 0], [3, 0, 0]], 'bob': [[4, 5, 6]]}
    """
    first = next(iter(given.values()))
    if not isinstance(first, dict):
        parts: dict[str, Leaf] = {}
        for who, one in given.items():
            if isinstance(one, dict):
                raise KinfolkError(f"data.{who}.{field}", [*one], "others have one array; give all the same")
            parts[who] = one
        made = _one_form(parts, field, "0")
        return {who: leaf["0"] if len(leaf) == 1 else leaf for who, leaf in made.items()}
    whole: dict[str, dict[str, Array]] = {who: {} for who in given}
    for name in first:
        own: dict[str, Leaf] = {}
        for who, one in given.items():
            if not isinstance(one, dict) or set(one) != set(first):
                have = sorted(one) if isinstance(one, dict) else "one array"
                remedy = f"others have {', '.join(first)}; give all clients the same"
                raise KinfolkError(f"data.{who}.{field}", have, remedy)
            own[who] = one[name]
        for who, leaf in _one_form(own, field, name).items():
            whole[who] |= leaf
    return dict(whole)


def _one_form(parts: Mapping[str, Leaf], field: str, name: str) -> dict[str, dict[str, Array]]:
    """One input of all clients as arrays, with lengths beside them if sequences had to be padded."""
    shapes = {row.shape for part in parts.values() if isinstance(part, Sequences) for row in part.rows}
    if not shapes:
        return {who: {name: part} for who, part in parts.items() if not isinstance(part, Sequences)}
    shapes |= {part.shape[1:] for part in parts.values() if not isinstance(part, Sequences) and len(part)}
    where = field if name == "0" else f"{field}.{name}"
    if len(shapes) == 1:
        return {who: {name: _stack(part)} for who, part in parts.items()}
    given = [
        (who, i, row)
        for who, part in parts.items()
        for i, row in enumerate(part.rows if isinstance(part, Sequences) else part[:1])
    ]
    first = given[0][2].shape
    for who, i, row in given:
        if row.shape != first or row.ndim in (1, 2):  # an image is told beside one of another size
            _check_sequence(f"data.{who}.{where}", i, row, first)
    longest = max(shape[0] for shape in shapes)
    if field == "y":
        blank = "" if given[0][2].dtype.kind == "U" else IGNORED
        return {who: {name: padded(part, longest, blank)[0]} for who, part in parts.items()}
    made = {who: padded(part, longest, 0) for who, part in parts.items()}
    if "mask" in name:  # which says itself what is real
        return {who: {name: rows} for who, (rows, _) in made.items()}
    return {who: {name: rows, name + LENGTHS: lengths} for who, (rows, lengths) in made.items()}


def _check_sequence(field: str, place: int, row: Array, other: tuple[int, ...]) -> None:
    if row.ndim not in (1, 2):
        sizes = f"{list(other)} and {list(row.shape)}"
        remedy = "images of differing size; data.resize='HxW' (for files --resize HxW) brings all to one"
        raise KinfolkError(field, sizes, remedy)
    if row.shape[1:] != other[1:]:
        remedy = f"others have {list(other)}; sequences may differ in their first axis alone"
        raise KinfolkError(field, f"row {place + 1} of shape {list(row.shape)}", remedy)
    if field.endswith(".y") and row.dtype.kind in "bf":
        said = "floats" if row.dtype.kind == "f" else "truth values"
        remedy = "pad them yourself and give a loss that knows"
        raise KinfolkError(field, f"{said} of differing length", remedy)


def _stack(part: Leaf) -> Array:
    return np.stack(part.rows) if isinstance(part, Sequences) else part


def padded(part: Leaf, longest: int, fill: int | str) -> tuple[Array, Array]:
    """(rows padded at their ends, their lengths).

    >>> padded(Sequences([np.array([7])]), 2, 0)
    (array([[7, 0]]), array([1]))
    """
    rows: Iterable[Array] = part.rows if isinstance(part, Sequences) else part
    rows = list(rows)
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    first = rows[0] if rows else np.zeros((0,), dtype=np.int64)
    kind = np.result_type(*(row.dtype for row in rows)) if rows else first.dtype
    if kind.kind in "iu" and fill == IGNORED:  # which small types cannot hold
        kind = np.dtype(np.int64)
    out = np.full((len(rows), longest, *first.shape[1:]), fill, dtype=kind)
    for place, row in enumerate(rows):
        out[place, : len(row)] = row
    return out, lengths


def structured_rows(who: str, x: Arrays, y: Arrays) -> None:
    """Refuse inputs and targets that do not have as many rows as one another, or are no numbers.

    >>> structured_rows("ann", {"age": np.zeros(3), "mask": np.zeros(2)}, np.zeros(3))
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: data.ann.x.mask = 2: y has 3 rows; give as many of each
    """
    count = array_rows(y)
    for field, rows in (("x", x), ("y", y)):
        for name, leaf in (rows if isinstance(rows, dict) else {"": rows}).items():
            called = f"data.{who}.{field}" + (f".{name}" if name else "")
            if leaf.ndim < 1 or len(leaf) != count:
                have = len(leaf) if leaf.ndim else "a single number"
                raise KinfolkError(called, have, f"y has {count} rows; give as many of each")
            if leaf.dtype.kind not in ("buif" if field == "x" or isinstance(rows, dict) else "buifU"):
                raise KinfolkError(called, *no_numbers(leaf))
            if leaf.dtype.kind == "f" and field == "x" and np.isinf(leaf).any():
                raise KinfolkError(called, "infinity", "correct it or leave the row out")


def gather_structured(
    parts: Mapping[str, tuple[Arrays, Arrays]], tests: Mapping[str, Array], *, missing: str, **facts: Any
) -> LoadedClients:
    """Clients whose x or y are several arrays, put together: one form for all, nothing missing.

    `tests` marks the test rows of each client, where they were given.
    """
    if missing == "median":
        raise KinfolkError(
            "missing", missing, "rows of several arrays have no columns; use 'refuse' or 'drop'"
        )
    same_form(parts)
    stand_ins = {who: _stand_in(who, x, y, tests.get(who), missing) for who, (x, y) in sorted(parts.items())}
    check_present(stand_ins)
    several = isinstance(next(iter(parts.values()))[1], dict)
    loaded = gather(stand_ins, missing=missing, whole=True, **facts)
    clients: dict[str, tuple[Arrays, Arrays]] = {}
    for who, (kept, y) in loaded.clients.items():
        assert not isinstance(kept, dict)
        place = kept[:, 0]
        given = parts[who][1]
        clients[who] = _some(parts[who][0], place), _some(given, place) if several else y
    if several:
        return replace(loaded, clients=clients, class_names=(), classes=0)
    return replace(loaded, clients=clients)


def _stand_in(who: str, x: Arrays, y: Arrays, test: Array | None, missing: str) -> ClientRows:
    """The numbers of a client's rows in the place of x, for what is done row by row whatever they hold."""
    gone = np.zeros(array_rows(y), dtype=bool)
    for field, rows in (("x", x), ("y", y)):
        for name, leaf in (rows if isinstance(rows, dict) else {}).items():
            if leaf.dtype.kind == "f":
                here = np.isnan(leaf).reshape(len(leaf), -1).any(1)
                if here.any() and missing == "refuse":
                    remedy = f"NaN in row {int(here.argmax()) + 1}; fill it, or take missing='drop'"
                    raise KinfolkError(f"data.{who}.{field}.{name}", None, remedy)
                gone |= here
    place = np.flatnonzero(~gone)
    labels = np.zeros(len(gone), dtype=np.int64) if isinstance(y, dict) else y
    unlabelled = np.zeros(len(gone), dtype=bool)
    if labels.dtype.kind == "f":
        unlabelled = np.asarray(np.isnan(labels).reshape(len(gone), -1).any(1))
    part = ClientRows(
        np.arange(len(gone))[:, None], labels, unlabelled, np.arange(1, len(gone) + 1), test=test
    )
    return part.take(place)


def joined(parts: Sequence[Arrays]) -> Arrays:
    """Rows one after another, all of one form.

    >>> joined([np.array([1]), np.array([2])])
    array([1, 2])
    """
    first = parts[0]
    if isinstance(first, dict):
        return {name: np.concatenate([p[name] for p in parts if isinstance(p, dict)]) for name in first}
    return np.concatenate([part for part in parts if not isinstance(part, dict)])


def _some(rows: Arrays, place: Array) -> Arrays:
    return {name: leaf[place] for name, leaf in rows.items()} if isinstance(rows, dict) else rows[place]


def same_form(parts: Mapping[str, tuple[Arrays, Arrays]]) -> None:
    """Refuse clients whose arrays have other names, shapes or kinds of number than the first one's."""
    (first, model), *others = parts.items()
    for who, part in others:
        for field, mine, theirs in zip("xy", part, model, strict=True):
            a, b = (_forms(rows) for rows in (mine, theirs))
            if a != b:
                name = next((n for n in (*b, *a) if a.get(n) != b.get(n)), "")
                called = f"data.{who}.{field}" + (f".{name}" if name else "")
                remedy = f"{first!r} has {b.get(name, 'none')}; give all clients the same"
                raise KinfolkError(called, a.get(name, "none"), remedy)


def _forms(rows: Arrays) -> dict[str, str]:
    named = rows if isinstance(rows, dict) else {"": rows}
    kinds = {"b": "truth values", "i": "whole numbers", "u": "whole numbers", "f": "floats", "U": "text"}
    return {n: f"{kinds[a.dtype.kind]} of row shape {list(a.shape[1:])}" for n, a in named.items()}
