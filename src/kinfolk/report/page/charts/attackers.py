"""Attackers: how honest clients fare beside them, and whose replies were rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from kinfolk.report.page.chart import PICKED, Chart, opacity
from kinfolk.report.page.charts.scores import best_models, judged_by
from kinfolk.report.page.theme import GAIN, LOSS
from kinfolk.report.read import Run, by_title

Row = dict[str, Any]
# Clients with most rejected replies that are drawn.
MOST_BARS = 30


def of(runs: Sequence[Run]) -> set[str]:
    """The names of all clients that attacked in a run.

    >>> of([Run.of({"title": "fedavg", "seed": 0, "attackers": ["eve"]}, {"value": []})])
    {'eve'}
    """
    return {str(name) for run in runs for name in run.facts.get("attackers") or ()}


def honest(runs: Sequence[Run]) -> Chart | None:
    """How the scores of honest clients are spread, by method; None where nobody attacked."""
    score = judged_by(runs)
    if not of(runs):
        return None
    rows = []
    for one in best_models(runs, score.name):
        values = score.factor * np.percentile(one.clients, [0, 25, 50, 75, 100])
        spread = dict(zip(("lowest", "quarter", "median", "three quarters", "highest"), values, strict=True))
        rows.append({"method": one.title, **spread, "mean": score.factor * one.clients.mean()})
    if not rows:
        return None
    names = [str(row["method"]) for row in rows]
    y = {"field": "method", "type": "nominal", "sort": names, "title": None, "axis": {"ticks": False}}
    axis = {"type": "quantitative", "title": f"{score.title} of honest clients", "scale": {"zero": False}}
    told = [{"field": name, "format": ".4~g"} for name in ("lowest", "median", "mean", "highest")]
    spec = {
        "width": "container", "height": {"step": 30}, "params": [PICKED], "data": {"values": rows},
        "encoding": {"y": y, "tooltip": [{"field": "method"}, *told]},
        "layer": [
            {"mark": {"type": "rule"},
             "encoding": {"x": {**axis, "field": "lowest"}, "x2": {"field": "highest"}}},
            {"mark": {"type": "bar", "height": 12, "color": GAIN},
             "encoding": {"x": {**axis, "field": "quarter"}, "x2": {"field": "three quarters"}}},
            {"mark": {"type": "tick", "color": LOSS, "thickness": 3, "height": 18},
             "encoding": {"x": {**axis, "field": "median"}}},
        ],
    }  # fmt: skip
    settings = [run.spec.get("run") or {} for run in runs]
    kinds = sorted({str(table["attack"]) for table in settings if table.get("attack", "none") != "none"})
    how = f" ({', '.join(kinds)})" if kinds else ""
    says = (
        f"{len(of(runs))} clients attacked{how}. Honest clients do best "
        f"with {names[0]}: half of them have at least {rows[0]['median']:.3g}, the worst has "
        f"{rows[0]['lowest']:.3g}."
    )
    note = "Line: from the lowest to the highest honest client; bar: the middle half; tick: the median."
    return Chart("honest-clients", "Honest clients beside attackers", spec, pd.DataFrame(rows), says, (note,))


def rejected(runs: Sequence[Run]) -> Chart | None:
    """Whose replies the guard rejected, and why; None where none was.

    >>> run = Run.of({"title": "fedavg", "seed": 0, "attackers": ["eve"]}, {"value": []})
    >>> run.audit.append({"event": "rejected", "client": "eve", "reason": "not finite"})
    >>> rejected([run]).says
    'Rejected replies: fedavg 1, of attackers 1.'
    """
    lines = [
        {
            "method": title,
            "client": str(line.get("client", "")),
            "who": "attacker" if line.get("client") in (run.facts.get("attackers") or ()) else "honest",
            "reason": str(line.get("reason", "")),
        }
        for title, same in by_title(runs).items()
        for run in same
        for line in run.audit
        if line.get("event") == "rejected"
    ]
    if not lines:
        return None
    names = ["method", "client", "who", "reason"]
    frame = pd.DataFrame(lines).groupby(names, sort=False).size().rename("replies").reset_index()
    totals = frame.groupby("client")["replies"].sum().sort_values(ascending=False, kind="stable")
    most = list(totals.index[:MOST_BARS])
    sums = frame.pivot_table(index="method", columns="who", values="replies", aggfunc="sum", sort=False)
    guilty = sums.get("attacker", pd.Series(0, sums.index)).fillna(0).astype(int)
    told = ", ".join(f"{m} {int(sums.loc[m].sum())}, of attackers {guilty[m]}" for m in sums.index)
    colour = {"field": "who", "type": "nominal", "title": None,
              "scale": {"domain": ["attacker", "honest"], "range": [LOSS, GAIN]}}  # fmt: skip
    spec = {
        "width": "container", "height": {"step": 16}, "params": [PICKED],
        "data": {"values": frame[frame["client"].isin(most)].to_dict("records")},
        "mark": {"type": "bar"},
        "encoding": {
            "y": {"field": "client", "type": "nominal", "sort": most, "title": None},
            "x": {"field": "replies", "type": "quantitative", "title": "rejected, all methods and seeds"},
            "color": colour, "opacity": opacity(),
            "tooltip": [{"field": name} for name in ("client", "who", "method", "reason", "replies")],
        },
    }  # fmt: skip
    clients = frame["client"].nunique()
    notes = (f"The {MOST_BARS} clients with most of {clients} are drawn.",) if clients > MOST_BARS else ()
    return Chart("rejected", "Rejected replies", spec, frame, f"Rejected replies: {told}.", notes)
