import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data import store as stores
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.own_data.loaded import LoadedClients, federate
from kinfolk.federation.own_data.report import inspect
from kinfolk.federation.own_data.store import read_manifest, read_store, store_report
from kinfolk.streams import Seed


def rows(n, start=0):
    return np.arange(start, start + 2 * n, dtype=np.float32).reshape(n, 2), np.arange(n) % 3


def made(**options):
    return from_arrays({"zoë": rows(10), "ann": rows(7, 100), "one": rows(1, 200)}, valid=0.25, **options)


FOUND = LoadedClients(
    {"ann": rows(7, 100), "bob": rows(10)},
    class_names=("a", "b", "c"),
    feature_names=("age", "size"),
    kind="csv",
)


def stored(data, folder, **options):
    """A store of loaded rows, or of a federation, whose report then is of no account."""
    federation = federate(data, **options) if isinstance(data, LoadedClients) else data
    return stores.write_store(federation, folder, inspect(FOUND))


def resealed(store, change):
    """Change a manifest and seal it again, as somebody would who means it."""
    path = store / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    manifest.pop("sha256", None)
    path.write_text(json.dumps(manifest | {"sha256": stores._seal(manifest)}))


@pytest.mark.parametrize(
    "federation",
    [
        made(),
        replace(made(), truth=torch.tensor([1, 0, 1])),
        from_arrays([(rows(6)[0], rows(6)[0])]),
        from_arrays([rows(4), rows(3)], test={}),
        federate(
            LoadedClients(
                {"ann": (np.arange(24, dtype=np.uint8).reshape(6, 1, 2, 2), np.arange(6) % 2)}, ("a", "b")
            )
        ),
    ],
    ids=["classes", "groups", "regression", "no test", "bytes"],
)
def test_a_store_gives_back_every_bit(tmp_path, federation):
    back = read_store(stored(federation, tmp_path / "store"), verify=True)
    assert back.fingerprint() == federation.fingerprint()
    assert back.clients == federation.clients
    assert (back.truth is None) == (federation.truth is None)
    assert back.scale == federation.scale


def test_what_was_found_is_split_by_seed_and_client(tmp_path):
    options = {"test_fraction": 0.3, "valid": 0.2, "seed": Seed(4)}
    store = stored(FOUND, tmp_path / "store", **options)
    assert read_store(store).fingerprint() == federate(FOUND, **options).fingerprint()
    manifest = read_manifest(store)
    assert manifest["class_names"] == ["a", "b", "c"]
    assert manifest["feature_names"] == ["age", "size"]
    assert (manifest["clients"], manifest["rows"], manifest["version"]) == (2, 17, 1)
    assert store_report(store) == inspect(FOUND)


def test_checksums_and_sizes_are_those_of_the_files(tmp_path):
    store = stored(FOUND, tmp_path / "store")
    files = read_manifest(store)["files"]
    assert {path.name for path in store.iterdir()} == {*files, "manifest.json"}
    for name, facts in files.items():
        raw = (store / name).read_bytes()
        assert facts["bytes"] == len(raw)
        assert facts["sha256"] == hashlib.sha256(raw).hexdigest()
    x = np.load(store / "x.npy", allow_pickle=False)
    assert x.tolist() == federate(FOUND).x.tolist()


