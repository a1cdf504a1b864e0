"""What was found in somebody's own data: rows by client, and all there is to say about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.soundness import check
from kinfolk.streams import Seed

Array = NDArray[Any]


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

    >>> found = LoadedClients({"ann": (np.zeros((2, 3)), np.array([0, 1]))}, class_names=("no", "yes"))
    >>> found.rows, found.shape
    (2, (3,))
    """

    clients: dict[str, tuple[Array, Array]]  # sorted by name: x [rows, ...], y [rows] (or [rows, d])
    class_names: tuple[str, ...] = ()  # empty: y are numbers to predict, not classes
    feature_names: tuple[str, ...] = ()  # empty where x is no table
    left_out: Mapping[str, int] = field(default_factory=dict)  # reason -> how many
    notes: list[str] = field(default_factory=list)  # what was decided on the way
    missing: tuple[MissingValue, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)  # column -> type as it was given
    kind: str = "arrays"  # what it was read from
    scale: tuple[float, float] | None = None  # x of bytes are trained on as x * scale[0] + scale[1]

    @property
    def rows(self) -> int:
        """Rows of all clients together."""
        return sum(len(y) for _, y in self.clients.values())

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row of x."""
        return tuple(next(iter(self.clients.values()))[0].shape[1:])


@dataclass(frozen=True, eq=False)
class Part:
    """One client's rows while they are read; what is missing is still in them."""

    x: Array  # [rows, ...] numbers; floats are nan where a value is missing
    y: Array  # [rows, ...] whole numbers, floats, booleans or text
    hole: NDArray[np.bool_]  # [rows] where the label is missing
    row: NDArray[np.int64]  # [rows] where each row stands in what was read, from 1
    rounded: frozenset[str] = frozenset()  # columns with whole numbers that float32 cannot hold


def federate(
    found: LoadedClients,
    *,
    test_fraction: float = 0.2,
    valid: float = 0.0,
    seed: Seed = Seed(0),  # noqa: B008 - a Seed never changes
) -> Federation:
    """The federation of what was found; test and validation rows are drawn by seed and client name.

    >>> rows = np.arange(10.0).reshape(5, 2), np.array([0, 1, 0, 1, 0])
    >>> f = federate(LoadedClients({"ann": rows}, class_names=("no", "yes", "maybe")))
    >>> f.classes, f.splits["train"].counts(), f.splits["test"].counts()
    (3, tensor([4]), tensor([1]))
    """
    classes = len(found.class_names) or None
    given, pool = found.clients, None
    if all(x.dtype == np.uint8 for x, _ in given.values()):
        # Bytes stay bytes, a quarter of the size: only labels and splits are made of stand-ins for them.
        pool = torch.from_numpy(np.concatenate([given[who][0] for who in sorted(given)]))
        given = {who: (np.zeros((len(y), 1), dtype=np.float32), y) for who, (_, y) in given.items()}
    made = from_arrays(given, valid=valid, test_fraction=test_fraction, classes=classes, seed=seed)
    return made if pool is None else check(replace(made, x=pool, scale=found.scale or (1.0, 0.0)))


def loaded_of(federation: Federation) -> LoadedClients:
    """The training and validation rows of a federation as found, to be inspected.

    Test rows stay out: many clients may share them.

    >>> from kinfolk.federation.own_data.arrays import from_arrays
    >>> loaded_of(from_arrays([(np.zeros((5, 2)), [0, 1, 0, 1, 1])])).rows
    4
    """
    if federation.maker is not None:
        remedy = "its rows are made when a client is asked, so there is nothing to look at or to store"
        raise KinfolkError("data", federation.name, remedy)
    x, y = federation.x.numpy(force=True), federation.y.numpy(force=True)
    train, valid = federation.splits["train"], federation.splits["valid"]
    clients: dict[str, tuple[Array, Array]] = {}
    for i, who in enumerate(federation.clients):
        own = np.concatenate([train.rows(i).numpy(force=True), valid.rows(i).numpy(force=True)])
        clients[who] = x[own], y[own]
    return LoadedClients(
        clients,
        class_names=tuple(str(c) for c in range(federation.classes)),
        notes=["training and validation rows only: test rows may be shared between clients"],
        types={"x": str(x.dtype), "y": str(y.dtype)},
        kind="federation",
        scale=federation.scale,
    )
