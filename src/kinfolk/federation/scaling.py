"""Standardisation: columns, channels and targets with mean 0 and deviation 1, by statistics of training rows.

Rows do not move. With "global" each client tells how many training rows it has, the mean of every column and
the sum of squared deviations from it; the server combines them by Chan's update in float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.errors import KinfolkError, near
from kinfolk.federation.federation import Federation
from kinfolk.types import Rows, plain_rows

RULES = ("auto", "none", "client", "global")
TARGET_RULES = ("auto", "none", "global")
EVERYONE = ""  # whose statistics those are that all clients share
TELLS = "number of training rows, mean and sum of squared deviations of each column"
_TOGETHER = 4096  # rows that are in float64 at a time
_NUMBER = 8  # bytes of a count, a mean, a sum
_MOST_CONSTANT = float(np.finfo(np.float64).eps)

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean and sum of squared deviations of columns: what a client tells of its training rows.

    >>> one, two = Moments.of(np.array([[1.0], [3.0]])), Moments.of(np.array([[8.0]]))
    >>> both = one.plus(two)
    >>> both.count, both.mean, both.squares
    (3, array([4.]), array([26.]))
    """

    count: int
    mean: Floats  # [columns]
    squares: Floats  # [columns]

    @staticmethod
    def of(x: NDArray[Any]) -> Moments:
        """The moments of rows [rows, columns, ...]; all that stands behind a column is part of it."""
        wide = x.astype(np.float64).reshape(len(x), x.shape[1], -1)
        mean = wide.mean(axis=(0, 2))
        return Moments(len(x) * wide.shape[2], mean, np.square(wide - mean[:, None]).sum(axis=(0, 2)))

    def plus(self, other: Moments) -> Moments:
        """The moments of both together: Chan's update, which never subtracts large sums of squares."""
        count, apart = self.count + other.count, other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        squares = self.squares + other.squares + apart**2 * (self.count * other.count / count)
        return Moments(count, mean, squares)

    def statistics(self) -> Statistics:
        """Mean and deviation (of the population, as scikit-learn's); columns without one are divided by 1."""
        variance = self.squares / self.count
        # What rounding leaves of a constant column is no deviation: scikit-learn's bound.
        rounding = self.count * _MOST_CONSTANT
        constant = variance <= rounding * variance + (rounding * self.mean) ** 2
        std = np.where(constant, 1.0, np.sqrt(variance))
        return Statistics(tuple(self.mean.tolist()), tuple(std.tolist()))


