"""Somebody's own data once they are loaded: rows by client, and all there is to say about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import SPLITS, Federation, Split, as_trained, pack
from kinfolk.federation.partition.holdout import hold_out
from kinfolk.federation.soundness import check
from kinfolk.streams import Seed
from kinfolk.types import Client, Rows, map_rows

Array = NDArray[Any]
# One array, or several by name, every one [rows, ...]: as `Rows` are of tensors.
Arrays = Array | dict[str, Array]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class MissingValue:
    """Missing values of one column: how many, and where the first one stands (rows count from 1)."""

    column: str
    values: int
    client: str
    row: int


@dataclass(frozen=True, eq=False)
class LoadedClients:
    """Rows by client, as read. Nothing is missing in them any more: `missing` says what was.

    >>> loaded = LoadedClients({"ann": (np.zeros((2, 3)), np.array([0, 1]))}, class_names=("no", "yes"))
    >>> loaded.rows, loaded.shape
    (2, (3,))
    """

    clients: dict[str, tuple[Arrays, Arrays]]  # sorted by name: x [rows, ...], y [rows] (or [rows, d])
    class_names: tuple[str, ...] = ()  # empty: y are numbers to predict, or `classes` without names
    feature_names: tuple[str, ...] = ()  # empty where x is no table
    left_out: Mapping[str, int] = field(default_factory=dict)  # reason -> how many
    notes: list[str] = field(default_factory=list)  # what was decided on the way
    missing: tuple[MissingValue, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)  # column -> type as it was given
    kind: str = "arrays"  # what it was read from
    scale: tuple[float, float] | None = None  # x of bytes are trained on as x * scale[0] + scale[1]
    classes: int = 0  # how many, where they have no names
    tests: Mapping[str, Bools] | None = None  # [rows] by client: its test rows; None: to be held out
    whole: bool = False  # whole numbers in x are ids or counts that a network may want as they are

    @property
    def rows(self) -> int:
        """Rows of all clients together."""
        return sum(array_rows(y) for _, y in self.clients.values())

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row of x; of several arrays none."""
        x = next(iter(self.clients.values()))[0]
        return () if isinstance(x, dict) else tuple(x.shape[1:])


def array_rows(rows: Arrays) -> int:
    """How many rows there are.

    >>> array_rows({"age": np.zeros((3, 1))})
    3
    """
    return len(next(iter(rows.values()))) if isinstance(rows, dict) else len(rows)


@dataclass(frozen=True, eq=False)
class ClientRows:
    """One client's rows while they are read; what is missing is still in them."""

    x: Array  # [rows, ...] numbers; floats are nan where a value is missing
    y: Array  # [rows, ...] whole numbers, floats, booleans or text
    unlabelled: Bools  # [rows] where the label is missing
    row: NDArray[np.int64]  # [rows] where each row stands in what was read, from 1
    rounded: frozenset[str] = frozenset()  # columns with whole numbers that float32 cannot hold
    test: Bools | None = None  # [rows] test rows, where they are given

    def take(self, rows: Array) -> ClientRows:
        """Some of the rows, by place or by mask."""
        test = None if self.test is None else self.test[rows]
        x, y = self.x[rows], self.y[rows]
        return replace(self, x=x, y=y, unlabelled=self.unlabelled[rows], row=self.row[rows], test=test)


def federate(
    loaded: LoadedClients,
    *,
    test_fraction: float = 0.2,
    valid: float = 0.0,
    seed: Seed = Seed(0),  # noqa: B008 - a Seed never changes
) -> Federation:
    """The federation of loaded rows; test and validation rows are drawn by seed and client name.

    >>> rows = np.arange(10.0).reshape(5, 2), np.array([0, 1, 0, 1, 0])
    >>> f = federate(LoadedClients({"ann": rows}, class_names=("no", "yes", "maybe")))
    >>> f.classes, f.splits["train"].counts(), f.splits["test"].counts()
    (3, tensor([4]), tensor([1]))
    """
    if not 0 <= valid < 1:
        raise KinfolkError("data.valid", valid, "give a fraction, 0 or more and below 1")
    if not 0 < test_fraction < 1:
        remedy = "give a fraction above 0 and below 1; test={} for none"
        raise KinfolkError("data.test_fraction", test_fraction, remedy)
    rows = dict(sorted(loaded.clients.items()))
    x, y = ([pair[k] for pair in rows.values()] for k in (0, 1))
    pool = stored(x)
    # Bytes stay bytes, a quarter of the size.
    in_bytes = isinstance(pool, Tensor) and pool.dtype == torch.uint8 and not loaded.whole
    if isinstance(pool, Tensor) and not (in_bytes or loaded.whole):
        pool = pool.float()
    classes = len(loaded.class_names) or loaded.classes
    return check(
        Federation(
            clients=tuple(Client(who) for who in rows),
            x=pool,
            y=map_rows(lambda t: t.long() if classes else as_trained(t), stored(y)),
            splits=_splits(loaded, [*rows], valid, test_fraction, seed),
            classes=classes,
            name=f"own data, {len(rows)} clients",
            scale=loaded.scale or (1.0, 0.0) if in_bytes else None,
            class_names=tuple(loaded.class_names),
            feature_names=tuple(loaded.feature_names),
        )
    )


# Types that torch cannot index, and the next that it can.
_WIDER = {"uint16": "int32", "uint32": "int64", "uint64": "int64", "float64": "float32"}


def stored(parts: Sequence[Arrays]) -> Rows:
    """The rows of all clients, one after another, as a federation keeps them: float64 as float32.

    >>> stored([{"age": np.array([1.5])}, {"age": np.array([2.5])}])
    {'age': tensor([1.5000, 2.5000])}
    """

    def joined(arrays: Sequence[Array]) -> Tensor:
        whole = np.concatenate(list(arrays))
        kind = _WIDER.get(whole.dtype.name, whole.dtype.name)
        return torch.from_numpy(np.require(whole.astype(kind, copy=False), requirements=["C", "W"]))

    first = parts[0]
    if isinstance(first, dict):
        return {name: joined([part[name] for part in parts if isinstance(part, dict)]) for name in first}
    return joined([part for part in parts if not isinstance(part, dict)])


def _splits(
    loaded: LoadedClients, names: list[str], valid: float, test_fraction: float, seed: Seed
) -> dict[str, Split]:
    """Who owns what, when the pool holds client after client."""
    sets: dict[str, list[Tensor]] = {name: [] for name in SPLITS}
    start = 0
    for who in names:
        own = np.arange(start, start + array_rows(loaded.clients[who][1]))
        if loaded.tests is None:
            kept, test = hold_out(own, test_fraction, seed.numpy("data", "test", who))
        else:
            kept, test = own[~loaded.tests[who]], own[loaded.tests[who]]
        train, held = hold_out(kept, valid, seed.numpy("data", "valid", who))
        for name, part in zip(SPLITS, (train, held, test), strict=True):
            sets[name].append(torch.from_numpy(part))
        start += len(own)
    return {name: pack(parts) for name, parts in sets.items()}
