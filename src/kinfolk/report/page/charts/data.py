"""What the clients of a group have: their labels, and what sets a group apart from the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from kinfolk.report.groups import profiles
from kinfolk.report.page.chart import PICKED, Chart
from kinfolk.report.page.charts.members import (
    HUE,
    firsts,
    in_order,
    known_groups,
    named_fact,
    names_of,
    percent,
    short,
)
from kinfolk.report.read import Run, check_score, shown

Row = dict[str, Any]
# Labels and facts beyond these are left out: the most frequent, and those that differ most, are shown.
MOST_LABELS, MOST_FACTS = 40, 14
LABEL = "label "


def grouping(run: Run) -> tuple[pd.Series, str] | None:
    """(the group of each client as text, what kind of group): found ones or known ones; None without any."""
    if run.has_groups:
        return run.groups["group"].astype(int).astype(str), "group"
    known = known_groups(run)
    return None if known.empty else (known, "known group")


def grouped(runs: Sequence[Run]) -> list[tuple[Run, pd.Series, str]]:
    """The runs whose clients are in groups, the first of each method; known groups once."""
    found = [(run, *by) for run in firsts(runs) if (by := grouping(run)) is not None]
    mine = [one for one in found if one[2] == "group"]
    return mine or found[:1]


def labels(runs: Sequence[Run]) -> list[Chart]:
    """A chart for each method with groups: which share of its members' rows has which label."""
    found = [_labels(*one) for one in grouped(runs)]
    return [chart for chart in found if chart is not None]


def label_shares(facts: pd.DataFrame, group: pd.Series) -> pd.DataFrame:
    """The share of each label among the rows of a group: a row a group, a column a label.

    >>> facts = {"rows": [30.0, 10.0], "label 0": [1.0, 0.0], "label 1": [0.0, 1.0]}
    >>> label_shares(pd.DataFrame(facts, index=["a", "b"]), pd.Series({"a": "0", "b": "0"})).loc["0"].tolist()
    [0.75, 0.25]
    """
    names = [name for name in facts if name.startswith(LABEL)]
    here = facts.loc[facts.index.intersection(group.index), ["rows", *names]].dropna()
    counts = here[names].mul(here["rows"], axis=0).groupby(group.reindex(here.index)).sum()
    shares = counts.div(counts.sum(axis=1).replace(0, np.nan), axis=0)
    return shares.rename(columns=lambda name: name.removeprefix(LABEL)).reindex(in_order(shares.index))


def _labels(run: Run, group: pd.Series, kind: str) -> Chart | None:
    facts, classes = run.client_facts, names_of(run, "class_names")
    if "rows" not in facts or not any(name.startswith(LABEL) for name in facts):
        return None
    shares = label_shares(facts, group)
    if not len(shares):
        return None
    shares.columns = [named_fact(LABEL + name, classes, []).removeprefix(LABEL) for name in shares]
    most = shares.mean().sort_values(ascending=False, kind="stable").index[:MOST_LABELS]
    kept = [name for name in shares if name in set(most)]
    rows = [
        {"group": g, "label": name, "share": value, **_method(run, kind)}
        for g, line in shares[kept].iterrows()
        for name, value in zip(kept, short(line), strict=True)
    ]
    notes = [f"Shares of the training rows of a group's clients; seed {run.seed}."]
    if len(kept) < shares.shape[1]:
        notes.append(
            f"The {len(kept)} most frequent of {shares.shape[1]} labels are drawn; the table has all."
        )
    name, title = f"labels-{run.title}", f"Labels of {_whose(run, kind)}"
    table = (
        shares.map(lambda value: float(f"{value:.4g}"))
        .rename_axis(kind)
        .reset_index()
        .rename_axis(None, axis=1)
    )
    spec = _heat(rows, in_order(shares.index), kept, kind, "label", len(kept) <= 16)
    return Chart(name, title, spec, table, _labels_say(shares), tuple(notes))


def _whose(run: Run, kind: str) -> str:
    return f"the groups of {run.title}" if kind == "group" else "the known groups"


def _method(run: Run, kind: str) -> Row:
    """The page looks up members by method and group; a known group has none there."""
    return {"method": run.title} if kind == "group" else {}


def _labels_say(shares: pd.DataFrame) -> str:
    """How far the groups' labels are from those of all groups together, by total variation."""
    away = (shares - shares.mean()).abs().sum(axis=1) / 2
    if len(shares) < 2 or away.isna().all():
        return "There is one group."
    top = shares.loc[away.idxmax()]
    if away.max() < 0.05:
        return f"All {len(shares)} groups have nearly the same labels: less than 5 % of rows differ."
    told = " and ".join(f"{label} ({percent(value)})" for label, value in top.nlargest(2).items())
    far = f"in {percent(away.max())} of its rows; its most frequent labels are {told}"
    return f"Group {away.idxmax()} differs most from the mean of all groups, {far}."


