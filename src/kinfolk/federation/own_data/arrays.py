"""Arrays, tensors and map-style data sets handed over in Python, one for each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from kinfolk.errors import KinfolkError, near
from kinfolk.federation.federation import Federation, client_names
from kinfolk.federation.own_data.columns import Columns, FillRule, Recipe
from kinfolk.federation.own_data.gather import check_present, client_rows, gather, kind_of
from kinfolk.federation.own_data.images import Size, resized
from kinfolk.federation.own_data.loaded import Array, Arrays, ClientRows, LoadedClients, array_rows, federate
from kinfolk.federation.own_data.structure import (
    OneClient,
    Sequences,
    from_items,
    gather_structured,
    joined,
    parsed,
    same_form,
    settled,
    structured_rows,
)
from kinfolk.streams import Seed

# What a user may hand in: by position or by name, pairs (x, y) or map-style data sets.
Given = Sequence[Any] | Mapping[Any, Any]
Pair = tuple[OneClient, OneClient]
# What the target is called in the items of a Dataset that are dicts.
LABELS = ("y", "label", "labels")


def from_arrays(
    clients: Given,
    *,
    test: Given | None = None,
    valid: float = 0.0,
    test_fraction: float = 0.2,
    classes: int | None = None,
    missing: str = "refuse",
    fill: str | float = "",
    resize: str | Size = "",
    seed: Seed = Seed(0),  # noqa: B008 - a Seed never changes
) -> Federation:
    """A federation of your own: a pair (x, y) or a map-style `Dataset` per client, in a list or by name.

    Whole-numbered `y` makes it classification, with `classes` one more than the largest label
    unless given; floating `y` makes it regression. Without `test`, `test_fraction` of each
    client's rows are held out; `valid` is the fraction of the remaining rows held out as well.
    Rows with missing values (NaN) are refused, dropped (`missing="drop"`) or filled: by the client's
    `"median"`, or `fill`, the `"mean"` or `"median"` of all clients' training rows or a number.
    Images of several sizes are brought to one by `resize`, `"28x32"` or (height, width).

    >>> f = from_arrays({"ann": (np.zeros((5, 2)), np.array([0, 1, 2, 1, 0])), "bob": (np.ones((1, 2)), [2])})
    >>> f.clients, f.classes, f.splits["train"].counts(), f.splits["test"].counts()
    (('ann', 'bob'), 3, tensor([4, 1]), tensor([1, 0]))
    """
    read = {who: _read(item, who, seed) for who, item in _named(clients, "data.clients").items()}
    tests = {who: _read(item, f"{who}.test", seed) for who, item in _tests(test, read).items()}
    if not read:
        check_present({})
    size = (Columns.parse(resize=resize) if isinstance(resize, str) else Columns(resize=resize)).resize
    if size:
        read, tests = ({w: (_resized(x, size, w), y) for w, (x, y) in part.items()} for part in (read, tests))
    facts = {"kind": "arrays", "missing": missing, "recipe": Recipe(resize=size)}
    given = None if test is None else tests
    loaded = loaded_arrays(read, given, classes=classes, fill=Columns(fill=fill).fill_rule, **facts)
    return federate(loaded, test_fraction=test_fraction, valid=valid, seed=seed)


def loaded_arrays(
    read: Mapping[str, Pair],
    tests: Mapping[str, Pair] | None = None,
    *,
    classes: int | None = None,
    fill: FillRule = "",
    **facts: Any,
) -> LoadedClients:
    """What clients gave, put together: one form for all. `tests` are rows that are for tests.

    >>> loaded_arrays({"ann": (np.zeros((2, 3)), np.array([0, 1]))}, kind="arrays").rows
    2
    """
    x, y = (
        settled(
            {**_part(read, k), **{f"{who}.test": one for who, one in _part(tests or {}, k).items()}}, "xy"[k]
        )
        for k in (0, 1)
    )
    if any(isinstance(rows, dict) for rows in (*x.values(), *y.values())):
        if fill != "":
            raise KinfolkError("fill", fill, "rows of several arrays are not filled; leave it out")
        return _structured(x, y, [*read], tests is not None, classes, {"missing": "refuse", **facts})
    return _plain(x, y, [*read], tests is not None, classes, {**facts, "fill": fill})


def _resized(x: OneClient, size: Size, who: str) -> OneClient:
    if isinstance(x, dict):
        remedy = "of several inputs none is resized; bring the images among them to one size yourself"
        raise KinfolkError(f"data.{who}.x", [*x], remedy)
    return resized(x.rows if isinstance(x, Sequences) else list(x), size, f"data.{who}.x")


def _part(read: Mapping[str, Pair], k: int) -> dict[str, OneClient]:
    return {who: pair[k] for who, pair in read.items()}


def _plain(
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    names: Sequence[str],
    tested: bool,
    classes: int | None,
    options: Mapping[str, Any],
) -> LoadedClients:
    """Clients whose x and y are one array each."""
    rows = {who: client_rows(who, x[who], y[who]) for who in x}
    parts = {who: rows[who] for who in names}
    check_present(parts)
    for who, part in rows.items():
        _same_kinds(who, part, *next(iter(parts.items())))
    if tested:
        parts = {who: _with_tests(part, rows.get(f"{who}.test")) for who, part in parts.items()}
    return gather(
        parts, classes=_classes([part.y for part in parts.values()], classes), whole=True, **options
    )


def _structured(
    x: Mapping[str, Arrays],
    y: Mapping[str, Arrays],
    names: Sequence[str],
    tested: bool,
    classes: int | None,
    options: Mapping[str, Any],
) -> LoadedClients:
    """Clients whose x or y are several arrays."""
    for who in x:
        structured_rows(who, x[who], y[who])
    pairs = {who: (x[who], y[who]) for who in x}
    same_form(pairs)
    marks: dict[str, Array] = {}
    parts: dict[str, tuple[Arrays, Arrays]] = {}
    for who in names:
        mine = [pairs[name] for name in (who, f"{who}.test") if name in pairs]
        parts[who] = joined([one[0] for one in mine]), joined([one[1] for one in mine])
        if tested:
            marks[who] = np.arange(array_rows(parts[who][1])) >= array_rows(mine[0][1])
    labels = [one for _, one in parts.values() if not isinstance(one, dict)]
    counted = _classes(labels, classes) if labels else 0
    return gather_structured(parts, marks, classes=counted, **options)


def _named(given: Given, field: str) -> dict[str, Any]:
    """Items by name, sorted; a list is named by position."""
    if isinstance(given, Mapping):
        pairs: list[tuple[str, Any]] = [(str(key), item) for key, item in given.items()]
    elif isinstance(given, (list, tuple)):
        pairs = list(zip(client_names(len(given), 3), given, strict=True))
    else:
        remedy = "give a list, or a mapping from names, of (x, y) or Datasets"
        raise KinfolkError(field, type(given).__name__, remedy)
    for a, b in pairwise(sorted(name for name, _ in pairs)):
        if a == b:
            raise KinfolkError(field, a, "this name occurs twice; give every client its own")
    return dict(sorted(pairs, key=lambda pair: pair[0]))


def _tests(test: Given | None, parts: Mapping[str, object]) -> dict[str, Any]:
    """The test rows handed in, by client; by name some clients may have none."""
    named = {} if test is None else _named(test, "data.test")
    if isinstance(test, Sequence) and len(named) != len(parts):
        raise KinfolkError("data.test", len(named), f"give one test set for each of the {len(parts)} clients")
    for who in named:
        if who not in parts:
            raise KinfolkError("data.test", who, "no such client; " + near(who, parts))
    return named


def _read(item: Any, who: str, seed: Seed) -> tuple[OneClient, OneClient]:
    """One client's x and y out of a pair or a data set."""
    field = f"data.{who}"
    if isinstance(item, Dataset):
        # A data set may draw (a random crop, say) while it is read; that must follow from the seed as well.
        with seed.borrowed("data", "read", field):
            return _read_items(item, field)
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return parsed(item[0], field + ".x"), parsed(item[1], field + ".y")
    raise KinfolkError(field, type(item).__name__, "give a pair (x, y) or a map-style Dataset")


