"""A federation out of the user's own arrays or data sets, one for each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from kinfolk.errors import KinfolkError, near
from kinfolk.federation.federation import SPLITS, Federation, Split, client_names, pack
from kinfolk.federation.partition.holdout import hold_out
from kinfolk.federation.soundness import check
from kinfolk.streams import Seed
from kinfolk.types import Client

# What a user may hand in: by position or by name, pairs (x, y) or map-style data sets.
Given = Sequence[Any] | Mapping[Any, Any]


class _Rows(NamedTuple):
    """One client's rows, still of the type they came in; `field` is what errors call them."""

    field: str
    x: Tensor
    y: Tensor


def from_arrays(
    clients: Given,
    *,
    test: Given | None = None,
    valid: float = 0.0,
    test_fraction: float = 0.2,
    classes: int | None = None,
    seed: Seed = Seed(0),  # noqa: B008 - a Seed never changes
) -> Federation:
    """A federation of your own: a pair (x, y) or a map-style `Dataset` per client, in a list or by name.

    Whole-numbered `y` makes it classification, with `classes` one more than the largest label
    unless given; floating `y` makes it regression. Without `test`, `test_fraction` of each
    client's rows are held out; `valid` is the fraction of the remaining rows held out as well.

    >>> f = from_arrays({"ann": (np.zeros((5, 2)), np.array([0, 1, 2, 1, 0])), "bob": (np.ones((1, 2)), [2])})
    >>> f.clients, f.classes, f.splits["train"].counts(), f.splits["test"].counts()
    (('ann', 'bob'), 3, tensor([4, 1]), tensor([1, 0]))
    """
    _fractions(valid, test_fraction)
    rows = {who: _read(item, f"data.{who}", seed) for who, item in _named(clients, "data.clients").items()}
    if not rows:
        raise KinfolkError("data.clients", 0, "a federation needs at least one client")
    for own in rows.values():
        if len(own.x) == 0:
            raise KinfolkError(own.field, "0 rows", "leave this client out or give it rows")
    tests = None if test is None else _tests(test, rows, seed)
    pool = [part for who in rows for part in (rows[who], (tests or {}).get(who)) if part and len(part.x)]
    _alike(pool)
    y = torch.cat([part.y for part in pool])
    federation = Federation(
        clients=tuple(rows),
        x=torch.cat([part.x.to(torch.float32) for part in pool]),
        y=y.to(torch.float32 if y.is_floating_point() else torch.int64),
        splits=_splits(rows, tests, valid, test_fraction, seed),
        classes=_classes(y, classes),
        name=f"own data, {len(rows)} clients",
    )
    return check(federation)


def _fractions(valid: float, test_fraction: float) -> None:
    if not 0 <= valid < 1:
        raise KinfolkError("data.valid", valid, "give a fraction, 0 or more and below 1")
    if not 0 < test_fraction < 1:
        raise KinfolkError(
            "data.test_fraction", test_fraction, "give a fraction above 0 and below 1; test={} for none"
        )


def _named(given: Given, field: str) -> dict[Client, Any]:
    """Items by name, sorted; a list is named by position."""
    if isinstance(given, Mapping):
        pairs = [(Client(str(key)), item) for key, item in given.items()]
    elif isinstance(given, (list, tuple)):
        pairs = list(zip(client_names(len(given), 3), given, strict=True))
    else:
        raise KinfolkError(
            field, type(given).__name__, "give a list, or a mapping from names, of (x, y) or Datasets"
        )
    for a, b in pairwise(sorted(name for name, _ in pairs)):
        if a == b:
            raise KinfolkError(field, a, "this name occurs twice; give every client its own")
    return dict(sorted(pairs, key=lambda pair: pair[0]))


def _tests(test: Given, rows: Mapping[Client, _Rows], seed: Seed) -> dict[Client, _Rows]:
    """The test rows handed in, by client; by name some clients may have none."""
    named = _named(test, "data.test")
    if not isinstance(test, Mapping) and len(named) != len(rows):
        raise KinfolkError("data.test", len(named), f"give one test set for each of the {len(rows)} clients")
    for who in named:
        if who not in rows:
            raise KinfolkError("data.test", who, "no such client; " + near(who, rows))
    return {who: _read(item, f"data.{who}.test", seed) for who, item in named.items()}


