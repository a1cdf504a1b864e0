"""Tables: csv and parquet files and frames, their columns as numbers and labels, their rows by client.

What is not a number is named by column and row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as csv
from numpy.typing import NDArray

from kinfolk.errors import KinfolkError, near
from kinfolk.federation.datasets.files import reading, short
from kinfolk.federation.own_data.cells import column_kind, numbers, word
from kinfolk.federation.own_data.columns import Columns, Recipe, Source, fitted, label_names
from kinfolk.federation.own_data.gather import gather
from kinfolk.federation.own_data.loaded import Array, ClientRows, LoadedClients
from kinfolk.federation.own_data.missing import check_missing
from kinfolk.unpack import read_parquet

TABLES = (".csv", ".parquet")


def choose_label(columns: Sequence[str], label: str | None, other: str | None = None) -> tuple[str, str]:
    """The label column and how it was chosen; `other` is a column it cannot be.

    >>> choose_label(["a", "label"], None)
    ('label', "label column: 'label', by its name")
    >>> choose_label(["a", "b"], None)
    ('b', "label column: 'b', the last one, as none is named 'y' or 'label'")
    """
    columns = [name for name in columns if name != other]
    if label is not None:
        names = label_names(label, columns)
        for name in names:
            if name not in columns:
                raise KinfolkError("label", name, "no such column; " + near(name, columns))
        said = f"columns: {', '.join(map(repr, names))}" if len(names) > 1 else f"column: {label!r}"
        return label, f"label {said}, as asked"
    for name in ("y", "label"):
        if name in columns:
            return name, f"label column: {name!r}, by its name"
    if not columns:
        raise KinfolkError("label", None, "the table has no column left for it")
    return columns[-1], f"label column: {columns[-1]!r}, the last one, as none is named 'y' or 'label'"


def table_part(
    field: str,
    frame: pd.DataFrame,
    label: str,
    sources: Sequence[Source],
    row: NDArray[np.int64] | None = None,
) -> ClientRows:
    """Rows out of a table; `row` says where they stand in what was read, `field` what errors call it.

    >>> frame = pd.DataFrame({"a": [1, 2], "b": [0.5, None], "y": [0, 1]})
    >>> part = table_part("data", frame, "y", [Source("a"), Source("b")])
    >>> part.x.tolist(), part.y
    ([[1.0, 0.5], [2.0, nan]], array([0, 1]))
    """
    row = np.arange(1, len(frame) + 1, dtype=np.int64) if row is None else row
    y, absent = _targets(frame, label, field, row)
    x = np.empty((len(frame), sum(len(source.features) for source in sources)), dtype=np.float32)
    rounded, at = set(), 0
    for source in sources:
        values = source.encode(frame[source.name], f"{field}.{source.name}", row)
        mine = x[:, at : at + values.shape[1]]
        at += values.shape[1]
        with np.errstate(over="ignore"):  # beyond float32 is infinity, which is refused by name later
            mine[:] = values
        far = np.abs(values) > 2.0**24  # nan compares false
        if (mine[far] != values[far]).any() and column_kind(frame[source.name]) == "whole":
            rounded.add(source.name)
    return ClientRows(x, y, absent, row, frozenset(rounded))


def _targets(
    frame: pd.DataFrame, label: str, field: str, row: NDArray[np.int64]
) -> tuple[Array, NDArray[np.bool_]]:
    """The label of each row, or several numbers, and where one is missing."""
    names = label_names(label, frame.columns)
    made = [label_values(frame[name], f"{field}.{name}", row) for name in names]
    if len(names) == 1:
        return made[0]
    for name, (values, _) in zip(names, made, strict=True):
        if values.dtype.kind not in "bif":
            remedy = "is text; of several label columns all hold numbers"
            raise KinfolkError(f"{field}.{name}", str(values[0]), remedy)
    return np.column_stack([values for values, _ in made]), np.logical_or.reduce([gone for _, gone in made])


def label_values(column: pd.Series, field: str, row: NDArray[np.int64]) -> tuple[Array, NDArray[np.bool_]]:
    """Labels in their own kind, and where they are missing.

    >>> label_values(pd.Series(["a", None, " "]), "data.ann.y", np.arange(1, 4))
    (array(['a', '', ' '], dtype=object), array([False,  True,  True]))
    """
    kind = column_kind(column)
    absent = column.isna().to_numpy(dtype=bool)
    if kind == "text":
        values = column.astype(object).where(~absent, "").to_numpy(dtype=object)
        return values, absent | np.array([value.strip() == "" for value in values], dtype=bool)
    if kind == "empty":  # no label at all, of whatever kind the others are
        return np.full(len(column), np.nan), absent
    if kind == "float":
        values = numbers(column, field, row)
        # pandas keeps whole numbers with gaps as floats; Arrow does not, and means floats by floats.
        gapped = isinstance(column.dtype, np.dtype) and absent.any()
        whole = gapped and bool((values[~absent] == np.rint(values[~absent])).all())
        return np.where(absent, 0, values).astype(np.int64) if whole else values, absent
    if kind in ("whole", "bool"):
        filled = column.astype(object).where(~absent, 0)
        return filled.to_numpy(dtype=np.int64 if kind == "whole" else np.bool_), absent
    place = int((~absent).argmax())
    remedy = f"row {row[place]} is no label; give whole numbers, floats or text"
    raise KinfolkError(field, column.iloc[place], remedy)


def read_table_file(
    path: Path, text: Sequence[str] = (), least: int = 2
) -> tuple[pd.DataFrame, dict[str, int]]:
    """A csv or parquet file, and what was left out of it; columns in `text` are read as text.

    One with fewer than `least` columns is refused.

    Columns keep Arrow's types, so that whole numbers with gaps stay whole.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "ann.csv").write_text("id,a\\n007,1\\n008,\\n")
    ...     frame, _ = read_table_file(Path(folder) / "ann.csv", text=["id"])
    >>> frame["id"].tolist(), frame["a"].isna().tolist()
    (['007', '008'], [False, True])
    """
    with reading(path):
        try:
            table = _arrow_table(path, text)
            names = table.column_names
            check_columns(names, path, least)
            frame = table.to_pandas(types_mapper=pd.ArrowDtype)
        except pa.ArrowException as error:  # some are of no other type
            raise ValueError(str(error)) from error
    # What pandas wrote as its index is no column of the table.
    index = len(names) - len(frame.columns)
    return frame, {"index columns written by pandas": index} if index else {}


def _arrow_table(path: Path, text: Sequence[str]) -> pa.Table:
    if path.suffix.lower() == ".csv":
        options = csv.ConvertOptions(column_types={name: pa.string() for name in text})
        return csv.read_csv(path, convert_options=options)
    return read_parquet(path)


def check_columns(names: Sequence[str], path: object, least: int = 2) -> None:
    """Refuse column names that stand for something else: a row of numbers, an index, a wrong separator.

    >>> check_columns(["0.5", "1.25", "0"], "a.csv")
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.file = 'a.csv': the first line holds numbers; name the columns above it
    """
    field, shown = "data.file", short(path)
    for name, times in Counter(names).items():
        if not name.strip():
            remedy = "a column has no name (an index, perhaps); name it or remove it"
            raise KinfolkError(field, shown, remedy)
        if times > 1:
            raise KinfolkError(field, shown, f"column {name!r} occurs twice; give every column its own name")
    if len(names) < least:
        remedy = f"has the one column {names[0]!r}; give features and a label, separated by commas"
        raise KinfolkError(field, shown, remedy)
    counted = [[str(i + start) for i in range(len(names))] for start in (0, 1)]
    if all(_is_number(name) for name in names) and list(names) not in counted:
        raise KinfolkError(field, shown, "the first line holds numbers; name the columns above it")


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def column_types(frames: Sequence[pd.DataFrame]) -> dict[str, str]:
    """The types of every column as they were given; several where clients differ.

    >>> column_types([pd.DataFrame({"a": [True]}), pd.DataFrame({"a": [0.5]})])
    {'a': 'bool, float64'}
    """
    seen: dict[str, set[str]] = {}
    for frame in frames:
        for name, dtype in frame.dtypes.items():
            seen.setdefault(str(name), set()).add(str(dtype).removesuffix("[pyarrow]"))
    return {name: ", ".join(sorted(kinds)) for name, kinds in seen.items()}


def read_frame(
    frame: pd.DataFrame,
    client: str,
    label: str | None = None,
    *,
    missing: str = "refuse",
    columns: Columns | Recipe = Columns(),  # noqa: B008 - never changes
) -> LoadedClients:
    """The clients of a pandas frame, named by the column `client`. Rows count from 1.

    `columns` says which columns are features, and which of them are categories or dates.

    >>> frame = pd.DataFrame({"who": ["ann", "bob", "ann"], "age": [31, 28, 47], "y": [0, 1, 1]})
    >>> found = read_frame(frame, client="who", label="y")
    >>> {who: x.tolist() for who, (x, _) in found.clients.items()}
    {'ann': [[31.0], [47.0]], 'bob': [[28.0]]}
    """
    if not isinstance(frame, pd.DataFrame):
        raise KinfolkError("data.frame", type(frame).__name__, "give a pandas DataFrame")
    frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    return _found(frame, client, label, missing, columns, "frame", {})


def read_table(
    path: str | Path,
    client: str,
    label: str | None = None,
    *,
    missing: str = "refuse",
    columns: Columns | Recipe = Columns(),  # noqa: B008 - never changes
) -> LoadedClients:
    """The clients of a csv or parquet file with a column `client`. Rows count from 1, below the header.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "all.csv").write_text("who,age,y\\n007,31,0\\n7,28,1\\n7,47,1\\n")
    ...     found = read_table(Path(folder) / "all.csv", client="who")
    >>> [*found.clients]
    ['007', '7']
    """
    path = Path(path)
    if path.suffix.lower() not in TABLES:
        raise KinfolkError("data.file", short(path), f"not a table of a known kind ({', '.join(TABLES)})")
    # As text: an id of 007 is not the number 7.
    frame, left_out = read_table_file(path, text=[client, *columns.text])
    return _found(frame, client, label, missing, columns, path.suffix.lower()[1:], left_out)


def _found(
    frame: pd.DataFrame,
    client: str,
    label: str | None,
    missing: str,
    wanted: Columns | Recipe,
    kind: str,
    left_out: Mapping[str, int],
) -> LoadedClients:
    check_missing(missing)
    columns = list(frame.columns)
    check_columns(columns, kind)
    if client not in columns:
        raise KinfolkError("client", client, "no such column; " + near(client, columns))
    label, chosen = choose_label(columns, label, client)
    recipe, said = fitted(wanted, {"": frame}, label, [client])
    owner, nameless = client_ids(frame[client], client, missing)
    types = column_types([frame])
    # The whole table at once, so that an error in it names the first row of all.
    whole = table_part("data", frame, label, recipe.sources)
    return gather(
        split_part(whole, owner),
        kind=f"{kind}, one table",
        label=label,
        recipe=recipe,
        fill=wanted.fill_rule,
        missing=missing,
        types=types,
        left_out={**left_out, **nameless},
        notes=[f"client column: {client!r}", chosen, *said],
    )


def client_ids(ids: pd.Series, field: str, missing: str) -> tuple[pd.Series, dict[str, int]]:
    """The name of each row's client, None where it has none, and how many rows are left out for that.

    >>> client_ids(pd.Series([1.0, 2.0, 1.0]), "who", "refuse")[0].tolist()
    ['1', '2', '1']
    """
    # Only the ids that differ are looked at one by one; a missing one has the code -1.
    codes, distinct = pd.factorize(ids.astype(object))
    names = [None if not str(value).strip() else word(value) for value in distinct]
    given = pd.Series(np.array([*names, None], dtype=object)[codes])
    nameless = given.isna().to_numpy(dtype=bool)
    if nameless.any() and missing != "drop":
        remedy = (
            f"row {nameless.argmax() + 1} belongs to nobody ({nameless.sum()} such rows); name its client"
        )
        raise KinfolkError(f"data.{field}", None, remedy + ", or take missing='drop'")
    count = given.nunique()
    for name, times in Counter(names).items():
        if name is not None and times > 1:
            remedy = "stands for two ids (a number and a text, say); name them apart"
            raise KinfolkError(f"data.{field}", name, remedy)
    if count > 1 and count == (~nameless).sum():
        remedy = f"all {count} differ, so every client has one row: is this an id of rows, not of clients?"
        raise KinfolkError("client", field, remedy)
    return given, {"rows without a client": int(nameless.sum())} if nameless.any() else {}


def split_part(whole: ClientRows, owner: pd.Series) -> dict[str, ClientRows]:
    """The rows of all clients, by client; each keeps its order and knows its row.

    >>> rows = np.array([1, 2, 3])
    >>> whole = ClientRows(rows[:, None], rows, np.zeros(3, bool), rows)
    >>> split_part(whole, pd.Series(["b", "a", "b"]))["b"].row
    array([1, 3])
    """
    places: dict[str, NDArray[np.int64]] = owner.reset_index(drop=True).groupby(owner.to_numpy()).indices
    return {str(who): whole.take(place) for who, place in places.items()}
