"""A few rows of each group's clients, where they are images and the run was asked for them."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from kinfolk.experiment.picture_files import read_samples
from kinfolk.report.page.chart import PICKED, Chart, opacity
from kinfolk.report.page.charts.data import grouping
from kinfolk.report.page.charts.members import counted, firsts, in_order, names_of
from kinfolk.report.read import Run

Row = dict[str, Any]
Pixels = NDArray[np.uint8]
# Images of a group, which fit beside one another on a telephone; and letters of all images of a chart.
PER_GROUP, MOST_LETTERS = 8, 300_000
SIDE, GAP = 30, 3  # of an image in the page, in pixels


def data_url(image: Pixels) -> str:
    """An image as a PNG inside a URL.

    >>> data_url(np.zeros((2, 2), dtype=np.uint8))[:30]
    'data:image/png;base64,iVBORw0K'
    """
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + b64encode(buffer.getvalue()).decode()


def samples(runs: Sequence[Run]) -> Chart | None:
    """A few training rows of every group's clients; None without any.

    Of the first method with groups, since rows are the same for all; where none has groups, of known groups.
    """
    held = [(run, rows) for run in firsts(runs) if (rows := read_samples(run.path))]
    if not held:
        return None
    run, rows = min(held, key=lambda pair: not pair[0].has_groups)
    by, kind = grouping(run) or (pd.Series({who: "all" for who, _, _ in rows}), "clients")
    found = _chosen(rows, by)
    shown = [row for group in found.values() for row in group]
    if not shown:
        return None
    classes = names_of(run, "class_names")
    values = [
        {"group": g, "client": who, "place": place, "label": _label(label, classes), "url": data_url(image)}
        for g, group in found.items()
        for place, (who, label, image) in enumerate(group)
    ]
    clients = {who for who, _, _ in shown}
    notes = [f"Of each group at most {PER_GROUP}, of its clients in turn; seed {run.seed}. Simulation only."]
    says = f"{counted(len(shown), 'training row')} of {counted(len(clients), 'client')}"
    says += f" in {counted(len(found), kind)}." if kind != "clients" else "."
    table = pd.DataFrame(values)[["group", "client", "label"]].rename(columns={"group": kind})
    titles = {"group": f"Rows of the groups of {run.title}", "known group": "Rows of the known groups"}
    title = titles.get(kind, "Rows of clients")
    return Chart("samples", title, _spec(values, list(found), kind), table, says, tuple(notes))


Sample = tuple[str, int, Pixels]


def _chosen(rows: Sequence[Sample], by: pd.Series) -> dict[str, list[Sample]]:
    """Some rows of each group, of its clients in turn: of the first its first row, of the second its second.

    So there are different labels; as many rows as the page holds.
    """
    of: dict[str, dict[str, list[Sample]]] = {}
    for row in rows:
        if row[0] in by.index:
            of.setdefault(str(by[row[0]]), {}).setdefault(row[0], []).append(row)
    letters = sum(len(data_url(image)) for _, _, image in rows) / len(rows)
    each = max(1, min(PER_GROUP, int(MOST_LETTERS / (letters * max(1, len(of))))))
    return {g: _in_turn(list(of[g].values()))[:each] for g in in_order(of)}


def _in_turn(clients: Sequence[Sequence[Sample]]) -> list[Sample]:
    """Every row of some clients once.

    >>> rows = [[(who, label, np.zeros((1, 1), np.uint8)) for label in (0, 1)] for who in "ab"]
    >>> [(who, label) for who, label, _ in _in_turn(rows)]
    [('a', 0), ('b', 1), ('a', 1), ('b', 0)]
    """
    most = max(map(len, clients), default=0)
    turns = [(turn, place) for turn in range(most) for place in range(len(clients))]
    return [
        clients[place][(turn + place) % len(clients[place])]
        for turn, place in turns
        if turn < len(clients[place])
    ]


def _label(label: int, classes: Sequence[str]) -> str:
    return "" if label < 0 else classes[label] if label < len(classes) else str(label)


def _spec(values: list[Row], groups: list[str], kind: str) -> Row:
    most = max(row["place"] for row in values) + 1
    tips = [{"field": "client"}, {"field": "group", "title": kind}, {"field": "label"}]
    return {
        "width": most * (SIDE + GAP), "height": {"step": SIDE + GAP},
        "params": [PICKED], "data": {"values": values},
        "mark": {"type": "image", "width": SIDE, "height": SIDE, "smooth": False},
        "encoding": {
            "x": {"field": "place", "type": "ordinal", "axis": None},
            "y": {"field": "group", "type": "nominal", "sort": groups, "title": kind,
                  "axis": {"domain": False, "ticks": False}},
            "url": {"field": "url", "type": "nominal"},
            "opacity": opacity(1.0, 0.2), "tooltip": tips,
        },
    }  # fmt: skip
