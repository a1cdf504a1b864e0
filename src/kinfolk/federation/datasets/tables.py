"""Small tables of features: heart disease, landmine fields, pen-written digits, people by their movements.

What is not a number is named by row and column; missing values are filled and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kinfolk.federation.datasets.files import Archive, corrupt, reading
from kinfolk.federation.datasets.formats import compact_rows, read_mat
from kinfolk.federation.datasets.rows import PLAIN, Array, Floats, Rows, check_rows, halves, owners
from kinfolk.federation.partition.holdout import Ints

Doubles = NDArray[np.float64]
MISSING = "?"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
HEART = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
)
PEN = (*(f"{axis}{i}" for i in range(1, 9) for axis in "xy"), "digit")
ACTIVITIES = ("downstairs", "jogging", "sitting", "standing", "upstairs", "walking")


def _cells(text: str, name: Path, columns: Sequence[str]) -> list[list[str]]:
    """Comma-separated lines as lists of words, one for each column; blank lines and `%` comments pass."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("%"):
            continue
        row = [word.strip().strip("\"'") for word in line.split(",")]
        if len(row) != len(columns):
            raise corrupt(name, f"line {number} has {len(row)} columns instead of {len(columns)}")
        rows.append(row)
    if not rows:
        raise corrupt(name, "it has no rows")
    return rows


def _numbers(rows: Sequence[Sequence[str]], name: Path, columns: Sequence[str]) -> Doubles:
    """Words as numbers, [rows, columns]; `?` is NaN, and any other text is an error."""
    out = np.empty((len(rows), len(columns)))
    for r, row in enumerate(rows):
        for c, word in enumerate(row):
            try:
                out[r, c] = np.nan if word == MISSING else float(word)
            except ValueError:
                wrong = f"row {r + 1}, column {columns[c]!r} holds {word!r}"
                raise corrupt(name, wrong, "give a number") from None
    return out


def _table(archive: Archive, name: str, columns: Sequence[str], last: int) -> tuple[Doubles, Ints]:
    """Features and labels of a comma-separated file; the last column holds labels 0 to `last`."""
    name = archive.need(name)
    path = archive.folder / name
    table = _numbers(_cells(archive.text(name), path, columns), path, columns)
    return table[:, :-1], labels(table[:, -1], path, columns[-1], last)


def labels(values: Doubles, name: Path, column: str, last: int) -> Ints:
    """A column of whole numbers from 0 to `last`.

    >>> labels(np.array([0.0, 4.0]), Path("a"), "num", 4)
    array([0, 4])
    >>> labels(np.array([0.0, np.nan]), Path("a"), "num", 4)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: data.file = 'a': not used: row 2, column 'num' holds nan; labels are 0 to 4
    """
    bad = np.flatnonzero(~((values >= 0) & (values <= last) & (values == np.floor(values))))
    if len(bad):
        wrong = f"row {bad[0] + 1}, column {column!r} holds {values[bad[0]]:g}"
        raise corrupt(name, wrong, f"labels are 0 to {last}")
    return values.astype(np.int64)


def filled(x: Array, client: Ints, columns: Sequence[str]) -> tuple[Doubles, dict[str, int]]:
    """Missing values filled: by the median of the client's own values, or of everybody's if it has none.

    Also gives how many were filled in each column that had any missing.

    >>> x = np.array([[1.0], [3.0], [np.nan], [np.nan]])
    >>> x, counts = filled(x, np.array([0, 0, 0, 1]), ["age"])
    >>> x.ravel().tolist(), counts
    ([1.0, 3.0, 2.0, 2.0], {'age': 2})
    """
    x = np.array(x, dtype=np.float64)
    missing = np.isnan(x)
    counts = {column: int(n) for column, n in zip(columns, missing.sum(0), strict=True) if n}
    for c in np.flatnonzero(missing.any(0)).tolist():
        if missing[:, c].all():
            raise ValueError(f"column {columns[c]!r} has no value in any row")
        known, everybody = x[:, c].copy(), float(np.nanmedian(x[:, c]))
        for who in np.unique(client[missing[:, c]]):
            own = known[(client == who) & ~missing[:, c]]
            x[(client == who) & missing[:, c], c] = np.median(own) if len(own) else everybody
    return x, counts


def standardised(x: Array) -> Floats:
    """Every column with mean 0 and variance 1 over all rows, whosever they are; a constant column becomes 0.

    >>> standardised(np.array([[1.0, 5.0], [3.0, 5.0]])).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """
    x = np.asarray(x, dtype=np.float64)
    centred, spread = x - x.mean(0), x.std(0)
    # Rounding leaves a trace of spread in a constant column; it must not be blown up to variance 1.
    constant = spread <= 1e-12 * np.maximum(np.abs(x).max(0), 1e-300)
    return np.where(constant, 0.0, centred / np.where(constant, 1.0, spread)).astype(np.float32)


def official_heart(archive: Archive) -> Rows:
    """Heart disease by hospital from UCI's four processed.*.data files."""
    parts = [_table(archive, f"processed.{hospital}.data", HEART, 4) for hospital in HOSPITALS]
    found = {
        "x": np.concatenate([x for x, _ in parts]),
        "y": np.concatenate([y for _, y in parts]),
        "client": np.repeat(np.arange(4), [len(y) for _, y in parts]),
    }
    return compact_heart({**found, "client_name": np.array(HOSPITALS), "feature_name": np.array(HEART[:-1])})


