"""Small tables of features: heart disease by hospital, landmine fields, pen-written digits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kinfolk.federation.datasets.files import Archive, corrupt, reading
from kinfolk.federation.datasets.idx import DIGITS
from kinfolk.federation.datasets.mat import read_mat
from kinfolk.federation.datasets.rows import PLAIN, Array, Bools, Rows, check_rows, halves, owners
from kinfolk.federation.datasets.table import cells, filled, labels, numbers, standardised
from kinfolk.federation.partition.holdout import Ints

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
HEART = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
)
PEN = (*(f"{axis}{i}" for i in range(1, 9) for axis in "xy"), "digit")


def _heart(x: Array, degree: Ints, client: Ints, name: Path) -> Rows:
    """Filled by the hospital's own median, then standardised over the rows of all hospitals."""
    full, counts = filled(x, client, HEART[:-1], name)
    y, grades = np.minimum(degree, 1), ("none", "disease")
    return check_rows(Rows(standardised(full), y, 2, PLAIN, None, client, HOSPITALS, grades, filled=counts))


def official_heart(folder: Path) -> Rows:
    """Heart disease by hospital from UCI's four processed.*.data files: disease of any degree, or none.

    Missing values (`?`) get the median of the hospital's own values in that column, or of
    everybody's where it has none, and are counted in `filled`; zeros stay as published. Features
    are standardised over the rows of all hospitals together: statistics that clients of a real
    federation would have to share.

    >>> official_heart(Path("none"))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.file = 'none/processed.cleveland.data': is missing; fetch it or add it
    """
    tables, degrees = [], []
    with Archive(folder) as archive:
        for hospital in HOSPITALS:
            name = archive.need(f"processed.{hospital}.data")
            path = archive.folder / name
            tables.append(numbers(cells(archive.text(name), path, HEART), path, HEART))
            degrees.append(labels(tables[-1][:, -1], path, HEART[-1], 4))
    client = np.repeat(np.arange(4, dtype=np.int64), [len(y) for y in degrees])
    return _heart(np.concatenate(tables)[:, :-1], np.concatenate(degrees), client, archive.folder)


def compact_heart(found: Mapping[str, Array]) -> Rows:
    """Heart disease from the compact file, filled and standardised as from the official ones."""
    name = Path("heart_disease.npz")
    if (*found["client_name"],) != HOSPITALS or (*found["feature_name"],) != HEART[:-1]:
        raise corrupt(name, "its hospitals or features are not the published ones")
    return _heart(found["x"], found["y"], found["client"], name)


def _mines(x: Array, y: Array, field: Array) -> Rows:
    client, names = owners(field, "field")
    classes = ("clutter", "mine")
    return check_rows(Rows(standardised(x), y.astype(np.int64), 2, PLAIN, None, client, names, classes))


def official_landmine(folder: Path) -> Rows:
    """Landmines by field from LandmineData.mat: 9 features, standardised over the rows of all 29 fields.

    The statistics are those of all fields together, which a real federation would have to share.

    >>> official_landmine(Path("none"))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.file = 'none/LandmineData.mat': is missing; fetch it or add it
    """
    with Archive(folder) as archive:
        name = archive.need("LandmineData.mat")
        path = archive.folder / name
        found = read_mat(archive, name, "feature", "label")
        with reading(path):
            xs = [np.asarray(x, np.float64) for x in found[0].ravel()]
            ys = [np.asarray(y, np.float64).ravel() for y in found[1].ravel()]
            if [len(x) for x in xs] != [len(y) for y in ys] or any(x.shape[1:] != (9,) for x in xs):
                raise ValueError("rows of 9 features and labels do not match in some field")
    y = labels(np.concatenate(ys), path, "label", 1)
    return _mines(np.concatenate(xs), y, np.repeat(np.arange(len(xs)), [len(x) for x in xs]))


def compact_landmine(found: Mapping[str, Array]) -> Rows:
    """Landmines by field from the compact file."""
    return _mines(found["x"], found["y"], found["client"])


def _pen(x: Array, y: Ints, test: Bools) -> Rows:
    centred = (x.astype(np.float64) / 50 - 1).astype(np.float32)
    return check_rows(Rows(centred, y, 10, PLAIN, test, class_names=DIGITS))


def official_pendigits(folder: Path) -> Rows:
    """Pen-written digits from pendigits.tra and pendigits.tes: 16 coordinates, 0 to 100 brought to [-1, 1].

    >>> official_pendigits(Path("none"))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.file = 'none/pendigits.tra': is missing; fetch it or add it
    """
    parts: list[tuple[Array, Array]] = []
    with Archive(folder) as archive:
        for half in ("tra", "tes"):
            name = archive.need(f"pendigits.{half}")
            path = archive.folder / name
            table = numbers(cells(archive.text(name), path, PEN), path, PEN)
            if not ((table[:, :-1] >= 0) & (table[:, :-1] <= 100)).all():
                raise corrupt(path, "a coordinate is not from 0 to 100")
            parts.append((table[:, :-1], labels(table[:, -1], path, PEN[-1], 9)))
    return _pen(*halves(*parts))


def compact_pendigits(found: Mapping[str, Array]) -> Rows:
    """Pen-written digits from the compact file."""
    return _pen(found["x"], found["y"], found["test"])
