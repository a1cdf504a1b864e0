"""LEAF's json as its scripts write it: the users of all files, FEMNIST by writer, CelebA by celebrity."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.files import Archive, corrupt, missing_file, reading
from kinfolk.federation.datasets.formats import compact_rows, picture, planes
from kinfolk.federation.datasets.rows import UNIT, Array, Rows, check_rows

_FACE = 84
_PICTURES = ("raw/img_align_celeba/", "data/raw/img_align_celeba/", "img_align_celeba/")
_DIGITS, _UPPER = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CHARACTERS = tuple(_DIGITS + _UPPER + _UPPER.lower())
SMILING = ("not smiling", "smiling")


@dataclass(frozen=True)
class User:
    """One user's rows in one file, lengths checked."""

    file: Path
    name: str
    x: list[Any]
    y: list[Any]
    test: bool | None  # None: LEAF did not split the file

    def bad(self, wrong: str) -> KinfolkError:
        """An error that names the file and the user."""
        return corrupt(self.file, f"user {self.name!r} {wrong}")


def users(data: bytes, file: Path, test: bool | None = None) -> Iterator[User]:
    """The users of one LEAF file; counts that disagree and users without data are errors.

    >>> text = b'{"users": ["ann"], "num_samples": [2], "user_data": {"ann": {"x": [[0], [1]], "y": [3]}}}'
    >>> list(users(text, Path("all_0.json")))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.file = 'all_0.json': not used: user 'ann' has 2 x and 1 y; replace it
    """
    with reading(file):
        found = json.loads(data)
        names, counts, rows = found["users"], found["num_samples"], found["user_data"]
        for part, value, kind in (
            ("users", names, list),
            ("num_samples", counts, list),
            ("user_data", rows, dict),
        ):
            if not isinstance(value, kind):
                raise ValueError(f"{part!r} is no {'list' if kind is list else 'object'}")
        if strange := [name for name in names if not isinstance(name, str)]:
            raise ValueError(f"user {strange[0]!r} is no text")
        if len(names) != len(counts):
            raise ValueError(f"{len(names)} users and {len(counts)} num_samples")
        if unlisted := sorted(set(rows) - set(names)):
            raise ValueError(f"user {unlisted[0]!r} has data and is not among the users")
    for name, count in zip(names, counts, strict=True):
        own = rows.get(name) or {}
        pair = [own.get(part) or [] for part in ("x", "y")] if isinstance(own, dict) else [own]
        if not all(isinstance(part, list) for part in pair) or len(pair) < 2:
            raise corrupt(file, f"user {name!r} has data that are no lists x and y")
        user = User(file, name, pair[0], pair[1], test)
        if len(user.x) != len(user.y):
            raise user.bad(f"has {len(user.x)} x and {len(user.y)} y")
        if not user.x:
            raise user.bad("has no data")
        if len(user.x) != count:
            raise user.bad(f"has {len(user.x)} rows, but num_samples says {count}")
        yield user


def _is_test(name: str) -> bool | None:
    """Whether a file holds LEAF's test rows or its training rows; None: it was not split."""
    steps = name.split("/")
    for half in ("train", "test"):
        if half in steps[:-1] or f"_{half}_" in steps[-1] or steps[-1].startswith(f"{half}."):
            return half == "test"
    return None


def _files(archive: Archive, whole_only: bool) -> list[tuple[str, bool | None]]:
    """The json files to read: LEAF's split if there is one that may be used, else what it was split from."""
    found = [(name, _is_test(name)) for name in archive.plain if name.endswith(".json")]
    split = [pair for pair in found if pair[1] is not None and not whole_only]
    if split and {test for _, test in split} != {True, False}:
        wanted = "train" if split[0][1] else "test"
        raise missing_file(archive.folder / f"{wanted}/*.json")
    # LEAF keeps what it sampled and sifted beside the source, under like names: the same rows again.
    whole = [pair for pair in found if re.fullmatch(r"(.*/)?all_data(_\d+)?\.json", pair[0])]
    if not (split or whole):
        raise missing_file(archive.folder / "all_data_*.json")
    return split or whole


