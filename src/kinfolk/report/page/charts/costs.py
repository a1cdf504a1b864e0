"""What a method costs: bytes by kind of message, time by phase."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from kinfolk.report.groups import named
from kinfolk.report.page.chart import PICKED, Chart
from kinfolk.report.page.theme import CATEGORIES, CONTEXT
from kinfolk.report.read import Run, by_title, human_bytes, is_training

Row = dict[str, Any]
Part = tuple[str, str, float]  # (kind, way, amount)
# Methods for which there is room; the others are in the table.
MOST_METHODS = 20
# Kinds of message, or phases, that have a colour of their own.
MOST_PARTS, OTHERS = 8, "all others"
WAYS = {"down": "to clients", "up": "to the server", "across": "between clients"}


def ledger(runs: Sequence[Run]) -> Chart | None:
    """Megabytes by kind of message and way, of training; None where none were sent, or none are recorded.

    >>> rounds = [{"round": 1, "bytes": {"update": {"down": 1e6, "up": 3e6}}}]
    >>> chart = ledger([Run.of({"title": "fedavg", "seed": 0}, {"value": []}, rounds)])
    >>> chart.says
    'Bytes of training in all rounds, all clients together: fedavg 4 MB.'
    """
    frame = _sums(runs, _sent)
    if not frame["amount"].sum():
        return None
    frame = frame[frame["amount"] > 0]
    training = frame[frame["kind"].map(is_training)].assign(part=lambda f: f["kind"] + ", " + f["way"])
    if training.empty:
        return None
    totals = training.groupby("method", sort=False)["amount"].sum().sort_values()
    silent = [title for title in by_title(runs) if title not in totals]
    notes = ["Means over seeds. Scoring is not drawn; the table has it.", *_left_out(totals)]
    notes += [f"Nothing was sent in training by {named(silent, 6)}."] if silent else []
    table = frame.assign(megabytes=frame["amount"] / 1e6, training=frame["kind"].map(is_training))
    table = table[["method", "kind", "way", "training", "megabytes"]]
    told = named([f"{method} {human_bytes(amount)}" for method, amount in totals.items()], 6)
    says = f"Bytes of training in all rounds, all clients together: {told}."
    spec = _bars(
        _rows(training.assign(amount=training["amount"] / 1e6)),
        totals,
        "MB in all rounds, all clients together",
    )
    return Chart("bytes", "Bytes by kind of message", spec, table, says, tuple(notes))


def _sent(run: Run) -> Iterator[Part]:
    """(kind, way, bytes) of every round; of choices before scores those of the last, as tables count them."""
    for fact in run.rounds:
        for kind, ways in (fact.get("bytes") or {}).items():
            yield from ((kind, WAYS.get(way, way), count) for way, count in ways.items())
    last = (run.rounds[-1].get("chosen") or {}) if run.rounds else {}
    for kind, ways in (last.get("bytes") or {}).items():
        yield from ((f"{kind} before scores", WAYS.get(way, way), count) for way, count in ways.items())


def _left_out(totals: pd.Series) -> list[str]:
    more = len(totals) - MOST_METHODS
    return [f"The {MOST_METHODS} that cost least are drawn; the table has {more} more."] if more > 0 else []


def time(runs: Sequence[Run]) -> Chart | None:
    """Seconds by phase, scoring and checkpoints included; None where no time is recorded.

    >>> rounds = [{"round": 1, "seconds": {"update": 1.5, "server": 0.5, "checkpoint": 2.0}}]
    >>> time([Run.of({"title": "fedavg", "seed": 0}, {"value": []}, rounds)]).says
    'Seconds in all rounds, of which training: fedavg 4 (2).'
    """
    frame = _sums(runs, _spent)
    if frame.empty:
        return None
    totals = frame.groupby("method", sort=False)["amount"].sum().sort_values()
    training = frame[frame["kind"].map(is_training)].groupby("method")["amount"].sum()
    told = [f"{method} {amount:.3g} ({training.get(method, 0.0):.3g})" for method, amount in totals.items()]
    table = frame.assign(training=frame["kind"].map(is_training)).drop(columns="way")
    table = table.rename(columns={"kind": "phase", "amount": "seconds"})
    spec = _bars(_rows(frame.assign(part=frame["kind"])), totals, "seconds in all rounds")
    notes = ["Means over seeds; as long as this machine took, whatever else it did.", *_left_out(totals)]
    says = f"Seconds in all rounds, of which training: {named(told, 6)}."
    return Chart("time", "Time by phase", spec, table, says, tuple(notes))


def _spent(run: Run) -> Iterator[Part]:
    for fact in run.rounds:
        yield from ((phase, "", seconds) for phase, seconds in (fact.get("seconds") or {}).items())


def _sums(runs: Sequence[Run], parts: Callable[[Run], Iterable[Part]]) -> pd.DataFrame:
    """Sums over the rounds, means over seeds: columns method, kind, way, amount."""
    found: dict[tuple[str, str, str], float] = {}
    for title, same in by_title(runs).items():
        for kind, way, amount in (part for run in same for part in parts(run)):
            key = (title, kind, way)  # what a seed never sent counts as nothing
            found[key] = found.get(key, 0.0) + amount / len(same)
    rows = [(*key, amount) for key, amount in found.items()]
    return pd.DataFrame(rows, columns=["method", "kind", "way", "amount"])


def _rows(frame: pd.DataFrame) -> list[Row]:
    rows: list[Row] = frame[["method", "part", "amount"]].to_dict("records")
    return rows


def _bars(rows: list[Row], totals: pd.Series, title: str) -> Row:
    """Stacked bars, a method each; the largest parts first, the smallest put together."""
    methods = list(totals.index[:MOST_METHODS])
    frame = pd.DataFrame([row for row in rows if row["method"] in methods])
    parts = list(frame.groupby("part")["amount"].sum().sort_values(ascending=False).index)
    if len(parts) > MOST_PARTS + 1:
        frame["part"] = frame["part"].where(frame["part"].isin(parts[:MOST_PARTS]), OTHERS)
        frame = frame.groupby(["method", "part"], sort=False, as_index=False)["amount"].sum()
        parts = [*parts[:MOST_PARTS], OTHERS]
    colours = [CONTEXT if part == OTHERS else colour for part, colour in zip(parts, CATEGORIES, strict=False)]
    frame["order"] = frame["part"].map(parts.index)
    return {
        "width": "container", "height": {"step": 30}, "params": [PICKED],
        "data": {"values": frame.to_dict("records")},
        "mark": {"type": "bar"},
        "encoding": {
            "y": {"field": "method", "type": "nominal", "sort": methods, "title": None,
                  "axis": {"labelLimit": 150, "ticks": False, "domain": False}},
            "x": {"field": "amount", "type": "quantitative", "title": title},
            "color": {"field": "part", "type": "nominal", "title": None,
                      "scale": {"domain": parts, "range": colours}},
            "order": {"field": "order"},
            "tooltip": [{"field": "method"}, {"field": "part"},
                        {"field": "amount", "title": title, "format": ".4~g"}],
        },
    }  # fmt: skip
