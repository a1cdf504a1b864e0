"""People by their movements: WISDM's telephones and seglearn's watches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kinfolk.federation.datasets.files import Archive, bad_file, corrupt
from kinfolk.federation.datasets.npz import compact_rows
from kinfolk.federation.datasets.rows import PLAIN, Array, Rows, check_rows, owners
from kinfolk.federation.datasets.table import cells, filled, labels, numbers, standardised
from kinfolk.federation.partition.holdout import Ints

ACTIVITIES = ("downstairs", "jogging", "sitting", "standing", "upstairs", "walking")


def parse_arff(text: str, name: Path | str) -> tuple[list[str], list[list[str]]]:
    """Names of the attributes and the rows of words below `@data`.

    >>> parse_arff('@relation r\\n@attribute "user"\\n@attribute X0 numeric\\n@data\\n33,0.5\\n', "a.arff")
    (['user', 'X0'], [['33', '0.5']])
    """
    head, marker, body = text.partition("@data")
    names = [
        line.split()[1].strip("\"'") for line in head.splitlines() if line.lower().startswith("@attribute ")
    ]
    if not marker or not names:
        raise corrupt(name, "it has no @attribute and @data lines")
    return names, cells(body, name, names)


def _wisdm(x: Array, y: Ints, users: Array, columns: list[str], name: Path) -> Rows:
    """Filled by the user's own median, then standardised over the rows of all users."""
    client, names = owners(users, "user")
    full, counts = filled(x, client, columns, name)
    rows = Rows(standardised(full), y, len(ACTIVITIES), PLAIN, None, client, names, ACTIVITIES, filled=counts)
    return check_rows(rows)


def official_wisdm(folder: Path) -> Rows:
    """WISDM v1.1 by user from its transformed .arff, plain or in the .tar.gz: 43 features of 10 s windows.

    Missing values (`?`) get the median of the user's own values in that column, or of everybody's
    where the user has none, and are counted in `filled`. Features are standardised over the rows
    of all users together: statistics that clients of a real federation would have to share.

    >>> official_wisdm(Path("none"))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.file = 'none/*transformed.arff': is missing; fetch it or add it
    """
    with Archive(folder) as archive:
        name = archive.need("*transformed.arff")
        path = archive.folder / name
        columns, words = parse_arff(archive.text(name), path)
    if columns[:2] != ["UNIQUE_ID", "user"] or columns[-1] != "class":
        raise corrupt(path, "its columns are not UNIQUE_ID, user, features, class")
    y = np.zeros(len(words), dtype=np.int64)
    for r, row in enumerate(words):
        if row[-1].lower() not in ACTIVITIES:
            raise corrupt(path, f"row {r + 1}, column 'class' holds {row[-1]!r}")
        y[r] = ACTIVITIES.index(row[-1].lower())
    table = numbers([row[1:-1] for row in words], path, columns[1:-1])
    return _wisdm(table[:, 1:], y, labels(table[:, 0], path, "user", 10**6), columns[2:-1], path)


def compact_wisdm(found: Mapping[str, Array]) -> Rows:
    """WISDM from the compact file, filled and standardised as from the official one."""
    name = Path("wisdm.npz")
    if tuple(found["class_name"].tolist()) != ACTIVITIES:
        raise corrupt(name, "its classes are not WISDM's six")
    return _wisdm(found["x"], found["y"], found["client"], found["feature_name"].tolist(), name)


def official_watch(folder: Path) -> Rows:
    """Nothing: seglearn publishes the watch recordings as a pickle, which can run code and is not read.

    >>> official_watch(Path("watch_har"))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.file = 'watch_har': the official file is a pickle; use watch_har.npz
    """
    raise bad_file(folder.name, "the official file is a pickle; use watch_har.npz")


def compact_watch(found: Mapping[str, Array]) -> Rows:
    """Shoulder exercises by subject from the compact file: 2 s of six channels at 50 Hz, [n, 6, 100].

    Windows of one recording (`extra["recording"]`) resemble one another: keep them on one side of a split.
    """
    x = np.ascontiguousarray(found["x"].transpose(0, 2, 1), dtype=np.float32) / np.float32(1000)
    client, names = owners(found["client"], "subject")
    mine = {**found, "x": x, "client": client, "client_name": np.array(names)}
    return compact_rows(mine, found["class_name"].tolist(), PLAIN, "side", "recording")
