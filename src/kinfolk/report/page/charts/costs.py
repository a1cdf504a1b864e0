"""What a method costs: bytes by kind of message, time by phase."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from kinfolk.report.page.chart import PICKED, Chart
from kinfolk.report.read import Run, by_title, human_bytes, is_training

Row = dict[str, Any]
# Methods for which there is room; the others are in the table.
MOST_METHODS = 20
WAYS = {"down": "to clients", "up": "to the server", "across": "between clients"}


def ledger(runs: Sequence[Run]) -> Chart | None:
    """Megabytes by kind of message and way, of training; None where no bytes are recorded.

    >>> rounds = [{"round": 1, "bytes": {"update": {"down": 1e6, "up": 3e6}}}]
    >>> chart = ledger([Run.of({"title": "fedavg", "seed": 0}, {"value": []}, rounds)])
    >>> chart.says
    'Bytes of training in all rounds, all clients together: fedavg 4 MB.'
    """
    frame = _sums(runs, "bytes", lambda told: [
        (kind, WAYS.get(way, way), count) for kind, ways in told.items() for way, count in ways.items()
    ])  # fmt: skip
    frame = frame[frame["amount"] > 0]
    if frame.empty:
        return None
    training = frame[frame["kind"].map(is_training)].assign(part=lambda f: f["kind"] + ", " + f["way"])
    totals = training.groupby("method", sort=False)["amount"].sum().sort_values()
    said = ", ".join(f"{method} {human_bytes(amount)}" for method, amount in list(totals.items())[:6])
    silent = [title for title in by_title(runs) if title not in totals]
    notes = ["Means over seeds. Scoring is not drawn; the table has it."]
    notes += [f"Nothing was sent in training by {', '.join(silent[:6])}."] if silent else []
    table = frame.assign(megabytes=frame["amount"] / 1e6, training=frame["kind"].map(is_training))
    table = table[["method", "kind", "way", "training", "megabytes"]]
    told = f"Bytes of training in all rounds, all clients together: {said or 'none'}."
    rows = _rows(training.assign(amount=training["amount"] / 1e6))
    spec = _bars(rows, list(totals.index[:MOST_METHODS]), "MB in all rounds, all clients together")
    return Chart("bytes", "Bytes by kind of message", spec, table, told, tuple(notes)) if rows else None


def time(runs: Sequence[Run]) -> Chart | None:
    """Seconds by phase, scoring and checkpoints included; None where no time is recorded.

    >>> rounds = [{"round": 1, "seconds": {"update": 1.5, "server": 0.5, "checkpoint": 2.0}}]
    >>> time([Run.of({"title": "fedavg", "seed": 0}, {"value": []}, rounds)]).says
    'Seconds in all rounds, of which training: fedavg 4 (2).'
    """
    frame = _sums(runs, "seconds", lambda told: [(phase, "", spent) for phase, spent in told.items()])
    if frame.empty:
        return None
    totals = frame.groupby("method", sort=False)["amount"].sum().sort_values()
    training = frame[frame["kind"].map(is_training)].groupby("method")["amount"].sum()
    said = ", ".join(
        f"{method} {amount:.3g} ({training.get(method, 0.0):.3g})"
        for method, amount in list(totals.items())[:6]
    )
    table = frame.assign(training=frame["kind"].map(is_training)).drop(columns="way")
    table = table.rename(columns={"kind": "phase", "amount": "seconds"})
    spec = _bars(
        _rows(frame.assign(part=frame["kind"])), list(totals.index[:MOST_METHODS]), "seconds in all rounds"
    )
    notes = ("Means over seeds; as long as this machine took, whatever else it did.",)
    return Chart(
        "time", "Time by phase", spec, table, f"Seconds in all rounds, of which training: {said}.", notes
    )


def _sums(
    runs: Sequence[Run], key: str, parts: Callable[[Mapping[str, Any]], Iterable[tuple[str, str, float]]]
) -> pd.DataFrame:
    """Sums over the rounds, means over seeds: columns method, kind, way, amount."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for title, same in by_title(runs).items():
        for run in same:
            mine: dict[tuple[str, str, str], float] = {}
            for fact in run.rounds:
                for kind, way, amount in parts(fact.get(key) or {}):
                    mine[title, kind, way] = mine.get((title, kind, way), 0.0) + amount
            for name, amount in mine.items():
                found.setdefault(name, []).append(amount)
        for name in found:
            if name[0] == title:  # what a seed never sent counts as nothing
                found[name] = [float(np.sum(found[name])) / len(same)]
    rows = [(*name, amounts[0]) for name, amounts in found.items()]
    return pd.DataFrame(rows, columns=["method", "kind", "way", "amount"])


def _rows(frame: pd.DataFrame) -> list[Row]:
    rows: list[Row] = frame[["method", "part", "amount"]].to_dict("records")
    return rows


def _bars(rows: list[Row], methods: Sequence[str], title: str) -> Row:
    """Stacked bars, a method each; the largest parts first."""
    rows = [row for row in rows if row["method"] in methods]
    sizes = (
        pd.DataFrame(rows).groupby("part")["amount"].sum().sort_values(ascending=False)
        if rows
        else pd.Series()
    )
    parts = list(sizes.index)
    return {
        "width": "container", "height": {"step": 30}, "params": [PICKED],
        "data": {"values": [{**row, "order": parts.index(row["part"])} for row in rows]},
        "mark": {"type": "bar"},
        "encoding": {
            "y": {"field": "method", "type": "nominal", "sort": list(methods), "title": None,
                  "axis": {"labelLimit": 150, "ticks": False, "domain": False}},
            "x": {"field": "amount", "type": "quantitative", "title": title},
            "color": {"field": "part", "type": "nominal", "title": None, "sort": parts},
            "order": {"field": "order"},
            "tooltip": [{"field": "method"}, {"field": "part"},
                        {"field": "amount", "title": title, "format": ".4~g"}],
        },
    }  # fmt: skip
