"""A folder with one file or one folder per client, all of one kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.files import short
from kinfolk.federation.datasets.formats import npz_names, read_npz
from kinfolk.federation.own_data.gather import check_name, client_rows, gather
from kinfolk.federation.own_data.images import inside, read_images
from kinfolk.federation.own_data.loaded import LoadedClients
from kinfolk.federation.own_data.missing import listed
from kinfolk.federation.own_data.tables import (
    TABLES,
    choose_label,
    column_kind,
    column_types,
    read_table_file,
    table_part,
)

KINDS = (".npz", *TABLES)


def read_folder(path: str | Path, label: str | None = None, *, missing: str = "refuse") -> LoadedClients:
    """The clients of a folder, named after its files (npz, csv or parquet) or its folders (images by class).

    `label` names the label column, or the label array of an npz file; without it that is "y", or
    else "label", or else the last column, and the notes say which. Rows count from 1 in each file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "ann.csv").write_text("age,y\\n31,no\\n47,yes\\n")
    ...     _ = (Path(folder) / "bob.csv").write_text("age,y\\n28,no\\n50,yes\\n")
    ...     found = read_folder(folder)
    >>> [*found.clients], found.feature_names, found.class_names, found.clients["bob"][1]
    (['ann', 'bob'], ('age',), ('no', 'yes'), array([0, 1]))
    """
    clients, kind, left_out = _clients(Path(path))
    if kind == "folder":
        if label is not None:
            raise KinfolkError("label", label, "the class folders are the labels of images; leave label out")
        return read_images(clients)
    if kind == ".npz":
        return _arrays(clients, label or "y", missing, left_out)
    return _tables(clients, label, missing, left_out)


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


def _arrays(clients: Mapping[str, Path], label: str, missing: str, left_out: Counter[str]) -> LoadedClients:
    parts, types = {}, {"x": set[str](), label: set[str]()}
    for who, path in clients.items():
        arrays = read_npz(path, path, "x", label)
        parts[who] = client_rows(who, arrays["x"], arrays[label])
        left_out.update(f"arrays {name!r} of npz files" for name in npz_names(path) if name not in arrays)
        for name, seen in types.items():
            seen.add(str(arrays[name].dtype))
    told = {name: ", ".join(sorted(seen)) for name, seen in types.items()}
    notes = ["x holds bytes: kept as they are, not scaled as images are"] if told["x"] == "uint8" else []
    return gather(
        parts,
        kind="npz",
        label=label,
        missing=missing,
        types=told,
        left_out=left_out,
        notes=notes,
        whole=True,
    )


def _tables(
    clients: Mapping[str, Path], label: str | None, missing: str, left_out: Counter[str]
) -> LoadedClients:
    frames: dict[str, pd.DataFrame] = {}
    for who, path in clients.items():
        frames[who], skipped = read_table_file(path)
        left_out.update(skipped)
    first = next(iter(frames))
    _same_columns(frames, first)
    label, chosen = choose_label(frames[first].columns, label)
    features = [name for name in frames[first].columns if name != label]
    _same_text(frames, clients, label)
    parts = {who: table_part(f"data.{who}", frame, label, features) for who, frame in frames.items()}
    return gather(
        parts,
        kind=clients[first].suffix.lower()[1:],
        label=label,
        features=features,
        missing=missing,
        types=column_types(list(frames.values())),
        left_out=left_out,
        notes=[chosen],
    )


def _same_columns(frames: Mapping[str, pd.DataFrame], first: str) -> None:
    wanted = set(frames[first].columns)
    for who, frame in frames.items():
        absent, extra = sorted(wanted - set(frame.columns)), sorted(set(frame.columns) - wanted)
        if absent or extra:
            says = [f"without {listed(absent)}"] * bool(absent) + [f"with {listed(extra)}"] * bool(extra)
            remedy = f"unlike {first!r}; give all clients the same columns"
            raise KinfolkError(f"data.{who}.columns", ", ".join(says), remedy)


def _same_text(frames: dict[str, pd.DataFrame], clients: Mapping[str, Path], label: str) -> None:
    """Read labels again as text where only other clients' are: classes 7 and A are both text."""
    kinds = {who: column_kind(frame[label]) for who, frame in frames.items()}
    if "text" not in kinds.values():
        return
    for who, kind in kinds.items():
        if (
            kind in ("whole", "float", "bool", "date", "datetime", "time")
            and clients[who].suffix.lower() == ".csv"
        ):
            frames[who], _ = read_table_file(clients[who], text=[label])
