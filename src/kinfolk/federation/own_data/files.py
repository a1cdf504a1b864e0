"""One file at a time: csv and parquet as a pandas table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.files import reading, short

TABLES = (".csv", ".parquet")


def inside(folder: Path) -> tuple[list[Path], int]:
    """What a folder holds, sorted by name, and how many hidden files besides.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("b.csv", "a.csv", ".DS_Store"):
    ...         (Path(folder) / name).touch()
    ...     shown, hidden = inside(Path(folder))
    >>> [path.name for path in shown], hidden
    (['a.csv', 'b.csv'], 1)
    """
    with reading(folder):
        paths = sorted(folder.iterdir())
    shown = [path for path in paths if not path.name.startswith(".")]
    return shown, len(paths) - len(shown)


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
    with parquet.ParquetFile(path) as file:
        return file.read()


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
