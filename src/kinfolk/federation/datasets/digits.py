"""Digits: MNIST (its writers from QMNIST), USPS, SVHN, sign language, and those of scikit-learn."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kinfolk.federation.datasets.files import Archive, bad_file, corrupt, missing_file
from kinfolk.federation.datasets.formats import compact_rows, picture, planes, read_mat
from kinfolk.federation.datasets.rows import CENTRED, PLAIN, Array, Rows, halves, owners
from kinfolk.federation.datasets.tables import Doubles, labels

DIGITS = tuple("0123456789")
_TYPES = {8: ">u1", 12: ">i4"}
_WRITERS = tuple(f"qmnist-{half}-labels-idx2-int" for half in ("train", "test"))
_PIXELS = 256  # of USPS
_SIDE = 64  # of a sign
_PHOTO = re.compile(r"(?:(?P<base>.*)/)?(?P<digit>[0-9])/[^/]*\.jpe?g", re.IGNORECASE)


def scikit_digits() -> Rows:
    """The digits that come with scikit-learn: 1797 grey images of 8 by 8, pixels from -1 to 1, no download.

    >>> rows = scikit_digits()
    >>> rows.x.shape, rows.x.min().item(), rows.x.max().item(), rows.classes
    ((1797, 1, 8, 8), -1.0, 1.0, 10)
    """
    # Imported when asked for: other sources should not wait for scikit-learn.
    from sklearn.datasets import load_digits

    found = load_digits()
    x = (found.images[:, None].astype(np.float32) / 16 - 0.5) / 0.5
    return Rows(x, found.target.astype(np.int64), 10, PLAIN, class_names=DIGITS)


def _idx(archive: Archive, name: str, kind: int, axes: int) -> Array:
    """The array of an idx file; the magic number must tell `kind` and `axes`, and the length must fit."""
    name = archive.need(name, name + ".gz")
    data, path = archive.read(name), archive.folder / name
    magic = bytes([0, 0, kind, axes])
    if data[:4] != magic:
        raise corrupt(path, f"magic number {data[:4].hex()} instead of {magic.hex()}")
    start = 4 + 4 * axes
    shape = tuple(np.frombuffer(data[4:start].ljust(4 * axes, b"\0"), ">u4").tolist())
    dtype = np.dtype(_TYPES[kind])
    wanted = start + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if len(data) != wanted:
        raise corrupt(path, f"{len(data)} bytes instead of {wanted}")
    return np.frombuffer(data, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def _mnist_half(archive: Archive, word: str) -> tuple[Array, Array]:
    images = _idx(archive, f"{word}-images-idx3-ubyte", 8, 3)
    digits = _idx(archive, f"{word}-labels-idx1-ubyte", 8, 1)
    if len(images) != len(digits):
        wrong = f"{len(digits)} labels for {len(images)} images"
        raise corrupt(archive.folder / f"{word}-labels-idx1-ubyte", wrong, "get both again")
    return images[:, None], digits


def _writers(archive: Archive, name: str, digits: Array) -> Array:
    """Who wrote each row: column 2 of QMNIST's first rows."""
    table = _idx(archive, name, 12, 2)
    rows = table[: len(digits)]
    # QMNIST keeps MNIST's order; a label that differs means the files do not belong together.
    if table.shape[1] < 3 or len(rows) < len(digits) or not np.array_equal(rows[:, 0], digits):
        raise corrupt(archive.folder / name, "its labels are not MNIST's", "get both again")
    return rows[:, 2].astype(np.int64)


def official_mnist(archive: Archive) -> Rows:
    """MNIST from the four idx files, plain or .gz; by writer if QMNIST's two label files lie beside them."""
    parts = _mnist_half(archive, "train"), _mnist_half(archive, "t10k")
    found = halves(*parts)
    if not archive.find(*(name + "*" for name in _WRITERS)):
        return compact_rows(found, DIGITS, CENTRED)
    pairs = zip(_WRITERS, parts, strict=True)
    writers = [_writers(archive, name, digits) for name, (_, digits) in pairs]
    return compact_mnist({**found, "writer": np.concatenate(writers)})


def compact_mnist(found: Mapping[str, Array]) -> Rows:
    """MNIST by writer; none is in both halves."""
    client, names = owners(found["writer"], "writer")
    return compact_rows({**found, "client": client, "client_name": np.array(names)}, DIGITS, CENTRED)


