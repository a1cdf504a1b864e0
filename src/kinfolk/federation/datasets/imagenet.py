"""Forty classes of ImageNet at 32 by 32: of ImageNet32's npz batches, or of Tiny ImageNet halved in size."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.files import Archive, bad_file, corrupt, reading
from kinfolk.federation.datasets.npz import read_npz
from kinfolk.federation.datasets.pictures import picture, planes
from kinfolk.federation.datasets.rows import CENTRED, Array, Rows, check_rows, halves
from kinfolk.federation.partition.holdout import Ints
from kinfolk.streams import Seed

_BATCHES = tuple(f"train_data_batch_{i}.npz" for i in range(1, 11))
_VALID = "val_data.npz"
_SIDE = 32


def chosen_classes(counts: Ints, classes: int, more_than: int, seed: Seed) -> Ints:
    """`classes` labels drawn among those that occur more often than `more_than`, in increasing order.

    >>> chosen_classes(np.array([0, 9, 2, 9]), 2, 5, Seed(0))
    array([1, 3])
    """
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
    folder: Path,
    classes: int = 40,
    more_than: int = 1000,
    seed: Seed = Seed(0),  # noqa: B008 - a Seed never changes
) -> Rows:
    """ImageNet32 from its ten training batches and val_data.npz, plain or zipped, cut to some classes.

    The classes are drawn by `seed` among those with more than `more_than` training images. The
    validation images, 50 of each class, are the test rows. Labels are named as in the files, 1 to 1000.

    >>> official_imagenet32(Path("none"))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.file = 'none/train_data_batch_1.npz': is missing; fetch it or add it
    """
    with Archive(folder) as archive:
        # Labels first: which images to keep is known before the large arrays are read, one at a time.
        files = {name: _labels(archive, name) for name in (*_BATCHES, _VALID)}
        counts = np.bincount(np.concatenate([files[name] for name in _BATCHES]), minlength=1001)
        kept = chosen_classes(counts, classes, more_than, seed)
        parts = {}
        for name, y in files.items():
            rows = np.flatnonzero(np.isin(y, kept))
            parts[name] = _images(archive, name, rows, len(y)), np.searchsorted(kept, y[rows])
    train = tuple(np.concatenate([parts[name][i] for name in _BATCHES]) for i in (0, 1))
    x, y, test = halves((train[0], train[1]), parts[_VALID])
    left_out = {f"images of the classes not among the {classes}": sum(map(len, files.values())) - len(y)}
    names = tuple(f"class-{label:04d}" for label in kept.tolist())
    return check_rows(Rows(x, y, classes, CENTRED, test, class_names=names, left_out=left_out))


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
    for name in archive.beside(listed):
        wnid = name[len(base) :].split("/")[0]
        if name.startswith(base) and wnid in found and name.lower().endswith((".jpeg", ".jpg")):
            found[wnid].append(name)
    for wnid, names in found.items():
        if not names:
            raise bad_file(archive.folder / base / wnid, "has no pictures; get the data set again")
    others = sum(len(names) for wnid, names in found.items() if wnid not in place)
    return [(name, place[wnid]) for wnid in place for name in found[wnid]], others


def official_tiny(folder: Path, every: int = 5) -> Rows:
    """Tiny ImageNet from its folder or zip: every fifth class by wnid, 64 by 64 averaged to 32 by 32.

    Test rows are the validation pictures; the official test pictures have no labels.

    >>> official_tiny(Path("none"))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.file = 'none/wnids.txt': is missing; fetch it or add it
    """
    with Archive(folder) as archive:
        listed = archive.need("wnids.txt")
        base = listed.removesuffix("wnids.txt")
        wnids = sorted(archive.text(listed).split())
        place = {wnid: i for i, wnid in enumerate(wnids[::every])}
        words = dict(
            line.split("\t", 1) for line in archive.text(base + "words.txt").splitlines() if "\t" in line
        )
        train, others = _train(archive, listed, wnids, place)
        valid, more = _valid(archive, base, place)
        x, y, test = halves(_pictures(archive, train), _pictures(archive, valid))
    names = tuple(words.get(wnid, wnid).strip() for wnid in place)
    left_out = {f"pictures of the classes not among the {len(place)}": others + more}
    return check_rows(Rows(x, y, len(place), CENTRED, test, class_names=names, left_out=left_out))
