"""Checkpoints: a folder per saved round, whole or absent, and refused when a single bit has changed.

Tensors are safetensors files; `manifest.json` holds everything else and the checksum of every file,
itself included. A checkpoint is written beside its place and renamed into it, so that a kill at any
moment leaves the one before it untouched.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kinfolk.codec import decode, encode
from kinfolk.errors import KinfolkError, visible
from kinfolk.experiment.record import disk_errors, plain
from kinfolk.experiment.segments import WriteFile, joined
from kinfolk.experiment.spec import differences, parse
from kinfolk.private import private_file, private_folder
from kinfolk.types import Message

FORMAT = 2
READS = (1, 2)  # in the first, memories are one file, an entry for each tensor of each client
# What may differ when a run is resumed: how long it goes on, and on what machinery.
_FREE = re.compile(r"(run\.(rounds|target|checkpoint_every|keep|patience|pictures)|engine\.\w+):")
# A folder ends in ".old" while a newer one of the same round takes its place.
_FOLDER = re.compile(r"round-(\d{6,})(\.old)?")
_TEMPORARY = re.compile(r"\.round-\d{6,}\.tmp")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
# What a manifest says, besides its format and its own checksum.
_SAID = {"round": int, "kinfolk": str, "spec": str, "facts": dict, "files": dict}


# (the folder that is written, where it will lie, how to write a file): what the manifest says of each file.
More = Callable[[Path, Path, WriteFile], dict[str, dict[str, Any]]]


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was found whole."""

    number: int  # the last finished round
    tensors: dict[str, Message]
    facts: dict[str, Any]
    version: str  # of kinfolk, when it was written


class Damaged(Exception):
    """This checkpoint cannot be trusted; an older one may be."""


