"""A Hugging Face data set with a column that says whose each row is. Needs the extra `hf`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd

from kinfolk.errors import KinfolkError, near
from kinfolk.federation.own_data.columns import label_values, table_part
from kinfolk.federation.own_data.frame import client_ids, split_part
from kinfolk.federation.own_data.gather import gather
from kinfolk.federation.own_data.images import BROKEN, PIXELS, Look, agree, pixels
from kinfolk.federation.own_data.loaded import Array, LoadedClients, Part
from kinfolk.federation.own_data.missing import check_missing


def read_huggingface(dataset: Any, client: str, label: str, *, missing: str = "refuse") -> LoadedClients:
    """The clients of a `datasets.Dataset`, named by the column `client`. Rows count from 1.

    The other columns are the features: any number of numeric ones, or a single one of images or
    of lists of equal shape. Choose them with `dataset.select_columns`.

    >>> read_huggingface(None, client="who", label="y", missing="median ")
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: missing = 'median ': did you mean 'median'?
    """
    check_missing(missing)
    check_dataset(dataset)
    if client not in dataset.column_names:
        raise KinfolkError("client", client, "no such column; " + near(client, dataset.column_names))
    owner, nameless = client_ids(_frame(dataset, [client])[client], client, missing)
    read = read_columns(dataset, label, other=client)
    return gather(
        split_part(read.part, owner),
        kind="Hugging Face data set",
        label=label,
        features=read.features,
        class_names=read.class_names,
        missing=missing,
        types=read.types,
        left_out=nameless,
        notes=[f"client column: {client!r}", *read.notes],
        scale=read.scale,
    )


@dataclass(frozen=True, eq=False)
class Read:
    """The columns of a data set as rows, not yet parted by client."""

    part: Part
    features: tuple[str, ...]  # names of columns; empty where x is no table
    class_names: tuple[str, ...]
    types: dict[str, str]
    notes: list[str]
    scale: tuple[float, float] | None


def read_columns(dataset: Any, label: str, other: str | None = None) -> Read:
    """The rows of a data set, features and labels; `other` is a column that is neither.

    >>> from types import SimpleNamespace
    >>> read_columns(SimpleNamespace(column_names=["image", "label"]), "lable")
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: label = 'lable': no such column; did you mean 'label'?
    """
    if label not in dataset.column_names or label == other:
        raise KinfolkError("label", label, "no such column; " + near(label, dataset.column_names))
    columns = [name for name in dataset.column_names if name not in (label, other)]
    shapes = {name: _shape_of(dataset.features[name]) for name in columns}
    types = {name: _type(dataset.features[name]) for name in (*columns, label)}
    class_names = tuple(getattr(dataset.features[label], "names", None) or ())
    frame = _frame(dataset, [label])
    if class_names:  # Hugging Face writes -1 for a row without a label
        frame[label] = frame[label].mask(frame[label] == -1)
    features, notes = tuple[str, ...](), list[str]()
    if columns and all(shape == "scalar" for shape in shapes.values()):
        features = tuple(columns)
        part = table_part("data", frame.join(_frame(dataset, columns)), label, features)
    elif len(columns) == 1:
        row = np.arange(1, len(frame) + 1, dtype=np.int64)
        y, hole = label_values(frame[label], f"data.{label}", row)
        x, notes = (_images if shapes[columns[0]] == "image" else _lists)(dataset, columns[0])
        part = Part(x, y, hole, row)
    else:
        said = ", ".join(f"{name} ({kind})" for name, kind in shapes.items()) or "none"
        remedy = "give numeric columns only, or a single one of images or lists: dataset.select_columns"
        raise KinfolkError("data.columns", said, remedy)
    scale = PIXELS if "image" in shapes.values() else None
    return Read(part, features, class_names, types, notes, scale)


def package() -> ModuleType:
    """The package `datasets`, which is imported only where it is used."""
    try:
        return import_module("datasets")
    except ImportError as error:
        remedy = 'needs the package datasets: pip install "kinfolk[hf]"'
        raise KinfolkError("data", "Hugging Face", remedy) from error


def check_dataset(dataset: Any) -> None:
    """Refuse what is no `datasets.Dataset`: a dictionary of splits, or a stream."""
    if not isinstance(dataset, package().Dataset):
        splits = f": {', '.join(map(str, dataset))}" if isinstance(dataset, dict) else ""
        value = type(dataset).__name__
        raise KinfolkError("data.dataset", value, f"give a datasets.Dataset, one split of it{splits}")


def _shape_of(feature: Any) -> str:
    """What a column holds: "scalar", "image", "list", or the name of something else."""
    hf = package()
    if isinstance(feature, hf.Image):
        return "image"
    if isinstance(feature, hf.Value | hf.ClassLabel):
        return "scalar"
    kind = type(feature).__name__
    return "list" if kind in ("List", "LargeList", "Sequence", "list") or kind.startswith("Array") else kind


def _type(feature: Any) -> str:
    return str(getattr(feature, "dtype", None) or type(feature).__name__)


def _frame(dataset: Any, columns: Sequence[str]) -> pd.DataFrame:
    table = dataset.select_columns(list(columns)).with_format("arrow")[:]
    frame: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype, ignore_metadata=True)
    return frame


def _lists(dataset: Any, column: str) -> tuple[Array, list[str]]:
    values = dataset.select_columns([column]).with_format("numpy")[:][column]
    shape: tuple[int, ...] | None = None
    for row, value in enumerate(values, 1):
        own = np.asarray(value)
        shape = own.shape if shape is None else shape
        if own.dtype.kind not in "buif":
            raise KinfolkError(
                f"data.{column}", str(own.dtype), f"row {row} does not hold numbers of equal shape"
            )
        if own.shape != shape:
            remedy = f"row {row} differs from row 1, which has {list(shape)}; give lists of one shape"
            raise KinfolkError(f"data.{column}", list(own.shape), remedy)
    return np.asarray(values), []


def _images(dataset: Any, column: str) -> tuple[Array, list[str]]:
    images = [_image(dataset, column, i) for i in range(len(dataset))]
    looks = [Look(f"{column}, row {row}", image.size, image.mode) for row, image in enumerate(images, 1)]
    mode, notes = agree(looks)
    return np.stack([pixels(image, mode) for image in images]), notes


def _image(dataset: Any, column: str, i: int) -> Any:
    try:
        image = dataset[i][column]
    except BROKEN as error:
        raise KinfolkError(f"data.{column}", f"row {i + 1}", "its image cannot be read; mend it") from error
    if image is None:
        raise KinfolkError(f"data.{column}", f"row {i + 1}", "has no image; leave the row out")
    return image
