"""Where bytes come in from elsewhere: for each place some that are sound, and what reads them.

What reads gives back a value or refuses with the one error that is meant for people; `tried` sees to it. The
same targets are fuzzed by the tests (Hypothesis) and for as long as one likes by `make fuzz` (Atheris).
"""

from __future__ import annotations

import hashlib
import io
import json
import resource
import shutil
import struct
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from kinfolk.codec import decode, encode, head
from kinfolk.engines import rpc
from kinfolk.engines.wire import ROOM, checked, rows_of
from kinfolk.errors import KinfolkError, visible
from kinfolk.experiment import checkpoint
from kinfolk.experiment.outline import read_outline
from kinfolk.experiment.record import (
    CLIENT_FACTS,
    SCHEMA,
    Records,
    read_audit,
    read_client_facts,
    read_rounds,
    read_scores,
)
from kinfolk.experiment.spec import Experiment, dump, load, parse
from kinfolk.federation.datasets.files import Archive
from kinfolk.federation.datasets.leaf import official_femnist
from kinfolk.federation.own_data.folder import read_folder
from kinfolk.federation.own_data.load import load_own
from kinfolk.federation.own_data.loaded import federate
from kinfolk.federation.own_data.report import inspect
from kinfolk.federation.own_data.store import _seal, read_store, store_report, write_store
from kinfolk.report.read import load_run
from kinfolk.report.tables import comparison_table
from kinfolk.types import Client, Stack

# More than this at once, for a few kilobytes, is a bomb that went off. What is unpacked may be 256 MiB,
# and is held twice while it is put together.
MOST = 768 << 20


class Finding(Exception):
    """Bytes that set off what no bytes may set off."""


@dataclass(frozen=True)
class Target:
    """One place: sound bytes to begin with, and what reads them, in an empty folder of its own."""

    sound: tuple[bytes, ...]
    take: Callable[[bytes, Path], object]
    lies: tuple[bytes, ...] = ()  # which are refused

    @property
    def seeds(self) -> tuple[bytes, ...]:
        """What is changed to make others."""
        return self.sound + self.lies


def tried(target: Target, data: bytes, folder: Path) -> bool:
    """Whether the bytes are taken; anything but a value or one line for people is a finding."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    before = peak()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.take(data, folder)
        taken = True
    except KinfolkError as error:
        text = str(error)
        if text.splitlines() != [text] or visible(text) != text:
            raise Finding(f"the error is not one line that a terminal can show: {text!r}") from error
        taken = False
    except Exception as error:
        raise Finding(f"{type(error).__name__}: {error}") from error
    if peak() - before > MOST:
        raise Finding(f"took {(peak() - before) >> 20} MiB")
    return taken


def peak() -> int:
    """The most memory that this process has held so far, in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


def written(folder: Path, name: str, data: bytes) -> Path:
    """A file in a folder that may not be there yet."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def resealed(data: bytes, seal: Callable[[dict[str, Any]], bytes]) -> bytes:
    """A manifest with a checksum that fits what it says; bytes that are no JSON object stay as they are."""
    try:
        body = json.loads(data)
        del body["sha256"]
        return seal(body)
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError):
        return data


# Messages.

MESSAGE = {
    "a": torch.arange(4),
    "b": torch.tensor([True, False]),
    "m": {"w": torch.ones(2, 2), "h": torch.ones(3, dtype=torch.bfloat16)},
    "e": {},
}
STAND = {"run": "1", "round": "2", "request": "3"}
LIST = json.dumps(["ann", "bob"])


def message(data: bytes, folder: Path) -> None:
    """A message, and what is sound comes back as it was."""
    told = decode(data, limit=1 << 20)
    assert head(data) == told[1]
    again = encode(*told)
    assert encode(*decode(again)) == again


def reply(data: bytes, folder: Path) -> None:
    """A site's reply, as the coordinator of `wire` takes it."""
    back = checked(data, {"from": "ann", **STAND}, ROOM)
    if "declined" not in back:
        assert rows_of(back) >= 0
        decode(data)


def between(data: bytes, folder: Path) -> None:
    """What processes of one run say to one another."""
    told = rpc.opened(data, "worker 1")
    for key, unpack in (
        ("clients", rpc.unpack_stack),
        ("part", rpc.unpack_part),
        ("labels", rpc.unpack_several),
    ):
        if key in told[1]:
            unpack(*told)
    rpc.unpack_warnings(told[1])
    rpc.unpack_context(told[1], (Client("ann"),))


