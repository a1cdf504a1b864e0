"""Who was in which group when: switches, agreement with the known groups, sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from kinfolk.report.groups import switches
from kinfolk.report.page.chart import PICKED, Chart, opacity
from kinfolk.report.page.charts.clients import NAMED, colours
from kinfolk.report.page.charts.scores import MOST_CLIENTS, judged_by, roles
from kinfolk.report.page.theme import ROUNDS
from kinfolk.report.read import Run, by_title

Row = dict[str, Any]
# Methods whose groups are shown one by one.
MOST_METHODS = 8


def with_groups(runs: Sequence[Run]) -> list[Run]:
    """The first run of every method with groups, the best method first.

    >>> run = Run.of({"title": "ifca", "seed": 3}, {"client": ["ann"], "value": [0.5], "group": [1]})
    >>> [(one.title, one.seed) for one in with_groups([run])]
    [('ifca', 3)]
    """
    best = roles(runs, judged_by(runs).name).get("best")
    grouped = {title: [run for run in same if run.has_groups] for title, same in by_title(runs).items()}
    first = [min(same, key=lambda run: run.seed) for same in grouped.values() if same]
    return sorted(first, key=lambda run: best is None or run.title != best.title)


def over_rounds(runs: Sequence[Run]) -> list[Chart]:
    """A chart for each method with groups: a row for each client, coloured by its group at every round."""
    found = with_groups(runs)
    return [_membership(run, len(found)) for run in found[:MOST_METHODS]]


def segments(table: pd.DataFrame) -> pd.DataFrame:
    """From when to when each client was in which group: columns client, group, first, last, from, to.

    `table` has a row for each evaluated round and a column for each client. `first` and `last` are such
    rounds; `from` and `to` lie half way to the ones before and after, where a chart draws the change.

    >>> table = pd.DataFrame({"ann": [0, 0, 1], "bob": [1, 1, 1]}, index=[1, 2, 4])
    >>> segments(table).values.tolist()
    [['ann', 0, 1, 2, 0.5, 3.0], ['ann', 1, 4, 4, 3.0, 5.0], ['bob', 1, 1, 4, 0.5, 5.0]]
    """
    rounds = table.index.to_numpy(dtype=np.float64)
    half = np.diff(rounds) / 2 if len(rounds) > 1 else np.array([0.5])
    edges = np.r_[rounds[0] - half[0], rounds[:-1] + half[: len(rounds) - 1], rounds[-1] + half[-1]]
    found = []
    for client in table.columns:
        values = table[client].to_numpy(dtype=np.float64)
        starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
        for start, stop in zip(starts, [*starts[1:], len(values)], strict=True):
            if math.isfinite(values[start]):
                seen = int(rounds[start]), int(rounds[stop - 1])
                found.append((client, int(values[start]), *seen, float(edges[start]), float(edges[stop])))
    return pd.DataFrame(found, columns=["client", "group", "first", "last", "from", "to"])


def _membership(run: Run, methods: int) -> Chart:
    table = run.scored.groups
    start = min(
        (int(fact["round"]) for fact in run.rounds if (fact.get("groups") or {}).get("moved")), default=0
    )
    table = table if table[table.index >= start].empty else table[table.index >= start]
    frame, clients = run.groups, len(table.columns)
    says = f"{switches(frame)}; groups at the end: {_sizes(frame['group'])} clients."
    notes = [f"Seed {run.seed}; groups as they were at evaluated rounds, from round {table.index[0]} on."]
    if methods > MOST_METHODS:
        notes.append(f"The first {MOST_METHODS} of {methods} methods with groups are shown.")
    name, title = f"membership-{run.title}", f"Groups of {run.title} over the rounds"
    says = says[:1].upper() + says[1:]
    if clients > MOST_CLIENTS:
        sizes = _by_size(table)
        notes.append(f"More than {MOST_CLIENTS:,} clients: sizes of groups, not a row for each client.")
        return Chart(name, title, _sizes_spec(sizes), pd.DataFrame(sizes), says, tuple(notes))
    order = frame.sort_values(["group", "switches", "since"], kind="stable").index
    parts = segments(table[[client for client in order if client in table]])
    columns = {
        "group": "group at the end",
        "switches": "changes after the start",
        "since": "last change in round",
    }
    counted = frame.loc[order, list(columns)].rename(columns=columns).rename_axis("client").reset_index()
    return Chart(name, title, _rows_spec(parts, run, clients), counted, says, tuple(notes))


def _sizes(final: pd.Series) -> str:
    sizes = sorted(final.value_counts(), reverse=True)
    return ", ".join(f"{size:,}" for size in sizes[:8]) + (" and fewer" if len(sizes) > 8 else "")


def _rows_spec(parts: pd.DataFrame, run: Run, clients: int) -> Row:
    named = clients <= NAMED
    axis: Row = (
        {"labelLimit": 110, "ticks": False, "domain": False} if named else {"labels": False, "ticks": False}
    )
    told = [{"field": "client"}, {"field": "group"}, {"field": "first", "title": "from round"},
            {"field": "last", "title": "to round"}]  # fmt: skip
    return {
        "width": "container", "height": int(np.clip(14 * clients, 90, 460)), "params": [PICKED],
        "data": {"values": [{"method": run.title, **row} for row in parts.to_dict("records")]},
        # Thinner than a dot of the screen, a row would be pale without its edge.
        "mark": {"type": "rect", "strokeWidth": 0 if named else 0.7},
        "encoding": {
            "x": {**ROUNDS, "field": "from"},
            "x2": {"field": "to"},
            "y": {"field": "client", "type": "nominal", "sort": None, "axis": axis,
                  "scale": {"paddingInner": 0.12 if named else 0},
                  "title": None if named else f"{clients:,} clients, by group"},
            "color": {"field": "group", "type": "nominal", "title": "group"},
            "stroke": {"field": "group", "type": "nominal"},
            "opacity": opacity(1.0, 0.15), "tooltip": told,
        },
    }  # fmt: skip


def _by_size(table: pd.DataFrame) -> list[Row]:
    return [
        {"round": int(round), "group": int(group), "clients": int(count)}
        for round, values in table.iterrows()
        for group, count in values.value_counts().sort_index().items()
    ]


def _sizes_spec(rows: list[Row]) -> Row:
    return {
        "width": "container", "height": 260, "params": [PICKED], "data": {"values": rows},
        "mark": {"type": "bar"},
        "encoding": {
            "x": {"field": "round", "type": "ordinal", "title": "finished rounds", "axis": {"labelAngle": 0}},
            "y": {"field": "clients", "type": "quantitative", "stack": "zero"},
            "color": {"field": "group", "type": "nominal", "title": "group"},
        },
    }  # fmt: skip


def agreement(runs: Sequence[Run]) -> Chart | None:
    """How far found groups agree with the known ones, by round; None where no known groups are recorded.

    >>> rounds = [{"round": r, "groups": {"ari": ari}} for r, ari in ((1, 0.5), (2, 1.0))]
    >>> agreement([Run.of({"title": "ifca", "seed": 0}, {"value": []}, rounds)]).says
    'Adjusted Rand index with the known groups at the end: ifca 1.00.'
    """
    return _by_round(
        runs, "ari", "agreement", "Agreement with the known groups", "adjusted Rand index",
        "Adjusted Rand index with the known groups at the end",
        "1: the known groups; 0: chance. Line: mean over seeds; band: from the lowest to the highest.",
    )  # fmt: skip


def switching(runs: Sequence[Run]) -> Chart | None:
    """Which share of the clients changed its group in each round; None where nothing is recorded of it."""
    return _by_round(
        runs, "switch", "switches", "Clients that change their group", "share of clients",
        "Share of clients that changed their group in the last round",
        "Line: mean over seeds; band: from the lowest to the highest.",
    )  # fmt: skip


def _by_round(
    runs: Sequence[Run], key: str, name: str, title: str, axis: str, said: str, note: str
) -> Chart | None:
    """A number about groups by round, for every method that records it."""
    frames = [_told(run, key) for run in runs]
    frame = pd.concat(frames) if frames else pd.DataFrame()
    if frame.empty:
        return None
    by = frame.groupby(["method", "round"], sort=False)["value"].agg(["mean", "min", "max"]).reset_index()
    names = list(by["method"].unique())
    ends = by.groupby("method", sort=False)["mean"].last()
    told = ", ".join(f"{method} {value:.2f}" for method, value in list(ends.items())[:6])
    x = {**ROUNDS, "field": "round"}
    y = {"type": "quantitative", "title": axis}
    colour = {"field": "method", "type": "nominal", "title": None, "sort": None,
              "legend": {"symbolType": "stroke"},
              "scale": {"domain": names, "range": colours(names, runs)}}  # fmt: skip
    hint = [{"field": "method"}, {"field": "round"}, {"field": "mean", "title": axis, "format": ".2f"}]
    spec = {
        "width": "container", "height": 220, "params": [PICKED], "data": {"values": by.to_dict("records")},
        "encoding": {"x": x, "color": colour},
        "layer": [
            {"mark": {"type": "area", "opacity": 0.14},
             "encoding": {"y": {**y, "field": "min"}, "y2": {"field": "max"}}},
            {"mark": {"type": "line", "strokeWidth": 2, "point": {"size": 20}},
             "encoding": {"y": {**y, "field": "mean"}, "tooltip": hint}},
        ],
    }  # fmt: skip
    table = by.rename(columns={"min": "lowest seed", "max": "highest seed"})
    return Chart(name, title, spec, table, f"{said}: {told}.", (note,))


def _told(run: Run, key: str) -> pd.DataFrame:
    lines = [(fact["round"], (fact.get("groups") or {}).get(key)) for fact in run.rounds]
    here = [(run.title, round, float(value)) for round, value in lines if value is not None]
    return pd.DataFrame(here, columns=["method", "round", "value"])
