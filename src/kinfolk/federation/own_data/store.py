"""The fast form on disk: plain .npy files that are mapped, not read, and a manifest that vouches for them.

A store is a folder with `x.npy`, `y.npy`, three small files per split, `clients.json`,
`truth.npy` where groups are known, `report.json` and `manifest.json`. Rows of several tensors have a file
for each, as `x.tokens.npy`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.files import UNREADABLE, checksum, short
from kinfolk.federation.federation import SPLITS, Federation, Split
from kinfolk.federation.own_data.columns import Recipe
from kinfolk.federation.own_data.loaded import Array
from kinfolk.federation.own_data.report import Report
from kinfolk.federation.soundness import check, fits
from kinfolk.private import private_file, private_folder
from kinfolk.types import Client, Rows, named_leaves

# Version 2 has rows of several tensors, or of types that version 1 did not know.
FORMAT, VERSIONS = "kinfolk store", (1, 2)
MANIFEST = "manifest.json"
# A file below this size is compared with its checksum whenever it is read: it costs less than a millisecond,
# and wrong splits or names would go unseen.
SMALL = 1 << 20
_PARTS = ("start", "row", "of")
_SPLITS = tuple(f"{split}-{part}.npy" for split in SPLITS for part in _PARTS)
_OLD = (torch.float32, torch.int64, torch.uint8)
# What a manifest says besides its files, and of which type.
_SAID = {"name": str, "clients": int, "rows": int, "classes": int, "class_names": list, "feature_names": list}
# What is set off by a manifest that somebody else has sealed.
_WRONG = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError)
# A file of rows: x or y, and of several tensors which.
_ROWS = re.compile(r"[xy](\.[^./\\]+(\.lengths)?)?\.npy")


def write_store(data: Federation, folder: str | Path, report: Report) -> Path:
    """Write a store, whole or not at all: a federation with its splits, and the report on its rows.

    >>> import tempfile
    >>> from kinfolk import federate, inspect
    >>> from kinfolk.federation.own_data.loaded import LoadedClients
    >>> found = LoadedClients({"ann": (np.zeros((5, 2)), np.array([0, 1, 0, 1, 1]))}, ("no", "yes"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = write_store(federate(found), Path(folder) / "mine", inspect(found))
    ...     read_store(store, verify=True).clients, store_report(store).balance
    (('ann',), {'no': 2, 'yes': 3})
    """
    folder = Path(folder)
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise KinfolkError("store", short(folder), "is there already; choose another name or remove it first")
    if data.maker is not None:
        raise KinfolkError("store", data.name, "these rows are made when a client is asked; nothing to store")
    if data.scaling is not None:
        raise KinfolkError("store", data.name, "these rows are standardised; store them as they came")
    check(data)
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        private_folder(temporary)
        _fill(temporary, data, report)
        os.replace(temporary, folder)
        _sync(folder.parent)
    except OSError as error:
        remedy = f"cannot be written ({error.strerror or error}); free space or choose another folder"
        raise KinfolkError("store", short(folder), remedy) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _fill(folder: Path, data: Federation, report: Report) -> None:
    """All files of a store; the manifest last."""
    splits = (getattr(data.splits[name], part) for name in SPLITS for part in _PARTS)
    rows = {**named_leaves("x", data.x), **named_leaves("y", data.y)}
    plain = len(rows) == 2 and all(tensor.dtype in _OLD for tensor in rows.values())
    tensors = {f"{name}.npy": tensor for name, tensor in rows.items()}
    tensors |= dict(zip(_SPLITS, splits, strict=True))
    tensors |= {} if data.truth is None else {"truth.npy": data.truth}
    files: dict[str, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        array = tensor.detach().cpu().contiguous().numpy()
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        files[name] = _written(folder / name, partial(np.save, arr=array, allow_pickle=False))
        files[name] |= {"dtype": array.dtype.str, "shape": list(array.shape)}
    files["clients.json"] = _text(folder / "clients.json", list(data.clients))
    files["report.json"] = _text(folder / "report.json", report.as_dict())
    manifest = {
        "format": FORMAT,
        "version": VERSIONS[not plain],
        "name": data.name,
        "clients": len(data.clients),
        "rows": data.rows,
        "classes": data.classes,
        "scale": data.scale,
        "class_names": list(report.class_names),
        "feature_names": list(report.feature_names),
        "recipe": None if data.recipe is None else asdict(data.recipe),
        "files": files,
    }
    _text(folder / MANIFEST, manifest | {"sha256": _seal(manifest)})
    _sync(folder)


def _text(path: Path, value: object) -> dict[str, Any]:
    data = json.dumps(value, indent=1, allow_nan=False).encode()
    return _written(path, lambda file: file.write(data))


def _written(path: Path, write: Callable[[BinaryIO], object]) -> dict[str, Any]:
    """Write one file, and say what it must be from now on."""
    with open(path, "xb", opener=private_file) as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())  # a rename may reach the disk before the bytes do
    return {"bytes": path.stat().st_size, "sha256": checksum(path, "sha256")}


def _seal(manifest: Mapping[str, Any]) -> str:
    """A checksum of the manifest without its own, so that it vouches for itself too."""
    plain = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _sync(folder: Path) -> None:
    if hasattr(os, "O_DIRECTORY"):
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def is_store(folder: str | Path) -> bool:
    """Whether a folder says that it is a store.

    >>> is_store(".")
    False
    """
    return (Path(folder) / MANIFEST).is_file()


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of a store: shapes, types, names, sizes and checksums; every file's size is checked.

    >>> read_manifest("nowhere")
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: store = 'nowhere': is no store: it has no manifest.json
    """
    folder = Path(folder)
    if not is_store(folder):
        raise KinfolkError("store", short(folder), f"is no store: it has no {MANIFEST}")
    manifest = _json(folder / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _bad(folder / MANIFEST, "is not the manifest of a store")
    if manifest.get("version") not in VERSIONS:
        remedy = (
            f"is of version {manifest.get('version')!r}, this one reads {VERSIONS[-1]}; use a newer kinfolk"
        )
        raise KinfolkError("store", short(folder / MANIFEST), remedy)
    if manifest.get("sha256") != _seal(manifest):
        raise _bad(folder / MANIFEST, "was altered")
    try:
        if wrong := [name for name, kind in _SAID.items() if type(manifest[name]) is not kind]:
            raise TypeError(wrong[0])
        _sizes(folder, manifest["files"])
    except _WRONG as error:
        raise _bad(folder / MANIFEST, "is not the manifest of a store") from error
    return manifest


def _sizes(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    rows = {name for name in files if _ROWS.fullmatch(name)}
    named, needed = set(files) - rows, {*_SPLITS, "clients.json", "report.json"}
    if {name[0] for name in rows} != {"x", "y"} or not needed <= named <= needed | {"truth.npy"}:
        raise KeyError("files")  # no names from elsewhere
    for name, facts in files.items():
        path = folder / name
        try:
            size = path.stat().st_size
        except OSError as error:
            raise _bad(path, "is missing") from error
        if size != facts["bytes"]:
            raise _bad(path, f"has {size} bytes, not {facts['bytes']}: cut short or altered")
    for path in sorted(folder.iterdir()):
        if path.name not in files and path.name != MANIFEST and not path.name.startswith("."):
            raise _bad(path, "does not belong to this store; move it away")


def _bad(path: Path, what: str) -> KinfolkError:
    again = "" if what.endswith("away") else "; write the store again"
    return KinfolkError("store", short(path), what + again)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _bad(path, "cannot be read") from error


def read_store(folder: str | Path, *, verify: bool = False) -> Federation:
    """The federation of a store, its rows mapped from the disk and not read until they are used.

    Sizes, types, shapes and the checksums of small files are checked always; with `verify` every file's
    checksum, and that the federation is sound, which reads all of it. See `write_store` for an example.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    try:
        federation = _federation(folder, manifest, verify)
        return check(federation) if verify else federation
    except _WRONG as error:
        raise _bad(folder / MANIFEST, "does not fit its files") from error


def _federation(folder: Path, manifest: Mapping[str, Any], verify: bool) -> Federation:
    for name, facts in manifest["files"].items():
        if (verify or facts["bytes"] < SMALL) and checksum(folder / name, "sha256") != facts["sha256"]:
            raise _bad(folder / name, "was altered: its checksum is another")
    tensors = {
        name: _mapped(folder / name, facts) for name, facts in manifest["files"].items() if "shape" in facts
    }
    splits = {name: Split(*(tensors[f"{name}-{part}.npy"] for part in _PARTS)) for name in SPLITS}
    federation = Federation(
        clients=tuple(Client(who) for who in _json(folder / "clients.json")),
        x=_rows(tensors, "x"),
        y=_rows(tensors, "y"),
        splits=splits,
        classes=manifest["classes"],
        truth=tensors.get("truth.npy"),
        name=manifest["name"],
        scale=manifest["scale"] and tuple(manifest["scale"]),
        class_names=tuple(manifest["class_names"]),
        feature_names=tuple(manifest["feature_names"]),
        recipe=Recipe.from_dict(manifest.get("recipe")),
    )
    for name, split in splits.items():
        # Cheap to see, and without it rows would be the wrong ones.
        if not fits(split, len(federation.clients)):
            raise _bad(folder / f"{name}-start.npy", "does not fit the rows and clients of its split")
    return federation


def _rows(tensors: Mapping[str, Tensor], field: str) -> Rows:
    """The tensors of x or y, in the order they were written."""
    if f"{field}.npy" in tensors:
        return tensors[f"{field}.npy"]
    own = {name: tensor for name, tensor in tensors.items() if name.startswith(f"{field}.")}
    if not own:
        raise KeyError(field)
    return {name.removeprefix(f"{field}.").removesuffix(".npy"): tensor for name, tensor in own.items()}


def _mapped(path: Path, facts: Mapping[str, Any]) -> Tensor:
    """A tensor over the file: copied on write, so that torch may have it and the file stays as it is."""
    try:
        array: Array = np.lib.format.open_memmap(path, mode="c")
    except UNREADABLE as error:
        raise _bad(path, "is not a plain .npy file") from error
    if array.dtype.str != facts["dtype"] or list(array.shape) != facts["shape"]:
        raise _bad(path, f"holds {array.dtype.str} {list(array.shape)}, which the manifest does not say")
    return torch.from_numpy(array)


def store_report(folder: str | Path) -> Report:
    """The report kept with a store; see `write_store` for an example."""
    path = Path(folder) / "report.json"
    try:
        return Report.from_dict(_json(path))
    except _WRONG as error:
        raise _bad(path, "is not the report of a store") from error