def save(
    folder: Path,
    number: int,
    tensors: Mapping[str, Message],
    facts: Mapping[str, Any],
    spec_text: str,
    keep: int = 2,
    also: Collection[int] = (),
    more: More = lambda folder, final, write: {},
) -> Path:
    """Write the checkpoint of round `number` and keep the newest `keep`, and those of the rounds in `also`.

    `more` puts further files into its folder and gives what the manifest says of them (see `.segments`).

    Checkpoints of later rounds go: when round `number` is saved, they belong to a run that was rewound.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as run:
    ...     path = save(Path(run), 3, {"state": {"centre": {"w": torch.ones(1)}}}, {"best": 0.5}, "")
    ...     found, complaints = load_latest(Path(run), "")
    ...     path.name, found.number, found.facts, found.tensors["state"], complaints
    ('round-000003', 3, {'best': 0.5}, {'centre': {'w': tensor([1.])}}, [])
    """
    final = Path(folder) / f"round-{number:06d}"
    temporary = final.with_name(f".{final.name}.tmp")
    for name in tensors:
        if not _NAME.fullmatch(name):
            raise KinfolkError("checkpoint", name, "name an entry with letters, digits, _ and -")
    with disk_errors("checkpoint", final.parent):
        try:
            private_folder(final.parent)
            _sweep(final.parent)
            private_folder(temporary)
            files = {f"{name}.safetensors": _write(temporary, name, tensors[name]) for name in tensors}
            files |= more(temporary, final, lambda name, data: _write_file(temporary / name, data))
            _write_bytes(temporary / "manifest.json", _render(_body(number, files, facts, spec_text)))
            _sync(temporary)
            _move_in(temporary, final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    _prune(final.parent, number, max(keep, 1), also)
    return final


def load_latest(
    folder: Path, spec_text: str, wanted: Callable[[Loaded], bool] = lambda loaded: True
) -> tuple[Loaded | None, list[str]]:
    """The newest sound checkpoint that is wanted, and one line about each newer one that is damaged.

    None where nothing was ever saved. A checkpoint of another experiment or format is an error that
    names the difference, and so is a folder in which no checkpoint is sound: a run never starts again
    from nothing unasked. `wanted` may pass one over, or say by Damaged what is wrong with it.

    >>> load_latest(Path("nowhere"), "")
    (None, [])
    """
    complaints: list[str] = []
    for number, path in _found(Path(folder)):
        try:
            loaded = _load(path, number, spec_text)
            if wanted(loaded):
                return loaded, complaints
        except Damaged as error:
            complaints.append(visible(f"{path.name} is skipped: {error}"))
    if complaints:
        remedy = f"no sound checkpoint ({complaints[0]}); restore one, or remove the folder to start again"
        raise KinfolkError("checkpoint", str(folder), remedy)
    return None, []


def saved_rounds(folder: Path) -> tuple[int, ...]:
    """The rounds whose checkpoints are there, in order; sound or not.

    >>> saved_rounds(Path("nowhere"))
    ()
    """
    return tuple(sorted({number for number, _ in _found(Path(folder))}))


def load_round(folder: Path, number: int, spec_text: str) -> Loaded:
    """The checkpoint of one round; one that is damaged is an error, and so is one that is not there.

    >>> load_round(Path("nowhere"), 3, "")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: checkpoint = 'nowhere': holds no models of round 3
    """
    for other, path in _found(Path(folder)):
        if other == number:
            try:
                return _load(path, number, spec_text)
            except Damaged as error:
                raise KinfolkError("checkpoint", str(path), f"cannot be used: {error}") from error
    raise KinfolkError("checkpoint", str(folder), f"holds no models of round {number}")


def saved_facts(folder: Path) -> dict[str, Any]:
    """What the newest checkpoint that can be read says besides its tensors; nothing where there is none.

    >>> saved_facts(Path("nowhere"))
    {}
    """
    for _, path in _found(Path(folder)):
        try:
            facts = _read_manifest(path).get("facts")
        except Damaged:
            continue
        if isinstance(facts, dict):
            return facts
    return {}


def saved_bytes(folder: Path) -> int:
    """What all checkpoints together take on the disk.

    >>> saved_bytes(Path("nowhere"))
    0
    """
    found = (file.stat() for _, path in _found(Path(folder)) for file in path.iterdir())
    return sum({(at.st_dev, at.st_ino): at.st_size for at in found}.values())


def _load(path: Path, number: int, spec_text: str) -> Loaded:
    body = _read_manifest(path)
    form = body.get("format")
    if type(form) is int and form > FORMAT:
        remedy = f"is of format {form}, this version reads {' and '.join(map(str, READS))}"
        raise KinfolkError("checkpoint", str(path), f"{remedy}; use kinfolk {body.get('kinfolk')}")
    # Whoever can write the folder can write a checksum that fits: it says nothing of what is inside.
    wrong = [key for key, kind in _SAID.items() if type(body.get(key)) is not kind]
    if wrong or form not in READS:
        raise Damaged(f"manifest.json is none: its {wrong[0] if wrong else 'format'} is amiss")
    if body["round"] != number:
        raise Damaged(f"it holds round {body['round']}")
    _check_spec(path, body["spec"], spec_text)
    tensors = {name: _tensors(path, name, facts) for name, facts in body["files"].items()}
    try:
        whole = joined({name.removesuffix(".safetensors"): message for name, message in tensors.items()})
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:
        raise Damaged("its memories do not fit together") from error
    return Loaded(number, whole, body["facts"], body["kinfolk"])


def _tensors(path: Path, file: str, facts: Any) -> Message:
    """What one file of a checkpoint holds, if it is the file that the manifest means."""
    if not _NAME.fullmatch(file.removesuffix(".safetensors")):
        raise Damaged(f"{file!r} is no name for a file")
    if not isinstance(facts, dict) or facts.keys() != {"bytes", "sha256"}:
        raise Damaged(f"manifest.json does not say what {file} is")
    data = _read(path / file, facts["bytes"])
    if hashlib.sha256(data).hexdigest() != facts["sha256"]:
        raise Damaged(f"the checksum of {file} does not match")
    try:
        return decode(data)[0]
    except KinfolkError as error:
        raise Damaged(f"{file} {error.remedy.partition(';')[0]}") from error


def _read(path: Path, size: int | None = None) -> bytes:
    try:
        found = path.stat().st_size
        if size is not None and found != size:
            raise Damaged(f"{path.name} has {found} bytes, not {size}")
        return path.read_bytes()
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read ({error.strerror or error})") from error


def _read_manifest(path: Path) -> dict[str, Any]:
    """The manifest, if its bytes are exactly those that `_render` would write."""
    data = _read(path / "manifest.json")
    try:
        body: dict[str, Any] = json.loads(data)
        del body["sha256"]
        sound = _render(body) == data
    except (ValueError, TypeError, KeyError, RecursionError):
        sound = False
    if not sound:
        raise Damaged("the checksum of manifest.json does not match")
    return body


def _check_spec(path: Path, there: str, here: str) -> None:
    """Refuse a checkpoint of another experiment, naming what differs."""
    if there == here:
        return
    now = parse(here)
    try:
        before = parse(there)
    except KinfolkError as error:
        raise KinfolkError("checkpoint", str(path), f"this version cannot read its spec ({error})") from error
    wrong = [line for line in differences(before, now) if not _FREE.match(line)]
    if wrong:
        remedy = f"belongs to another experiment ({'; '.join(wrong)}); undo that or choose another folder"
        raise KinfolkError("checkpoint", str(path), remedy)


def _found(folder: Path) -> list[tuple[int, Path]]:
    """(round, folder) of every finished checkpoint, newest first, a replaced one after its successor."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise KinfolkError(
            "checkpoint", str(folder), f"cannot be read ({error.strerror or error})"
        ) from error
    found = [(int(m[1]), m[2] is None, folder / m[0]) for m in map(_FOLDER.fullmatch, names) if m]
    return [(number, path) for number, _, path in sorted(found, reverse=True)]


def _prune(folder: Path, number: int, keep: int, also: Collection[int]) -> None:
    kept: set[int] = set()
    newest = 0
    for other, path in _found(folder):
        if other <= number and other not in kept and (newest < keep or other in also):
            kept.add(other)
            newest += 1
        else:
            shutil.rmtree(path, ignore_errors=True)


def _body(number: int, files: Mapping[str, Any], facts: Mapping[str, Any], spec_text: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "round": number,
        "kinfolk": _version(),
        "spec": spec_text,
        "facts": plain(facts),
        "files": files,
    }


def _version() -> str:
    try:
        return version("kinfolk")
    except PackageNotFoundError:
        return "unknown"


def _render(body: Mapping[str, Any]) -> bytes:
    """The one way to write this manifest, its own checksum included."""
    digest = hashlib.sha256(json.dumps(body, allow_nan=False).encode()).hexdigest()
    return (json.dumps({**body, "sha256": digest}, indent=1) + "\n").encode()


def _write(folder: Path, name: str, message: Message) -> dict[str, Any]:
    """Write one message; what the manifest says about it."""
    return _write_file(folder / f"{name}.safetensors", encode(message))


def _write_file(path: Path, data: bytes) -> dict[str, Any]:
    _write_bytes(path, data)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _write_bytes(path: Path, data: bytes) -> None:
    with open(path, "xb", opener=private_file) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Make the names in a folder last; only POSIX can open a folder for that."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _move_in(temporary: Path, final: Path) -> None:
    """Rename into place. A folder cannot be renamed over a full one, so that one steps aside first."""
    aside = final.with_name(f"{final.name}.old")
    if final.exists():
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(final, aside)
    try:
        os.rename(temporary, final)
    except OSError:
        if aside.exists():
            os.rename(aside, final)
        raise
    _sync(final.parent)


def _sweep(folder: Path) -> None:
    """Remove what a killed save has left behind."""
    for name in os.listdir(folder):
        if _TEMPORARY.fullmatch(name):
            shutil.rmtree(folder / name)
