"""A few bytes may not fill the memory: archives, arrays, tables and pictures that unpack to gigabytes."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from kinfolk import unpack
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import read_scores
from kinfolk.federation.datasets.files import Archive
from kinfolk.federation.datasets.formats import read_npz
from kinfolk.federation.own_data.folder import read_folder
from kinfolk.federation.own_data.tables import read_table_file
from kinfolk.unpack import FREE, RATIO, check_unpacked, read_parquet

MIB = 1 << 20
WORDS = "unpack to .* or more; if they are sound, store them unpacked"


def took(call: Callable[[], object]) -> int:
    """The most bytes that Python held during a call that is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(KinfolkError):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So little that a bomb is made in no time."""
    monkeypatch.setattr(unpack, "FREE", MIB)


def test_a_file_may_unpack_to_so_much_and_no_more() -> None:
    check_unpacked(FREE, 1)
    check_unpacked(RATIO * FREE, FREE)
    for size, packed in ((FREE + 1, 1), (RATIO * FREE + 1, FREE)):
        with pytest.raises(ValueError, match=WORDS):
            check_unpacked(size, packed)
    assert FREE < 2 << 30, "what 0.2 MB may not take"
    assert RATIO * 200_000 < 2 << 30


def test_an_npz_of_a_fifth_of_a_megabyte_does_not_take_two_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "ann.npz"
    noise = np.random.default_rng(0).random(25_000)
    np.savez_compressed(path, x=np.zeros(1000), y=np.zeros(3), z=noise)
    assert path.stat().st_size > 180_000
    data = path.read_bytes()
    whole = struct.pack("<I", 1000 * 8 + 128)
    assert data.count(whole) == 2, "of the array, beside its bytes and in the list at the end"
    path.write_bytes(data.replace(whole, struct.pack("<I", (2 << 30) - 1)))
    assert took(lambda: read_npz(path, path, "x")) < 32 * MIB
    with pytest.raises(KinfolkError, match=WORDS):
        read_npz(path, path)
    assert read_npz(path, path, "y")["y"].tolist() == [0, 0, 0], "what is not asked for is not unpacked"


def test_a_member_that_holds_more_than_it_says_stops_there(tmp_path: Path) -> None:
    path = tmp_path / "ann.npz"
    np.savez_compressed(path, x=np.zeros(64 * MIB // 8))
    said = struct.pack("<I", 64 * MIB + 128)
    data = path.read_bytes()
    assert data.count(said) == 2
    path.write_bytes(data.replace(said, struct.pack("<I", 1000)))
    assert took(lambda: read_npz(path, path)) < 16 * MIB


def test_members_count_together(small: None, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "one.npz", x=np.zeros(MIB * 3 // 4, np.uint8))
    assert read_npz(tmp_path / "one.npz", "one")["x"].size == MIB * 3 // 4
    np.savez_compressed(tmp_path / "two.npz", **{name: np.zeros(MIB * 3 // 4, np.uint8) for name in "xy"})
    with pytest.raises(KinfolkError, match=WORDS):
        read_npz(tmp_path / "two.npz", "two")


def tarred(data: bytes, mode: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        entry = tarfile.TarInfo("inside.txt")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return file.getvalue()


def zipped(data: bytes, how: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as archive:
        archive.writestr("inside.txt", data)
    return file.getvalue()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "a.gz": lambda data: gzip.compress(data, mtime=0),
    "a.bz2": bz2.compress,
    "a.tar.gz": lambda data: tarred(data, "w:gz"),
    "a.tgz": lambda data: tarred(data, "w:gz"),
    "a.zip": lambda data: zipped(data, zipfile.ZIP_DEFLATED),
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_files_of_data_sets(small: None, tmp_path: Path, name: str) -> None:
    inside = "inside.txt" if name.endswith(("tar.gz", "tgz", "zip")) else name

    def read(data: bytes) -> bytes:
        (tmp_path / name).write_bytes(PACKED[name](data))
        with Archive(tmp_path) as archive:
            return archive.read(inside)

    assert read(b"sound " * 99) == b"sound " * 99
    noise = os.urandom(MIB + 1)  # what packs badly may be as large as it likes
    assert read(noise) == noise
    with pytest.raises(KinfolkError, match=WORDS):
        read(bytes(2 * MIB))


def test_a_tar_whose_heading_is_a_bomb(small: None, tmp_path: Path) -> None:
    """A heading of any length is read at once before the file that it is about."""
    long = tarfile.TarInfo("././@LongLink")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 64 * MIB
    with gzip.open(tmp_path / "a.tar.gz", "wb", compresslevel=9) as file:
        file.write(long.tobuf() + bytes(64 * MIB))
    assert RATIO * (tmp_path / "a.tar.gz").stat().st_size < 64 * MIB

    def read() -> None:
        with Archive(tmp_path) as archive:
            assert archive.names

    assert took(read) < 40 * MIB


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_ways_of_packing_that_unpack_all_at_once_are_not_read(tmp_path: Path, how: int) -> None:
    (tmp_path / "a.zip").write_bytes(zipped(bytes(99), how))
    with Archive(tmp_path) as archive, pytest.raises(KinfolkError, match="pack it by deflate"):
        archive.read("inside.txt")


def test_a_table_of_one_value_that_repeats(small: None, tmp_path: Path) -> None:
    path = tmp_path / "ann.parquet"
    pq.write_table(pa.table({"a": np.zeros(MIB), "y": np.zeros(MIB)}), path)
    assert path.stat().st_size * RATIO < 16 * MIB
    for read in (read_parquet, read_table_file):
        with pytest.raises((KinfolkError, ValueError), match=WORDS):
            read(path)
    long = pa.array(["x" * 20_000] * 1000)  # 20 MB, of which one piece is stored
    pq.write_table(pa.table({"a": long, "y": np.zeros(1000)}), path)
    with pytest.raises(KinfolkError, match=WORDS):
        read_table_file(path)


def test_what_is_read_is_what_pyarrow_reads(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"a": range(200_000), "b": ["u", None] * 100_000, "c": np.random.default_rng(0).random(200_000)}
    )
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=70_000)
    assert read_parquet(tmp_path / "a.parquet").equals(pq.read_table(tmp_path / "a.parquet"))
    some = read_parquet(tmp_path / "a.parquet", ["b", "a"], coded=["b"])
    assert some.column_names == ["a", "b"]
    assert pa.types.is_dictionary(some.schema.field("b").type)
    assert some["b"].to_pylist() == ["u", None] * 100_000
    pq.write_table(pa.table({"a": [1], "a.b": [2]}), tmp_path / "dots.parquet")
    assert read_parquet(tmp_path / "dots.parquet").to_pydict() == {"a": [1], "a.b": [2]}
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "none.parquet")
    assert read_parquet(tmp_path / "none.parquet").num_rows == 0


def test_long_texts_are_read_in_small_pieces_unless_each_is_held_once(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sizes = tmp_path / "a.parquet", []
    pq.write_table(pa.table({"a": ["x" * 20_000] * 1000, "y": np.zeros(1000)}), path)

    def checked(size: int, packed: int) -> None:
        sizes.append(size)
        check_unpacked(size, packed)

    monkeypatch.setattr("kinfolk.unpack.check_unpacked", checked)
    with pytest.raises(ValueError, match=WORDS):
        read_parquet(path, ["a"])
    assert max(sizes) < 3 * MIB  # of the 20 that it would be
    assert read_parquet(path, ["y"]).nbytes < 10_000
    assert read_parquet(path, ["a"], coded=["a"]).nbytes < 100_000


def test_records_of_a_stranger(small: None, tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    many = {name: ["x"] * MIB for name in ("client", "model", "split", "score")}
    pq.write_table(pa.table(many), tmp_path / "records/round-000001.parquet")
    with pytest.raises(KinfolkError, match=WORDS):
        read_scores(tmp_path)


def test_pictures_of_one_colour(small: None, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "ann" / name).mkdir(parents=True)
        Image.new("L", (64, 64)).save(tmp_path / "ann" / name / "1.png")
    assert read_folder(tmp_path).shape == (1, 64, 64)
    for name in ("cat", "dog"):
        Image.new("L", (2000, 2000)).save(tmp_path / "ann" / name / "1.png")
    with pytest.raises(KinfolkError, match=WORDS):
        read_folder(tmp_path)
