"""What every loader gives: labelled rows, who owns them, and what was left out or filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import KinfolkError
from kinfolk.federation.partition.holdout import Ints

Array = NDArray[Any]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

# A row is x * scale[0] + scale[1] as float32.
CENTRED = (1 / 127.5, -1.0)  # bytes to [-1, 1]
UNIT = (1 / 255, 0.0)  # bytes to [0, 1], as LEAF has them
PLAIN = (1.0, 0.0)  # features, already what they should be


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one data set, as small as they are stored: images stay bytes until they are dealt.

    >>> Rows(np.zeros((2, 1, 8, 8), np.uint8), np.array([0, 1]), 2, CENTRED).left_out
    {}
    """

    # uint8 images [n, c, h, w], or float32 features [n, ...], or whole numbers that are tokens: [n, length],
    # or running text [n], which is cut into windows as the spec says before it is dealt.
    x: Array
    y: Ints  # [n], or [n, length] with a class for each token
    classes: int
    scale: tuple[float, float]
    test: Bools | None = None  # [n]: the official test rows
    client: Ints | None = None  # [n]: natural owner, a place in client_names
    client_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    block: Ints | None = None  # [n]: rows that resemble one another, such as windows of one recording
    start: Ints | None = None  # [n]: where in its client's text a row begins; it is split in that order
    group: Ints | None = None  # [client_names]: known groups
    left_out: Mapping[str, int] = field(default_factory=dict)  # reason -> rows left out
    filled: Mapping[str, int] = field(default_factory=dict)  # column -> missing values filled in


def check_rows(rows: Rows) -> Rows:
    """Give the rows back if they fit together; otherwise name the field, the value and the remedy.

    >>> check_rows(Rows(np.zeros((2, 3), np.float32), np.array([0, 7]), 2, PLAIN))
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: data.y = 7: row 1; labels run from 0 to 1
    """
    _types(rows)
    _lengths(rows)
    _range("data.y", rows.y, rows.classes, "labels")
    if rows.client is not None:
        _range("data.client", rows.client, len(rows.client_names), "owners")
    if len(set(rows.client_names)) < len(rows.client_names):
        raise KinfolkError("data.client_names", None, "a name occurs twice; give every client its own")
    if rows.class_names and len(rows.class_names) != rows.classes:
        raise KinfolkError("data.class_names", len(rows.class_names), f"give {rows.classes} names or none")
    if rows.x.dtype == np.float32:
        bad = np.flatnonzero(~np.isfinite(rows.x).reshape(len(rows.x), -1).all(1))
        if len(bad):
            raise KinfolkError("data.x", f"row {bad[0]}", f"{len(bad)} rows hold NaN or infinity; fill them")
    return rows


def is_text(rows: Rows) -> bool:
    """Whether rows are tokens or running text: whole numbers that name something and measure nothing.

    >>> is_text(Rows(np.zeros((2, 5), np.uint8), np.zeros(2, np.int64), 1, PLAIN))
    True
    """
    return rows.x.dtype.kind in "iu" and rows.x.ndim <= 2


def _types(rows: Rows) -> None:
    image = rows.x.dtype == np.uint8 and rows.x.ndim == 4
    features = rows.x.dtype == np.float32 and rows.x.ndim >= 2
    if not (image or features or is_text(rows)):
        found = f"{rows.x.dtype}, {rows.x.ndim} axes"
        remedy = "give uint8 images [n, c, h, w], float32 features [n, ...] or tokens [n, length]"
        raise KinfolkError("data.x", found, remedy)
    wanted = {"y": (rows.y, np.int64), "client": (rows.client, np.int64), "test": (rows.test, np.bool_)}
    for name, (values, dtype) in wanted.items():
        axes = rows.x.ndim if name == "y" and is_text(rows) else 1
        if values is not None and (values.dtype != dtype or not 1 <= values.ndim <= axes):
            found = f"{values.dtype}, {values.ndim} axes"
            raise KinfolkError(f"data.{name}", found, f"give {np.dtype(dtype)}, one for each row")


def _lengths(rows: Rows) -> None:
    parts = {"y": rows.y, "test": rows.test, "client": rows.client, "block": rows.block, "start": rows.start}
    for name, values in parts.items():
        if values is not None and len(values) != len(rows.x):
            raise KinfolkError(
                f"data.{name}", len(values), f"there are {len(rows.x)} rows of x; give as many"
            )
    if len(rows.x) == 0:
        raise KinfolkError("data.x", 0, "a data set needs at least one row")
    if rows.group is not None and len(rows.group) != len(rows.client_names):
        raise KinfolkError("data.group", len(rows.group), f"there are {len(rows.client_names)} clients")


def _range(field: str, values: Ints, end: int, what: str) -> None:
    bad = np.argwhere((values < 0) | (values >= end))
    if len(bad):
        wrong = int(values[tuple(bad[0])])
        raise KinfolkError(field, wrong, f"row {bad[0][0]}; {what} run from 0 to {end - 1}")


def halves(train: tuple[Array, Array], test: tuple[Array, Array]) -> dict[str, Array]:
    """Join training and official test rows, training rows first: "x", "y" and "test", which rows are tests.

    >>> one, two = (np.zeros((1, 3)), np.array([4], np.uint8)), (np.ones((2, 3)), np.array([5, 6], np.uint8))
    >>> found = halves(one, two)
    >>> found["y"].tolist(), found["test"].tolist()
    ([4, 5, 6], [False, True, True])
    """
    if train[0].shape[1:] != test[0].shape[1:]:
        remedy = f"training rows have {list(train[0].shape[1:])}; give one shape"
        raise KinfolkError("data.x", f"test rows {list(test[0].shape[1:])}", remedy)
    x = np.concatenate([train[0], test[0]])
    y = np.concatenate([train[1], test[1]]).astype(np.int64)
    return {"x": x, "y": y, "test": np.arange(len(x)) >= len(train[0])}


def owners(ids: Array, word: str) -> tuple[Ints, tuple[str, ...]]:
    """Natural ids as places in a tuple of names, in order of id.

    >>> owners(np.array([7, 12, 7]), "user")
    (array([0, 1, 0]), ('user-07', 'user-12'))
    """
    found, place = np.unique(ids, return_inverse=True)
    width = len(str(found.max()))
    return place.astype(np.int64), tuple(f"{word}-{number:0{width}d}" for number in found.tolist())
