"""A federation: the rows of all clients in one flat pool, and which rows belong to whom."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.errors import KinfolkError, near
from kinfolk.types import (
    Client,
    Rows,
    cat_rows,
    map_rows,
    named_leaves,
    plain_rows,
    row_count,
    row_leaves,
)

if TYPE_CHECKING:
    from kinfolk.federation.own_data.columns import Recipe
    from kinfolk.federation.scaling import Scaling

SPLITS = ("train", "valid", "test")

# Makes the rows of client number i when they are asked for: split -> (x, y). A frozen dataclass with a
# `__call__`, so that its printed form tells all that its rows depend on.
Maker = Callable[[int], Mapping[str, tuple[Rows, Rows]]]


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of a pool by client, flat with offsets; several clients may own the same set.

    >>> s = pack([torch.tensor([4, 5]), torch.tensor([6])], of=[1, 0, 0])
    >>> s.rows(1), s.counts()
    (tensor([4, 5]), tensor([1, 2, 2]))
    """

    start: Tensor  # [sets + 1] int64: set s is row[start[s]:start[s + 1]]
    row: Tensor  # [total] int64, rows of the pool
    of: Tensor  # [clients] int64: which set client i owns

    @cached_property
    def _host(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(start, of) as arrays: reading one number of a tensor takes twenty times as long."""
        return self.start.numpy(force=True), self.of.numpy(force=True)

    def _span(self, i: int) -> tuple[int, int]:
        start, of = self._host
        s = of[i]
        return int(start[s]), int(start[s + 1])

    def first(self, i: int) -> int:
        """Where in `row` the rows of client number `i` begin."""
        return self._span(i)[0]

    def rows(self, i: int) -> Tensor:
        """The pool rows of client number `i`."""
        first, last = self._span(i)
        return self.row[first:last]

    def count(self, i: int) -> int:
        """How many rows client number `i` has."""
        first, last = self._span(i)
        return last - first

    def counts(self) -> Tensor:
        """How many rows each client has, [clients]."""
        return self.start.diff()[self.of]

    def to(self, device: str | torch.device) -> Split:
        """The same split on another device."""
        return Split(self.start.to(device), self.row.to(device), self.of.to(device))


def pack(sets: Sequence[Tensor], of: Iterable[int] | None = None) -> Split:
    """Lay row sets end to end; client i owns set `of[i]`, or set i if `of` is not given.

    >>> pack([torch.tensor([3]), torch.tensor([0, 1])]).start
    tensor([0, 1, 3])
    """
    owner = torch.tensor(list(range(len(sets)) if of is None else of), dtype=torch.int64)
    lengths = torch.tensor([0, *(len(s) for s in sets)], dtype=torch.int64)
    row = torch.cat([torch.zeros(0, dtype=torch.int64), *(s.to(torch.int64) for s in sets)])
    return Split(lengths.cumsum(0), row, owner)


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients and their rows. Nothing is padded and nothing is stored twice.

    >>> x, y = torch.tensor([[1.], [2.], [3.]]), torch.tensor([0, 1, 1])
    >>> train = pack([torch.tensor([0, 1]), torch.tensor([2])])
    >>> f = Federation((Client("ann"), Client("bob")), x, y, {"train": train}, classes=2)
    >>> f.x[f.splits["train"].rows(f.place("bob"))], f.only(Client("bob")).x
    (tensor([[3.]]), tensor([[3.]]))
    """

    clients: tuple[Client, ...]  # sorted, unique
    x: Rows  # [pool, ...] of any type, one tensor or several by name; bytes may have a scale
    y: Rows  # [pool, ...] int64 when classes > 0; otherwise numbers of any shape, one tensor or several
    splits: Mapping[str, Split]  # "train", "valid", "test"
    classes: int  # 0: regression
    truth: Tensor | None = None  # [clients] int64 known groups: for scores, never given to an algorithm
    name: str = ""  # short description
    scale: tuple[float, float] | None = None  # rows stored as bytes are x * scale[0] + scale[1]
    maker: Maker | None = None  # rows that are made when a client is asked; the pool is empty then
    class_names: tuple[str, ...] = ()  # what the data call their classes; empty where they are numbers
    feature_names: tuple[str, ...] = ()  # columns of a table; empty where x is none
    scaling: Scaling | None = None  # how x and y were standardised; None: they are as they came
    recipe: Recipe | None = None  # how x comes out of raw columns; None: as they are

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row of `x`; of several tensors none, `row_text` tells more."""
        return () if isinstance(self.x, dict) else tuple(self.x.shape[1:])

    @property
    def rows(self) -> int:
        """How many rows the pool holds."""
        return row_count(self.x)

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return row_leaves(self.x)[0].device

    @property
    def row_text(self) -> str:
        """What one row of `x` is, in words.

        >>> x = {"tokens": torch.zeros(1, 9, dtype=torch.int64), "age": torch.zeros(1)}
        >>> Federation((Client("ann"),), x, torch.zeros(1), {}, 0).row_text
        'tokens 9 (int64), age 1 (float32)'
        """
        if not isinstance(self.x, dict):
            return " x ".join(map(str, self.shape))
        sides = {name: " x ".join(map(str, t.shape[1:])) or "1" for name, t in self.x.items()}
        types = {name: str(t.dtype).removeprefix("torch.") for name, t in self.x.items()}
        return ", ".join(f"{name} {sides[name]} ({types[name]})" for name in self.x)

    def place(self, who: str) -> int:
        """The number of client `who`; a name that is not here is an error."""
        i = bisect_left(self.clients, who)
        if i == len(self.clients) or self.clients[i] != who:
            raise KinfolkError("data.clients", who, "no such client; " + near(who, self.clients))
        return i

    def take(self, rows: Tensor) -> tuple[Rows, Rows]:
        """Rows of the pool as they are trained on: (x, y), with the shape of `rows` in front.

        Numbers come as float32, int64 or bool: a narrower type is how they are stored.

        >>> pool = torch.tensor([[0], [255]], dtype=torch.uint8)
        >>> f = Federation((Client("ann"),), pool, torch.tensor([0, 1]), {}, 2, scale=(2 / 255, -1.0))
        >>> f.take(torch.tensor([1]))
        (tensor([[1.]]), tensor([1]))
        """
        y = map_rows(lambda t: as_trained(t[rows]), self.y)
        if self.scale is None or isinstance(self.x, dict):
            return map_rows(lambda t: as_trained(t[rows]), self.x), y
        return self.x[rows].float() * self.scale[0] + self.scale[1], y

    def among(self, who: Sequence[Client]) -> Federation:
        """A federation that holds the rows of `who`: this one, unless its rows have yet to be made."""
        if self.maker is None:
            return self
        names = tuple(sorted(who))
        made = [self.maker(self.place(c)) for c in names]
        pairs = [(split, part[split]) for split in self.splits for part in made]
        counts = [row_count(y) for _, (_, y) in pairs]
        ends = torch.tensor(counts).cumsum(0).tolist()
        rows = [torch.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]
        splits = {s: pack(rows[k * len(names) : (k + 1) * len(names)]) for k, s in enumerate(self.splits)}
        x, y = (cat_rows([pair[k] for _, pair in pairs]) for k in (0, 1))
        return Federation(names, x, y, splits, self.classes, None, self.name, self.scale)

    def only(self, who: Client) -> Federation:
        """A federation of one that holds this client's rows and nothing else: what a real device holds."""
        if self.maker is not None:
            return self.among([who])
        i = self.place(who)
        own = {name: split.rows(i) for name, split in self.splits.items()}
        held, local = torch.unique(torch.cat(list(own.values())), return_inverse=True)
        parts = local.split([len(rows) for rows in own.values()])
        splits = {name: pack([part.cpu()]).to(self.device) for name, part in zip(own, parts, strict=True)}
        x, y = (map_rows(lambda t: t[held], rows) for rows in (self.x, self.y))
        return Federation((who,), x, y, splits, self.classes, None, self.name, self.scale)

    def to(self, device: str | torch.device) -> Federation:
        """The same federation with every tensor on `device`."""
        return replace(
            self,
            x=map_rows(lambda t: t.to(device), self.x),
            y=map_rows(lambda t: t.to(device), self.y),
            splits={name: split.to(device) for name, split in self.splits.items()},
            truth=None if self.truth is None else self.truth.to(device),
        )

    def fingerprint(self) -> str:
        """A sha256 over clients, rows, splits and groups: equal if and only if the data are."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        # Once: every checkpoint asks for it, and a federation's rows do not change.
        tensors = {**named_leaves("x", self.x), **named_leaves("y", self.y)}
        for name, split in sorted(self.splits.items()):
            tensors |= {f"{name}.start": split.start, f"{name}.row": split.row, f"{name}.of": split.of}
        if self.truth is not None:
            tensors["truth"] = self.truth
        digest = hashlib.sha256(repr((self.clients, self.classes, self.name, self.scale)).encode())
        digest.update(repr(self.maker).encode())  # a maker's parameters are the rows it will make
        for name, tensor in tensors.items():
            # Name, type and shape first, so that no two layouts give the same run of bytes.
            digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def labels_of(federation: Federation, rows: Tensor) -> Tensor:
    """The classes that stand in some rows of the pool, flat: one a row, or one a position of each.

    >>> y = torch.tensor([[1, 0], [2, -100]])
    >>> labels_of(Federation((Client("ann"),), torch.zeros(2, 2), y, {}, 3), torch.tensor([1]))
    tensor([2])
    """
    y = plain_rows(federation.y)[rows]
    if y.dim() == 1:
        return y
    flat = y.flatten()
    return flat[flat >= 0]


def output_count(federation: Federation) -> int:
    """How many numbers a network gives for a row or position; 0 where only the user's loss can tell.

    >>> output_count(Federation((Client("ann"),), torch.zeros(2, 2), torch.zeros(2, 4), {}, 0))
    4
    """
    y = federation.y
    if federation.classes or isinstance(y, dict):
        return federation.classes
    return y.shape[1] if y.dim() > 1 else 1


def as_trained(rows: Tensor) -> Tensor:
    """Rows as networks take them: floats in float32, whole numbers in int64, truth values as they are.

    >>> [as_trained(torch.zeros(1, dtype=kind)).dtype for kind in (torch.float16, torch.uint8, torch.bool)]
    [torch.float32, torch.int64, torch.bool]
    """
    if rows.dtype == torch.bool:
        return rows
    return rows.float() if rows.is_floating_point() else rows.long()


def client_names(count: int, width: int = 2) -> list[Client]:
    """Names in sorting order, padded with zeros to at least `width` digits.

    >>> client_names(2), client_names(1001)[0]
    (['client-00', 'client-01'], 'client-0000')
    """
    width = max(width, len(str(count - 1)))
    return [Client(f"client-{i:0{width}d}") for i in range(count)]