def _between() -> tuple[bytes, ...]:
    stack = Stack.of({Client("ann"): (3, {"v": torch.ones(2)}), Client("bob"): (2, {"v": torch.zeros(2)})})
    context = {"run": "1", "round": "2", "share": "1.0", "warnings": '["slow"]'}
    several = rpc.pack_several([("ann", {"v": torch.ones(1)}), (["a", "b"], {})])
    return tuple(encode(body, header | context) for body, header in (rpc.pack_stack(stack), several))


# Experiments.


def spec(data: bytes, folder: Path) -> None:
    """A TOML file; what is sound comes back as it was written."""
    found = load(written(folder, "a.toml", data))
    assert dump(parse(dump(found))) == dump(found)


_SPECS = (
    b'[data]\nname = "digits"\nclients = 4\n[model]\nname = "mlp"\nhidden = [8]\n[run]\nrounds = 3\n',
    b'[algorithm]\nname = "fesem"\nk = 2\n[algorithm.start]\nname = "warm_kmeans"\n[model.lora]\nrank = 2\n',
    dump(Experiment()).encode(),
)


# Checkpoints.

SPEC = dump(Experiment())


def _saved(folder: Path) -> Path:
    for number in (1, 2):
        tensors = {"state": {"w": torch.full((2,), float(number))}, "memory": {"0.n": torch.arange(3)}}
        checkpoint.save(folder, number, tensors, {"voids": 0, "best": [0.5, None], "state": {"k": 2}}, SPEC)
    return folder / "round-000002"


def _falls_back(folder: Path) -> None:
    found, complaints = checkpoint.load_latest(folder, SPEC)
    assert found is not None
    assert found.number == (1 if complaints else 2)
    if complaints:
        assert found.tensors["state"]["w"].tolist() == [1.0, 1.0]  # type: ignore[index,union-attr]
        assert all(visible(line) == line for line in complaints)
    checkpoint.saved_facts(folder)


def manifest(data: bytes, folder: Path, scratch: Path) -> None:
    """The newest checkpoint's manifest, with a checksum that fits."""
    shutil.copytree(scratch / "checkpoints", folder, dirs_exist_ok=True)
    written(folder, "round-000002/manifest.json", resealed(data, checkpoint._render))
    _falls_back(folder)


