"""Clients one by one: what each gets alone, from the one model for all, and from the best method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from kinfolk.report.figures import COLOURS, look
from kinfolk.report.page.chart import PICKED, Chart, opacity
from kinfolk.report.page.charts.scores import MOST_CLIENTS, Role, Shown, judged_by, roles
from kinfolk.report.page.theme import GAIN, LOSS, QUIET
from kinfolk.report.read import Run

Row = dict[str, Any]
# Of so many clients a chart of spreads shows as many steps.
STEPS = 200
# A difference below this is no gain and no loss: half a point, or a part in two hundred of the value.
LEAST = 0.005
# Up to this many clients a stem leads from nothing to the dot; more would be one area.
STEMS = 300
# Names fit beside an axis up to this many clients.
NAMED = 40


def sorted_scores(runs: Sequence[Run]) -> Chart | None:
    """Every client's score at the end, sorted, for training alone, one model for all, and the best method.

    >>> scores = {"client": ["ann", "bob"], "value": [0.5, 0.75]}
    >>> chart = sorted_scores([Run.of({"title": "ifca k=2", "seed": 0}, scores)])
    >>> chart.says
    'With ifca k=2 clients have between 50.0 % (ann) and 75.0 % (bob), half of them at least 62.5 %.'
    """
    score = judged_by(runs)
    shown = list(roles(runs, score.name).values())
    if not shown:
        return None
    many = max(len(one.clients) for one in shown) > MOST_CLIENTS
    rows = [row for one in shown for row in (_spread(one, score) if many else _each(one, score))]
    notes = [
        "Each client: the mean over its seeds. Left: those with least; every method is sorted by itself."
    ]
    if many:
        notes.append(f"More than {MOST_CLIENTS:,} clients: drawn at {STEPS} places, not one by one.")
    frame = pd.DataFrame({one.title: score.factor * one.clients for one in shown}).rename_axis("client")
    table = (
        frame.describe(percentiles=[0.1, 0.25, 0.5, 0.75, 0.9]).rename_axis("of clients") if many else frame
    )
    title = f"{score.word[:1].upper()}{score.word[1:]} of every client, sorted"
    says = " ".join(_span(one, score) for one in shown)
    spec = _sorted_spec(rows, shown, runs, score)
    return Chart("clients-sorted", title, spec, table.reset_index(), says, tuple(notes))


def _each(one: Role, score: Shown) -> list[Row]:
    values = one.clients.sort_values(ascending=not score.lower_is_better, kind="stable")
    places = 100 * (np.arange(len(values)) + 0.5) / len(values)
    return [
        {"method": one.title, "place": place, "client": client, "value": score.factor * value}
        for place, (client, value) in zip(places, values.items(), strict=True)
    ]


def _spread(one: Role, score: Shown) -> list[Row]:
    places = np.linspace(0, 100, STEPS + 1)
    values = np.percentile(one.clients, 100 - places if score.lower_is_better else places)
    return [
        {"method": one.title, "place": place, "value": score.factor * value}
        for place, value in zip(places, values, strict=True)
    ]


def _sorted_spec(rows: list[Row], shown: Sequence[Role], runs: Sequence[Run], score: Shown) -> Row:
    names = [one.title for one in shown]
    colour = {
        "field": "method", "type": "nominal", "title": None, "sort": None,
        "scale": {"domain": names, "range": colours(names, runs)},
    }  # fmt: skip
    x = {"field": "place", "type": "quantitative", "title": "clients, % (those with least first)",
         "scale": {"domain": [0, 100]}}  # fmt: skip
    y = {"field": "value", "type": "quantitative", "title": score.title, "scale": {"zero": False}}
    line = {"x": x, "y": y, "color": colour}
    dots = {**line, "opacity": opacity(0.75), "tooltip": _told(rows, score)}
    layers: list[Row] = [{"mark": {"type": "line", "strokeWidth": 1.2}, "encoding": line}]
    if "client" in rows[0]:
        layers.append({"mark": {"type": "circle", "size": _size(len(rows))}, "encoding": dots})
    return {
        "width": "container",
        "height": 300,
        "params": [PICKED],
        "data": {"values": rows},
        "layer": layers,
    }


def colours(titles: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """The colour of each method, as in all other figures.

    >>> colours(["local", "fedavg"], [])
    ['#000000', '#0072B2']
    """
    names = {run.title: str(run.facts.get("algorithm", run.title)) for run in runs}
    taken: list[tuple[int, int]] = []
    for title in titles:
        taken.append(look(names.get(title, title), taken))
    return [COLOURS[colour] for colour, _ in taken]


def _told(rows: Sequence[Row], score: Shown) -> list[Row]:
    named = [{"field": "client"}] if "client" in rows[0] else []
    return [*named, {"field": "method"}, {"field": "value", "title": score.title, "format": ".4~g"}]


def _size(points: int) -> int:
    return 34 if points <= 300 else 16 if points <= 3000 else 8


def _span(one: Role, score: Shown) -> str:
    values = one.clients
    worst, best = (
        (values.idxmax(), values.idxmin()) if score.lower_is_better else (values.idxmin(), values.idxmax())
    )
    half = "at most" if score.lower_is_better else "at least"
    return (
        f"With {one.title} clients have between {score.text(values[worst])} ({worst}) and "
        f"{score.text(values[best])} ({best}), half of them {half} {score.text(values.median())}."
    )


def gains_over_all(runs: Sequence[Run]) -> Chart | None:
    """What each client gains or loses when the best method takes the place of the one model for all."""
    return _gains(runs, "all", "the one model of")


def gains_over_alone(runs: Sequence[Run]) -> Chart | None:
    """What each client gains or loses with the best method instead of training alone."""
    return _gains(runs, "alone", "training alone,")


def differences(best: Role, other: Role, score: Shown) -> pd.Series:
    """By how much each client is better off with the best method, in the unit that is shown; sorted.

    >>> from kinfolk.report.page.charts.scores import shown_score
    >>> a, b = (Role("x", "centre", pd.Series({"ann": v, "bob": 0.5})) for v in (0.75, 0.5))
    >>> differences(a, b, shown_score("accuracy")).to_dict(), differences(a, b, shown_score("mse")).to_dict()
    ({'bob': 0.0, 'ann': 25.0}, {'ann': -0.25, 'bob': 0.0})
    """
    more, less = (other, best) if score.lower_is_better else (best, other)
    apart = (score.factor * (more.clients - less.clients)).replace([np.inf, -np.inf], np.nan)
    return apart.dropna().sort_values(kind="stable")


def _gains(runs: Sequence[Run], against: str, words: str) -> Chart | None:
    score = judged_by(runs)
    found = roles(runs, score.name)
    best, other = found.get("best") or found.get("all"), found.get(against)
    if best is None or other is None or best is other:
        return None
    apart = differences(best, other, score)
    if apart.empty:
        return None
    least = LEAST * (score.factor if score.factor == 100 else abs(float(other.clients.mean())))
    verdicts = np.select([apart > least, apart < -least], ["gains", "loses"], "as before")
    rows: list[Row] = [
        {"client": client, "place": place, "gain": gain, "verdict": verdict}
        for place, ((client, gain), verdict) in enumerate(zip(apart.items(), verdicts, strict=True), 1)
    ]
    counts = pd.Series(verdicts).value_counts().reindex(["gains", "loses", "as before"]).fillna(0).astype(int)
    few = len(rows) <= MOST_CLIENTS
    drawn = rows if few else _binned(apart, least)
    unit = "points" if score.factor == 100 else score.word
    table = pd.DataFrame({
        "client": apart.index, best.title: (score.factor * best.clients).reindex(apart.index),
        other.title: (score.factor * other.clients).reindex(apart.index), f"gain, {unit}": apart,
        "verdict": verdicts,
    })  # fmt: skip
    says = (
        f"With {best.title} in place of {words} {other.title}, {counts['gains']:,} of {len(apart):,} clients "
        f"gain more than {least:.2g} {unit}, {counts['loses']:,} lose more, {counts['as before']:,} stay; in "
        f"the mean {apart.mean():+.3g} {unit}."
    )
    return Chart(
        f"gains-over-{against}", f"Gain of every client with {best.title} over {other.title}",
        _gain_spec(drawn, f"gain over {other.title}, {unit}") if few else _binned_spec(drawn, unit),
        table.iloc[::-1] if few else _counted(drawn, unit), says,
        () if few else (f"More than {MOST_CLIENTS:,} clients: counted by gain, not drawn one by one.",),
    )  # fmt: skip


VERDICTS = {"domain": ["gains", "as before", "loses"], "range": [GAIN, QUIET, LOSS]}


def _gain_spec(rows: list[Row], title: str) -> Row:
    named = len(rows) <= NAMED
    x: Row = {
        "field": "client",
        "type": "nominal",
        "sort": None,
        "title": None if named else "clients, by gain",
    }
    x["axis"] = {"labelAngle": -60, "labelLimit": 90} if named else {"labels": False, "ticks": False}
    y = {"field": "gain", "type": "quantitative", "title": title}
    colour = {"field": "verdict", "type": "nominal", "title": None, "scale": VERDICTS}
    told = [{"field": "client"}, {"field": "gain", "format": "+.3~g"}]
    dots = {"x": x, "y": y, "color": colour, "opacity": opacity(), "tooltip": told}
    stems = {"mark": {"type": "rule"}, "encoding": {**dots, "y2": {"datum": 0}}}
    zero = {"mark": {"type": "rule", "color": QUIET}, "encoding": {"y": {"datum": 0}}}
    return {
        "width": "container", "height": 260, "params": [PICKED], "data": {"values": rows},
        "layer": [
            stems if len(rows) <= STEMS else zero,
            {"mark": {"type": "circle", "size": _size(len(rows))}, "encoding": dots},
        ],
    }  # fmt: skip


def _binned(apart: pd.Series, least: float) -> list[Row]:
    counts, edges = np.histogram(apart, bins=60)
    middles = (edges[:-1] + edges[1:]) / 2
    names = np.select([middles > least, middles < -least], ["gains", "loses"], "as before")
    return [
        {"from": low, "to": high, "clients": int(count), "verdict": name}
        for low, high, count, name in zip(edges[:-1], edges[1:], counts, names, strict=True)
    ]


def _binned_spec(rows: list[Row], unit: str) -> Row:
    return {
        "width": "container", "height": 260, "params": [PICKED], "data": {"values": rows}, "mark": "bar",
        "encoding": {
            "x": {"field": "from", "type": "quantitative", "bin": "binned", "title": f"gain, {unit}"},
            "x2": {"field": "to"},
            "y": {"field": "clients", "type": "quantitative"},
            "color": {"field": "verdict", "type": "nominal", "title": None, "scale": VERDICTS},
        },
    }  # fmt: skip


def _counted(rows: list[Row], unit: str) -> pd.DataFrame:
    return pd.DataFrame(rows).rename(columns={"from": f"gain from, {unit}", "to": f"to, {unit}"})


def everyone(runs: Sequence[Run]) -> Chart | None:
    """All clients in one table, from which a reader picks some; no picture. None where there are too many.

    >>> run = Run.of({"title": "ifca", "seed": 0}, {"client": ["ann"], "value": [0.5], "group": [1]})
    >>> everyone([run]).table.to_dict("records")
    [{'client': 'ann', 'group': 1, 'ifca': 50.0}]
    """
    score = judged_by(runs)
    shown = list(roles(runs, score.name).values())
    columns: dict[str, pd.Series] = {one.title: score.factor * one.clients for one in shown}
    grouped = next(
        (run for one in shown[::-1] for run in runs if run.title == one.title and run.has_groups), None
    )
    groups = {"group": grouped.groups["group"].astype("Int64")} if grouped is not None else {}
    facts = runs[0].client_facts
    rows = {"training rows": facts["rows"].astype("Int64")} if "rows" in facts else {}
    frame = pd.DataFrame({**groups, **rows, **columns}).rename_axis("client")
    if frame.empty or len(frame) > MOST_CLIENTS:
        return None
    of = f" Groups are those of {grouped.title}, seed {grouped.seed}." if grouped is not None else ""
    says = f"{len(frame):,} clients with their {score.title} at the end, the mean over seeds.{of}"
    hint = "Pick a client by its button, or find it by name at the top: every chart then shows it alone."
    return Chart("clients-table", "All clients", {}, frame.reset_index(), says, (hint,))