def _read(item: Any, field: str, seed: Seed) -> _Rows:
    """One client's rows out of a pair or a data set."""
    if isinstance(item, Dataset):
        # A data set may draw (a random crop, say) while it is read; that must follow from the seed as well.
        with seed.borrowed("data", "read", field):
            x, y = _read_items(item, field)
    elif isinstance(item, (tuple, list)) and len(item) == 2:
        x, y = _tensor(item[0], field + ".x"), _tensor(item[1], field + ".y")
    else:
        raise KinfolkError(field, type(item).__name__, "give a pair (x, y) or a map-style Dataset")
    if x.dim() < 1 or y.dim() < 1 or len(x) != len(y):
        raise KinfolkError(field, f"x {list(x.shape)}, y {list(y.shape)}", "give as many labels y as rows x")
    return _Rows(field, x, y)


def _read_items(data: Any, field: str) -> tuple[Tensor, Tensor]:
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise KinfolkError(
            field, type(data).__name__, "give a map-style Dataset: one with a length, read by position"
        )
    items = [data[i] for i in range(len(data))]
    for item in items:
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise KinfolkError(field, type(item).__name__, "each item of the Dataset must be a pair (x, y)")
    return _stack([x for x, _ in items], field + ".x"), _stack([y for _, y in items], field + ".y")


def _stack(values: list[Any], field: str) -> Tensor:
    tensors = [_tensor(value, field) for value in values]
    kinds = sorted({f"{t.dtype} {list(t.shape)}" for t in tensors})
    if len(kinds) > 1:
        raise KinfolkError(field, " and ".join(kinds[:2]), "give every row the same type and shape")
    return torch.stack(tensors) if tensors else torch.zeros(0)


def _tensor(value: Any, field: str) -> Tensor:
    """Numbers as a tensor on the CPU, not sharing memory with anything that warns or changes."""
    try:
        if isinstance(value, Tensor):
            tensor = value.detach().cpu()
        else:
            array = np.array(value, order="C")
            tensor = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    except (TypeError, ValueError, RuntimeError) as problem:
        raise KinfolkError(field, type(value).__name__, "give numbers, rows of equal shape") from problem
    if tensor.is_complex():
        raise KinfolkError(field, str(tensor.dtype), "give real numbers")
    return tensor


def _alike(pool: Sequence[_Rows]) -> None:
    """The same row shape and kind of number for all, so that one model fits everybody."""
    first = pool[0]
    for part in pool:
        for name, mine, other in (("x", part.x, first.x), ("y", part.y, first.y)):
            if _kind(mine) != _kind(other):
                remedy = f"{first.field} has {_kind(other)}; make all clients alike"
                raise KinfolkError(f"{part.field}.{name}", _kind(mine), remedy)
    if first.x.dim() < 2:
        raise KinfolkError(
            first.field + ".x", list(first.x.shape), "give rows at least one axis: reshape to [rows, 1]"
        )
    if not first.y.is_floating_point() and first.y.dim() > 1:
        raise KinfolkError(
            first.field + ".y", list(first.y.shape), "give one whole number per row, shape [rows]"
        )


def _kind(values: Tensor) -> str:
    return (
        f"{'floats' if values.is_floating_point() else 'whole numbers'} of row shape {list(values.shape[1:])}"
    )


def _classes(y: Tensor, classes: int | None) -> int:
    if classes is not None and classes < 1:
        raise KinfolkError("data.classes", classes, "give at least one class, or None to count them")
    if not y.is_floating_point():
        return max(int(y.max()) + 1, 1) if classes is None else classes
    if classes is not None:
        raise KinfolkError(
            "data.classes", classes, "the labels are floats (regression); give whole numbers or None"
        )
    return 0


def _splits(
    rows: Mapping[Client, _Rows],
    tests: Mapping[Client, _Rows] | None,
    valid: float,
    test_fraction: float,
    seed: Seed,
) -> dict[str, Split]:
    """Who owns what, when the pool holds client after client: all its rows, then its own test rows if any."""
    sets: dict[str, list[Tensor]] = {name: [] for name in SPLITS}
    start = 0
    for who, own in rows.items():
        end = start + len(own.x)
        kept, test = np.arange(start, end), np.arange(end, end)
        if tests is None:
            kept, test = hold_out(kept, test_fraction, seed.numpy("data", "test", who))
        elif who in tests:
            test = np.arange(end, end + len(tests[who].x))
        train, held = hold_out(kept, valid, seed.numpy("data", "valid", who))
        for name, part in zip(SPLITS, (train, held, test), strict=True):
            sets[name].append(torch.from_numpy(part))
        start = end if tests is None else end + len(test)
    return {name: pack(parts) for name, parts in sets.items()}