def test_changing_what_was_read_does_not_change_the_file(tmp_path):
    store = stored(FOUND, tmp_path / "store")
    before = (store / "x.npy").read_bytes()
    federation = read_store(store)
    federation.x.mul_(0)  # and torch does not warn of memory that cannot be written
    assert federation.x.abs().sum() == 0
    assert (store / "x.npy").read_bytes() == before
    assert read_store(store, verify=True).x.abs().sum() > 0


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="memory and bytes read are told by /proc")
def test_a_store_of_a_gigabyte_opens_at_once(tmp_path):
    n, shape = 2**18, (1, 32, 32)
    store = tmp_path / "store"
    x = np.zeros((n, 1), dtype=np.float32)
    stored(
        from_arrays({"ann": (x[: n // 2], x[: n // 2, 0] > 1), "bob": (x[n // 2 :], x[n // 2 :, 0] > 1)}),
        store,
    )
    with (store / "x.npy").open("wb") as file:  # 1 GiB with a hole in it, which takes no room on the disk
        head = {"descr": "<f4", "fortran_order": False, "shape": (n, *shape)}
        np.lib.format.write_array_header_1_0(file, head)
        file.truncate(file.tell() + n * 4096)
    size = (store / "x.npy").stat().st_size
    resealed(store, lambda m: m["files"]["x.npy"].update(bytes=size, shape=[n, *shape]))

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def read():
        return int(Path("/proc/self/io").read_text().split()[1])  # bytes that passed through `read`

    before = resident(), read()
    federation = read_store(store)
    assert read() - before[1] < 30 * 2**20
    assert resident() - before[0] < 30 * 2**20
    assert federation.x.shape == (n, *shape)
    assert federation.x.numel() * 4 == 2**30
    assert federation.take(federation.splits["test"].rows(1)[:2])[0].shape == (2, *shape)


def test_every_cut_or_missing_file_is_named(tmp_path):
    store = stored(replace(made(), truth=torch.tensor([1, 0, 1])), tmp_path / "store")
    for path in sorted(store.iterdir()):
        raw = path.read_bytes()
        for size in (len(raw) - 1, len(raw) + 1):
            path.write_bytes((raw + b" ")[:size])
            told = rf"has {size} bytes, not {len(raw)}: cut short or altered; write the store again"
            if path.name == "manifest.json":  # whose size nobody vouches for
                told = "cannot be read" if size < len(raw) else None
            if told:
                with pytest.raises(KinfolkError, match=rf"{path.name}': {told}"):
                    read_store(store)
        path.unlink()
        with pytest.raises(KinfolkError, match=r"is missing|is no store: it has no manifest.json"):
            read_store(store)
        path.write_bytes(raw)
    read_store(store, verify=True)


def test_every_altered_file_is_named_when_asked_to_verify(tmp_path):
    store = stored(FOUND, tmp_path / "store")
    for path in sorted(store.iterdir()):
        raw = path.read_bytes()
        path.write_bytes(raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:])
        with pytest.raises(KinfolkError, match=rf"{path.name}': .*(altered|cannot be read)"):
            read_store(store, verify=True)
        path.write_bytes(raw)
    read_store(store, verify=True)


def test_an_altered_label_or_manifest_is_not_sound(tmp_path):
    store = stored(FOUND, tmp_path / "store")
    path = store / "manifest.json"
    good = path.read_text()
    path.write_text(good.replace('"classes": 3', '"classes": 2'))
    with pytest.raises(KinfolkError, match=r"manifest\.json': was altered"):
        read_store(store)
    resealed(store, lambda m: m.update(classes=2))
    with pytest.raises(KinfolkError, match=r"data\.\w+\.y = 2: labels run from 0 to 1"):
        read_store(store, verify=True)
    for change, message in (
        (lambda m: m.update(version=3), r"is of version 3, this one reads 2"),
        (lambda m: m.update(format="zip"), r"is not the manifest of a store"),
        (lambda m: m["files"].pop("y.npy"), r"is not the manifest of a store"),
        (lambda m: m["files"].update({"../x.npy": {"bytes": 0}}), r"is not the manifest of a store"),
        (lambda m: m.pop("files"), r"is not the manifest of a store"),
        (lambda m: m["files"]["y.npy"].update(shape=[16]), r"y\.npy': holds <i8 \[17\]"),
        (lambda m: m["files"]["x.npy"].update(dtype="<f8"), r"x\.npy': holds <f4 \[17, 2\]"),
    ):
        path.write_text(good)
        resealed(store, change)
        with pytest.raises(KinfolkError, match=message):
            read_store(store)
    for text in ("", "[]", "{", '{"format": "kinfolk store"}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(KinfolkError, match=r"manifest\.json': (is |cannot )"):
            read_store(store)


def put(store, name, raw):
    (store / name).write_bytes(raw)
    resealed(store, lambda m: m["files"][name].update(bytes=len(raw)))


def test_foreign_files_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "SMALL", 0)  # as a file that is too large to be hashed each time
    store = stored(FOUND, tmp_path / "store")
    (store / ".DS_Store").write_bytes(b"")  # hidden ones do no harm
    read_store(store)
    (store / "notes.txt").write_text("mine")
    with pytest.raises(KinfolkError, match=r"notes\.txt': does not belong to this store; move it away"):
        read_store(store)
    (store / "notes.txt").unlink()
    pickled = tmp_path / "pickled.npy"
    np.save(pickled, np.array([{}], dtype=object), allow_pickle=True)
    for raw in (pickled.read_bytes(), b"PK\x03\x04" + bytes(200), b"\x93NUMPY\x01\x00\xff\xff"):
        put(store, "x.npy", raw)
        with pytest.raises(KinfolkError, match=r"x\.npy': is not a plain \.npy file"):
            read_store(store)


def test_offsets_that_do_not_fit_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "SMALL", 0)
    store = stored(FOUND, tmp_path / "store")
    path = store / "train-start.npy"
    good = path.read_bytes()
    for values in ([0, 99, 14], [0, 6, 13], [1, 6, 14], [0, -2, 14]):
        path.write_bytes(good[:-24] + np.array(values, dtype="<i8").tobytes())
        with pytest.raises(KinfolkError, match=r"train-start\.npy': does not fit the rows and clients"):
            read_store(store)
    path.write_bytes(good)
    (store / "train-of.npy").write_bytes((store / "train-of.npy").read_bytes()[:-8] + np.array([2]).tobytes())
    with pytest.raises(KinfolkError, match=r"does not fit the rows and clients"):
        read_store(store)


def test_a_report_that_is_none_is_named(tmp_path):
    store = stored(FOUND, tmp_path / "store")
    for raw in (b"[]", b"{}", b'{"kind": 1, "shape": 3}'):
        put(store, "report.json", raw)
        with pytest.raises(KinfolkError, match=r"report\.json': is not the report of a store"):
            store_report(store)


def test_nothing_is_overwritten_and_nothing_half_written_stays(tmp_path, monkeypatch):
    store = stored(FOUND, tmp_path / "store")
    with pytest.raises(KinfolkError, match=r"store': is there already; choose another name"):
        stored(FOUND, store)
    (tmp_path / "file").write_text("")
    with pytest.raises(KinfolkError, match="is there already"):
        stored(FOUND, tmp_path / "file")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stores, "_written", full)
    with pytest.raises(
        KinfolkError, match=r"new': cannot be written \(No space left on device\); free space"
    ):
        stored(FOUND, tmp_path / "new")
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "store"]
    (tmp_path / "new").mkdir()  # an empty folder is as good as none
    read_store(stored(FOUND, tmp_path / "new"), verify=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "new", "store"]


