"""Columns of a table as numbers: which, in which order; categories and dates by rules that are written down.

What is found while data are read (the categories, the values that fill gaps) is a `Recipe`: it is kept with
the store and the run, and new rows are made by it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kinfolk.errors import KinfolkError, near
from kinfolk.federation.own_data.cells import Floats, categories, numbers, points_in_time

Kind = Literal["number", "category", "date"]
# What fills gaps: "mean", "median", a number, a number for each feature; "" for nothing.
FillRule = str | float | tuple[float, ...]

# A column of more names than this is an id or free text, and one-hot columns of it would be mostly zeros.
MOST_CATEGORIES = 100
ORIGIN = "1970-01-01"
DATE_PARTS = ("month", "weekday")
FILLS = ("mean", "median")


@dataclass(frozen=True)
class Columns:
    """What to make of columns, and of images of several sizes.

    Args:
        names: the columns that are features, in this order; all but the label if empty. Clients may have
            others.
        categorical: columns that become one column of 0 and 1 for each of their values.
        dates: columns that become days since 1970-01-01; as `"admitted:month:weekday"` also the month
            (1 to 12) and the day of the week (0 is Monday).
        fill: what stands for a missing value: `"mean"` (over all clients' training rows), `"median"` (of the
            clients' medians) or a number; "" leaves it to `missing`.
        resize: (height, width) that all images are brought to.

    >>> Columns(["age", "sex"], categorical="sex").categorical
    ('sex',)
    """

    names: Sequence[str] = ()
    categorical: Sequence[str] = ()
    dates: Sequence[str] = ()
    fill: str | float = ""
    resize: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name in ("names", "categorical", "dates"):
            value = getattr(self, name)
            given = (value,) if isinstance(value, str) else tuple(map(str, value))
            object.__setattr__(self, name, given)
            if len(set(given)) < len(given):
                raise KinfolkError(f"columns.{name}", list(given), "a column occurs twice; name each once")
        object.__setattr__(self, "fill", _fill_rule(self.fill))
        _check_size(self.resize)

    @staticmethod
    def parse(
        columns: str = "", categorical: str = "", dates: str = "", fill: str = "", resize: str = ""
    ) -> Columns:
        """The same from words with commas between them; a name with a comma in it is put in quotes.

        >>> Columns.parse('age,"weight, kg"', resize="28x32")
        Columns(names=('age', 'weight, kg'), categorical=(), dates=(), fill='', resize=(28, 32))
        """
        size = re.fullmatch(r"(\d+)x(\d+)", resize.strip().lower())
        if resize and not size:
            raise KinfolkError("resize", resize, "give HEIGHTxWIDTH, as 28x28")
        return Columns(
            _split(columns), _split(categorical), _split(dates), fill, size and (int(size[1]), int(size[2]))
        )

    @property
    def text(self) -> tuple[str, ...]:
        """Columns that are read as text, whatever they look like: 007 is not 7."""
        return tuple(self.categorical)

    @property
    def fill_rule(self) -> FillRule:
        """What is to be done about missing values; "" for nothing."""
        return self.fill

    def check_no_names(self, kind: str) -> None:
        """Refuse what is said of named columns where there are none.

        >>> Columns(categorical="sex").check_no_names("images")
        Traceback (most recent call last):
        ...
        kinfolk.errors.KinfolkError: columns = ['sex']: images have no named columns; leave it out
        """
        if named := [*self.names, *self.categorical, *self.dates]:
            raise KinfolkError("columns", named, f"{kind} have no named columns; leave it out")

    def check_no_images(self) -> None:
        """Refuse a size where there are no images.

        >>> Columns(resize=(28, 28)).check_no_images()
        Traceback (most recent call last):
        ...
        kinfolk.errors.KinfolkError: resize = '28x28': only images have a size; leave it out
        """
        if self.resize is not None:
            raise KinfolkError(
                "resize", "x".join(map(str, self.resize)), "only images have a size; leave it out"
            )


def _split(words: str) -> tuple[str, ...]:
    if not words.strip():
        return ()
    return tuple(word.strip() for word in next(csv.reader([words], skipinitialspace=True)))


def _fill_rule(fill: str | float) -> str | float:
    if isinstance(fill, str):
        if fill in ("", *FILLS):
            return fill
        try:
            fill = float(fill)
        except ValueError as error:
            raise KinfolkError("fill", fill, "give 'mean', 'median' or a number") from error
    if not abs(fill) <= float(np.finfo(np.float32).max):
        raise KinfolkError("fill", fill, "give a finite number within float32")
    return float(fill)


def _check_size(size: tuple[int, int] | None) -> None:
    if size is not None and not (len(size) == 2 and all(1 <= side <= 4096 for side in size)):
        raise KinfolkError("resize", "x".join(map(str, size)), "give a height and a width from 1 to 4096")


@dataclass(frozen=True)
class Source:
    """A column of a table, and the features that come out of it."""

    name: str
    kind: Kind = "number"
    words: tuple[str, ...] = ()  # the categories, or the parts of a date

    @property
    def features(self) -> tuple[str, ...]:
        """What its features are called.

        >>> Source("sex", "category", ("f", "m")).features, Source("born", "date", ("month",)).features
        (('sex=f', 'sex=m'), ('born', 'born.month'))
        """
        if self.kind == "category":
            return tuple(f"{self.name}={word}" for word in self.words)
        return (self.name, *(f"{self.name}.{part}" for part in self.words))

    def encode(self, column: pd.Series, field: str, row: NDArray[np.int64]) -> Floats:
        """[rows, features], nan where the value is missing; a category that is not known is zeros.

        >>> sex = Source("sex", "category", ("f", "m"))
        >>> sex.encode(pd.Series(["m", "x", None]), "data.sex", np.arange(3))
        array([[ 0.,  1.],
               [ 0.,  0.],
               [nan, nan]])
        """
        if self.kind == "number":
            return numbers(column, field, row)[:, None]
        if self.kind == "category":
            words = categories(column)
            hot: Floats = (words[:, None] == np.array(self.words, dtype=object)).astype(np.float64)
            hot[pd.isna(words)] = np.nan
            return hot
        stamps = points_in_time(column, field, row)
        days = (stamps - pd.Timestamp(ORIGIN, tz="UTC")) / pd.Timedelta(days=1)
        parts = {"month": stamps.dt.month, "weekday": stamps.dt.day_of_week}
        return np.column_stack(
            [values.to_numpy(np.float64) for values in (days, *map(parts.__getitem__, self.words))]
        )


@dataclass(frozen=True)
class Recipe:
    """How raw rows become features: what predictions need besides the names of features."""

    sources: tuple[Source, ...] = ()  # empty: columns are features as they are
    fill: tuple[float, ...] | None = None  # of each feature, for missing values; None: they are refused
    resize: tuple[int, int] | None = None  # height and width of images

    @property
    def features(self) -> tuple[str, ...]:
        """The names of all features, in order."""
        return tuple(name for source in self.sources for name in source.features)

    @property
    def indicators(self) -> tuple[int, ...]:
        """The places of features that are 0 or 1 for a category."""
        kinds = [source.kind for source in self.sources for _ in source.features]
        return tuple(i for i, kind in enumerate(kinds) if kind == "category")

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are used."""
        return tuple(source.name for source in self.sources)

    @property
    def text(self) -> tuple[str, ...]:
        """Columns that are read as text."""
        return tuple(source.name for source in self.sources if source.kind == "category")

    @property
    def plain(self) -> bool:
        """Whether names of features tell all there is to it."""
        return self.resize is None and self.fill is None and all(s.kind == "number" for s in self.sources)

    @property
    def fill_rule(self) -> FillRule:
        """The values that fill gaps; "" if there are none."""
        return "" if self.fill is None else self.fill

    def check_no_names(self, kind: str) -> None:
        """As for `Columns`."""
        Columns(self.names).check_no_names(kind)

    def check_no_images(self) -> None:
        """As for `Columns`."""
        Columns(resize=self.resize).check_no_images()

    def encode(self, frame: pd.DataFrame, field: str, row: NDArray[np.int64]) -> Floats:
        """The features of a table that has all the columns, [rows, features]; nan where one is missing."""
        return np.column_stack(
            [source.encode(frame[source.name], f"{field}.{source.name}", row) for source in self.sources]
        )

    def filled(self, x: NDArray[Any]) -> NDArray[Any]:
        """Features without gaps, if there is something to fill them with.

        >>> Recipe(fill=(7.0,)).filled(np.array([[np.nan], [1.0]])).tolist()
        [[7.0], [1.0]]
        """
        if self.fill is None or x.dtype.kind != "f":
            return x
        return np.where(np.isnan(x), np.array(self.fill, dtype=x.dtype), x)

    def unknown(self, frame: pd.DataFrame) -> list[str]:
        """One line for each column with categories that are not known.

        >>> Recipe((Source("sex", "category", ("f", "m")),)).unknown(pd.DataFrame({"sex": ["x", "f"]}))
        ["'sex': 1 value unknown to the run, as 'x'; taken as none of its categories"]
        """
        lines = []
        for source in self.sources:
            if source.kind != "category" or source.name not in frame:
                continue
            words = categories(frame[source.name])
            strange = [word for word in words if word is not None and word not in source.words]
            if strange:
                told = f"{len(strange)} value{'s' * (len(strange) > 1)} unknown to the run, as {strange[0]!r}"
                lines.append(f"{source.name!r}: {told}; taken as none of its categories")
        return lines

    @staticmethod
    def from_dict(plain: Mapping[str, Any] | None) -> Recipe | None:
        """A recipe out of what `dataclasses.asdict` gave, or JSON made of it.

        >>> from dataclasses import asdict
        >>> some = Recipe((Source("sex", "category", ("f", "m")),), (0.0, 0.0))
        >>> Recipe.from_dict(asdict(some)) == some
        True
        """
        if plain is None:
            return None
        sources = tuple(Source(one["name"], one["kind"], tuple(one["words"])) for one in plain["sources"])
        fill, resize = (plain[name] and tuple(plain[name]) for name in ("fill", "resize"))
        return Recipe(sources, fill, resize)


def fitted(
    wanted: Columns | Recipe, frames: Mapping[str, pd.DataFrame], label: str, others: Sequence[str] = ()
) -> tuple[Recipe, list[str]]:
    """How the tables of all clients become features, and what to say of it; a recipe stays what it is.

    `others` are columns that are no features either: those with the clients' names. A table of all clients
    stands under the name "".

    >>> frames = {"ann": pd.DataFrame({"sex": ["f", "m"], "age": [3, 4], "y": [0, 1]})}
    >>> fitted(Columns(["age", "sex"], categorical="sex"), frames, "y")[0].features
    ('age', 'sex=f', 'sex=m')
    """
    first = next(iter(frames.values()))
    labels = label_names(label, first.columns)
    taken = (*labels, *others)
    wanted.check_no_images()
    if isinstance(wanted, Recipe):
        if wanted.sources:
            _check_names(wanted.names, frames, taken, others)
            return wanted, []
        wanted = Columns()
    names = wanted.names or [str(name) for name in first.columns if name not in taken]
    dates = dict(_date(word) for word in wanted.dates)
    _check_names([*names, *wanted.categorical, *dates], frames, taken, others)
    for name in (*wanted.categorical, *dates):
        if name not in names:
            raise KinfolkError("columns", name, "is a category or date but not among --columns; add it there")
        if name in wanted.categorical and name in dates:
            raise KinfolkError("columns", name, "is a category or a date; it cannot be both")
    if not names:
        remedy = "none is left for the features; give at least one besides the label"
        raise KinfolkError("data.columns", [*first.columns], remedy)
    sources = tuple(
        Source(name, "category", _vocabulary(name, frames.values()))
        if name in wanted.categorical
        else Source(name, "date", dates[name])
        if name in dates
        else Source(name)
        for name in names
    )
    return Recipe(sources), _said(sources, frames.values(), taken)


def label_names(label: str, known: Iterable[str]) -> tuple[str, ...]:
    """The columns or arrays that are the label: one of this name, or several with commas between them.

    >>> label_names("time,event", ["age", "time", "event"]), label_names("a,b", ["a,b"])
    (('time', 'event'), ('a,b',))
    """
    return (label,) if label in known else _split(label) or (label,)


def _check_names(
    names: Sequence[str], frames: Mapping[str, pd.DataFrame], taken: Sequence[str], others: Sequence[str]
) -> None:
    for name in names:
        if name in taken:
            what = "the client column" if name in others else "the label"
            raise KinfolkError("columns", name, f"is {what}, no feature; leave it out")
        for who, frame in frames.items():
            if name not in frame.columns:
                known = [str(other) for other in frame.columns if other not in taken]
                raise KinfolkError(
                    f"data.{who}.columns" if who else "data.columns", name, _absent(name, known)
                )


def _absent(name: str, known: Sequence[str]) -> str:
    return f"no such column; {near(name, known) if known else 'there is none besides the label'}"


def _said(sources: Sequence[Source], frames: Iterable[pd.DataFrame], taken: Sequence[str]) -> list[str]:
    used = {source.name for source in sources} | set(taken)
    unused = sorted({str(name) for frame in frames for name in frame.columns} - used)
    said = [f"columns that are not used: {', '.join(unused)}"] if unused else []
    for source in sources:
        if source.kind == "category":
            said.append(
                f"column {source.name!r} is one-hot by the {len(source.words)} sorted values of all clients"
            )
        elif source.kind == "date":
            said.append(f"column {source.name!r} is a date: days since {ORIGIN}")
    return said


def _date(word: str) -> tuple[str, tuple[str, ...]]:
    """The name of a date column and the parts that are wanted besides the day."""
    name, *parts = word.split(":")
    while parts and parts[0] not in DATE_PARTS:  # a colon in the name itself
        name += ":" + parts.pop(0)
    for part in parts:
        if part not in DATE_PARTS:
            raise KinfolkError("dates", word, f"no such part of a date; {near(part, DATE_PARTS)}")
    return name, tuple(parts)


def _vocabulary(name: str, frames: Iterable[pd.DataFrame]) -> tuple[str, ...]:
    found = {str(word) for frame in frames for word in categories(frame[name]) if word is not None}
    if not found:
        raise KinfolkError(f"data.{name}", "no category", "the column is empty; leave it out of --columns")
    if len(found) > MOST_CATEGORIES:
        remedy = (
            f"more than {MOST_CATEGORIES}; write rare values as one name, give a number instead, "
            "or leave the column out with --columns"
        )
        raise KinfolkError(f"data.{name}", f"{len(found)} categories", remedy)
    return tuple(sorted(found))
