"""SIGN: digits of sign language, photographed; grey, 64 by 64, no official test rows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from kinfolk.federation.datasets.files import Archive, bad_file, missing_file
from kinfolk.federation.datasets.idx import DIGITS
from kinfolk.federation.datasets.pictures import picture, planes
from kinfolk.federation.datasets.rows import CENTRED, Array, Rows, check_rows

_SIDE = 64
_PHOTO = re.compile(r"(?:(?P<base>.*)/)?(?P<digit>[0-9])/[^/]*?(?P<number>[0-9]*)\.jpe?g", re.IGNORECASE)


def _photos(archive: Archive) -> list[tuple[str, int, int]]:
    """Name, digit and number of every photo in ten folders 0 to 9 side by side."""
    places: dict[str, list[tuple[str, int, int]]] = {}
    for name in archive.plain if any(map(_PHOTO.fullmatch, archive.plain)) else archive.names:
        if found := _PHOTO.fullmatch(name):
            photo = name, int(found["digit"]), int(found["number"] or -1)
            places.setdefault(found["base"] or "", []).append(photo)
    if len(places) > 1:
        shown = " and ".join(sorted(places)[:2])
        raise bad_file(archive.folder, f"folders of digits in {shown}; leave only one of them")
    photos = next(iter(places.values()), [])
    for digit in sorted(set(range(10)) - {d for _, d, _ in photos}):
        raise missing_file(archive.folder / f"{digit}/*.JPG")
    return photos


def _grey(data: bytes, name: Path) -> Array:
    from PIL.Image import Resampling

    image = picture(data, name)
    # A few photos are thirty times too large; a box takes every pixel of theirs into account.
    way = Resampling.BOX if min(image.size) >= 8 * _SIDE else Resampling.BILINEAR
    return planes(image.resize((_SIDE, _SIDE), way).convert("L"))


def official(folder: Path) -> Rows:
    """SIGN from folders 0 to 9 of photos, on disk or in the repository's zip.

    >>> official(Path("none"))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.file = 'none/0/*.JPG': is missing; fetch it or add it
    """
    with Archive(folder) as archive:
        photos = _photos(archive)
        x = np.stack([_grey(archive.read(name), archive.folder / name) for name, _, _ in photos])
    y = np.array([digit for _, digit, _ in photos], dtype=np.int64)
    photo = np.array([number for _, _, number in photos], dtype=np.int64)
    return check_rows(Rows(x, y, 10, CENTRED, class_names=DIGITS, extra={"photo": photo}))
