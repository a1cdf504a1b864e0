"""How many groups: what `kinfolk choose-k` measured for every K."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from kinfolk.report.page.chart import PICKED, Chart
from kinfolk.report.page.charts.scores import shown_score
from kinfolk.report.page.theme import GAIN, LOSS, QUIET

Row = dict[str, Any]
Facts = Mapping[str, Any]


def choices(found: Sequence[Facts]) -> list[Chart]:
    """Charts of every choice: score on validation rows, silhouette, agreement of the seeds, each by K."""
    return [
        chart for number, facts in enumerate(found, 1) for chart in _of(facts, number if found[1:] else 0)
    ]


def _of(facts: Facts, number: int) -> list[Chart]:
    score = shown_score(facts["score"])
    end = f"-{number}" if number else ""
    # As recorded, larger is better.
    factor = score.factor if score.factor == 100 else -1 if score.lower_is_better else 1
    drawn = [
        _dots(facts, "score", f"k-score{end}", f"Validation {score.word} by K", score.title, factor),
        _dots(facts, "silhouette", f"k-silhouette{end}", "Silhouette by K", "silhouette", 1),
        _stability(facts, f"k-stability{end}"),
        _dots(facts, "spread", f"k-distance{end}", "Distance to the centre by K", "squared distance", 1),
    ]
    return [chart for chart in drawn if chart is not None]


def _dots(facts: Facts, key: str, name: str, title: str, axis: str, factor: float) -> Chart | None:
    """A dot for each seed, a line through the means."""
    rows = [
        {"k": row["k"], "value": factor * value, "seed": seed}
        for row in facts["rows"]
        if row.get(key) and (key != "silhouette" or row["k"] > 1)
        for seed, value in zip(facts["seeds"], row[key]["seeds"], strict=False)
        if value is not None
    ]
    if not rows:
        return None
    means = pd.DataFrame(rows).groupby("k")["value"].mean()
    y = {"field": "value", "type": "quantitative", "title": axis, "scale": {"zero": False, "padding": 8}}
    layers = [
        {"mark": {"type": "line", "color": GAIN}, "encoding": {"y": {**y, "aggregate": "mean"}}},
        {"mark": {"type": "circle", "size": 40, "color": GAIN, "opacity": 0.6},
         "encoding": {"y": y, "tooltip": [{"field": "k", "title": "K"}, {"field": "seed"},
                                          {"field": "value", "title": axis, "format": ".4~g"}]}},
    ]  # fmt: skip
    says = f"{facts['reason']} Means by K: {', '.join(f'{k}: {mean:.3g}' for k, mean in means.items())}."
    return Chart(
        name, title, _spec(facts, rows, layers), pd.DataFrame(rows), says, tuple(facts.get("notes", ()))
    )


def _stability(facts: Facts, name: str) -> Chart | None:
    """Agreement of the seeds' groups, and how far shuffled groups would agree."""
    rows = [row for row in facts["rows"] if row.get("stability") is not None]
    if not rows:
        return None
    kinds = {"stability": "found groups", "chance": "shuffled groups, at most"}
    points = [
        {"k": row["k"], "groups": words, "agreement": row[key]}
        for row in rows
        for key, words in kinds.items()
        if row.get(key) is not None and math.isfinite(row[key])
    ]
    colour = {"field": "groups", "type": "nominal", "title": None, "sort": None,
              "scale": {"domain": list(kinds.values()), "range": [GAIN, QUIET]}}  # fmt: skip
    y = {"field": "agreement", "type": "quantitative", "title": "ARI between seeds"}
    layers = [{"mark": {"type": "line", "point": True}, "encoding": {"y": y, "color": colour}}]
    table = pd.DataFrame(points).pivot(index="k", columns="groups", values="agreement").reset_index()
    says = "Agreement of the seeds' groups by K: " + ", ".join(
        f"{row['k']}: {row['stability']:.2f}" for row in rows
    )
    return Chart(name, "Agreement of the seeds by K", _spec(facts, points, layers), table, f"{says}.")


def _spec(facts: Facts, rows: list[Row], layers: list[Row]) -> Row:
    ks = [row["k"] for row in facts["rows"]]
    x = {"field": "k", "type": "ordinal", "title": "K, number of groups", "scale": {"domain": ks},
         "axis": {"labelAngle": 0}}  # fmt: skip
    chosen = {
        "data": {"values": [{"k": facts["recommended"]}]},
        "mark": {"type": "rule", "color": LOSS, "opacity": 0.25, "strokeWidth": 9},
        "encoding": {"tooltip": {"value": f"recommended: {facts['recommended']}"}},
    }
    return {
        "width": "container", "height": 220, "params": [PICKED], "data": {"values": rows},
        "encoding": {"x": x}, "layer": [chosen, *layers],
    }  # fmt: skip
