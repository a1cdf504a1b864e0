"""Arrays, tensors and map-style data sets handed over in Python, one for each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from kinfolk.errors import KinfolkError, near
from kinfolk.federation.federation import Federation, client_names
from kinfolk.federation.own_data.gather import as_float32, check_present, client_rows, gather, kind_of
from kinfolk.federation.own_data.loaded import Array, ClientRows, federate
from kinfolk.streams import Seed

# What a user may hand in: by position or by name, pairs (x, y) or map-style data sets.
Given = Sequence[Any] | Mapping[Any, Any]


def from_arrays(
    clients: Given,
    *,
    test: Given | None = None,
    valid: float = 0.0,
    test_fraction: float = 0.2,
    classes: int | None = None,
    missing: str = "refuse",
    seed: Seed = Seed(0),  # noqa: B008 - a Seed never changes
) -> Federation:
    """A federation of your own: a pair (x, y) or a map-style `Dataset` per client, in a list or by name.

    Whole-numbered `y` makes it classification, with `classes` one more than the largest label
    unless given; floating `y` makes it regression. Without `test`, `test_fraction` of each
    client's rows are held out; `valid` is the fraction of the remaining rows held out as well.
    Rows with missing values (NaN) are refused, dropped (`missing="drop"`) or filled (`"median"`).

    >>> f = from_arrays({"ann": (np.zeros((5, 2)), np.array([0, 1, 2, 1, 0])), "bob": (np.ones((1, 2)), [2])})
    >>> f.clients, f.classes, f.splits["train"].counts(), f.splits["test"].counts()
    (('ann', 'bob'), 3, tensor([4, 1]), tensor([1, 0]))
    """
    named = _named(clients, "data.clients")
    parts = {who: _read(item, who, seed) for who, item in named.items()}
    check_present(parts)
    tests = {who: _read(item, f"{who}.test", seed) for who, item in _tests(test, parts).items()}
    for who, part in [*parts.items(), *((f"{who}.test", part) for who, part in tests.items())]:
        _same_kinds(who, part, *next(iter(parts.items())))
    if test is not None:
        parts = {who: _with_tests(part, tests.get(who)) for who, part in parts.items()}
    # Always float32: bytes handed over in Python are numbers, not images to be scaled.
    floats = {who: as_float32(part) for who, part in parts.items()}
    loaded = gather(floats, kind="arrays", missing=missing, classes=_classes(parts, classes))
    return federate(loaded, test_fraction=test_fraction, valid=valid, seed=seed)


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


def _tests(test: Given | None, parts: Mapping[str, ClientRows]) -> dict[str, Any]:
    """The test rows handed in, by client; by name some clients may have none."""
    named = {} if test is None else _named(test, "data.test")
    if isinstance(test, Sequence) and len(named) != len(parts):
        raise KinfolkError("data.test", len(named), f"give one test set for each of the {len(parts)} clients")
    for who in named:
        if who not in parts:
            raise KinfolkError("data.test", who, "no such client; " + near(who, parts))
    return named


def _read(item: Any, who: str, seed: Seed) -> ClientRows:
    """One client's rows out of a pair or a data set, x as float32."""
    field = f"data.{who}"
    if isinstance(item, Dataset):
        # A data set may draw (a random crop, say) while it is read; that must follow from the seed as well.
        with seed.borrowed("data", "read", field):
            x, y = _read_items(item, field)
    elif isinstance(item, (tuple, list)) and len(item) == 2:
        x, y = _array(item[0], field + ".x"), _array(item[1], field + ".y")
    else:
        raise KinfolkError(field, type(item).__name__, "give a pair (x, y) or a map-style Dataset")
    return client_rows(who, x, y)


def _read_items(data: Any, field: str) -> tuple[Array, Array]:
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        remedy = "give a map-style Dataset: one with a length, read by position"
        raise KinfolkError(field, type(data).__name__, remedy)
    items = [data[i] for i in range(len(data))]
    for item in items:
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise KinfolkError(field, type(item).__name__, "each item of the Dataset must be a pair (x, y)")
    return _stack([x for x, _ in items], field + ".x"), _stack([y for _, y in items], field + ".y")


def _stack(values: list[Any], field: str) -> Array:
    arrays = [_array(value, field) for value in values]
    kinds = sorted({f"{a.dtype} {list(a.shape)}" for a in arrays})
    if len(kinds) > 1:
        raise KinfolkError(field, " and ".join(kinds[:2]), "give every row the same type and shape")
    return np.stack(arrays) if arrays else np.zeros((0, 1))


def _array(value: Any, field: str) -> Array:
    """Numbers or text as an array on the CPU."""
    try:
        if isinstance(value, Tensor):
            value = value.detach().cpu()
            value = value.float() if value.dtype == torch.bfloat16 else value  # unknown to NumPy
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise KinfolkError(field, type(value).__name__, "give numbers, rows of equal shape") from problem


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


def _classes(parts: Mapping[str, ClientRows], classes: int | None) -> int:
    """How many classes whole numbers stand for; 0 where labels are of another kind."""
    kinds = {kind_of(part.y) for part in parts.values()}
    if classes is not None and classes < 1:
        raise KinfolkError("data.classes", classes, "give at least one class, or None to count them")
    if kinds <= {"whole numbers", "booleans"}:
        return classes or max([1, *(int(part.y.max()) + 1 for part in parts.values() if len(part.y))])
    if classes is not None:
        said = "floats (regression)" if "floats" in kinds else "text"
        raise KinfolkError("data.classes", classes, f"the labels are {said}; give whole numbers or None")
    return 0
