"""One file at a time: csv and parquet as a pandas table, npz as arrays. Pickles are never opened."""

from __future__ import annotations

import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from kinfolk.errors import KinfolkError, near
from kinfolk.federation.own_data.loaded import Array

TABLES = (".csv", ".parquet")


def short(path: object) -> str:
    """A path that an error can show whole: its end, where the names are.

    >>> short(Path("data/ann.csv")), len(short("x" * 300 + "/ann.csv"))
    ('data/ann.csv', 72)
    """
    shown = str(path)
    return shown if len(shown) <= 72 else "..." + shown[-69:]


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
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error) from error
    shown = [path for path in paths if not path.name.startswith(".")]
    return shown, len(paths) - len(shown)


def read_table_file(path: Path, text: Sequence[str] = ()) -> tuple[pd.DataFrame, dict[str, int]]:
    """A csv or parquet file, and what was left out of it; columns in `text` are read as text.

    Columns keep Arrow's types, so that whole numbers with gaps stay whole.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "ann.csv").write_text("id,a\\n007,1\\n008,\\n")
    ...     frame, _ = read_table_file(Path(folder) / "ann.csv", text=["id"])
    >>> frame["id"].tolist(), frame["a"].isna().tolist()
    (['007', '008'], [False, True])
    """
    try:
        if path.suffix.lower() == ".csv":
            options = csv.ConvertOptions(column_types={name: pa.string() for name in text})
            table = csv.read_csv(path, convert_options=options)
        else:
            with parquet.ParquetFile(path) as file:
                table = file.read()
        names = table.column_names
        check_columns(names, path)
        frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    except (pa.ArrowException, OSError, ValueError, TypeError, NotImplementedError) as error:
        raise unreadable(path, error) from error
    # What pandas wrote as its index is no column of the table.
    index = len(names) - len(frame.columns)
    return frame, {"index columns written by pandas": index} if index else {}


def check_columns(names: Sequence[str], path: object) -> None:
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
    if len(names) < 2:
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


def read_npz(path: Path, wanted: Sequence[str]) -> tuple[dict[str, Array], list[str]]:
    """The wanted arrays of an npz file, and the names of the others, which are not read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(Path(folder) / "ann.npz", x=np.zeros((2, 3)), y=np.ones(2), writer=7)
    ...     arrays, others = read_npz(Path(folder) / "ann.npz", ["x", "y"])
    >>> arrays["x"].shape, others
    ((2, 3), ['writer'])
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            for name in wanted:
                if name not in members:
                    remedy = f"holds no array {name!r}; {near(name, members)}"
                    raise KinfolkError("data.file", short(path), remedy)
            arrays = {name: _member(archive, members[name], path) for name in wanted}
    except (
        OSError,
        ValueError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        RuntimeError,
        MemoryError,
    ) as error:
        raise unreadable(path, error) from error
    return arrays, sorted(set(members) - set(wanted))


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> Array:
    with archive.open(name) as member:
        try:
            return np.asarray(np.lib.format.read_array(member, allow_pickle=False))
        except ValueError as error:
            if "allow_pickle" not in str(error):
                raise
            remedy = (
                f"array {name.removesuffix('.npy')!r} is a pickle, which is not opened; store plain numbers"
            )
            raise KinfolkError("data.file", short(path), remedy) from error


def unreadable(path: Path, error: BaseException) -> KinfolkError:
    """The error for a file that cannot be read: its name and the first line of what went wrong.

    >>> raise unreadable(Path("ann.npz"), ValueError("bad magic"))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.file = 'ann.npz': cannot be read (bad magic); mend or remove it
    """
    if isinstance(error, OSError) and error.strerror:
        said = error.strerror
    else:
        said = (str(error).splitlines() or [""])[0][:120] or type(error).__name__
    return KinfolkError("data.file", short(path), f"cannot be read ({said}); mend or remove it")