def every_user(archive: Archive, whole_only: bool = False) -> Iterator[User]:
    """The users of all files, file by file, so that only one file of numbers as text is held at a time.

    With `whole_only` LEAF's split is left alone: only what it was split from is read.
    """
    seen: set[tuple[str, bool | None]] = set()
    for name, test in _files(archive, whole_only):
        for user in users(archive.read(name), archive.folder / name, test):
            if (user.name, user.test) in seen:
                raise user.bad("is in another file as well")
            seen.add((user.name, user.test))
            yield user


def user_rows(parts: list[tuple[User, Array, Array]], class_names: tuple[str, ...], **more: Any) -> Rows:
    """Rows out of every user's x and y."""
    if not parts:
        raise KinfolkError("data.x", 0, "a data set needs at least one row")
    counts = [len(y) for _, _, y in parts]
    names, place = np.unique(np.array([user.name for user, _, _ in parts]), return_inverse=True)
    split = parts[0][0].test is not None
    mask = np.repeat([bool(user.test) for user, _, _ in parts], counts) if split else None
    x, y = (np.concatenate([part[k] for part in parts]) for k in (1, 2))
    own = np.repeat(place.astype(np.int64), counts)
    given = {"scale": UNIT, "test": mask, **more}
    called = tuple(names.tolist())
    rows = Rows(x, y, len(class_names), client=own, client_names=called, class_names=class_names, **given)
    return check_rows(rows)


def user_labels(user: User, classes: int) -> Array:
    """The labels of a user, whole numbers below `classes`."""
    for place, label in enumerate(user.y):
        if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < classes:
            raise user.bad(f"has label {label!r} in row {place + 1}, not 0 to {classes - 1}")
    return np.array(user.y, dtype=np.int64)


def _characters(archive: Archive, user: User) -> Array:
    """Flat rows of 784 numbers in [0, 1], white paper 1, as bytes."""
    try:
        x = np.array(user.x, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        x = np.zeros(0)
    if x.shape != (len(user.y), 28 * 28) or not ((x >= 0) & (x <= 1)).all():
        raise user.bad("has rows that are not 784 numbers in [0, 1]")
    return np.rint(x * 255).astype(np.uint8).reshape(-1, 1, 28, 28)


def _faces(archive: Archive, user: User) -> Array:
    """Pictures by file name, 84 by 84, as LEAF's model takes them."""
    x = np.empty((len(user.x), 3, _FACE, _FACE), np.uint8)
    for i, name in enumerate(user.x):
        path = next((base + str(name) for base in _PICTURES if base + str(name) in archive.plain), None)
        if path is None:
            raise user.bad(f"has picture {name!r}, which is not in raw/img_align_celeba")
        image = picture(archive.read(path), archive.folder / path)
        x[i] = planes(image.resize((_FACE, _FACE)))
    return x


def _pictures(archive: Archive, images: Callable[[Archive, User], Array], names: tuple[str, ...]) -> Rows:
    parts = [
        (replace(user, x=[], y=[]), images(archive, user), user_labels(user, len(names)))
        for user in every_user(archive)
    ]
    return user_rows(parts, names)


def official_femnist(archive: Archive) -> Rows:
    """FEMNIST by writer from LEAF's json: train/ and test/ if they are there, else all_data files."""
    return _pictures(archive, _characters, CHARACTERS)


def official_celeba(archive: Archive) -> Rows:
    """CelebA by celebrity, smiling or not, from LEAF's json and the pictures in raw/img_align_celeba."""
    return _pictures(archive, _faces, SMILING)


def compact_celeba(found: Mapping[str, Array]) -> Rows:
    """CelebA from the compact file: faces of 48 by 48 from the unaligned pictures."""
    names = np.array([f"{number:05d}" for number in found["celeb_id"].tolist()])
    return compact_rows({**found, "client_name": names}, SMILING, UNIT)
