"""How the mean over clients grew: by round, by what was sent, and by time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from kinfolk.report.diverged import divergence_rounds
from kinfolk.report.figures import COLOURS, STYLES, look
from kinfolk.report.page.chart import IS_PICKED, PICKED, Chart
from kinfolk.report.page.charts.scores import MOST_CLIENTS, Role, Shown, best_models, judged_by
from kinfolk.report.page.theme import CONTEXT, ROUNDS
from kinfolk.report.read import Run, by_title, history, is_training, sample_std, training_seconds

DASHES = {"-": [1, 0], "--": [6, 3], ":": [2, 2]}
# More methods than this in colour nobody can tell apart; the others are grey.
COLOURED = 12
# Means step back behind the clients that are picked.
BACK = "(length(picked) > 0 ? 0.4 : 1)"
# Points of single clients' curves: for those that a reader picks.
MOST_POINTS = 60_000
ACROSS = {
    "rounds": ("round", str(ROUNDS["title"]), "by round"),
    "bytes": ("megabytes", "MB sent so far, per client", "by what was sent"),
    "seconds": ("seconds", "seconds of training so far", "by time"),
}
Row = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    """One method: its mean by round with what was spent until then, and how it is drawn."""

    label: str
    points: pd.DataFrame  # by round: mean, std, megabytes, seconds
    role: Role
    runs: tuple[Run, ...]
    colour: str
    dash: tuple[float, ...]
    since: int | None  # the first round at which a seed had diverged


def by_costs(runs: Sequence[Run]) -> list[Chart]:
    """The mean over clients by finished rounds, by megabytes and by seconds, those of a start included.

    What is not recorded has no chart.

    >>> run = Run.of({"title": "local", "seed": 0}, {"round": [0, 5], "client": "a", "value": [0.1, 0.5]})
    >>> [(chart.name, chart.says) for chart in by_costs([run])]
    [('convergence-rounds', 'After 5 rounds local has a mean accuracy of 50.0 %.')]
    """
    score = judged_by(runs)
    drawn = [one for one in curves(runs, score.name) if len(one.points)]
    return [chart for across in ACROSS for chart in _chart(drawn, score, across)]


def spent(run: Run) -> pd.DataFrame:
    """What a run had cost at the end of each round: megabytes per client and seconds, as tables count them.

    Scoring and checkpoints do not count. Of choices before scoring only that for the round itself does.

    >>> rounds = [{"round": r, "bytes": {"update": {"up": 3e6}, "score.centre": {"up": 9e9}},
    ...     "seconds": {"update": 2.0, "checkpoint": 9.0}} for r in (1, 2)]
    >>> facts = {"title": "fedavg", "seed": 0, "federation": {"clients": 3}}
    >>> spent(Run.of(facts, {"value": []}, rounds)).to_dict("list")
    {'megabytes': [1.0, 2.0], 'seconds': [2.0, 4.0]}
    """
    clients = (run.facts.get("federation") or {}).get("clients") or 1
    # What no round tells of is not nothing, but not known.
    sent, took = (
        0.0 if any(key in fact for fact in run.rounds) else math.nan for key in ("bytes", "seconds")
    )
    lines = {}
    for fact in run.rounds:
        sent += _sent(fact.get("bytes"))
        took += training_seconds(fact)
        choices = _sent((fact.get("chosen") or {}).get("bytes"))
        lines[int(fact["round"])] = ((sent + choices) / 1e6 / clients, took)
    return pd.DataFrame.from_dict(lines, orient="index", columns=["megabytes", "seconds"])


def _sent(told: Mapping[str, Any] | None) -> float:
    return float(sum(sum(ways.values()) for kind, ways in (told or {}).items() if is_training(kind)))


def curves(runs: Sequence[Run], score: str) -> list[Curve]:
    """A curve for every method, the best first."""
    groups = by_title(runs)
    found: list[Curve] = []
    taken: list[tuple[int, int]] = []
    for place, role in enumerate(best_models(runs, score)):
        same = tuple(run for run in groups[role.title] if role.model in run.models)
        means = pd.concat([history(run, role.model, score) for run in same], axis=1, join="inner")
        values = means.replace([np.inf, -np.inf], np.nan).to_numpy(dtype=np.float64)
        points = pd.DataFrame(
            {"mean": values.mean(axis=1), "std": [sample_std(row) for row in values]}, means.index
        )
        costs = [spent(run).reindex(points.index) for run in same]
        points = points.assign(
            **{name: np.mean([cost[name] for cost in costs], axis=0) for name in ("megabytes", "seconds")}
        ).sort_index()
        taken.append(look(str(same[0].facts.get("algorithm", role.title)), taken))
        colour, style = COLOURS[taken[-1][0]], STYLES[taken[-1][1]]
        grey = place >= COLOURED
        label = role.title if role.model == same[0].models[0] else f"{role.title} ({role.model})"
        since = min(divergence_rounds(same, role.model), default=None)
        dash = tuple(DASHES["-" if grey else style])
        found.append(Curve(label, points, role, same, CONTEXT if grey else colour, dash, since))
    return found


def _chart(drawn: Sequence[Curve], score: Shown, across: str) -> Iterator[Chart]:
    field, axis, where = ACROSS[across]
    table = _table(drawn, field, across, score)
    if table.empty or (field != "round" and table[across].isna().all()):
        return
    still = [one.label for one in drawn if field != "round" and not one.points[field].max() > 0]
    rows = [row for one in drawn for row in _rows(one, field, score)]
    reach = max((row["x"] for row in rows if math.isfinite(row["x"])), default=0.0)
    rows = [row for row in rows if row["method"] not in still] + [
        {**row, "x": x} for row in _ends(rows) if row["method"] in still for x in (0.0, reach)
    ]
    clients = _of_clients([one for one in drawn if one.label not in still], field, score)
    yield Chart(
        f"convergence-{across}",
        f"Mean {score.word} over clients, {where}",
        _spec(rows, clients, drawn, axis, score),
        table,
        _says(drawn, score),
        tuple(_notes(drawn, still)),
    )


def _rows(one: Curve, field: str, score: Shown) -> list[Row]:
    """What is drawn of a curve; the diverged part of it begins at the last point before."""
    rows: list[Row] = []
    for round, point in one.points.iterrows():
        mean, std = score.factor * point["mean"], score.factor * point["std"]
        band = 0.0 if math.isnan(std) else std
        row = {"method": one.label, "round": round, "x": round if field == "round" else point[field]}
        row |= {"mean": mean, "std": std, "low": mean - band, "high": mean + band}
        gone = one.since is not None and round >= one.since
        rows += [{**rows[-1], "diverged": True}] if gone and rows and not rows[-1]["diverged"] else []
        rows.append({**row, "diverged": gone})
    return rows


def _of_clients(drawn: Sequence[Curve], field: str, score: Shown) -> list[Row]:
    """Curves of single clients, to be picked: means over seeds, at some rounds only if there are many."""
    everyone = sum(len(one.role.clients) for one in drawn)
    if not everyone or max(len(one.role.clients) for one in drawn) > MOST_CLIENTS:
        return []
    room = max(2, MOST_POINTS // everyone)
    rows: list[Row] = []
    for one in drawn:
        rounds = one.points.index
        some = rounds[np.unique(np.linspace(0, len(rounds) - 1, min(room, len(rounds))).round().astype(int))]
        columns = ("round", "client", "model", "score", "value")
        parts = [
            part[(part["model"] == one.role.model) & (part["score"] == score.name)]
            for run in one.runs
            for _, part in run.scored.parts(columns, set(some))
        ]
        found = pd.concat(parts).astype({"client": "str"})
        table = found.pivot_table(index="round", columns="client", values="value")
        for round, values in table.iterrows():
            x = round if field == "round" else one.points.at[round, field]
            rows += [
                {"method": one.label, "x": x, "client": client, "value": score.factor * value}
                for client, value in values.items()
            ]
    return rows


def _spec(rows: list[Row], clients: list[Row], drawn: Sequence[Curve], axis: str, score: Shown) -> Row:
    names = [one.label for one in drawn]
    colour = {
        "field": "method", "type": "nominal", "title": None, "sort": None,
        "scale": {"domain": names, "range": [one.colour for one in drawn]},
        "legend": {"values": names[:COLOURED], "symbolType": "stroke"},
    }  # fmt: skip
    dash = {**colour, "scale": {"domain": names, "range": [list(one.dash) for one in drawn]}}
    x = (
        {**ROUNDS, "field": "x"}
        if axis == ROUNDS["title"]
        else {"field": "x", "type": "quantitative", "title": axis}
    )
    y: Row = {
        "type": "quantitative",
        "title": score.title,
        "scale": {"zero": False, **_logarithmic(rows, score)},
    }
    told = [
        {"field": "method", "title": "method"}, {"field": "round", "title": "after round"},
        {"field": "mean", "title": "mean", "format": ".4~g"},
        {"field": "std", "title": "± over seeds", "format": ".2~g"},
    ]  # fmt: skip
    line = {"color": colour, "x": x, "y": {**y, "field": "mean"}}
    near = {
        "name": "near",
        "select": {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout"},
    }
    nearest = {"param": "near", "empty": False, "value": 1}
    layers: list[Row] = [
        {"mark": {"type": "area", "opacity": {"expr": f"{BACK} * 0.14"}},
         "encoding": {**line, "y": {**y, "field": "low"}, "y2": {"field": "high"}}},
        {"transform": [{"filter": "!datum.diverged"}],
         "mark": {"type": "line", "strokeWidth": 2, "opacity": {"expr": BACK}},
         "encoding": {**line, "strokeDash": dash}},
        {"params": [near], "mark": {"type": "point", "filled": True, "size": 55},
         "encoding": {**line, "tooltip": told,
                      "opacity": {"condition": nearest, "value": _dots(rows)}}},
    ]  # fmt: skip
    crosses = [row for row in _ends(rows) if row["diverged"]]
    if crosses:
        thin = {"type": "line", "strokeWidth": 1.2, "strokeDash": [2, 4]}
        layers.append({"transform": [{"filter": "datum.diverged"}], "mark": thin, "encoding": line})
        layers.append({"data": {"values": crosses}, "mark": {"type": "text", "text": "×", "fontSize": 20},
                       "encoding": {**line, "tooltip": told}})  # fmt: skip
    if clients:
        layers.append(_picked(clients, line, y))
    return {
        "width": "container", "height": 320, "params": [PICKED], "data": {"values": rows},
        "resolve": {"legend": {"color": "shared"}}, "layer": layers,
    }  # fmt: skip


def _picked(clients: list[Row], line: Row, y: Row) -> Row:
    """The mean over the picked clients, dotted; not to be seen as long as nobody is picked."""
    return {
        "data": {"values": clients},
        "transform": [
            {"filter": IS_PICKED},
            {"aggregate": [{"op": "mean", "field": "value", "as": "mean"}], "groupby": ["method", "x"]},
        ],
        "mark": {
            "type": "line",
            "strokeDash": [1, 4],
            "strokeCap": "round",
            "strokeWidth": 3,
            "opacity": {"expr": "length(picked) > 0 ? 1 : 0"},
        },
        "encoding": {"x": line["x"], "y": {**y, "field": "mean"}, "color": line["color"]},
    }


def _logarithmic(rows: Sequence[Row], score: Shown) -> Row:
    """An error that spans more than a factor of fifty is drawn on a logarithmic axis."""
    values = [row["mean"] for row in rows if math.isfinite(row["mean"])]
    far = bool(values) and min(values) > 0 and max(values) > 50 * min(values)
    return {"type": "log"} if score.lower_is_better and far else {}


def _dots(rows: Sequence[Row]) -> float:
    """A curve of one point would not be seen without its dot."""
    return 1.0 if max(pd.Series([row["method"] for row in rows]).value_counts()) == 1 else 0.0


def _ends(rows: Sequence[Row]) -> list[Row]:
    ends = {row["method"]: row for row in rows if math.isfinite(row["mean"])}
    return list(ends.values())


def _table(drawn: Sequence[Curve], field: str, across: str, score: Shown) -> pd.DataFrame:
    parts = []
    for one in drawn:
        spending = {} if field == "round" else {across: one.points[field]}
        numbers = {f"mean {score.title}": one.points["mean"], "± over seeds": one.points["std"]}
        scaled = {name: score.factor * values for name, values in numbers.items()}
        parts.append(pd.DataFrame({"method": one.label, "round": one.points.index, **spending, **scaled}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _says(drawn: Sequence[Curve], score: Shown) -> str:
    last = int(max(one.points.index[-1] for one in drawn))
    said = [f"{one.label} {score.text(one.points['mean'].iloc[-1])}" for one in drawn[1:4]]
    best = score.text(drawn[0].points["mean"].iloc[-1])
    first = f"After {last} rounds {drawn[0].label} has a mean {score.word} of {best}"
    more = f" and {len(drawn) - 4} others" if len(drawn) > 4 else ""
    gone = [one.label for one in drawn if one.since is not None]
    fell = f" Diverged: {', '.join(gone[:4])}{' and others' if gone[4:] else ''}." if gone else ""
    return f"{first}{'; ' if said else ''}{', '.join(said)}{more}.{fell}"


def _notes(drawn: Sequence[Curve], still: Sequence[str]) -> list[str]:
    notes = []
    if any(len(one.runs) > 1 for one in drawn):
        notes.append("Band: ± sample standard deviation over seeds, at the rounds that all seeds have.")
    if drawn and max(len(one.role.clients) for one in drawn) <= MOST_CLIENTS:
        notes.append("Dotted, once clients are picked: their own mean.")
    if len(drawn) > COLOURED:
        notes.append(f"Of {len(drawn)} methods the {COLOURED} best are in colour, the others grey.")
    if any(one.since is not None for one in drawn):
        notes.append("Thin and dotted up to a ×: diverged.")
    if still:
        notes.append(f"{', '.join(still[:4])}: nothing was sent, so what they end with is a level line.")
    if drawn and max(len(one.role.clients) for one in drawn) > MOST_CLIENTS:
        notes.append(f"Curves of single clients are left out: there are more than {MOST_CLIENTS:,}.")
    return notes
