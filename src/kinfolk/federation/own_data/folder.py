"""A folder with one file or one folder per client, all of one kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kinfolk.errors import KinfolkError, near
from kinfolk.federation.datasets.files import reading, short
from kinfolk.federation.datasets.formats import npz_names, read_npz
from kinfolk.federation.own_data.cells import column_kind
from kinfolk.federation.own_data.columns import Columns, Recipe, fitted, label_names
from kinfolk.federation.own_data.gather import check_name, client_rows, gather
from kinfolk.federation.own_data.images import inside, read_images, resized
from kinfolk.federation.own_data.loaded import Array, Arrays, LoadedClients
from kinfolk.federation.own_data.missing import listed
from kinfolk.federation.own_data.structure import gather_structured, structured_rows
from kinfolk.federation.own_data.tables import (
    TABLES,
    choose_label,
    column_types,
    read_table_file,
    table_part,
)

KINDS = (".npz", *TABLES)


def read_folder(
    path: str | Path,
    label: str | None = None,
    *,
    missing: str = "refuse",
    columns: Columns | Recipe = Columns(),  # noqa: B008 - never changes
) -> LoadedClients:
    """The clients of a folder, named after its files (npz, csv or parquet) or its folders.

    A client's folder holds images by class, or an .npy file for each array. Of arrays "x" is the input; where
    there is none of this name, all but the label are inputs, by their names. `label` names the label column
    or array; without it that is "y", of a table else "label", or else the last column, and the notes say
    which. Rows count from 1 in each file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "ann.csv").write_text("age,y\\n31,no\\n47,yes\\n")
    ...     _ = (Path(folder) / "bob.csv").write_text("age,y\\n28,no\\n50,yes\\n")
    ...     found = read_folder(folder)
    >>> [*found.clients], found.feature_names, found.class_names, found.clients["bob"][1]
    (['ann', 'bob'], ('age',), ('no', 'yes'), array([0, 1]))
    """
    clients, kind, left_out = _clients(Path(path))
    if kind == ".npz" or (kind == "folder" and _of_arrays(clients)):
        columns.check_no_names("arrays")
        return _arrays(clients, label or "y", missing, columns, left_out)
    if kind == "folder":
        if label is not None:
            raise KinfolkError("label", label, "the class folders are the labels of images; leave label out")
        columns.check_no_names("images")
        if columns.fill_rule != "":
            raise KinfolkError("fill", columns.fill_rule, "images have no missing values; leave it out")
        return read_images(clients, columns.resize)
    return _tables(clients, label, missing, columns, left_out)


def _clients(folder: Path) -> tuple[dict[str, Path], str, Counter[str]]:
    """Files or folders by client's name, their one kind, and how many hidden files were passed over."""
    if not folder.is_dir():
        raise KinfolkError("data.folder", short(folder), "is not a folder; name one with a file per client")
    shown, hidden = inside(folder)
    if not shown:
        raise KinfolkError("data.folder", short(folder), "is empty; put one file or folder per client in it")
    kinds: dict[str, Path] = {}
    clients: dict[str, Path] = {}
    for path in shown:
        kind = "folder" if path.is_dir() else path.suffix.lower()
        if kind != "folder" and (kind not in KINDS or not path.is_file()):
            remedy = f"not a file of a known kind ({', '.join(KINDS)}, or folders of images); move it away"
            raise KinfolkError("data.file", short(path), remedy)
        kinds.setdefault(kind, path)
        name = path.name if kind == "folder" else path.stem
        check_name(name)
        if name in clients and len(kinds) == 1:
            raise KinfolkError("data.clients", name, f"two files are named so, {path.name} is one of them")
        clients[name] = path
    if len(kinds) > 1:
        value = " and ".join(path.name for path in kinds.values())
        raise KinfolkError("data.folder", value, "are of different kinds; give all clients the same kind")
    return clients, next(iter(kinds)), Counter({"hidden files": hidden} if hidden else {})


def _of_arrays(clients: Mapping[str, Path]) -> bool:
    """Whether folders of clients hold arrays and not images by class."""
    return any(path.suffix.lower() == ".npy" for path in inside(next(iter(clients.values())))[0])


def _array_names(path: Path) -> list[str]:
    if path.is_file():
        return npz_names(path)
    shown = inside(path)[0]
    for file in shown:
        if file.suffix.lower() != ".npy" or not file.is_file():
            remedy = "not an .npy file, as the others of this client; move it away"
            raise KinfolkError("data.file", short(file), remedy)
    return [file.stem for file in shown]