def _heat(rows: list[Row], groups: list[str], columns: list[str], kind: str, of: str, words: bool) -> Row:
    """Shares as the strength of one colour, readable with numbers on any page."""
    x = {
        "field": of,
        "type": "nominal",
        "sort": columns,
        "title": of,
        "axis": {
            "labelAngle": 0 if len(columns) <= 16 else -90,
            "labelLimit": 90,
            "domain": False,
            "ticks": False,
        },
    }
    y = {
        "field": "group",
        "type": "nominal",
        "sort": groups,
        "title": kind,
        "axis": {"domain": False, "ticks": False},
    }
    tips = [{"field": "group", "title": kind}, {"field": of}, {"field": "share", "format": ".1%"}]
    strength = {
        "field": "share",
        "type": "quantitative",
        "legend": None,
        "scale": {"domain": [0, max((row["share"] for row in rows), default=1.0)], "range": [0.03, 0.7]},
    }
    layers: list[Row] = [
        {"mark": {"type": "rect", "color": HUE}, "encoding": {"opacity": strength, "tooltip": tips}}
    ]
    if words:
        text = {
            "condition": {
                "test": "datum.share >= 0.005",
                "field": "share",
                "type": "quantitative",
                "format": ".0%",
            },
            "value": "",
        }
        layers.append({"mark": {"type": "text", "fontSize": 10}, "encoding": {"text": text}})
    height = {"step": 26} if len(groups) <= 20 else 440
    return {"width": "container", "height": height, "params": [PICKED], "data": {"values": rows},
            "encoding": {"x": x, "y": y}, "layer": layers}  # fmt: skip


def differences(runs: Sequence[Run]) -> list[Chart]:
    """A chart for each method with groups: in what the clients of each group differ from all others."""
    found = [_differences(*one) for one in grouped(runs)]
    return [chart for chart in found if chart is not None]


def apart(facts: pd.DataFrame, group: pd.Series) -> pd.DataFrame:
    """By group and fact: the mean of its clients less that of all others, in deviations over clients.

    Facts that are the same for everybody are left out.

    >>> facts = pd.DataFrame({"rows": [1.0, 1.0, 3.0, 3.0], "same": 1.0}, index=list("abcd"))
    >>> apart(facts, pd.Series(list("0011"), index=list("abcd"))).round(2).to_dict()
    {'rows': {'0': -1.73, '1': 1.73}}
    """
    facts = facts.reindex(group.index)
    spread = facts.std(ddof=1)
    told = [n for n in facts if spread[n] > 1e-12 * max(1.0, float(facts[n].abs().max()))]
    found = {}
    for g in in_order(group):
        mine, others = facts.loc[group == g, told], facts.loc[group != g, told]
        found[g] = (mine.mean() - others.mean()) / spread[told]
    return pd.DataFrame(found).T


def _differences(run: Run, group: pd.Series, kind: str) -> Chart | None:
    names = names_of(run, "class_names"), names_of(run, "feature_names")
    facts = run.client_facts.drop(columns="known group", errors="ignore")
    facts = facts.rename(columns=lambda fact: named_fact(str(fact), *names))
    if facts.empty or group.nunique() < 2:
        return None
    sizes = apart(facts, group).dropna(axis=1, how="all")
    if sizes.empty:
        return None
    most = sizes.abs().max().sort_values(ascending=False, kind="stable").index[:MOST_FACTS]
    rows = [
        {"group": g, "fact": str(fact), "sd": value, **_method(run, kind)}
        for fact in most
        for g, value in zip(sizes.index, short(sizes[fact]), strict=True)
    ]
    notes = [
        "The mean of a group's clients less that of all others, in standard deviations over clients; "
        f"seed {run.seed}.",
    ]
    if len(most) < sizes.shape[1]:
        notes.append(f"The {len(most)} of {sizes.shape[1]} facts that differ most are drawn.")
    title = f"What sets {_whose(run, kind)} apart"
    spec, table = _bars(rows, in_order(group), list(map(str, most)), kind), _profiles(run, group, kind, sizes)
    return Chart(f"profiles-{run.title}", title, spec, table, _differences_say(sizes), tuple(notes))


def _bars(rows: list[Row], groups: list[str], facts: list[str], kind: str) -> Row:
    far = max((abs(row["sd"]) for row in rows if np.isfinite(row["sd"])), default=1.0) or 1.0
    axis = {"domain": False, "ticks": False}
    return {
        "width": "container", "height": {"step": 24}, "params": [PICKED], "data": {"values": rows},
        "mark": {"type": "rect"},
        "encoding": {
            "x": {"field": "group", "type": "nominal", "sort": groups, "title": kind,
                  "axis": {**axis, "labelAngle": 0, "orient": "top"}},
            "y": {"field": "fact", "type": "nominal", "sort": facts, "title": None,
                  "axis": {**axis, "labelLimit": 140}},
            "color": {"field": "sd", "type": "quantitative",
                      "scale": {"range": "diverging", "domain": [-far, far], "domainMid": 0},
                      "legend": {"title": "difference, sd", "gradientLength": 200}},
            "tooltip": [{"field": "group", "title": kind}, {"field": "fact"},
                        {"field": "sd", "title": "difference, sd", "format": "+.2f"}],
        },
    }  # fmt: skip


def _differences_say(sizes: pd.DataFrame) -> str:
    stacked = sizes.stack()
    g, fact = stacked.abs().idxmax()
    far = f"{stacked[g, fact]:+.1f} standard deviations"
    return f"The largest difference is that of group {g} from the others in {fact}: {far}."


def _profiles(run: Run, group: pd.Series, kind: str, sizes: pd.DataFrame) -> pd.DataFrame:
    """A row for each group: how large, how well served, and what is beyond chance."""
    if kind != "group":
        clients = group.value_counts().rename("clients").reindex(in_order(group)).to_frame()
        told = sizes.map(lambda value: float(f"{value:.3g}"))
        return clients.join(told).rename_axis(kind).reset_index()
    score, found = check_score([run], None), list[Row]()
    for one in profiles(run, score):
        mean, worst = (shown(value, score, unit=True) for value in (one.score, one.worst))
        row: Row = {"group": one.group, "clients": len(one.clients), "rows": one.rows}
        row |= {f"mean {score}": mean, f"worst {score}": worst}
        found.append(row | {"differs beyond chance in": ", ".join(one.shares) or "-"})
    return pd.DataFrame(found)