def _read_items(data: Any, field: str) -> tuple[OneClient, OneClient]:
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        remedy = "give a map-style Dataset: one with a length, read by position"
        raise KinfolkError(field, type(data).__name__, remedy)
    items = [_pair(data[i], field) for i in range(len(data))]
    return from_items([x for x, _ in items], field + ".x"), from_items([y for _, y in items], field + ".y")


def _pair(item: Any, field: str) -> tuple[Any, Any]:
    """(x, y) of one item; of a dict, y is what stands under the name of a label."""
    if isinstance(item, Mapping):
        label = next((name for name in LABELS if name in item), None)
        if label is not None and len(item) > 1:
            return {name: value for name, value in item.items() if name != label}, item[label]
        raise KinfolkError(field, sorted(map(str, item)), f"name the target of an item {', '.join(LABELS)}")
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        remedy = "each item of the Dataset must be a pair (x, y) or a dict with a label"
        raise KinfolkError(field, type(item).__name__, remedy)
    return item[0], item[1]


def _same_kinds(who: str, part: ClientRows, first: str, other: ClientRows) -> None:
    """The same row shape and kind of number for all: bytes beside fractions are most often a mistake."""
    if len(part.y) == 0:  # no test rows
        return
    for name, mine, theirs in (("x", part.x, other.x), ("y", part.y, other.y)):
        said, wanted = (f"{kind_of(a)} of row shape {list(a.shape[1:])}" for a in (mine, theirs))
        if said.replace("booleans", "whole numbers") != wanted.replace("booleans", "whole numbers"):
            remedy = f"data.{first} has {wanted}; give all clients the same"
            raise KinfolkError(f"data.{who}.{name}", said, remedy)


def _with_tests(part: ClientRows, test: ClientRows | None) -> ClientRows:
    """The test rows behind the others, and marked."""
    if test is None or not len(test.y):
        return ClientRows(part.x, part.y, part.unlabelled, part.row, test=np.zeros(len(part.y), dtype=bool))
    pairs = zip((part.x, part.y, part.unlabelled), (test.x, test.y, test.unlabelled), strict=True)
    x, y, unlabelled = (np.concatenate(pair) for pair in pairs)
    row = np.concatenate([part.row, len(part.y) + test.row])
    return ClientRows(x, y, unlabelled, row, test=np.arange(len(y)) >= len(part.y))


def _classes(labels: Sequence[Array], classes: int | None) -> int:
    """How many classes whole numbers stand for; 0 where labels are of another kind."""
    kinds = {kind_of(y) for y in labels}
    if classes is not None and classes < 1:
        raise KinfolkError("data.classes", classes, "give at least one class, or None to count them")
    if kinds == {"booleans"} and any(y.ndim > 1 for y in labels):  # several labels a row
        return 0
    if kinds <= {"whole numbers", "booleans"}:
        return classes or max([1, *(int(y.max()) + 1 for y in labels if y.size)])
    if classes is not None:
        said = "floats (regression)" if "floats" in kinds else "text"
        raise KinfolkError("data.classes", classes, f"the labels are {said}; give whole numbers or None")
    return 0
