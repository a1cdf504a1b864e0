"""Who is how far from whom: distances of clients' models, ordered by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kinfolk.report.page.chart import PICKED, Chart
from kinfolk.report.page.charts.members import (
    BETWEEN,
    KNOWN,
    NO_GROUP,
    coloured,
    either_picked,
    firsts,
    heat,
    in_order,
    known_groups,
    numbered,
    short,
)
from kinfolk.report.page.charts.projection import Sketched, sketched
from kinfolk.report.read import Run

Row = dict[str, Any]
Array = NDArray[np.float64]
# Of more clients groups are shown, and the mean distance between their members.
MOST_PAIRED = 150
# As many sketches are read for that.
MOST_READ = 500
# The place of a strip that says whose group it is, in widths of a client.
STRIP = 0.03


def distances(runs: Sequence[Run]) -> list[Chart]:
    """A chart for each method: the distances of clients' models after the last pictured round."""
    found = [sketched(run, MOST_READ, rounds=1) for run in firsts(runs)]
    return [_chart(one) for one in found if one is not None and len(one.at(one.rounds[-1])[0]) > 1]


def ordered(one: Sketched) -> tuple[pd.DataFrame, Array]:
    """(clients with their group and known group, distances of their sketches), by group and then by name.

    Where the method has no groups, by known group.
    """
    frame, rows = one.at(one.rounds[-1])
    known = known_groups(one.run)
    frame = frame[["client", "group"]].assign(known=[known.get(c, "") for c in frame["client"]])
    rank = {g: i for i, g in enumerate(in_order(frame["group"]))}
    kinds = {g: i for i, g in enumerate(in_order(frame["known"]))}
    keys = zip(frame["group"].map(rank), frame["known"].map(kinds), frame["client"], strict=True)
    order = [place for place, _ in sorted(enumerate(keys), key=lambda pair: pair[1])]
    frame, rows = frame.iloc[order].reset_index(drop=True), rows[order]
    squares = (rows**2).sum(1)
    apart = np.sqrt(np.clip(squares[:, None] + squares[None] - 2 * rows @ rows.T, 0, None))
    np.fill_diagonal(apart, 0)
    return frame, apart


def between(groups: Sequence[str], apart: Array) -> pd.DataFrame:
    """The mean distance between members of every two groups, and within each: columns group, other, distance.

    Nobody's distance from itself counts; a group of one has none within.

    >>> between(["a", "a", "b"], np.array([[0.0, 1, 2], [1, 0, 4], [2, 4, 0]])).values.tolist()[:2]
    [['a', 'a', 1.0], ['a', 'b', 3.0]]
    """
    of, found = np.asarray(groups), []
    itself = np.eye(len(of), dtype=bool)
    for g in in_order(of):
        for h in in_order(of):
            pairs = apart[(of == g)[:, None] & (of == h)[None] & ~itself]
            found.append((g, h, float(pairs.mean()) if len(pairs) else float("nan")))
    return pd.DataFrame(found, columns=["group", "other", "distance"])


def _chart(one: Sketched) -> Chart:
    frame, apart = ordered(one)
    by, word = _grouping(frame)
    means = between(by, apart)
    clients, last = len(frame), one.rounds[-1]
    name, title = f"distances-{one.run.title}", f"Distances between client models of {one.run.title}"
    notes = [f"Distances of sketches after round {last}, about 10 % off; seed {one.run.seed}."]
    if clients > MOST_PAIRED:
        notes.append(f"{clients} clients: means over the pairs of {word}s, not a cell for each pair.")
        spec = _by_group(means, word)
    else:
        spec = _by_client(one.run, frame, apart, by, word)
    if clients < one.clients:
        notes.append(f"{clients} of {one.clients:,} clients with sketches are compared.")
    table = means.assign(distance=short(means["distance"]))
    return Chart(name, title, spec, table, _says(means, last, word), tuple(notes))


def _grouping(frame: pd.DataFrame) -> tuple[list[str], str]:
    """By what clients are ordered: groups that were found, or known ones where none were."""
    if len(numbered(frame["group"])) or frame["known"].eq("").all():
        return frame["group"].tolist(), "group"
    return frame["known"].tolist(), "known group"


def _says(means: pd.DataFrame, last: int, word: str) -> str:
    same = means[means["group"] == means["other"]]["distance"].mean()
    other = means[means["group"] != means["other"]]["distance"].mean()
    if np.isnan(other):
        return f"After round {last} the models of two clients are {same:.3g} apart on average."
    within = "" if np.isnan(same) else f"two clients of one {word} are {same:.3g} apart on average, "
    return f"After round {last} {within}two of different {word}s {other:.3g}."