def test_a_kill_in_the_middle_leaves_no_store(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        stored(FOUND, tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_rows_that_are_yet_to_be_made_are_not_stored(tmp_path):
    with pytest.raises(KinfolkError, match="made when a client is asked; nothing to store"):
        stored(replace(made(), maker=lambda i: {}), tmp_path / "store")


SEALED = {
    "no classes": lambda body: body.pop("classes"),
    "classes in words": lambda body: body.update(classes="3"),
    "names that are none": lambda body: body.update(class_names=7),
    "no scale": lambda body: body.pop("scale"),
    "a scale of one": lambda body: body.update(scale=5),
    "a recipe that is none": lambda body: body.update(recipe={"sources": 3}),
    "files that are none": lambda body: body.update(files=[]),
    "a file without a checksum": lambda body: body["files"]["x.npy"].pop("sha256"),
    "a file without a type": lambda body: body["files"]["x.npy"].pop("dtype"),
    "a file in words": lambda body: body["files"].update({"x.npy": "whole"}),
    "rows without a shape": lambda body: body["files"]["x.npy"].pop("shape"),
    "a split without its shape": lambda body: body["files"]["test-row.npy"].pop("shape"),
}


@pytest.mark.parametrize("what", SEALED)
def test_a_manifest_that_was_sealed_again_and_says_nonsense_is_one_line(tmp_path, what):
    folder = stored(FOUND, tmp_path / "s")
    body = json.loads((folder / "manifest.json").read_text())
    SEALED[what](body)
    (folder / "manifest.json").write_text(json.dumps(body | {"sha256": stores._seal(body)}))
    with pytest.raises(KinfolkError, match=r"^store = '.*(manifest\.json|x\.npy|test-row\.npy)'"):
        read_store(folder, verify=True)


@pytest.mark.parametrize("version", [3, 99, "2", None])
def test_a_store_of_a_newer_version_is_refused(tmp_path, version):
    folder = stored(FOUND, tmp_path / "s")
    body = json.loads((folder / "manifest.json").read_text()) | {"version": version}
    (folder / "manifest.json").write_text(json.dumps(body | {"sha256": stores._seal(body)}))
    with pytest.raises(
        KinfolkError, match=f"is of version {version!r}, this one reads 2; use a newer kinfolk"
    ):
        read_store(folder)
