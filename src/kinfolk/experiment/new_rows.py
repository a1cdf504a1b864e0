"""Rows to predict, from a table, an npz file or a folder of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.errors import KinfolkError
from kinfolk.experiment.outline import Outline
from kinfolk.experiment.predict import unused
from kinfolk.federation.datasets.formats import npz_names, read_npz
from kinfolk.federation.own_data.images import read_loose
from kinfolk.federation.own_data.tables import TABLES, read_table_file
from kinfolk.types import LENGTHS

# (what a row is called and the names of all), the rows, what there is to say about them
NewRows = tuple[tuple[str, list[Any]], Any, list[str]]


def read_rows(path: Path, outline: Outline) -> NewRows:
    """The rows at `path`, as `rows_for` takes them.

    >>> read_rows(Path("nowhere.csv"), Outline((), (2,), 2, 2, (), (), None, ""))
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: DATA = 'nowhere.csv': there is no such file or folder
    """
    if not path.exists():
        raise KinfolkError("DATA", str(path), "there is no such file or folder")
    if path.is_dir():
        return _images(path, outline)
    kind = path.suffix.lower()
    if kind in TABLES:
        frame, _ = read_table_file(path, least=1)
        left = unused([str(name) for name in frame.columns], outline)
        notes = [f"columns that the model does not use: {', '.join(left)}"] if left else []
        return ("row", list(range(1, len(frame) + 1))), frame, notes
    if kind == ".npz":
        names = npz_names(path)
        inputs = [name for name in outline.inputs if name and not name.endswith(LENGTHS)]
        if inputs and inputs != ["0"]:
            arrays: Any = read_npz(path, path, *inputs)
            return ("row", list(range(1, len(arrays[inputs[0]]) + 1))), arrays, []
        key = "x" if "x" in names or len(names) != 1 else names[0]
        rows = read_npz(path, path, key)[key]
        return ("row", list(range(1, len(rows) + 1 if rows.ndim else 1))), rows, []
    known = ", ".join((*TABLES, ".npz"))
    raise KinfolkError("DATA", str(path), f"is of no known kind; give {known} or a folder of images")


def _images(folder: Path, outline: Outline) -> NewRows:
    if len(outline.shape) != 3 or outline.scale is None:
        remedy = "the run was not trained on images from files; give its rows as an npz file with an array x"
        raise KinfolkError("DATA", str(folder), remedy)
    names, x = read_loose(folder, outline.shape[0])
    wanted, found = outline.shape[1:], x.shape[2:]
    if tuple(found) != tuple(wanted):
        size = " x ".join(map(str, wanted[::-1]))
        remedy = f"the run was trained on images of {size}; bring them to that size"
        raise KinfolkError("DATA", " x ".join(map(str, np.array(found[::-1]))), remedy)
    return ("file", names), x, []
