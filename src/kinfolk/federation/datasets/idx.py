"""MNIST from its idx files, its writers from QMNIST's label files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kinfolk.federation.datasets.files import Archive, corrupt
from kinfolk.federation.datasets.rows import CENTRED, Array, Rows, check_rows, halves, owners

DIGITS = tuple("0123456789")
_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_TRAIN_WRITERS, _TEST_WRITERS = (f"qmnist-{half}-labels-idx2-int" for half in ("train", "test"))


def parse_idx(data: bytes, name: Path | str, kind: int, axes: int) -> Array:
    """The array of an idx file, refused unless the magic number tells `kind` and `axes` and the length fits.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 9]), "mnist/labels", 8, 1)
    array([5, 9], dtype=uint8)
    """
    magic = bytes([0, 0, kind, axes])
    if data[:4] != magic:
        raise corrupt(name, f"magic number {data[:4].hex()} instead of {magic.hex()}")
    start = 4 + 4 * axes
    shape = tuple(np.frombuffer(data[4:start].ljust(4 * axes, b"\0"), ">u4").tolist())
    dtype = np.dtype(_TYPES[kind])
    wanted = start + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if len(data) != wanted:
        raise corrupt(name, f"{len(data)} bytes instead of {wanted}")
    return np.frombuffer(data, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def _half(archive: Archive, word: str) -> tuple[Array, Array]:
    parts = []
    for what, axes in (("images-idx3", 3), ("labels-idx1", 1)):
        name = f"{word}-{what}-ubyte"
        name = archive.need(name, name + ".gz")
        parts.append(parse_idx(archive.read(name), archive.folder / name, 8, axes))
    images, labels = parts
    if len(images) != len(labels):
        wrong = f"{len(labels)} labels for {len(images)} images"
        raise corrupt(archive.folder / f"{word}-labels-idx1-ubyte", wrong, "get both again")
    return images[:, None], labels


def _writers(archive: Archive, name: str, labels: Array) -> Array:
    """QMNIST's columns for the first rows: 1 is the form series, 2 the writer."""
    name = archive.need(name, name + ".gz")
    table = parse_idx(archive.read(name), archive.folder / name, 12, 2)
    rows = table[: len(labels)]
    # QMNIST keeps MNIST's order; a label that differs means the files do not belong together.
    if table.shape[1] < 3 or len(rows) < len(labels) or not np.array_equal(rows[:, 0], labels):
        raise corrupt(archive.folder / name, "its labels are not MNIST's", "get both again")
    return rows


def official_mnist(folder: Path) -> Rows:
    """MNIST from the four idx files, plain or .gz; by writer if QMNIST's two label files lie beside them.

    >>> official_mnist(Path("none"))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.file = 'none/train-images-idx3-ubyte': is missing; fetch it or add it
    """
    with Archive(folder) as archive:
        train, test = _half(archive, "train"), _half(archive, "t10k")
        tables = []
        if archive.find(_TRAIN_WRITERS + "*", _TEST_WRITERS + "*"):
            tables = [_writers(archive, _TRAIN_WRITERS, train[1]), _writers(archive, _TEST_WRITERS, test[1])]
    x, y, mask = halves(train, test)
    if not tables:
        return check_rows(Rows(x, y, 10, CENTRED, mask, class_names=DIGITS))
    table = np.concatenate(tables)
    return _by_writer(x, y, mask, table[:, 2], table[:, 1])


def _by_writer(x: Array, y: Array, test: Array, writer: Array, series: Array) -> Rows:
    client, names = owners(writer, "writer")
    extra = {"writer": writer.astype(np.int64), "hsf": series.astype(np.int64)}
    return check_rows(Rows(x, y, 10, CENTRED, test, client, names, DIGITS, extra))


def compact_mnist(found: Mapping[str, Array]) -> Rows:
    """MNIST with its writers from the compact file; no writer is in both halves."""
    return _by_writer(found["x"], found["y"], found["test"], found["writer"], found["hsf"])
