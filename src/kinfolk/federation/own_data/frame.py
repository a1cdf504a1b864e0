"""One table for all clients, with a column that says whose each row is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kinfolk.errors import KinfolkError, near
from kinfolk.federation.datasets.files import short
from kinfolk.federation.own_data.columns import choose_label, table_part
from kinfolk.federation.own_data.files import TABLES, check_columns, read_table_file
from kinfolk.federation.own_data.folder import column_types
from kinfolk.federation.own_data.gather import gather
from kinfolk.federation.own_data.loaded import ClientRows, LoadedClients
from kinfolk.federation.own_data.missing import check_missing


def read_frame(
    frame: pd.DataFrame, client: str, label: str | None = None, *, missing: str = "refuse"
) -> LoadedClients:
    """The clients of a pandas frame, named by the column `client`. Rows count from 1.

    >>> frame = pd.DataFrame({"who": ["ann", "bob", "ann"], "age": [31, 28, 47], "y": [0, 1, 1]})
    >>> found = read_frame(frame, client="who", label="y")
    >>> {who: x.tolist() for who, (x, _) in found.clients.items()}
    {'ann': [[31.0], [47.0]], 'bob': [[28.0]]}
    """
    if not isinstance(frame, pd.DataFrame):
        raise KinfolkError("data.frame", type(frame).__name__, "give a pandas DataFrame")
    frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    return _found(frame, client, label, missing, "frame", {})


def read_table(
    path: str | Path, client: str, label: str | None = None, *, missing: str = "refuse"
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
    frame, left_out = read_table_file(path, text=[client])
    return _found(frame, client, label, missing, path.suffix.lower()[1:], left_out)


def _found(
    frame: pd.DataFrame,
    client: str,
    label: str | None,
    missing: str,
    kind: str,
    left_out: Mapping[str, int],
) -> LoadedClients:
    check_missing(missing)
    columns = list(frame.columns)
    check_columns(columns, kind)
    if client not in columns:
        raise KinfolkError("client", client, "no such column; " + near(client, columns))
    label, chosen = choose_label(columns, label, client)
    features = [name for name in columns if name not in (client, label)]
    if not features:
        raise KinfolkError("data.columns", columns, "none is left for the features; give at least three")
    owner, nameless = client_ids(frame[client], client, missing)
    types = column_types([frame])
    # The whole table at once, so that an error in it names the first row of all.
    whole = table_part("data", frame, label, features)
    return gather(
        split_part(whole, owner),
        kind=f"{kind}, one table",
        label=label,
        features=features,
        missing=missing,
        types=types,
        left_out={**left_out, **nameless},
        notes=[f"client column: {client!r}", chosen],
    )


def client_ids(ids: pd.Series, field: str, missing: str) -> tuple[pd.Series, dict[str, int]]:
    """The name of each row's client, None where it has none, and how many rows are left out for that.

    >>> client_ids(pd.Series([1.0, 2.0, 1.0]), "who", "refuse")[0].tolist()
    ['1', '2', '1']
    """
    # Only the ids that differ are looked at one by one; a missing one has the code -1.
    codes, distinct = pd.factorize(ids.astype(object))
    names = [None if not str(value).strip() else _name(value) for value in distinct]
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


def _name(value: object) -> str:
    # Where an id is missing pandas turns whole numbers into floats.
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def split_part(whole: ClientRows, owner: pd.Series) -> dict[str, ClientRows]:
    """The rows of all clients, by client; each keeps its order and knows its row.

    >>> rows = np.array([1, 2, 3])
    >>> whole = ClientRows(rows[:, None], rows, np.zeros(3, bool), rows)
    >>> split_part(whole, pd.Series(["b", "a", "b"]))["b"].row
    array([1, 3])
    """
    places: dict[str, NDArray[np.int64]] = owner.reset_index(drop=True).groupby(owner.to_numpy()).indices
    return {str(who): whole.take(place) for who, place in places.items()}