def _by_client(run: Run, frame: pd.DataFrame, apart: Array, by: Sequence[str], word: str) -> Row:
    names, many = frame["client"].tolist(), len(frame)
    cells = [
        {"x": j, "y": i, "client": names[i], "other": names[j], "distance": value}
        for i, row in enumerate(apart)
        for j, value in enumerate(short(row))
    ]
    place: Row = {"type": "quantitative", "axis": None}
    square: Row = {
        "data": {"values": cells},
        "transform": [{"calculate": f"datum.{a} + 1", "as": f"{a}2"} for a in "xy"],
        "mark": {"type": "rect"},
        "encoding": {
            "x": {**place, "field": "x", "scale": {"domain": [-STRIP * many, many], "nice": False}},
            "y": {**place, "field": "y", "scale": {"domain": [many, -STRIP * many], "nice": False}},
            "x2": {"field": "x2"}, "y2": {"field": "y2"},
            "color": heat("distance", "distance"), "opacity": either_picked(),
            "tooltip": [{"field": name} for name in ("client", "other", "distance")],
        },
    }  # fmt: skip
    return {
        "width": "container", "height": 440, "params": [PICKED],
        "layer": [square, *_strips(run, by, word), _lines(by)],
        "resolve": {"scale": {"color": "independent"}},
    }  # fmt: skip


def _spans(by: Sequence[str]) -> list[tuple[str, int, int]]:
    """Where each group begins and ends.

    >>> _spans(["0", "0", "1"])
    [('0', 0, 2), ('1', 2, 3)]
    """
    cuts = [i for i in range(len(by)) if not i or by[i] != by[i - 1]]
    return [(by[a], a, b) for a, b in zip(cuts, [*cuts[1:], len(by)], strict=True)]


def _strips(run: Run, by: Sequence[str], word: str) -> list[Row]:
    """Whose group it is, beside the rows and above the columns."""
    if set(by) == {NO_GROUP}:
        return []
    rim, known = -STRIP * len(by), word == "known group"
    colour = coloured(in_order(by), word)
    if colour["legend"] is not None:
        colour["legend"]["orient"] = "bottom"
    if known:
        colour["scale"] = {"domain": [KNOWN + g for g in in_order(by)]}
        if colour["legend"] is not None:
            colour["legend"]["labelExpr"] = f"replace(datum.label, '{KNOWN}', '')"
    rows = []
    for g, a, b in _spans(by):
        told = {"group": KNOWN + g if known else g, **({} if known else {"method": run.title})}
        rows += [{**told, "x": a, "x2": b, "y": rim, "y2": 0.3 * rim}]
        rows += [{**told, "x": rim, "x2": 0.3 * rim, "y": a, "y2": b}]
    ends = {name: {"field": name, "type": "quantitative", "axis": None} for name in ("x", "y")}
    return [{
        "data": {"values": rows}, "mark": {"type": "rect"},
        "encoding": {**ends, "x2": {"field": "x2"}, "y2": {"field": "y2"}, "color": colour,
                     "tooltip": [{"field": "group", "title": word}]},
    }]  # fmt: skip


def _lines(by: Sequence[str]) -> Row:
    """Where one group ends and the next begins."""
    many = len(by)
    cuts = [a for _, a, _ in _spans(by)[1:]]
    rows = [{"x": c, "x2": c, "y": 0, "y2": many} for c in cuts]
    rows += [{"x": 0, "x2": many, "y": c, "y2": c} for c in cuts]
    ends = {name: {"field": name, "type": "quantitative", "axis": None} for name in ("x", "y")}
    return {
        "data": {"values": rows}, "mark": {"type": "rule", "color": BETWEEN},
        "encoding": {**ends, "x2": {"field": "x2"}, "y2": {"field": "y2"}},
    }  # fmt: skip


def _by_group(means: pd.DataFrame, word: str) -> Row:
    order = in_order(means["group"])
    axis = {"type": "nominal", "sort": order, "axis": {"domain": False, "ticks": False, "labelAngle": 0}}
    rows = means.assign(distance=short(means["distance"])).to_dict("records")
    return {
        "width": "container", "height": int(np.clip(26 * len(order), 120, 440)), "params": [PICKED],
        "data": {"values": rows}, "mark": {"type": "rect"},
        "encoding": {
            "x": {**axis, "field": "other", "title": word}, "y": {**axis, "field": "group", "title": word},
            "color": heat("distance", "mean distance"),
            "tooltip": [{"field": name} for name in ("group", "other", "distance")],
        },
    }  # fmt: skip