def tensors(data: bytes, folder: Path, scratch: Path) -> None:
    """The newest checkpoint's tensors, with a manifest whose checksums fit."""
    shutil.copytree(scratch / "checkpoints", folder, dirs_exist_ok=True)
    place = folder / "round-000002"
    body = json.loads((place / "manifest.json").read_bytes())
    del body["sha256"]
    (place / "state.safetensors").write_bytes(data)
    body["files"]["state.safetensors"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (place / "manifest.json").write_bytes(checkpoint._render(body))
    _falls_back(folder)


def _checkpoints(scratch: Path) -> tuple[bytes, bytes]:
    place = _saved(scratch / "checkpoints")
    return (place / "manifest.json").read_bytes(), (place / "state.safetensors").read_bytes()


# Own data.

X, Y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array([0, 1, 0, 1, 1, 0])


def _own(folder: Path) -> None:
    """All that is done with a folder of clients before a run begins."""
    found = read_folder(folder)
    federate(found)
    inspect(found)


def npz(data: bytes, folder: Path) -> None:
    """A client's .npz."""
    written(folder, "ann.npz", data)
    np.savez(folder / "bob.npz", x=X, y=Y)
    _own(folder)


def npy(data: bytes, folder: Path) -> None:
    """A client's inputs as .npy, which are mapped from the disk."""
    written(folder, "ann/x.npy", data)
    np.save(folder / "ann/y.npy", Y)
    _own(folder)


def table(suffix: str) -> Callable[[bytes, Path], None]:
    """A client's table."""

    def take(data: bytes, folder: Path) -> None:
        written(folder, f"ann.{suffix}", data)
        _own(folder)

    return take


def one_table(data: bytes, folder: Path) -> None:
    """A table of all clients."""
    load_own(written(folder, "all.csv", data), client="who")


def leaf(data: bytes, folder: Path) -> None:
    """LEAF's JSON."""
    written(folder, "all_data_0.json", data)
    with Archive(folder) as archive:
        official_femnist(archive)


def packed(suffix: str) -> Callable[[bytes, Path], None]:
    """A file of an archive, or one that is packed by itself."""

    def take(data: bytes, folder: Path) -> None:
        written(folder, f"a.{suffix}", data)
        with Archive(folder) as archive:
            for name in archive.names:
                archive.read(name)

    return take


def _bytes_of(write: Callable[[io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def _npz() -> tuple[bytes, ...]:
    structured = {"x": X, "tokens": np.arange(6), "y": Y}
    made = (lambda f: np.savez(f, x=X, y=Y), lambda f: np.savez_compressed(f, x=np.zeros((6, 2)), y=Y))
    return tuple(map(_bytes_of, (*made, lambda f: np.savez(f, **structured))))


def _npy() -> tuple[bytes, ...]:
    arrays = (X, X.astype(np.int64), X > 3, np.asfortranarray(X), X.astype(">f8"))
    return tuple(_bytes_of(lambda f, a=a: np.save(f, a)) for a in arrays)  # type: ignore[misc]


def header(shape: str, descr: str = "'<f4'", body: bytes = X.tobytes()) -> bytes:
    """An .npy file whose header says what it is told to."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"
    raw = text.encode() + b" " * 64 + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(raw)) + raw + body


HEADERS = (
    *(
        header(s)
        for s in (
            "(6, 1099511627776)",
            "(6, -2)",
            "(True, 2)",
            "(6, 2**70)",
            "(6, 2",
            "6",
            "()",
            "(10**9, 0)",
        )
    ),
    *(
        header("(6, 2)", descr)
        for descr in ("'|O'", "[('a', '|O')]", "'<U0'", "'<f99'", "'V2147483647'", "'<c8'")
    ),
    *(
        header(shape)
        for shape in ("(" * 3000, "-" * 4000 + "1", "'a' * 10**10", "9" * 4000, "[" * 150 + "]" * 150)
    ),
    *(header("(3, 2)", "'|O'", b"cposix\nsystem\n(S'true'\ntR."), b"\x93NUMPY\x03\x00\xff\xff\xff\xff{}"),
)


_FRAME = pd.DataFrame(
    {"who": ["a", "b", "a", "b"] * 3, "age": range(12), "kind": [0.5, 1.5] * 6, "y": [0, 1] * 6}
)


def _leaf() -> tuple[bytes, ...]:
    user = {"x": [[0.5] * 784] * 2, "y": [3, 61]}
    both = {"users": ["ann", "bob"], "num_samples": [2, 2], "user_data": {"ann": user, "bob": user}}
    return (json.dumps(both).encode(),)


# Stores and run folders.


def store(data: bytes, folder: Path, scratch: Path) -> None:
    """The manifest of a store, with a checksum that fits."""
    shutil.copytree(scratch / "store", folder, dirs_exist_ok=True)
    seal = lambda body: json.dumps(body | {"sha256": _seal(body)}).encode()  # noqa: E731
    written(folder, "manifest.json", resealed(data, seal))
    read_store(folder, verify=True)
    store_report(folder)


def run_file(name: str, scratch: Path) -> Callable[[bytes, Path], None]:
    """A file of a run folder, as those who look at a run read it."""

    def take(data: bytes, folder: Path) -> None:
        shutil.copytree(scratch / "run", folder, dirs_exist_ok=True)
        written(folder, name, data)
        run = load_run(folder)
        assert isinstance((run.title, run.seed), tuple)
        read_rounds(folder), read_audit(folder), read_client_facts(folder)
        assert read_scores(folder).columns.tolist() == SCHEMA.names
        comparison_table([run]), run.spec
        if (folder / "federation.json").exists():
            read_outline(folder)

    return take


def _run(folder: Path) -> None:
    row = {
        "client": ["ann", "bob"],
        "model": ["centre"] * 2,
        "split": ["test"] * 2,
        "score": ["accuracy"] * 2,
    }
    records = Records(folder)
    records.write_scores(1, {**row, "value": [0.5, 0.75], "rows": [10, 4]})
    facts = {
        "seconds": {"server": 0.5},
        "bytes": {"update": {"down": 10, "up": 20}},
        "trained": {"update": 24},
        "extra": 0.5,
    }
    facts |= {"cohort": 2, "answered": 2, "void": False, "unheard": 0, "groups": {"ari": 0.5, "switched": 0}}
    over = {"accuracy": {"macro": 0.6, "worst": 0.5, "clients": 2}}
    records.append_round(0, {**facts, "summary": {"centre": over}, "lost": {"centre": ["ann"]}})
    records.append_round(1, {**facts, "summary": {"centre": over}, "info": {"loss": 1.0}})
    records.audit("rejected", client="ann", reason="nan")
    facts = {
        "algorithm": "fedavg",
        "seed": 0,
        "status": "finished",
        "rounds": 1,
        "format": 1,
        "title": "fedavg",
    }
    facts |= {"federation": {"clients": 2, "rows": 14, "classes": 2}, "versions": {"kinfolk": "0.1.0"}}
    written(folder, "run.json", json.dumps(facts).encode())
    written(folder, "spec.toml", SPEC.encode())


_OUTLINE = {"clients": ["ann"], "shape": [2], "classes": 2, "outputs": 2, "class_names": ["no", "yes"]}
_OUTLINE |= {"feature_names": [], "scale": None, "name": "own", "inputs": {}, "targets": {"": [[3], "int64"]}}
_OUTLINE |= {
    "scaling": {"by": "all", "rows": {"": {"mean": [0.0], "std": [1.0]}}, "target": None, "pixels": None}
}


def targets(scratch: Path) -> dict[str, Target]:
    """All places by name; `scratch` is a folder for sound files that others are made of."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    own = scratch / "own"
    written(own, "all.csv", _FRAME.to_csv(index=False).encode())
    write_store(*_reported(own / "all.csv", scratch / "store"))
    body, state = _checkpoints(scratch)
    _run(scratch / "run")
    whole = {
        name: (scratch / "run" / name).read_bytes() for name in ("run.json", "rounds.jsonl", "audit.jsonl")
    }
    scores = (scratch / "run/records/round-000001.parquet").read_bytes()
    facts = pd.DataFrame({"client": ["ann", "bob"], "fact": ["rows"] * 2, "value": [10.0, 4.0]})
    plain, tidy = _FRAME.drop(columns="who"), _bytes_of(lambda f: facts.to_parquet(f))
    declined = encode({}, {"from": "ann", "declined": "yes", **STAND})
    answer = encode({"model": {"w": torch.ones(2)}}, {"from": "ann", "rows": "3", **STAND})
    csv = plain.to_csv(index=False).encode()
    found = {
        "message": Target((encode(MESSAGE, {"from": "ann"}), encode({}, {})), message),
        "wire reply": Target((answer, declined), reply),
        "between processes": Target(_between(), between),
        "spec": Target(_SPECS, spec, (b'extends = "a.toml"\n[local]\nlr = 0.05\n',)),
        "checkpoint manifest": Target((body,), partial(manifest, scratch=scratch)),
        "checkpoint tensors": Target((state,), partial(tensors, scratch=scratch)),
        "npz": Target(_npz(), npz),
        "npy": Target(_npy(), npy, HEADERS),
        "csv": Target((csv, b"a,y\n1,no\n2,yes\n3,no\n4,yes\n"), table("csv"), (b"a,y\n1,no\n,yes\n",)),
        "one csv": Target((_FRAME.to_csv(index=False).encode(),), one_table),
        "parquet": Target((_bytes_of(lambda f: plain.to_parquet(f)),), table("parquet")),
        "leaf": Target(_leaf(), leaf),
        **{name: Target((data,), packed(name)) for name, data in _packed().items()},
        "store": Target(((scratch / "store/manifest.json").read_bytes(),), partial(store, scratch=scratch)),
        **{name: Target((data,), run_file(name, scratch)) for name, data in whole.items()},
        "scores": Target((scores,), run_file("records/round-000001.parquet", scratch)),
        "client facts": Target((tidy,), run_file(CLIENT_FACTS, scratch)),
        "federation.json": Target((json.dumps(_OUTLINE).encode(),), run_file("federation.json", scratch)),
    }
    return {name.replace(" ", "-"): target for name, target in found.items()}


def _reported(path: Path, place: Path) -> tuple[Any, Path, Any]:
    federation, report = load_own(path, client="who")
    return federation, place, report


def _packed() -> dict[str, bytes]:
    import gzip
    import tarfile
    import zipfile

    def zipped(file: io.BytesIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("inside.txt", b"text " * 99)

    def tarred(file: io.BytesIO) -> None:
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            member = tarfile.TarInfo("inside.txt")
            member.size = 495
            archive.addfile(member, io.BytesIO(b"text " * 99))

    gz = gzip.compress(b"text " * 99, mtime=0)
    return {"gz": gz, "zip": _bytes_of(zipped), "tar.gz": _bytes_of(tarred)}
