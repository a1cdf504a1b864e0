"""Pictures of 32 by 32: CIFAR-10, and forty classes of ImageNet32 or of Tiny ImageNet halved in size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.files import Archive, bad_file, corrupt, reading
from kinfolk.federation.datasets.formats import compact_rows, picture, planes, read_npz
from kinfolk.federation.datasets.rows import CENTRED, Array, Rows, halves
from kinfolk.federation.partition.holdout import Ints
from kinfolk.streams import Seed

CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_RECORD = 1 + 3 * 32 * 32
_CIFAR_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
_BATCHES = tuple(f"train_data_batch_{i}.npz" for i in range(1, 11))
_VALID = "val_data.npz"
_SIDE = 32


def _cifar_batch(archive: Archive, name: str) -> Array:
    name = archive.need(name)
    data = archive.read(name)
    if not data or len(data) % _RECORD:
        wrong = f"{len(data)} bytes are no whole number of images of {_RECORD}"
        raise corrupt(archive.folder / name, wrong)
    return np.frombuffer(data, np.uint8).reshape(-1, _RECORD)


def official_cifar(archive: Archive) -> Rows:
    """CIFAR-10 from data_batch_1.bin to data_batch_5.bin and test_batch.bin, or from their .tar.gz."""
    pickled = [n for n in archive.plain if n.endswith(("cifar-10-python.tar.gz", "batches-py/data_batch_1"))]
    if pickled and not any(n.endswith((".bin", "binary.tar.gz")) for n in archive.plain):
        wrong = "the Python version is pickled, which can run code"
        raise corrupt(archive.folder / pickled[0], wrong, "get the binary version")
    batches = [_cifar_batch(archive, name) for name in _CIFAR_FILES]
    # All six hold 10,000 images as published, so one that holds fewer was cut between two images.
    most = max(len(batch) for batch in batches)
    for name, batch in zip(_CIFAR_FILES, batches, strict=True):
        if len(batch) < most:
            raise corrupt(archive.folder / name, f"{len(batch)} images where another batch has {most}")
    parts = [(batch[:, 1:].reshape(-1, 3, 32, 32), batch[:, 0]) for batch in batches]
    train = np.concatenate([x for x, _ in parts[:5]]), np.concatenate([y for _, y in parts[:5]])
    return compact_rows(halves(train, parts[5]), CIFAR, CENTRED)


def _chosen(counts: Ints, classes: int, more_than: int, seed: Seed) -> Ints:
    """`classes` labels drawn among those that occur more often than `more_than`, in increasing order."""
    large = np.flatnonzero(counts > more_than)
    if len(large) < classes:
        remedy = f"only {len(large)} classes have more than {more_than} images; get the missing files"
        raise KinfolkError("data.classes", classes, remedy)
    drawn = seed.numpy("data", "imagenet32").choice(large, classes, replace=False)
    return np.sort(drawn).astype(np.int64)


def _labels(archive: Archive, name: str) -> Ints:
    name = archive.need(name)
    y = read_npz(archive.file(name), archive.folder / name, "labels")["labels"]
    if y.dtype.kind not in "iu" or y.ndim != 1 or (len(y) and not (y.min() >= 1 and y.max() <= 1000)):
        raise corrupt(archive.folder / name, "its labels are not whole numbers 1 to 1000")
    return y.astype(np.int64)


def _images(archive: Archive, name: str, rows: Ints, count: int) -> Array:
    name = archive.need(name)
    x = read_npz(archive.file(name), archive.folder / name, "data")["data"]
    if x.dtype != np.uint8 or x.shape != (count, 3 * _SIDE * _SIDE):
        wrong = f"data is {x.dtype} {x.shape} for {count} labels"
        raise corrupt(archive.folder / name, wrong)
    return x[rows].reshape(-1, 3, _SIDE, _SIDE)


def official_imagenet32(
    archive: Archive,
    classes: int = 40,
    more_than: int = 1000,
    seed: Seed = Seed(0),  # noqa: B008 - a Seed never changes
) -> Rows:
    """ImageNet32 from its ten training batches and val_data.npz, plain or zipped, cut to some classes.

    The classes are drawn by `seed` among those with more than `more_than` training images. The
    validation images, 50 of each class, are the test rows. Labels are named as in the files, 1 to 1000.
    """
    # Labels first: which images to keep is known before the large arrays are read, one at a time.
    files = {name: _labels(archive, name) for name in (*_BATCHES, _VALID)}
    counts = np.bincount(np.concatenate([files[name] for name in _BATCHES]), minlength=1001)
    kept = _chosen(counts, classes, more_than, seed)
    parts = {}
    for name, y in files.items():
        rows = np.flatnonzero(np.isin(y, kept))
        parts[name] = _images(archive, name, rows, len(y)), np.searchsorted(kept, y[rows])
    x, y = (np.concatenate([parts[name][i] for name in _BATCHES]) for i in (0, 1))
    found = halves((x, y), parts[_VALID])
    others = sum(map(len, files.values())) - len(found["y"])
    left_out = {f"images of the classes not among the {classes}": others}
    names = tuple(f"class-{label:04d}" for label in kept.tolist())
    return replace(compact_rows(found, names, CENTRED), left_out=left_out)


def _halved(data: bytes, name: Path) -> Array:
    """A picture of 64 by 64 averaged 2 by 2, halves rounded up."""
    pixels = planes(picture(data, name))
    if pixels.shape != (3, 2 * _SIDE, 2 * _SIDE):
        wrong = f"{pixels.shape[2]} by {pixels.shape[1]} pixels instead of 64 by 64"
        raise corrupt(name, wrong)
    sums = pixels.reshape(3, _SIDE, 2, _SIDE, 2).sum((2, 4), dtype=np.uint16)
    return np.asarray((sums + 2) // 4, dtype=np.uint8)


def _pictures(archive: Archive, wanted: list[tuple[str, int]]) -> tuple[Array, Ints]:
    x = np.empty((len(wanted), 3, _SIDE, _SIDE), np.uint8)
    for i, (name, _) in enumerate(wanted):
        x[i] = _halved(archive.read(name), archive.folder / name)
    return x, np.array([label for _, label in wanted], dtype=np.int64)


def _valid(archive: Archive, base: str, place: dict[str, int]) -> tuple[list[tuple[str, int]], int]:
    """Validation pictures of the kept classes with their labels, and how many others there are."""
    note = base + "val/val_annotations.txt"
    with reading(archive.folder / note):
        pairs = [line.split()[:2] for line in archive.text(note).splitlines() if line.strip()]
        found = [(f"{base}val/images/{file}", place[w]) for file, w in pairs if w in place]
    return found, len(pairs) - len(found)


def _train(
    archive: Archive, listed: str, wnids: list[str], place: dict[str, int]
) -> tuple[list[tuple[str, int]], int]:
    """Training pictures of the kept classes with their labels, and how many others there are."""
    base = listed.removesuffix("wnids.txt") + "train/"
    found: dict[str, list[str]] = {wnid: [] for wnid in wnids}
    for name in archive.plain if listed in archive.plain else archive.names:
        wnid = name[len(base) :].split("/")[0]
        if name.startswith(base) and wnid in found and name.lower().endswith((".jpeg", ".jpg")):
            found[wnid].append(name)
    for wnid, names in found.items():
        if not names:
            raise bad_file(archive.folder / base / wnid, "has no pictures; get the data set again")
    others = sum(len(names) for wnid, names in found.items() if wnid not in place)
    return [(name, place[wnid]) for wnid in place for name in found[wnid]], others


def official_tiny(archive: Archive, every: int = 5) -> Rows:
    """Tiny ImageNet from its folder or zip: every fifth class by wnid, 64 by 64 averaged to 32 by 32.

    Test rows are the validation pictures; the official test pictures have no labels.
    """
    listed = archive.need("wnids.txt")
    base = listed.removesuffix("wnids.txt")
    wnids = sorted(archive.text(listed).split())
    place = {wnid: i for i, wnid in enumerate(wnids[::every])}
    lines = archive.text(base + "words.txt").splitlines()
    words = dict(line.split("\t", 1) for line in lines if "\t" in line)
    train, others = _train(archive, listed, wnids, place)
    valid, more = _valid(archive, base, place)
    found = halves(_pictures(archive, train), _pictures(archive, valid))
    names = tuple(words.get(wnid, wnid).strip() for wnid in place)
    left_out = {f"pictures of the classes not among the {len(place)}": others + more}
    return replace(compact_rows(found, names, CENTRED), left_out=left_out)