@dataclass(frozen=True)
class Statistics:
    """The mean and the deviation of every column."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("mean", "std"):  # lists where they come from a file
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def apply(self, x: Tensor) -> Tensor:
        """Standardised rows in float32; computed in float64, so that large means cost no digits.

        >>> Statistics((5.0,), (2.0,)).apply(torch.tensor([[9.0], [5.0]])).tolist()
        [[2.0], [0.0]]
        """
        mean, std = (t.reshape(-1, *[1] * (x.dim() - 2)) for t in self._tensors())
        parts = [((part.double() - mean) / std).float() for part in torch.split(x, _TOGETHER)]
        return torch.cat(parts) if parts else x.float()

    def undo(self, x: Tensor) -> Tensor:
        """Rows in their own units again, in float64.

        >>> Statistics((5.0,), (2.0,)).undo(torch.tensor([[2.0]])).item()
        9.0
        """
        mean, std = self._tensors()
        return x.double() * std + mean

    def _tensors(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.mean, dtype=torch.float64), torch.tensor(self.std, dtype=torch.float64)


@dataclass(frozen=True)
class Scaling:
    """How rows were standardised: what predictions need, and what clients told for it."""

    by: str  # "none" (the target alone), "client" or "global"
    rows: Mapping[str, Statistics] = field(default_factory=dict)  # by client, or everyone's under ""
    target: Statistics | None = None
    pixels: tuple[float, float] | None = None  # rows that are bytes are x * pixels[0] + pixels[1] before it
    bytes_up: int = 0
    bytes_down: int = 0
    tells: str = ""

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> Scaling:
        """A scaling out of what `dataclasses.asdict` gave, or JSON made of it.

        >>> from dataclasses import asdict
        >>> some = Scaling("global", {"": Statistics((1.0,), (2.0,))})
        >>> Scaling.from_dict(asdict(some)) == some
        True
        """
        rows = {who: Statistics(**one) for who, one in plain["rows"].items()}
        target = plain["target"] and Statistics(**plain["target"])
        pixels = plain["pixels"] and tuple(plain["pixels"])
        return Scaling(**{**plain, "rows": rows, "target": target, "pixels": pixels})

    @property
    def line(self) -> str:
        """What was done, in a line.

        >>> Scaling("global", {"": Statistics((1.0,), (2.0,))}).line
        'rows are standardised by the mean and deviation of all training rows'
        """
        whose = "each client's own" if self.by == "client" else "all"
        what = " and targets " if self.rows and self.target else " "
        rows = f"rows{what}are standardised" if self.rows else "targets are standardised"
        return f"{rows} by the mean and deviation of {whose} training rows"

    def of(self, client: str | None) -> Statistics | None:
        """The statistics that a client's rows are standardised by; None if rows stay as they are.

        >>> Scaling("client", {"ann": Statistics((1.0,), (2.0,))}).of(None)
        Traceback (most recent call last):
        ...
        kinfolk.errors.KinfolkError: client: each has statistics of its own; name whose rows these are
        """
        if self.by != "client":
            return self.rows.get(EVERYONE)
        if client is None or client not in self.rows:
            remedy = "each has statistics of its own; name whose rows these are"
            raise KinfolkError("client", client, remedy)
        return self.rows[client]


def check_rules(by: str, target: str) -> None:
    """Refuse words that name no rule.

    >>> check_rules("globl", "auto")
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.standardize = 'globl': did you mean 'global'?
    """
    for key, value, known in (("standardize", by, RULES), ("standardize_target", target, TARGET_RULES)):
        if value not in known:
            raise KinfolkError(f"data.{key}", value, near(value, known))


def standardized(federation: Federation, by: str = "auto", target: str = "auto") -> Federation:
    """The same clients with standardised rows and, in regression, targets; what is asked for may be nothing.

    "auto" takes tables with named columns by "global" and leaves all other rows as they are; targets
    follow the rows. A federation that was standardised before is given back.

    >>> from kinfolk.federation.own_data.arrays import from_arrays
    >>> rows = torch.tensor([[1000.0], [3000.0]] * 5), torch.tensor([0, 1] * 5)
    >>> f = standardized(from_arrays({"ann": rows}, test={}), "global")
    >>> f.x[:2].tolist(), f.scaling.rows[""]
    ([[-1.0], [1.0]], Statistics(mean=(2000.0,), std=(1000.0,)))
    """
    check_rules(by, target)
    if federation.scaling is not None:
        if by not in ("auto", federation.scaling.by):
            remedy = f"the rows are standardised already ({federation.scaling.by}); leave it out"
            raise KinfolkError("data.standardize", by, remedy)
        return federation
    by, target = _rules(federation, by, target)
    if by == target == "none":
        return federation
    statistics = _row_statistics(federation, by)
    aim = _target_statistics(federation) if target == "global" else None
    up, down = _bytes(federation, by, statistics, aim)
    pixels = federation.scale if statistics else None
    told = TELLS if up else ""
    return with_scaling(federation, Scaling(by, statistics, aim, pixels, up, down, told))


@dataclass(frozen=True, eq=False)
class Told:
    """What one client tells of its training rows so that all are standardised alike: never a row.

    >>> from kinfolk.federation.own_data.arrays import from_arrays
    >>> own = from_arrays({"ann": (torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1]))}, test={})
    >>> Told.from_list(Told.of(own, "global", "auto").to_list()).rows.mean
    array([2.])
    """

    by: str  # what the rule comes to here
    measured: bool  # whether its targets look like measurements
    rows: Moments | None
    targets: Moments | None

    @staticmethod
    def of(f: Federation, by: str, target: str) -> Told:
        """What a client tells whose rows are this federation of one."""
        check_rules(by, target)
        rule, aim = _rules(f, by, target)
        numbers = isinstance(f.y, Tensor) and f.classes == 0 and f.y.is_floating_point() and f.y.dim() <= 2
        wanted = numbers and (target == "global" or (target == "auto" and rule != "none"))
        rows = _moments(f, 0) if rule == "global" else None
        return Told(rule, aim == "global", rows, _target_moments(f, 0) if wanted else None)

    def to_list(self) -> list[Any]:
        """As JSON can write it, with every digit."""
        plain = [m and [m.count, m.mean.tolist(), m.squares.tolist()] for m in (self.rows, self.targets)]
        return [self.by, self.measured, *plain]

    @staticmethod
    def from_list(plain: Sequence[Any]) -> Told:
        """What `to_list` gave; anything else is a ValueError or TypeError."""
        by, measured, *both = plain
        rows, targets = (one and Moments(int(one[0]), *map(_floats, one[1:])) for one in both)
        if by not in RULES or not isinstance(measured, bool):
            raise ValueError("no statistics of rows")
        return Told(by, measured, rows or None, targets or None)


def scaling_of(told: Sequence[Told], f: Federation) -> Scaling | None:
    """How all are standardised, out of what clients told, in the order of their names; None: not at all.

    `f` has their columns, and need have no rows. The result is that of `standardized` over all rows.
    """
    by, measured = told[0].by, any(one.measured for one in told)
    rows = [one.rows for one in told if one.rows is not None]
    targets = [one.targets for one in told if one.targets is not None]
    statistics = {EVERYONE: _spared(f, combined(rows).statistics())} if by == "global" else {}
    aim = combined(targets).statistics() if measured else None
    if by == "none" and aim is None:
        return None
    up, down = _bytes(f, by, statistics, aim)
    return Scaling(by, statistics, aim, None if by == "none" else f.scale, up, down, TELLS if up else "")


def _floats(values: Any) -> Floats:
    found = np.array([float(v) for v in values], dtype=np.float64)
    if not np.isfinite(found).all():
        raise ValueError("a statistic is not finite")
    return found


def _rules(f: Federation, by: str, target: str) -> tuple[str, str]:
    """What "auto" comes to; what cannot be is refused."""
    plain = isinstance(f.x, Tensor) and f.maker is None
    if by == "auto":
        by = "global" if f.feature_names and plain else "none"
    if by != "none" and not plain:
        why = "these rows are made when a client is asked" if f.maker else "rows have several inputs"
        raise KinfolkError("data.standardize", by, f"{why}; leave it out")
    y = f.y
    numbers = isinstance(y, Tensor) and f.classes == 0 and y.is_floating_point() and y.dim() <= 2
    if target == "auto":
        target = "global" if by != "none" and numbers and f.maker is None and _measured(y) else "none"
    if target != "none" and (not numbers or f.maker is not None):
        remedy = "the data have no numbers to predict; leave it out"
        raise KinfolkError("data.standardize_target", target, remedy)
    return by, target


def _measured(y: Rows) -> bool:
    """Whether targets look like measurements: one number a row, not all between 0 and 1.

    Several labels, probabilities, or times with a mark of an event are no such thing.
    """
    one = isinstance(y, Tensor) and y[0].numel() == 1
    return one and not bool(((plain_rows(y) >= 0) & (plain_rows(y) <= 1)).all())


def _row_statistics(f: Federation, by: str) -> dict[str, Statistics]:
    if by == "none":
        return {}
    own = {who: _moments(f, i) for i, who in enumerate(f.clients)}
    if by == "client":
        return {who: _spared(f, one.statistics()) for who, one in own.items()}
    return {EVERYONE: _spared(f, combined(own.values()).statistics())}


def combined(moments: Iterable[Moments]) -> Moments:
    """The moments of all clients together, in the order of their names."""
    return reduce(Moments.plus, moments)


def _moments(f: Federation, i: int) -> Moments:
    """Of one client's training rows, and of no others."""
    rows = f.splits["train"].rows(i)
    return combined(
        Moments.of(plain_rows(f.take(part)[0]).numpy(force=True)) for part in torch.split(rows, _TOGETHER)
    )


