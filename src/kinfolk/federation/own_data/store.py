"""The fast form on disk: plain .npy files that are mapped, not read, and a manifest that vouches for them.

A store is a folder with `x.npy`, `y.npy`, three small files per split, `clients.json`,
`truth.npy` where groups are known, `report.json` where there is a report, and `manifest.json`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.files import short
from kinfolk.federation.federation import SPLITS, Federation, Split
from kinfolk.federation.own_data.loaded import Array, LoadedClients, federate, loaded_of
from kinfolk.federation.own_data.report import Report, inspect
from kinfolk.federation.soundness import check
from kinfolk.streams import Seed
from kinfolk.types import Client

FORMAT, VERSION = "kinfolk store", 1
MANIFEST = "manifest.json"
_PARTS = ("start", "row", "of")
_ARRAYS = ("x.npy", "y.npy", *(f"{split}-{part}.npy" for split in SPLITS for part in _PARTS))
_TYPES = {torch.float32: "<f4", torch.int64: "<i8", torch.uint8: "|u1"}


class _Hashed:
    """A file that is hashed while it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.sum = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sum.update(data)
        return self.file.write(data)


def write_store(
    data: Federation | LoadedClients,
    folder: str | Path,
    *,
    report: Report | None = None,
    test_fraction: float = 0.2,
    valid: float = 0.0,
    seed: Seed = Seed(0),  # noqa: B008 - a Seed never changes
) -> Path:
    """Write a store, whole or not at all; what was found is split first, a federation keeps its splits.

    >>> import tempfile
    >>> found = LoadedClients({"ann": (np.zeros((5, 2)), np.array([0, 1, 0, 1, 1]))}, ("no", "yes"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = write_store(found, Path(folder) / "mine")
    ...     read_store(store).fingerprint() == federate(found).fingerprint()
    True
    """
    folder = Path(folder)
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise KinfolkError("store", short(folder), "is there already; choose another name or remove it first")
    if isinstance(data, LoadedClients):
        report = inspect(data) if report is None else report
        data = federate(data, test_fraction=test_fraction, valid=valid, seed=seed)
    if data.maker is not None:
        raise KinfolkError("store", data.name, "these rows are made when a client is asked; nothing to store")
    check(data)
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        temporary.mkdir(parents=True)
        _fill(temporary, data, report)
        os.replace(temporary, folder)
        _sync(folder.parent)
    except OSError as error:
        remedy = f"cannot be written ({error.strerror or error}); free space or choose another folder"
        raise KinfolkError("store", short(folder), remedy) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _tensors(data: Federation) -> dict[str, Tensor]:
    splits = (getattr(data.splits[name], part) for name in SPLITS for part in _PARTS)
    tensors = dict(zip(_ARRAYS, (data.x, data.y, *splits), strict=True))
    return tensors if data.truth is None else {**tensors, "truth.npy": data.truth}


def _fill(folder: Path, data: Federation, report: Report | None) -> None:
    """All files of a store; the manifest last."""
    files: dict[str, dict[str, Any]] = {}
    for name, tensor in _tensors(data).items():
        array = tensor.detach().cpu().contiguous().numpy().astype(_TYPES[tensor.dtype], copy=False)
        with (folder / name).open("xb") as file:
            hashed = _Hashed(file)
            np.lib.format.write_array(hashed, array, allow_pickle=False)
            _flush(file)
            files[name] = {"bytes": file.tell(), "sha256": hashed.sum.hexdigest()}
        files[name] |= {"dtype": array.dtype.str, "shape": list(array.shape)}
    texts: dict[str, object] = {"clients.json": list(data.clients)}
    texts |= {"report.json": report.as_dict()} if report is not None else {}
    for name, value in texts.items():
        files[name] = _text(folder / name, value)
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "name": data.name,
        "clients": len(data.clients),
        "rows": len(data.x),
        "classes": data.classes,
        "scale": data.scale,
        "class_names": list(report.class_names) if report else [],
        "feature_names": list(report.feature_names) if report else [],
        "files": files,
    }
    _text(folder / MANIFEST, manifest | {"sha256": _seal(manifest)})
    _sync(folder)