def compact_heart(found: Mapping[str, Array]) -> Rows:
    """Heart disease by hospital: disease of any degree, or none.

    Missing values get the median of the hospital's own values in that column, or of everybody's
    where it has none, and are counted in `filled`; zeros stay as published. Features are
    standardised over the rows of all hospitals together: statistics that clients of a real
    federation would have to share.
    """
    if (*found["client_name"],) != HOSPITALS or (*found["feature_name"],) != HEART[:-1]:
        raise ValueError("its hospitals or features are not the published ones")
    full, counts = filled(found["x"], found["client"], HEART[:-1])
    y, grades = np.minimum(found["y"], 1), ("none", "disease")
    x = standardised(full)
    return check_rows(Rows(x, y, 2, PLAIN, None, found["client"], HOSPITALS, grades, filled=counts))


def official_landmine(archive: Archive) -> Rows:
    """Landmines by field from LandmineData.mat: 9 features of 29 fields."""
    name = archive.need("LandmineData.mat")
    features, marks = read_mat(archive, name, "feature", "label")
    with reading(archive.folder / name):
        xs = [np.asarray(x, np.float64) for x in features.ravel()]
        ys = [np.asarray(y, np.float64).ravel() for y in marks.ravel()]
        if [len(x) for x in xs] != [len(y) for y in ys] or any(x.shape[1:] != (9,) for x in xs):
            raise ValueError("rows of 9 features and labels do not match in some field")
    y = labels(np.concatenate(ys), archive.folder / name, "label", 1)
    field = np.repeat(np.arange(len(xs)), [len(x) for x in xs])
    return compact_landmine({"x": np.concatenate(xs), "y": y, "client": field})


def compact_landmine(found: Mapping[str, Array]) -> Rows:
    """Landmines by field, features standardised over the rows of all fields as those of `compact_heart`."""
    client, names = owners(found["client"], "field")
    mine = {**found, "x": standardised(found["x"]), "client": client, "client_name": np.array(names)}
    return compact_rows(mine, ("clutter", "mine"), PLAIN)


def official_pendigits(archive: Archive) -> Rows:
    """Pen-written digits from pendigits.tra and pendigits.tes: 16 coordinates from 0 to 100."""
    parts = [_table(archive, f"pendigits.{half}", PEN, 9) for half in ("tra", "tes")]
    for half, (x, _) in zip(("tra", "tes"), parts, strict=True):
        if not ((x >= 0) & (x <= 100)).all():
            raise corrupt(
                archive.folder / archive.need(f"pendigits.{half}"), "a coordinate is not from 0 to 100"
            )
    return compact_pendigits(halves(*parts))


def compact_pendigits(found: Mapping[str, Array]) -> Rows:
    """Pen-written digits, coordinates brought to [-1, 1]."""
    x = (found["x"].astype(np.float64) / 50 - 1).astype(np.float32)
    return compact_rows({**found, "x": x}, tuple("0123456789"), PLAIN)


def official_wisdm(archive: Archive) -> Rows:
    """WISDM v1.1 by user from its transformed .arff, plain or in the .tar.gz: 43 features of 10 s windows."""
    name = archive.need("*transformed.arff")
    path = archive.folder / name
    head, marker, body = archive.text(name).partition("@data")
    lines = [line for line in head.splitlines() if line.lower().startswith("@attribute ")]
    columns = [line.split()[1].strip("\"'") for line in lines]
    if not marker or not columns:
        raise corrupt(path, "it has no @attribute and @data lines")
    words = _cells(body, path, columns)
    if columns[:2] != ["UNIQUE_ID", "user"] or columns[-1] != "class":
        raise corrupt(path, "its columns are not UNIQUE_ID, user, features, class")
    for r, row in enumerate(words):
        if row[-1].lower() not in ACTIVITIES:
            raise corrupt(path, f"row {r + 1}, column 'class' holds {row[-1]!r}")
    table = _numbers([row[1:-1] for row in words], path, columns[1:-1])
    found = {
        "x": table[:, 1:],
        "y": np.array([ACTIVITIES.index(row[-1].lower()) for row in words], dtype=np.int64),
        "client": labels(table[:, 0], path, "user", 10**6),
        "feature_name": np.array(columns[2:-1]),
    }
    return compact_wisdm({**found, "class_name": np.array(ACTIVITIES)})


def compact_wisdm(found: Mapping[str, Array]) -> Rows:
    """WISDM by user, filled by the user's own medians and standardised as `compact_heart` does."""
    if (*found["class_name"],) != ACTIVITIES:
        raise ValueError("its classes are not WISDM's six")
    client, names = owners(found["client"], "user")
    full, counts = filled(found["x"], client, found["feature_name"].tolist())
    x, y = standardised(full), found["y"]
    return check_rows(Rows(x, y, len(ACTIVITIES), PLAIN, None, client, names, ACTIVITIES, filled=counts))


def compact_watch(found: Mapping[str, Array]) -> Rows:
    """Shoulder exercises by subject from the compact file: 2 s of six channels at 50 Hz, [n, 6, 100].

    Windows of one recording resemble one another and stay on one side of a split.
    """
    x = np.ascontiguousarray(found["x"].transpose(0, 2, 1), dtype=np.float32) / np.float32(1000)
    client, names = owners(found["client"], "subject")
    mine = {**found, "x": x, "client": client, "client_name": np.array(names)}
    return compact_rows({**mine, "block": found["recording"]}, found["class_name"].tolist(), PLAIN)