def _spared(f: Federation, found: Statistics) -> Statistics:
    """Indicators of categories stay 0 and 1: divided by its deviation a rare one would outweigh all else."""
    spared = f.recipe.indicators if f.recipe is not None else ()
    mean, std = list(found.mean), list(found.std)
    for column in spared:
        mean[column], std[column] = 0.0, 1.0
    return Statistics(tuple(mean), tuple(std))


def _target_statistics(f: Federation) -> Statistics:
    return combined(_target_moments(f, i) for i in range(len(f.clients))).statistics()


def _target_moments(f: Federation, i: int) -> Moments:
    y = plain_rows(f.y).reshape(f.rows, -1)
    return Moments.of(y[f.splits["train"].rows(i)].numpy(force=True))


def _bytes(
    f: Federation, by: str, rows: Mapping[str, Statistics], target: Statistics | None
) -> tuple[int, int]:
    """What all clients sent together, and what they were sent."""
    columns = len(rows[EVERYONE].mean) if by == "global" else 0
    columns += len(target.mean) if target else 0
    if not columns:
        return 0, 0
    return len(f.clients) * _NUMBER * (1 + 2 * columns), len(f.clients) * _NUMBER * 2 * columns


def with_scaling(federation: Federation, scaling: Scaling) -> Federation:
    """Rows standardised by statistics that are known: also those of newcomers, by the statistics of a run.

    Newcomers to a run in which each client has its own have their own as well: `rows` is empty then.
    """
    if scaling.by == "client" and not scaling.rows:
        scaling = replace(scaling, rows=_row_statistics(federation, "client"))
    x, y, scale = federation.x, federation.y, federation.scale
    if scaling.rows:
        x, scale = _scaled_rows(federation, scaling), None
    if scaling.target is not None:
        y = plain_rows(y)
        y = scaling.target.apply(y.reshape(len(y), -1)).reshape(y.shape)
    done = replace(federation, x=x, y=y, scale=scale, scaling=scaling)
    _check_finite(done)
    return done