def _usps_line(words: list[str], sparse: bool) -> Doubles:
    """Label and pixels of one line, 257 numbers; LIBSVM leaves out pixels that are exactly 0."""
    if not sparse:
        return np.array(words, dtype=np.float64)
    row = np.zeros(1 + _PIXELS)
    pairs = np.array([word.split(":") for word in words[1:]], dtype=np.float64).reshape(-1, 2)
    place = pairs[:, 0].astype(np.int64)
    if len(place) and not (place.min() >= 1 and place.max() <= _PIXELS):
        raise ValueError("no such pixel")
    row[0], row[place] = float(words[0]) - 1, pairs[:, 1]  # LIBSVM counts digits from 1
    return row


def _usps_half(archive: Archive, name: str) -> tuple[Array, Array]:
    """Images [n, 1, 16, 16] of bytes, ink bright, and digits, from lines of either form."""
    path, rows = archive.folder / name, []
    for number, line in enumerate(archive.text(name).splitlines(), 1):
        words = line.split()
        try:
            rows += [_usps_line(words, ":" in line)] if words else []
            if words and (len(rows[-1]) != 1 + _PIXELS or not (np.abs(rows[-1][1:]) <= 1).all()):
                raise ValueError
        except ValueError:
            wrong = f"line {number} is not a label and {_PIXELS} numbers in [-1, 1]"
            raise corrupt(path, wrong) from None
    if not rows:
        raise corrupt(path, "it has no rows")
    table = np.stack(rows)
    x = np.rint((table[:, 1:] + 1) / 2 * 255).astype(np.uint8)
    return x.reshape(-1, 1, 16, 16), labels(table[:, 0], path, "label", 9)


def official_usps(archive: Archive) -> Rows:
    """USPS, 16 by 16, as LIBSVM has it (usps and usps.t) or the book ElemStatLearn (zip.train, zip.test)."""
    book = archive.find("zip.train", "zip.train.gz")
    pair, packing = (("zip.train", "zip.test"), ".gz") if book else (("usps", "usps.t"), ".bz2")
    parts = [_usps_half(archive, archive.need(plain + packing, plain)) for plain in pair]
    return compact_rows(halves(*parts), DIGITS, CENTRED)


def _svhn_half(archive: Archive, name: str) -> tuple[Array, Array]:
    name = archive.need(name)
    x, y = read_mat(archive, name, "X", "y")
    y = y.ravel()
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3 or x.shape[3] != len(y):
        raise corrupt(archive.folder / name, f"X is {x.dtype} {x.shape} for {len(y)} labels")
    if len(y) and not (y.min() >= 1 and y.max() <= 10):
        raise corrupt(archive.folder / name, f"labels {y.min()} to {y.max()}, not 1 to 10")
    # The published files call the digit zero 10.
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y.astype(np.int64) % 10


def official_svhn(archive: Archive) -> Rows:
    """SVHN from train_32x32.mat and test_32x32.mat, "cropped digits"; the extra set is not read."""
    train, test = (_svhn_half(archive, f"{half}_32x32.mat") for half in ("train", "test"))
    return compact_rows(halves(train, test), DIGITS, CENTRED)


def _photos(archive: Archive) -> list[tuple[str, int]]:
    """Name and digit of every photo in ten folders 0 to 9 side by side."""
    places: dict[str, list[tuple[str, int]]] = {}
    for name in archive.plain if any(map(_PHOTO.fullmatch, archive.plain)) else archive.names:
        if found := _PHOTO.fullmatch(name):
            places.setdefault(found["base"] or "", []).append((name, int(found["digit"])))
    if len(places) > 1:
        shown = " and ".join(sorted(places)[:2])
        raise bad_file(archive.folder, f"folders of digits in {shown}; leave only one of them")
    photos = next(iter(places.values()), [])
    for digit in sorted(set(range(10)) - {d for _, d in photos}):
        raise missing_file(archive.folder / f"{digit}/*.JPG")
    return photos


def _grey(data: bytes, name: Path) -> Array:
    from PIL.Image import Resampling

    image = picture(data, name)
    # A few photos are thirty times too large; a box takes every pixel of theirs into account.
    way = Resampling.BOX if min(image.size) >= 8 * _SIDE else Resampling.BILINEAR
    return planes(image.resize((_SIDE, _SIDE), way).convert("L"))


def official_sign(archive: Archive) -> Rows:
    """SIGN from folders 0 to 9 of photos, on disk or in the repository's zip; grey, no official test rows."""
    photos = _photos(archive)
    x = np.stack([_grey(archive.read(name), archive.folder / name) for name, _ in photos])
    y = np.array([digit for _, digit in photos], dtype=np.int64)
    return compact_rows({"x": x, "y": y}, DIGITS, CENTRED)
