"""What SLFed's clients think of one another: uncertainty, lists, similarity, and who asks whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kinfolk.experiment.picture_files import read_arrays
from kinfolk.report.page.chart import IS_PICKED, PICKED, Chart
from kinfolk.report.page.charts.members import (
    FAR,
    HUE,
    evenly,
    firsts,
    known_groups,
    names_of,
    percent,
    short,
)
from kinfolk.report.read import Run

Row = dict[str, Any]
Array = NDArray[Any]
Shown = Mapping[int, Mapping[str, Array]]  # by round and name
PAIRS = ("who", "similarity", "asks")
# The axis of rounds, as other charts have it; and rounds that are drawn.
ROUNDS: Row = {
    "field": "round", "type": "quantitative", "title": "finished rounds",
    "scale": {"nice": False, "zero": False}, "axis": {"format": "d", "tickMinStep": 1},
}  # fmt: skip
MOST_ROUNDS = 40


def trusting(run: Run, names: Sequence[str]) -> tuple[list[str], Shown]:
    """(clients by place, arrays by round) of the pictured rounds that have these arrays."""
    found = {
        n: arrays for n, arrays in read_arrays(run.path).items() if all(name in arrays for name in names)
    }
    return sorted(names_of(run, "clients") or set(run.scored.seen.rows["client"])), found


def uncertainty(runs: Sequence[Run]) -> list[Chart]:
    """How uncertain clients are about the others, by round."""
    says = (
        "Mean uncertainty about other clients after round {last}: {mean:.2f}, from {low:.2f} to {high:.2f}."
    )
    return _curves(
        runs, "uncertainty", "Uncertainty among clients of {title}", "mean uncertainty about others", says
    )


def lists(runs: Sequence[Run]) -> list[Chart]:
    """How many others each client asks for a model, by round."""
    says = "After round {last} a client would ask {mean:.1f} others on average, from {low:.0f} to {high:.0f}."
    return _curves(runs, "asked", "Clients asked by each client of {title}", "clients on the list", says)


def _curves(runs: Sequence[Run], name: str, title: str, axis: str, says: str) -> list[Chart]:
    charts = []
    for run in firsts(runs):
        clients, found = trusting(run, [name])
        found = {n: one for n, one in found.items() if one[name].shape == (len(clients),)}
        if found:
            rounds = evenly(sorted(found), MOST_ROUNDS)
            values = {n: np.asarray(found[n][name], dtype=float) for n in rounds}
            words = title.format(title=run.title)
            charts.append(_curve(run, f"{name}-{run.title}", words, axis, says, values, clients))
    return charts


def _curve(
    run: Run, name: str, title: str, axis: str, says: str, values: Mapping[int, Array], clients: Sequence[str]
) -> Chart:
    table = pd.DataFrame(
        [(n, *short([v.mean(), v.min(), v.max()])) for n, v in values.items()],
        columns=["round", "mean", "lowest", "highest"],
    )
    last = table.iloc[-1]
    told = says.format(last=int(last["round"]), mean=last["mean"], low=last["lowest"], high=last["highest"])
    some = set(evenly(clients, 200))
    single = [
        {"round": n, "client": who, "value": value}
        for n, row in values.items()
        for who, value in zip(clients, short(row), strict=True)
        if who in some
    ]
    y = {"type": "quantitative", "title": axis, "scale": {"zero": True}}
    tips = [{"field": field, "format": ".3~g"} for field in ("round", "mean", "lowest", "highest")]
    dots: Row = {"size": 30} if len(values) < 30 else {"size": 12}
    spec = {
        "width": "container", "height": 220, "params": [PICKED], "data": {"values": table.to_dict("records")},
        "encoding": {"x": ROUNDS},
        "layer": [
            {"mark": {"type": "area", "color": HUE, "opacity": 0.16},
             "encoding": {"y": {**y, "field": "lowest"}, "y2": {"field": "highest"}}},
            {"mark": {"type": "line", "color": HUE, "strokeWidth": 2, "point": {**dots, "color": HUE}},
             "encoding": {"y": {**y, "field": "mean"}, "tooltip": tips}},
            {"data": {"values": single},
             "transform": [{"filter": f"length(picked) > 0 && ({IS_PICKED})"}],
             "mark": {"type": "line", "color": FAR, "strokeWidth": 1.2},
             "encoding": {"y": {**y, "field": "value"}, "detail": {"field": "client"},
                          "tooltip": [{"field": "client"}, {"field": "round"}, {"field": "value"}]}},
        ],
    }  # fmt: skip
    note = f"Line: mean over {len(clients)} clients; band: from the lowest to the highest; seed {run.seed}. "
    return Chart(name, title, spec, table, told, (note + "Clients that are picked have lines of their own.",))


def similarity(runs: Sequence[Run]) -> list[Chart]:
    """How similar clients find those of their own known group, and others; only where groups are known."""
    charts = []
    for run in firsts(runs):
        clients, found = trusting(run, PAIRS)
        known = known_groups(run)
        rows = [row for n in sorted(found) for row in _similar(n, found[n], clients, known)]
        if rows and not known.empty:
            charts.append(_similarity(run, pd.DataFrame(rows)))
    return charts


def _similar(number: int, one: Mapping[str, Array], clients: Sequence[str], known: pd.Series) -> list[Row]:
    """Of pairs of one known group and others: the mean s where they have met, their share of those asked."""
    who = [clients[i] for i in one["who"]]
    group = np.array([str(known.get(c, "")) for c in who])
    same, others = group[:, None] == group[None], ~np.eye(len(who), dtype=bool)
    s, asks = np.asarray(one["similarity"], dtype=float), np.asarray(one["asks"], dtype=bool)
    rows = []
    for word, where in (("own known group", same & others), ("other known groups", ~same)):
        met = s[where & (s > 0)]
        mean, asked = float(met.mean()) if len(met) else float("nan"), asks[where].sum() / max(1, asks.sum())
        rows.append({"round": number, "of": word, "similarity": mean, "asked": float(asked)})
    return rows


def _similarity(run: Run, frame: pd.DataFrame) -> Chart:
    kinds = ["own known group", "other known groups"]
    last = frame[frame["round"] == frame["round"].max()].set_index("of")
    own, other = (last.loc[kind, "similarity"] for kind in kinds)
    asked = percent(last.loc[kinds[0], "asked"])
    says = (
        f"After round {int(frame['round'].max())} clients find those of their known group {own:.2f} similar "
        f"on average, others {other:.2f}; {asked} of those on lists are of the own group."
    )
    spec = {
        "width": "container", "height": 220, "params": [PICKED],
        "data": {"values": frame.assign(similarity=short(frame["similarity"])).to_dict("records")},
        "mark": {"type": "line", "strokeWidth": 2, "point": {"size": 30}},
        "encoding": {
            "x": ROUNDS, "y": {"field": "similarity", "type": "quantitative", "title": "mean similarity (s)",
                          "scale": {"zero": True}},
            "color": {"field": "of", "type": "nominal", "title": None, "legend": {"symbolType": "stroke"},
                      "scale": {"domain": kinds, "range": [HUE, FAR]}},
            "strokeDash": {"field": "of", "type": "nominal",
                           "scale": {"domain": kinds, "range": [[1, 0], [5, 3]]}},
            "tooltip": [{"field": "round"}, {"field": "of"}, {"field": "similarity", "format": ".3f"},
                        {"field": "asked", "title": "share of those asked", "format": ".0%"}],
        },
    }  # fmt: skip
    note = f"s of the opinions about those who were met or heard of; seed {run.seed}."
    table = frame.assign(similarity=short(frame["similarity"]), asked=short(frame["asked"]))
    return Chart(f"similarity-{run.title}", f"How similar clients of {run.title} find one another", spec,
                 table, says, (note,))  # fmt: skip