def _scaled_rows(f: Federation, scaling: Scaling) -> Tensor:
    everyone = torch.arange(f.rows, device=f.device)
    if scaling.by == "global":
        return scaling.rows[EVERYONE].apply(plain_rows(f.take(everyone)[0]))
    x = plain_rows(f.take(everyone)[0]).float().clone()
    taken = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for i, who in enumerate(f.clients):
        own = torch.unique(torch.cat([split.rows(i) for split in f.splits.values()]))
        if taken[own].any():
            remedy = f"{who!r} has rows that another client has too; use 'global'"
            raise KinfolkError("data.standardize", "client", remedy)
        taken[own] = True
        x[own] = scaling.rows[who].apply(x[own])
    return x


def _check_finite(f: Federation) -> None:
    """A test row may lie so far from the training rows that float32 cannot hold it."""
    if not isinstance(f.x, Tensor) or not f.x.is_floating_point() or bool(f.x.isfinite().all()):
        return
    row, column = (~f.x.isfinite()).nonzero()[0, :2].tolist()
    who = next((c for i, c in enumerate(f.clients) for s in f.splits.values() if row in s.rows(i)), "")
    name = f.feature_names[column] if f.feature_names else f"x[{column}]"
    remedy = "a value too far from the training rows for float32; correct it, or use data.standardize=none"
    raise KinfolkError(f"data.{who}.{name}", "infinite", remedy)


# Columns whose deviations differ by more than this, or means that lie more deviations than this from 0, train
# badly by one learning rate for all.
APART, FAR = 100.0, 10.0
_LOOKED_AT = 20_000


def uneven(federation: Federation) -> str:
    """What is wrong with the sizes of rows that were left as they are; empty if one rate may suit all.

    >>> from kinfolk.federation.own_data.arrays import from_arrays
    >>> draw = np.random.default_rng(0)
    >>> x, y = draw.normal(size=(50, 2)) * [1, 5000], draw.integers(0, 2, 50)
    >>> uneven(from_arrays({"ann": (x, y)})).partition(";")[0]
    'the deviations of columns differ by a factor of 4.5e+03'
    """
    f = federation
    if f.scaling is not None or f.maker is not None:
        return ""
    rows = f.splits["train"].row[:_LOOKED_AT]
    told = ""
    if isinstance(f.x, Tensor) and f.x.is_floating_point() and f.x.dim() == 2:
        told = _sizes("columns", Moments.of(f.x[rows].numpy(force=True)).statistics(), "standardize")
    if not told and f.classes == 0 and isinstance(f.y, Tensor) and f.y.is_floating_point() and f.y.dim() <= 2:
        aims = Moments.of(f.y[rows].reshape(len(rows), -1).numpy(force=True)).statistics()
        # Beside a deviation of 1, which is what outputs begin with.
        told = _sizes("targets and outputs", _with_unit(aims), "standardize_target")
    return told


def _with_unit(found: Statistics) -> Statistics:
    return Statistics((0.0, *found.mean), (1.0, *found.std))


def _sizes(what: str, found: Statistics, key: str) -> str:
    mean, std = np.array(found.mean), np.array(found.std)
    remedy = f"; data.{key}=global gives them mean 0 and deviation 1"
    ratio, far = float(std.max() / std.min()), float((np.abs(mean) / std).max())
    if ratio > APART:
        return f"the deviations of {what} differ by a factor of {ratio:.2g}{remedy}"
    return f"{what} have means of up to {far:.2g} deviations{remedy}" if far > FAR else ""
