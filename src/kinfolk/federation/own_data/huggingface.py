"""Hugging Face data sets, and Flower's federated ones, which are made of them.

They need the extras `hf` and `flower-datasets`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd

from kinfolk.errors import KinfolkError, near
from kinfolk.federation.datasets.files import UNREADABLE
from kinfolk.federation.federation import client_names
from kinfolk.federation.own_data.arrays import loaded_arrays
from kinfolk.federation.own_data.columns import Columns, Recipe, fitted
from kinfolk.federation.own_data.gather import gather, no_numbers
from kinfolk.federation.own_data.images import PIXELS, ImageHead, Size, agree, pixels
from kinfolk.federation.own_data.loaded import Array, ClientRows, LoadedClients
from kinfolk.federation.own_data.missing import check_missing
from kinfolk.federation.own_data.structure import Leaf, OneClient, Sequences, from_items
from kinfolk.federation.own_data.tables import client_ids, label_values, split_part, table_part
from kinfolk.types import IGNORED


def read_huggingface(
    dataset: Any,
    client: str,
    label: str,
    *,
    missing: str = "refuse",
    columns: Columns = Columns(),  # noqa: B008 - never changes
) -> LoadedClients:
    """The clients of a `datasets.Dataset`, named by the column `client`. Rows count from 1.

    The other columns are the features: any number of numeric ones, or one of images, or lists of numbers.
    Choose them with `columns`, which also says what are categories or dates. Lists go by the names of their
    columns to the network if there are several; those of differing length are padded, as from Python. Labels
    may be lists too, a class per position.

    >>> read_huggingface(None, client="who", label="y", missing="median ")
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: missing = 'median ': did you mean 'median'?
    """
    check_missing(missing)
    check_dataset(dataset)
    for what, name in (("client", client), ("label", label)):
        if name not in dataset.column_names or (what, name) == ("label", client):
            raise KinfolkError(what, name, "no such column; " + near(name, dataset.column_names))
    owner, nameless = client_ids(_frame(dataset, [client])[client], client, missing)
    others = [name for name in dataset.column_names if name not in (label, client)]
    names = columns.names or others
    for name in names:
        if name not in others:
            raise KinfolkError("data.columns", name, "no such column for features; " + near(name, others))
    if names and _has_lists(dataset, [*names, label]):
        return _sequences(dataset, label, replace(columns, names=names), owner, missing, nameless)
    whole, recipe, notes, scale = _read(dataset, label, names, columns)
    return gather(
        split_part(whole, owner),
        kind="Hugging Face data set",
        label=label,
        recipe=recipe,
        fill=columns.fill_rule,
        class_names=getattr(dataset.features[label], "names", None) or (),
        missing=missing,
        types={name: _type(dataset.features[name]) for name in (*names, label)},
        left_out=nameless,
        notes=[f"client column: {client!r}", *notes],
        scale=scale,
    )


def read_flower(
    federated: Any,
    label: str,
    *,
    client: str | None = None,
    split: str = "train",
    missing: str = "refuse",
    columns: Columns = Columns(),  # noqa: B008 - never changes
) -> LoadedClients:
    """The partitions of a `flwr_datasets.FederatedDataset`, each a client: one data set with a client column.

    `client` names a column that holds the client's id, as a natural partition has: it then names
    the clients and is no feature. Without it they are numbered. Features are chosen as for
    `read_huggingface`. Rows count from 1 over all partitions in order.

    >>> read_flower(None, label="label")
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.federated = 'NoneType': give a flwr_datasets.FederatedDataset
    """
    check_missing(missing)
    if not hasattr(federated, "load_partition") or not hasattr(federated, "partitioners"):
        value = type(federated).__name__
        raise KinfolkError("data.federated", value, "give a flwr_datasets.FederatedDataset")
    if split not in federated.partitioners:
        raise KinfolkError("split", split, "has no partitioner; " + near(split, federated.partitioners))
    count = federated.partitioners[split].num_partitions
    parts = [federated.load_partition(i, split) for i in range(count)]
    if client is None:
        client = "partition"
        while client in parts[0].column_names:
            client += "_"
        names = client_names(count, 3)
        parts = [part.add_column(client, [who] * len(part)) for part, who in zip(parts, names, strict=True)]
    else:
        _one_id_each(parts, client)
    for i, part in enumerate(parts):
        if len(part) == 0:
            raise KinfolkError(f"data.partition {i}", "0 rows", "leave this client out or give it rows")
    # Read as one, so that all clients agree on classes and colours.
    whole = package().concatenate_datasets(parts)
    return read_huggingface(whole, client, label, missing=missing, columns=columns)


def _one_id_each(parts: Sequence[Any], client: str) -> None:
    """Refuse partitions that the ids in a column do not name."""
    seen: set[str] = set()
    for i, part in enumerate(parts):
        if client not in part.column_names:
            raise KinfolkError("client", client, "no such column; " + near(client, part.column_names))
        ids = part.unique(client)
        if len(ids) != 1 or str(ids[0]) in seen:
            what = f"{len(ids)} ids" if len(ids) != 1 else "the id of another"
            remedy = f"partition {i} holds {what}; partition by this column, or leave client out"
            raise KinfolkError("client", client, remedy)
        seen.add(str(ids[0]))


def _read(
    dataset: Any, label: str, names: Sequence[str], wanted: Columns
) -> tuple[ClientRows, Recipe, list[str], tuple[float, float] | None]:
    """The rows of a data set, how they were made, notes on it, and how bytes are scaled."""
    frame = _label_frame(dataset, label)
    shapes = {name: _shape_of(dataset.features[name]) for name in names}
    if names and set(shapes.values()) == {"scalar"}:
        whole = frame.join(_frame(dataset, names))
        recipe, notes = fitted(wanted, {"": whole}, label)
        return table_part("data", whole, label, recipe.sources), recipe, notes, None
    if len(names) != 1 or shapes[names[0]] != "image":
        said = ", ".join(f"{name} ({kind})" for name, kind in shapes.items()) or "none"
        remedy = "give columns of numbers and lists, or one of images: columns= or dataset.select_columns"
        raise KinfolkError("data.columns", said, remedy)
    row = np.arange(1, len(frame) + 1, dtype=np.int64)
    y, absent = label_values(frame[label], f"data.{label}", row)
    x, notes = _images(dataset, names[0], wanted.resize)
    return ClientRows(x, y, absent, row), Recipe(resize=wanted.resize), notes, PIXELS


def _has_lists(dataset: Any, names: Sequence[str]) -> bool:
    kinds = {_shape_of(dataset.features[name]) for name in names}
    return "list" in kinds <= {"list", "scalar"}


def _sequences(
    dataset: Any, label: str, wanted: Columns, owner: pd.Series, missing: str, left_out: dict[str, int]
) -> LoadedClients:
    """Clients whose inputs, or whose labels, are lists: whole numbers stay whole, as they do from Python."""
    if named := [*wanted.categorical, *wanted.dates]:
        raise KinfolkError("columns", named, "beside lists there are no categories or dates; leave it out")
    wanted.check_no_images()
    names = wanted.names
    y, absent, classes = _labels(dataset, label)
    if absent.any():
        if missing != "drop":
            remedy = f"row {int(absent.argmax()) + 1} has no label; missing='drop' leaves such rows out"
            raise KinfolkError(f"data.{label}", None, remedy)
        owner, left_out = owner.mask(absent), {**left_out, "rows without a label": int(absent.sum())}
    x = {name: _leaf(dataset, name) for name in names}
    for name, leaf in x.items():
        first = leaf.rows[0] if isinstance(leaf, Sequences) else leaf
        if first.dtype.kind not in "buif":
            said, remedy = no_numbers(first)
            raise KinfolkError(f"data.{name}", said, f"{remedy}; or leave the column out by columns=")
    inputs: OneClient = x if len(x) > 1 else x[names[0]]
    places = owner.reset_index(drop=True).groupby(owner.to_numpy()).indices
    return loaded_arrays(
        {str(who): (_taken(inputs, place), _taken(y, place)) for who, place in sorted(places.items())},
        kind="Hugging Face data set",
        label=label,
        class_names=classes,
        fill=wanted.fill_rule,
        missing=missing,
        types={name: _type(dataset.features[name]) for name in (*names, label)},
        left_out=left_out,
        notes=[f"client column: {owner.name!r}", f"inputs are {', '.join(names)}"],
    )


def _labels(dataset: Any, label: str) -> tuple[Leaf, Array, tuple[str, ...]]:
    """Labels, which rows have none, and what classes are called."""
    feature, field = dataset.features[label], f"data.{label}"
    if _shape_of(feature) != "list":
        values, absent = label_values(
            _label_frame(dataset, label)[label], field, np.arange(1, len(dataset) + 1)
        )
        return values.astype(np.str_) if values.dtype == object else values, absent, _class_names(feature)
    names, leaf = _class_names(getattr(feature, "feature", None)), _leaf(dataset, label)
    if names and isinstance(leaf, Sequences):  # -1 is no label, of a position as of a row
        leaf = Sequences([np.where(row < 0, IGNORED, row) for row in leaf.rows])
    return leaf, np.zeros(len(dataset), dtype=bool), names


def _leaf(dataset: Any, column: str) -> Leaf:
    values = dataset.select_columns([column]).with_format("numpy")[:][column]
    found = from_items(list(values), f"data.{column}")
    assert not isinstance(found, dict)
    return found


def _taken(rows: OneClient, place: Array) -> OneClient:
    """Some rows, by place."""
    if isinstance(rows, dict):
        return {name: _some(leaf, place) for name, leaf in rows.items()}
    return _some(rows, place)


def _some(leaf: Leaf, place: Array) -> Leaf:
    return Sequences([leaf.rows[i] for i in place]) if isinstance(leaf, Sequences) else leaf[place]


def _class_names(feature: Any) -> tuple[str, ...]:
    return tuple(getattr(feature, "names", None) or ())


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


def _label_frame(dataset: Any, label: str) -> pd.DataFrame:
    frame = _frame(dataset, [label])
    if _class_names(dataset.features[label]):  # Hugging Face writes -1 for a row without a label
        frame[label] = frame[label].mask(frame[label] == -1)
    return frame


def _images(dataset: Any, column: str, size: Size | None) -> tuple[Array, list[str]]:
    images = [_image(dataset, column, i) for i in range(len(dataset))]
    heads = [ImageHead(f"{column}, row {row}", image.size, image.mode) for row, image in enumerate(images, 1)]
    mode, notes = agree(heads, size)
    return np.stack([pixels(image, mode, size) for image in images]), notes


def _image(dataset: Any, column: str, i: int) -> Any:
    try:
        image = dataset[i][column]
    except UNREADABLE as error:
        raise KinfolkError(f"data.{column}", f"row {i + 1}", "its image cannot be read; mend it") from error
    if image is None:
        raise KinfolkError(f"data.{column}", f"row {i + 1}", "has no image; leave the row out")
    return image