def _read_arrays(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """Arrays of an npz file, or of a folder of .npy files, which are mapped from the disk."""
    if path.is_file():
        return read_npz(path, path, *names)
    found: dict[str, Array] = {}
    for name in names:
        file = path / f"{name}.npy"
        with reading(file):
            if not file.is_file():
                raise ValueError(f"there is no array {name!r} of this client")
            found[name] = np.lib.format.open_memmap(file, mode="r")
    return found


def _arrays(
    clients: Mapping[str, Path], label: str, missing: str, columns: Columns | Recipe, left_out: Counter[str]
) -> LoadedClients:
    fill, size = columns.fill_rule, columns.resize
    first = next(iter(clients.values()))
    names = _array_names(first)
    labels = label_names(label, names)
    inputs = ["x"] if "x" in names or set(names) <= {*labels} else [n for n in names if n not in labels]
    if not {*labels} <= {*names}:  # it has another name, and must not be taken for an input
        _read_arrays(first, labels)
    read: dict[str, dict[str, Array]] = {}
    types = {name: set[str]() for name in (*inputs, *labels)}
    for who, path in clients.items():
        read[who] = _read_arrays(path, [*inputs, *labels])
        kind = "npz files" if path.is_file() else "npy files"
        left_out.update(f"arrays {name!r} of {kind}" for name in _array_names(path) if name not in read[who])
        for name, seen in types.items():
            seen.add(str(read[who][name].dtype))
    told = {name: ", ".join(sorted(seen)) for name, seen in types.items()}
    facts: dict[str, Any] = {"kind": "npz" if first.is_file() else "npy", "label": label, "missing": missing}
    facts |= {"types": told, "left_out": left_out}
    if inputs == ["x"] and len(labels) == 1:
        if size:
            facts["recipe"] = Recipe(resize=size)
            for who, arrays in read.items():
                arrays["x"] = resized(list(arrays["x"]), size, f"data.{who}.x")
        parts = {who: client_rows(who, arrays["x"], arrays[label]) for who, arrays in read.items()}
        notes = ["x holds bytes: kept as they are, not scaled as images are"] if told["x"] == "uint8" else []
        return gather(parts, notes=notes, whole=True, fill=fill, **facts)
    columns.check_no_images()
    if fill != "":
        raise KinfolkError("fill", fill, "rows of several arrays are not filled; leave it out")
    pairs: dict[str, tuple[Arrays, Arrays]] = {}
    for who, arrays in read.items():
        x = arrays["x"] if inputs == ["x"] else {name: arrays[name] for name in inputs}
        pairs[who] = x, arrays[label] if len(labels) == 1 else {name: arrays[name] for name in labels}
        structured_rows(who, *pairs[who])
    return gather_structured(pairs, {}, notes=[f"inputs are {', '.join(inputs)}"], **facts)


def _tables(
    clients: Mapping[str, Path],
    label: str | None,
    missing: str,
    columns: Columns | Recipe,
    left_out: Counter[str],
) -> LoadedClients:
    frames: dict[str, pd.DataFrame] = {}
    for who, path in clients.items():
        frames[who], skipped = read_table_file(path, text=columns.text)
        left_out.update(skipped)
    first = next(iter(frames))
    if not columns.names:
        _same_columns(frames, first)
    label, chosen = choose_label(frames[first].columns, label)
    for who, frame in frames.items():
        for name in label_names(label, frames[first].columns):
            if name not in frame.columns:
                remedy = "the label is not there; " + near(name, frame.columns)
                raise KinfolkError(f"data.{who}.columns", name, remedy)
    recipe, said = fitted(columns, frames, label)
    _same_text(frames, clients, label, recipe.text)
    sources = recipe.sources
    parts = {who: table_part(f"data.{who}", frame, label, sources) for who, frame in frames.items()}
    return gather(
        parts,
        kind=clients[first].suffix.lower()[1:],
        label=label,
        recipe=recipe,
        fill=columns.fill_rule,
        missing=missing,
        types=column_types(list(frames.values())),
        left_out=left_out,
        notes=[chosen, *said],
    )


def _same_columns(frames: Mapping[str, pd.DataFrame], first: str) -> None:
    wanted = set(frames[first].columns)
    for who, frame in frames.items():
        absent, extra = sorted(wanted - set(frame.columns)), sorted(set(frame.columns) - wanted)
        if absent or extra:
            says = [f"without {listed(absent)}"] * bool(absent) + [f"with {listed(extra)}"] * bool(extra)
            remedy = (
                f"unlike {first!r}; give all clients the same columns, or name those to use with --columns"
            )
            raise KinfolkError(f"data.{who}.columns", ", ".join(says), remedy)


def _same_text(
    frames: dict[str, pd.DataFrame], clients: Mapping[str, Path], label: str, text: Sequence[str]
) -> None:
    """Read labels again as text where only other clients' are: classes 7 and A are both text."""
    if any(label not in frame.columns for frame in frames.values()):  # several, which are no text
        return
    kinds = {who: column_kind(frame[label]) for who, frame in frames.items()}
    if "text" not in kinds.values():
        return
    for who, kind in kinds.items():
        if (
            kind in ("whole", "float", "bool", "date", "datetime", "time")
            and clients[who].suffix.lower() == ".csv"
        ):
            frames[who], _ = read_table_file(clients[who], text=[label, *text])
