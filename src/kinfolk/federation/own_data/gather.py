"""From the rows of each client to loaded clients: one shape and type, nothing missing, labels as classes.

Text becomes classes by its sorted names, whole numbers as they are, floats not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.columns import FillRule, Recipe
from kinfolk.federation.own_data.loaded import Array, ClientRows, LoadedClients
from kinfolk.federation.own_data.missing import check_missing, flat, missing_values, resolve
from kinfolk.types import IGNORED

# Types that go to float32 without loss; rows that share one of them stay in it, images most of all.
_SMALL = ("uint8", "int8", "uint16", "int16", "float32")
# Text is taken for classes up to this many names, or a tenth of the rows where that is more.
FEW = 20
# A whole-numbered label may reach this far, or the number of rows where that is more.
FAR = 1000
_KINDS = {"b": "booleans", "i": "whole numbers", "u": "whole numbers", "f": "floats"}


def check_name(who: str) -> None:
    """Refuse a name that is blank or no text: random streams are named after clients.

    >>> check_name(" ")
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.clients = ' ': give every client a name in plain text
    """
    if not who.strip() or any("\ud800" <= letter <= "\udfff" for letter in who):
        raise KinfolkError("data.clients", who, "give every client a name in plain text")


def client_rows(who: str, x: Array, y: Array) -> ClientRows:
    """One client's rows out of two arrays; x must be numbers, as many rows as labels.

    >>> client_rows("ann", np.zeros((2, 1)), np.array([0, 1, 1]))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.ann = 'x [2, 1], y [3]': give as many labels y as rows x
    """
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
        value = f"x {list(x.shape)}, y {list(y.shape)}"
        raise KinfolkError(f"data.{who}", value, "give as many labels y as rows x")
    if x.dtype.kind not in "buif":
        raise KinfolkError(f"data.{who}.x", *no_numbers(x))
    if y.dtype.kind not in "buifU":
        remedy = "give numbers or text, one label per row or position"
        raise KinfolkError(f"data.{who}.y", str(y.dtype), remedy)
    if x.ndim < 2 or 0 in x.shape[1:]:
        remedy = "give rows at least one axis and one value: reshape to [rows, 1]"
        raise KinfolkError(f"data.{who}.x", list(x.shape), remedy)
    x, y = (a.astype(a.dtype.newbyteorder("="), copy=False) for a in (x, y))
    return ClientRows(x, y, _unlabelled(y), np.arange(1, len(y) + 1, dtype=np.int64))


def no_numbers(x: Array) -> tuple[str, str]:
    """What inputs are that are no numbers, and what to give instead.

    >>> no_numbers(np.array(["the", "cat"]))
    ('text', 'give numbers; of text the ids of its tokens, as your tokeniser or a dict of words makes them')
    """
    if x.dtype.kind == "U":
        return (
            "text",
            "give numbers; of text the ids of its tokens, as your tokeniser or a dict of words makes them",
        )
    return str(x.dtype), "give numbers"


def _unlabelled(y: Array) -> NDArray[np.bool_]:
    if y.dtype.kind == "f":
        return np.asarray(np.isnan(y).any(axis=tuple(range(1, y.ndim))))
    words = y.dtype.kind == "U" and y.ndim == 1  # a position may have none
    return np.asarray(np.char.strip(y) == "") if words else np.zeros(len(y), dtype=bool)


def gather(
    parts: Mapping[str, ClientRows],
    *,
    kind: str,
    label: str = "y",
    recipe: Recipe | None = None,
    fill: FillRule = "",
    class_names: Sequence[str] = (),
    classes: int = 0,
    missing: str = "refuse",
    types: Mapping[str, str] | None = None,
    left_out: Mapping[str, int] | None = None,
    notes: Iterable[str] = (),
    scale: tuple[float, float] | None = None,
    whole: bool = False,
) -> LoadedClients:
    """Put the clients together: one shape for all, nothing missing, classes numbered.

    >>> a = client_rows("ann", np.array([[1.0], [np.nan], [4.0]]), np.array([0, 1, 1]))
    >>> found = gather({"ann": a}, kind="arrays", missing="drop")
    >>> found.clients["ann"][0].tolist(), found.left_out, found.missing[0].row
    ([[1.0], [4.0]], {'rows with a missing value': 1}, 2)
    """
    check_missing(missing)
    check_present(parts)
    _same_shapes(parts)
    _one_hot(parts, label)
    parts, told = _one_type(dict(sorted(parts.items())), whole)
    features = recipe.features if recipe else ()
    names = [*features] or _columns(next(iter(parts.values())).x)
    _finite(parts, names, label)
    gone = missing_values(parts, names, label)
    parts, dropped, resolved = resolve(parts, names, label, gone, missing, fill)
    labels, class_names, said = to_classes(parts, label, class_names, classes)
    tests = {who: part.test for who, part in parts.items() if part.test is not None}
    return LoadedClients(
        clients={who: (part.x, labels[who]) for who, part in parts.items()},
        class_names=class_names,
        feature_names=features,
        left_out={**(left_out or {}), **dropped},
        notes=[*notes, *told, *resolved, *said],
        missing=tuple(gone),
        types=types or {},
        kind=kind,
        scale=scale,
        classes=classes,
        tests=tests or None,
        recipe=recipe if recipe and not recipe.plain else None,
        fill=fill,
        whole=whole,
    )


def check_present(parts: Mapping[str, ClientRows]) -> None:
    """Refuse a federation of no clients, and clients without a name or without rows.

    >>> check_present({})
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.clients = 0: a federation needs at least one client
    """
    if not parts:
        raise KinfolkError("data.clients", 0, "a federation needs at least one client")
    for who, part in parts.items():
        check_name(who)
        if len(part.y) == 0:
            raise KinfolkError(f"data.{who}", "0 rows", "leave this client out or give it rows")


def _same_shapes(parts: Mapping[str, ClientRows]) -> None:
    (first, model), *others = parts.items()
    for who, part in others:
        for name, mine, theirs in (("x", part.x, model.x), ("y", part.y, model.y)):
            if mine.shape[1:] != theirs.shape[1:]:
                remedy = f"{first!r} has {list(theirs.shape[1:])}; give all clients one row shape"
                raise KinfolkError(f"data.{who}.{name}", f"row shape {list(mine.shape[1:])}", remedy)


def _one_hot(parts: Mapping[str, ClientRows], label: str) -> None:
    """Refuse one class a row that is written as zeros and a one: it would be read as a class a position."""
    if any(
        part.y.ndim != 2 or part.y.dtype.kind not in "iu" or part.y.shape[1] < 2 for part in parts.values()
    ):
        return
    if all(
        bool(((part.y == 1).sum(1) == 1).all() and (part.y != 0).sum() == len(part.y))
        for part in parts.values()
    ):
        who, part = next(iter(parts.items()))
        remedy = "give one label per row: every row is zeros and a one, of which argmax(1) is the class"
        raise KinfolkError(f"data.{who}.{label}", list(part.y.shape), remedy)


def _one_type(parts: Mapping[str, ClientRows], whole: bool) -> tuple[dict[str, ClientRows], list[str]]:
    """x in float32, or in the small type all clients share; and what is lost by it.

    With `whole`, whole numbers of all types stay whole, and half precision is kept.
    """
    kinds = sorted({str(part.x.dtype) for part in parts.values()})
    if whole and all(part.x.dtype.kind in "biu" for part in parts.values()):
        common = np.result_type(*kinds)
        kind = np.dtype(np.int64) if common.kind == "f" else common  # int64 beside uint64
        return {who: replace(part, x=part.x.astype(kind, copy=False)) for who, part in parts.items()}, []
    told = [f"x is of type {' and '.join(kinds)}, by client: taken as float32"] if len(kinds) > 1 else []
    small = (*_SMALL, "float16") if whole else _SMALL
    if kinds[0] not in small or len(kinds) > 1:
        parts = {who: as_float32(part) for who, part in parts.items()}
    rounded = sorted({column for part in parts.values() for column in part.rounded})
    if rounded:
        told.append(f"whole numbers beyond 16777216 are rounded to float32 in: {', '.join(rounded)}")
    return dict(parts), told


def as_float32(part: ClientRows) -> ClientRows:
    """The same rows with x in float32; where that loses digits of whole numbers, `rounded` says so.

    >>> as_float32(client_rows("ann", np.array([[2**24 + 1]]), np.array([0]))).rounded
    frozenset({'x'})
    """
    with np.errstate(over="ignore"):  # beyond float32 is infinity, which is refused by name
        x = part.x.astype(np.float32)
    coarse = part.x.dtype.kind in "iu" and bool((x.astype(np.float64) != part.x).any())
    return replace(part, x=x, rounded=part.rounded | ({"x"} if coarse else set()))


def _columns(x: Array) -> list[str]:
    """Names for rows that have none: by position for flat rows, one for all otherwise."""
    return [f"x[{i}]" for i in range(x.shape[1])] if x.ndim == 2 else ["x"]


def _finite(parts: Mapping[str, ClientRows], names: Sequence[str], label: str) -> None:
    for who, part in parts.items():
        for values, columns in ((part.x, names), (part.y, [label])):
            if values.dtype.kind == "f" and np.isinf(values).any():
                infinite = np.isinf(flat(values, len(columns)))
                row, column, _ = np.argwhere(infinite)[0]
                remedy = "infinite, or beyond float32; correct it or leave it empty"
                raise KinfolkError(f"data.{who}.{columns[column]}", f"row {part.row[row]}", remedy)


def kind_of(y: Array) -> str:
    """What labels are: "text", "booleans", "whole numbers" or "floats".

    >>> kind_of(np.array(["a"])), kind_of(np.array([1])), kind_of(np.array([0.5]))
    ('text', 'whole numbers', 'floats')
    """
    return _KINDS.get(y.dtype.kind, "text")


def in_order(names: set[str]) -> tuple[str, ...]:
    """Names sorted; where all are whole numbers, as numbers.

    >>> in_order({"b", "a", "10"}), in_order({"10", "9"})
    (('10', 'a', 'b'), ('9', '10'))
    """
    if all(name.isascii() and name.isdigit() for name in names):
        bare = {name: name.lstrip("0") for name in names}  # of any length, which `int` refuses
        return tuple(sorted(names, key=lambda name: (len(bare[name]), bare[name], name)))
    return tuple(sorted(names))


def to_classes(
    parts: Mapping[str, ClientRows], label: str, names: Sequence[str] = (), classes: int = 0
) -> tuple[dict[str, Array], tuple[str, ...], list[str]]:
    """Labels by client, class names (none for regression) and what is to be said about it.

    >>> y = np.array(["b", "a", "a", "b"])
    >>> part = ClientRows(np.zeros((4, 1)), y, np.zeros(4, bool), np.arange(1, 5))
    >>> to_classes({"ann": part}, "y")[:2]
    ({'ann': array([1, 0, 0, 1])}, ('a', 'b'))
    """
    kind, notes = _common_kind(parts, label)
    if names or classes:
        return {who: part.y.astype(np.int64) for who, part in parts.items()}, tuple(names), notes
    if kind == "text":
        return _words(parts, label, notes)
    if kind == "floats":
        labels = {who: part.y.astype(np.float32) for who, part in parts.items()}
        said = f"label {label!r} holds floats: a number to predict (regression), not classes"
        return labels, (), [*notes, said]
    if kind == "booleans" and any(part.y.ndim > 1 for part in parts.values()):  # several labels a row
        return {who: part.y for who, part in parts.items()}, (), notes
    labels = {who: part.y.astype(np.int64) for who, part in parts.items()}
    if kind == "booleans":
        return labels, ("False", "True"), notes
    return labels, _numbered(parts, labels, label), [*notes, *_marks(labels, label)]


def _marks(labels: Mapping[str, Array], label: str) -> list[str]:
    """What is to be said of negative labels, which only positions have."""
    found = sorted({int(mark) for y in labels.values() for mark in np.unique(y[(y < 0) & (y != IGNORED)])})
    said = (
        f"label {label!r} has positions of {', '.join(map(str, found[:5]))}: no classes; a run leaves them "
    )
    return [said + "out by local.loss_options.ignore_index"] if found else []


def _common_kind(parts: Mapping[str, ClientRows], label: str) -> tuple[str, list[str]]:
    """The kind all labels are of; a file of whole numbers among files of floats is of floats too."""
    first: dict[str, str] = {}
    for who, part in parts.items():
        first.setdefault(kind_of(part.y), who)
    if set(first) == {"whole numbers", "floats"}:
        said = (
            f"label {label!r} holds whole numbers at {first['whole numbers']!r} and floats at "
            f"{first['floats']!r}: taken as floats"
        )
        return "floats", [said]
    (kind, who), *others = first.items()
    if others:
        other, where = others[0]
        raise KinfolkError(f"data.{where}.{label}", other, f"{who!r} has {kind}; give all clients the same")
    return kind, []


def _words(
    parts: Mapping[str, ClientRows], label: str, notes: list[str]
) -> tuple[dict[str, Array], tuple[str, ...], list[str]]:
    often: Counter[str] = Counter()
    found: dict[str, tuple[list[str], Array]] = {}
    for who, part in parts.items():
        own, place, times = np.unique(part.y.astype(np.str_), return_inverse=True, return_counts=True)
        found[who] = own.tolist(), place.reshape(part.y.shape)
        often.update(dict(zip(own.tolist(), times.tolist(), strict=True)))
    blank = {name for name in often if not name.strip()}  # positions without a label
    names = in_order({*often} - blank)
    count = often.total() - sum(often[name] for name in blank)
    if len(names) > max(FEW, count // 10) or 2 * len(names) > count:
        who, part = next(iter(parts.items()))
        first = next((str(name) for name in part.y.flat if str(name).strip()), "")
        remedy = (
            f"row {part.row[0]} is text, and {len(names)} of {count} labels differ: too many for classes; "
            "name another label column or give numbers"
        )
        raise KinfolkError(f"data.{who}.{label}", first, remedy)
    number = {name: i for i, name in enumerate(names)} | dict.fromkeys(blank, IGNORED)
    labels = {
        who: np.array([number[name] for name in own], dtype=np.int64)[place]
        for who, (own, place) in found.items()
    }
    said = f"label {label!r} holds text: its {len(names)} sorted names are classes 0 to {len(names) - 1}"
    said += ", and positions without text are left out" if blank else ""
    return labels, names, [*notes, said]


def _numbered(parts: Mapping[str, ClientRows], labels: Mapping[str, Array], label: str) -> tuple[str, ...]:
    """Whole numbers are class numbers: from 0, and not so far that they must be something else."""
    far = max(FAR, sum(len(y) for y in labels.values()))
    for who, y in labels.items():
        out = ((y < 0) & (y.ndim == 1)) | (y >= far)  # a position without a class may have any mark
        wrong = np.flatnonzero(out.reshape(len(y), -1).any(1))
        if len(wrong):
            value, row = int(y[wrong[0]][out[wrong[0]]].flat[0]), parts[who].row[wrong[0]]
            remedy = f"row {row}: number classes from 0 (below {far} here), or write them as words"
            raise KinfolkError(f"data.{who}.{label}", value, remedy)
    return tuple(str(c) for c in range(max(0, *(int(y.max(initial=0)) for y in labels.values())) + 1))
