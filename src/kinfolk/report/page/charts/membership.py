"""Who was in which group when: switches, agreement with the known groups, sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from kinfolk.report.page.chart import PICKED, Chart, opacity
from kinfolk.report.page.charts.clients import NAMED, colours
from kinfolk.report.page.charts.scores import MOST_CLIENTS, judged_by, roles
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
    """From when to when each client was in which group: columns client, group, from, to.

    `table` has a row for each evaluated round and a column for each client. The last round counts as long as
    the one before it.

    >>> table = pd.DataFrame({"ann": [0, 0, 1], "bob": [1, 1, 1]}, index=[1, 2, 4])
    >>> segments(table).values.tolist()
    [['ann', 0, 1, 4], ['ann', 1, 4, 6], ['bob', 1, 1, 6]]
    """
    rounds = [int(round) for round in table.index]
    ends = [*rounds[1:], rounds[-1] + (rounds[-1] - rounds[-2] if len(rounds) > 1 else 1)]
    found = []
    for client in table.columns:
        values = table[client].to_numpy(dtype=np.float64)
        new = np.r_[True, values[1:] != values[:-1]]
        starts = np.flatnonzero(new)
        for start, stop in zip(starts, [*starts[1:], len(values)], strict=True):
            if math.isfinite(values[start]):
                found.append((client, int(values[start]), rounds[start], ends[stop - 1]))
    return pd.DataFrame(found, columns=["client", "group", "from", "to"])


def _membership(run: Run, methods: int) -> Chart:
    once = run.scores.drop_duplicates(["round", "client"])
    table = once.pivot(index="round", columns="client", values="group").sort_index()
    clients = len(table.columns)
    moved = (table.ne(table.shift()) & table.notna() & table.shift().notna()).sum()
    final = table.iloc[-1]
    says = (
        f"{int((moved > 0).sum())} of {clients} clients changed their group between evaluated rounds, {int(moved.sum())} "
        f"changes in all; at the end {final.nunique()} groups of {_sizes(final)} clients."
    )
    notes = [f"Seed {run.seed}; groups as they were at evaluated rounds."]
    if methods > MOST_METHODS:
        notes.append(f"The first {MOST_METHODS} of {methods} methods with groups are shown.")
    name = f"membership-{run.title}"
    title = f"Groups of {run.title} over the rounds"
    if clients > MOST_CLIENTS:
        sizes = _by_size(table)
        notes.append(f"More than {MOST_CLIENTS:,} clients: sizes of groups, not a row for each client.")
        return Chart(name, title, _sizes_spec(sizes), pd.DataFrame(sizes), says, tuple(notes))
    order = pd.DataFrame({"group": final, "moved": moved}).sort_values(["group", "moved"], kind="stable").index
    parts = segments(table[order])
    counted = pd.DataFrame({"client": order, "group at the end": final[order].astype("Int64").to_numpy(),
                            "changes": moved[order].to_numpy()})  # fmt: skip
    return Chart(name, title, _rows_spec(parts, run, clients), counted, says, tuple(notes))


def _sizes(final: pd.Series) -> str:
    sizes = sorted(final.value_counts(), reverse=True)
    return ", ".join(f"{size:,}" for size in sizes[:8]) + (" and fewer" if len(sizes) > 8 else "")


def _rows_spec(parts: pd.DataFrame, run: Run, clients: int) -> Row:
    named = clients <= NAMED
    axis: Row = {"labelLimit": 110, "ticks": False, "domain": False} if named else {"labels": False, "ticks": False}
    told = [{"field": "client"}, {"field": "group"}, {"field": "from", "title": "from round"},
            {"field": "to", "title": "until round"}]  # fmt: skip
    return {
        "width": "container", "height": int(np.clip(14 * clients, 90, 460)), "params": [PICKED],
        "data": {"values": [{"method": run.title, **row} for row in parts.to_dict("records")]},
        "mark": {"type": "rect"},
        "encoding": {
            "x": {"field": "from", "type": "quantitative", "title": "finished rounds",
                  "scale": {"nice": False, "zero": False}},
            "x2": {"field": "to"},
            "y": {"field": "client", "type": "nominal", "sort": None, "axis": axis,
                  "scale": {"paddingInner": 0.12 if named else 0},
                  "title": None if named else f"{clients:,} clients, by group"},
            "color": {"field": "group", "type": "nominal", "title": "group"},
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
            "x": {"field": "round", "type": "ordinal", "title": "finished rounds"},
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
        "1: the known groups; 0: no better than chance. Line: mean over seeds; band: from the lowest to the highest.",
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
    x = {"field": "round", "type": "quantitative", "title": "finished rounds", "scale": {"nice": False}}
    y = {"type": "quantitative", "title": axis}
    colour = {"field": "method", "type": "nominal", "title": None, "sort": None,
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