def _text(path: Path, value: object) -> dict[str, Any]:
    data = json.dumps(value, indent=1, allow_nan=False).encode()
    with path.open("xb") as file:
        file.write(data)
        _flush(file)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _seal(manifest: Mapping[str, Any]) -> str:
    """A checksum of the manifest without its own, so that it vouches for itself too."""
    plain = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())  # a rename may reach the disk before the bytes do


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
    if manifest.get("version") != VERSION:
        raise _bad(folder / MANIFEST, f"is of version {manifest.get('version')!r}, not {VERSION}")
    if manifest.get("sha256") != _seal(manifest):
        raise _bad(folder / MANIFEST, "was altered")
    try:
        _sizes(folder, manifest["files"])
    except (KeyError, TypeError, AttributeError) as error:
        raise _bad(folder / MANIFEST, "is not the manifest of a store") from error
    return manifest


def _sizes(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    named, needed = set(files), {*_ARRAYS, "clients.json"}
    if not needed <= named <= needed | {"truth.npy", "report.json"}:  # no names from elsewhere
        raise KeyError("files")
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

    Sizes, types and shapes are checked always; with `verify` every file's checksum, and that the
    federation is sound, which reads all of it.

    >>> import tempfile
    >>> from kinfolk.federation.own_data.arrays import from_arrays
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = write_store(from_arrays([(np.zeros((5, 2)), [0, 1, 0, 1, 1])]), Path(folder) / "mine")
    ...     read_store(store, verify=True).clients
    ('client-000',)
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if verify:
        for name, facts in manifest["files"].items():
            if _checksum(folder / name) != facts["sha256"]:
                raise _bad(folder / name, "was altered: its checksum is another")
    tensors = {
        name: _mapped(folder / name, facts) for name, facts in manifest["files"].items() if "shape" in facts
    }
    splits = {name: Split(*(tensors[f"{name}-{part}.npy"] for part in _PARTS)) for name in SPLITS}
    federation = Federation(
        clients=tuple(Client(who) for who in _json(folder / "clients.json")),
        x=tensors["x.npy"],
        y=tensors["y.npy"],
        splits=splits,
        classes=manifest["classes"],
        truth=tensors.get("truth.npy"),
        name=manifest["name"],
        scale=manifest["scale"] and tuple(manifest["scale"]),
        class_names=tuple(manifest["class_names"]),
        feature_names=tuple(manifest["feature_names"]),
    )
    for name, split in splits.items():
        _laid_out(folder / f"{name}-start.npy", split, len(federation.clients))
    return check(federation) if verify else federation


def _laid_out(path: Path, split: Split, clients: int) -> None:
    """The offsets of a split fit its rows: cheap to see, and without it rows would be the wrong ones."""
    start, sets = split.start, len(split.start) - 1
    ordered = (
        sets >= 0
        and int(start[0]) == 0
        and int(start[-1]) == len(split.row)
        and bool((start.diff() >= 0).all())
    )
    if not ordered or len(split.of) != clients or not bool(((split.of >= 0) & (split.of < sets)).all()):
        raise _bad(path, "does not fit the rows and clients of its split")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mapped(path: Path, facts: Mapping[str, Any]) -> Tensor:
    """A tensor over the file: copied on write, so that torch may have it and the file stays as it is."""
    try:
        array: Array = np.lib.format.open_memmap(path, mode="c")
    except (OSError, ValueError) as error:
        raise _bad(path, "is not a plain .npy file") from error
    if array.dtype.str != facts["dtype"] or list(array.shape) != facts["shape"]:
        raise _bad(path, f"holds {array.dtype.str} {list(array.shape)}, which the manifest does not say")
    return torch.from_numpy(array)


def store_report(folder: str | Path) -> Report:
    """The report kept with a store; made from its training rows where there is none.

    >>> import tempfile
    >>> found = LoadedClients({"ann": (np.zeros((5, 2)), np.array([0, 1, 0, 1, 1]))}, ("no", "yes"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store_report(write_store(found, Path(folder) / "mine")).balance
    {'no': 2, 'yes': 3}
    """
    path = Path(folder) / "report.json"
    if not path.is_file():
        return inspect(loaded_of(read_store(folder)))
    try:
        return Report.from_dict(_json(path))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _bad(path, "is not the report of a store") from error
