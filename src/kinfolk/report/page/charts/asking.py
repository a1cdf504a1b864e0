"""Who asks whom for a model in SLFed: a graph of few clients, a matrix of more."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from kinfolk.report.page.chart import IS_PICKED, PICKED, Chart, opacity, round_parameter
from kinfolk.report.page.charts.members import (
    BETWEEN,
    FAR,
    HUE,
    KNOWN,
    SHAPES,
    either_picked,
    evenly,
    firsts,
    heat,
    in_order,
    known_groups,
    percent,
    shaped,
    short,
)
from kinfolk.report.page.charts.trust import PAIRS, Array, Shown, trusting
from kinfolk.report.read import Run

Row = dict[str, Any]
# A graph of more clients is a tangle: they get a matrix.
MOST_NODES = 60
# Lines or cells of all rounds of a chart, and rounds.
MOST_EDGES, MOST_CELLS, MOST_ROUNDS = 4000, 10_000, 12


def graph(runs: Sequence[Run]) -> list[Chart]:
    """Who asks whom at every pictured round: a graph of up to MOST_NODES clients, of more a matrix."""
    charts = []
    for run in firsts(runs):
        clients, found = trusting(run, PAIRS)
        found = {n: one for n, one in found.items() if max(one["who"], default=-1) < len(clients)}
        if found and len(found[max(found)]["who"]) > 1:
            charts.append(_graph(run, clients, found))
    return charts


def _graph(run: Run, clients: Sequence[str], found: Shown) -> Chart:
    last, known = found[max(found)], known_groups(run)
    names = [clients[i] for i in last["who"]]
    order = seriated(names, np.asarray(last["similarity"], dtype=float), known)
    few = len(names) <= MOST_NODES
    edges = max(1, max(int(np.asarray(one["asks"]).sum()) for one in found.values()))
    most = MOST_EDGES // edges if few else MOST_CELLS // len(names) ** 2
    rounds = evenly(sorted(found), max(1, min(MOST_ROUNDS, most)))
    spec = _nodes(run, names, order, found, rounds, known) if few else _matrix(names, order, found, rounds)
    notes = [
        "Clients of one known group lie together."
        if not known.empty
        else "Clients that find one another similar lie together."
    ]
    notes.append(
        "A line or dot: the first asks the second for its model. Opinions are seen by the simulation alone."
    )
    if len(names) < len(clients):
        notes.append(f"{len(names)} of {len(clients):,} clients are drawn.")
    table, says = _asked(names, found, rounds, known)
    title = f"Whom {run.title}'s clients ask for models"
    return Chart(f"trust-{run.title}", title, spec, table, says, tuple(notes), tuple(rounds))


def _asked(
    names: Sequence[str], found: Shown, rounds: Sequence[int], known: pd.Series
) -> tuple[pd.DataFrame, str]:
    """Of each client at the last round: how many it asks, and who ask it."""
    asks = np.asarray(found[rounds[-1]]["asks"], dtype=bool)
    table = pd.DataFrame({"client": names, "asks": asks.sum(1), "is asked by": asks.sum(0)})
    both = int((asks & asks.T).sum() // 2)
    says = (
        f"After round {rounds[-1]} {len(names)} clients ask {int(asks.sum())} times, {both} pairs each other."
    )
    if not known.empty:
        group = np.array([str(known.get(c, "")) for c in names])
        same = group[:, None] == group[None]
        table["of its known group"] = (asks & same).sum(1)
        if asks.any():
            says += (
                f" In {percent(float(same[asks].mean()))} of the cases one of the own known group is asked."
            )
    return table, says


def seriated(names: Sequence[str], similarity: Array, known: pd.Series) -> list[int]:
    """The places of clients in an order by known group, or else such that similar ones are neighbours.

    >>> seriated(["a", "b", "c"], np.zeros((3, 3)), pd.Series({"a": "1", "b": "0", "c": "1"}))
    [1, 0, 2]
    """
    if not known.empty:
        rank = {g: i for i, g in enumerate(in_order(known))}
        return sorted(
            range(len(names)), key=lambda i: (rank.get(known.get(names[i], ""), len(rank)), names[i])
        )
    if len(names) < 3:
        return list(range(len(names)))
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    alike = np.nan_to_num((similarity + similarity.T) / 2)
    apart = alike.max() - alike
    np.fill_diagonal(apart, 0)
    return [
        int(i)
        for i in leaves_list(linkage(squareform(apart, checks=False), "average", optimal_ordering=True))
    ]


def circle(parts: Sequence[int]) -> Array:
    """Places [n, 2] on a circle for parts of so many clients, clockwise from the top, a gap after each.

    >>> circle([2, 1]).round(2).tolist()
    [[0.0, 1.0], [0.95, 0.31], [-0.59, -0.81]]
    """
    gap = int(len(parts) > 1)
    steps = [first + i for first, many in zip(_starts(parts, gap), parts, strict=True) for i in range(many)]
    angle = 2 * np.pi * np.asarray(steps, dtype=float) / max(1, sum(parts) + gap * len(parts))
    return np.stack([np.sin(angle), np.cos(angle)], axis=1)


def _starts(parts: Sequence[int], gap: int) -> list[int]:
    return [sum(parts[:k]) + gap * k for k in range(len(parts))]


def _nodes(
    run: Run,
    names: Sequence[str],
    order: Sequence[int],
    found: Shown,
    rounds: Sequence[int],
    known: pd.Series,
) -> Row:
    group = [str(known.get(c, "")) for c in names]
    place = np.empty((len(names), 2))
    place[list(order)] = circle([len(list(part)) for _, part in groupby(group[i] for i in order)])
    edges = []
    for number in rounds:
        for i, j in zip(*np.nonzero(np.asarray(found[number]["asks"], dtype=bool)), strict=True):
            # A line ends before the client that is asked, so that its direction shows.
            back = place[i] - place[j]
            tip = place[j] + 0.07 * back / max(float(np.linalg.norm(back)), 1e-9)
            x, y, x2, y2 = short([*place[i], *tip], 3)
            pair = {"client": names[i], "other": names[j], "kind": _kind(group[i], group[j])}
            edges.append({"round": number, **pair, "x": x, "y": y, "x2": x2, "y2": y2})
    span: Row = {"type": "quantitative", "axis": None, "scale": {"domain": [-1.12, 1.12], "nice": False}}
    where = {"x": {**span, "field": "x"}, "y": {**span, "field": "y"}}
    kinds = [_kind("a", "a"), _kind("a", "b")]
    colour: Row = {"value": HUE}
    if not known.empty:
        colour = {
            "field": "kind",
            "type": "nominal",
            "title": None,
            "scale": {"domain": kinds, "range": [HUE, FAR]},
        }
    touches = f"{IS_PICKED} || indexof(picked, datum.other) >= 0"
    strength = {
        "condition": [{"test": f"length(picked) > 0 && ({touches})", "value": 0.9},
                      {"test": "length(picked) > 0", "value": 0.05}],
        "value": float(np.clip(300 / max(1, len(edges) / len(rounds)), 0.12, 0.5)),
    }  # fmt: skip
    ends = {"x2": {"field": "x2"}, "y2": {"field": "y2"}}
    told = [{"field": "client"}, {"field": "other", "title": "asks"}]
    dots = [
        {"client": c, "x": x, "y": y, **({"known": KNOWN + g} if g else {})}
        for c, g, (x, y) in zip(names, group, (short(p, 3) for p in place), strict=True)
    ]
    kinds_here = in_order(g for g in group if g)
    mark: Row = {"color": {"value": BETWEEN}, "opacity": opacity(1.0, 0.25)}
    tips = [{"field": "client"}]
    if kinds_here and len(kinds_here) <= len(SHAPES):
        mark["shape"] = shaped(kinds_here)
        tips.append({"field": "known", "title": "known group"})
    layers: list[Row] = [
        {"data": {"values": edges}, "transform": [{"filter": "datum.round == round"}],
         "mark": {"type": "rule"},
         "encoding": {**where, **ends, "color": colour, "opacity": strength, "tooltip": told}},
        {"data": {"values": dots}, "mark": {"type": "point", "filled": True, "size": 90},
         "encoding": {**where, **mark, "tooltip": tips}},
    ]  # fmt: skip
    return {
        "width": "container", "height": 420, "params": [PICKED, round_parameter(rounds)], "layer": layers,
        "resolve": {"scale": {"color": "independent"}},
    }  # fmt: skip


def _kind(mine: str, other: str) -> str:
    return "asks one of its known group" if mine == other else "asks one of another"


def _matrix(names: Sequence[str], order: Sequence[int], found: Shown, rounds: Sequence[int]) -> Row:
    cells = [
        {"round": number, "x": x, "y": y, "client": names[i], "other": names[j],
         "similarity": short(found[number]["similarity"][i, j], 3)[0],
         "asks": bool(found[number]["asks"][i, j])}
        for number in rounds
        for y, i in enumerate(order)
        for x, j in enumerate(order)
    ]  # fmt: skip
    many = len(names)
    place = {"type": "quantitative", "axis": None, "scale": {"domain": [0, many], "nice": False}}
    flipped = {**place, "scale": {"domain": [many, 0], "nice": False}}
    return {
        "width": "container", "height": 440, "params": [PICKED, round_parameter(rounds)],
        "data": {"values": cells},
        "transform": [
            {"filter": "datum.round == round"},
            *({"calculate": f"datum.{a} + 1", "as": f"{a}2"} for a in "xy"),
            *({"calculate": f"datum.{a} + 0.5", "as": f"{a}m"} for a in "xy"),
        ],
        "layer": [
            {"mark": {"type": "rect"},
             "encoding": {
                 "x": {**place, "field": "x"}, "x2": {"field": "x2"},
                 "y": {**flipped, "field": "y"}, "y2": {"field": "y2"},
                 "color": heat("similarity", "similarity (s)"), "opacity": either_picked(),
                 "tooltip": [{"field": name} for name in ("client", "other", "similarity", "asks")]}},
            {"transform": [{"filter": "datum.asks"}],
             "mark": {"type": "circle", "color": FAR, "size": float(np.clip(9000 / many**1.5, 3, 30))},
             "encoding": {"x": {**place, "field": "xm"}, "y": {**flipped, "field": "ym"}}},
        ],
    }  # fmt: skip
