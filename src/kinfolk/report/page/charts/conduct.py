"""Conduct: how each client's updates stand beside those of its group, and who looks odd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kinfolk.report.conduct import (
    FREE_RIDER,
    OTHERS,
    OUTLIER,
    SIGNS,
    conduct_lines,
    everyone,
    has_conduct,
)
from kinfolk.report.page.chart import PICKED, Chart, opacity
from kinfolk.report.page.charts.members import firsts
from kinfolk.report.page.charts.scores import MOST_CLIENTS
from kinfolk.report.page.theme import GAIN, LOSS, QUIET
from kinfolk.report.read import Run

# A length of zero has no place on an axis of logarithms.
LEAST = 1e-3


def updates(runs: Sequence[Run]) -> list[Chart]:
    """Length and direction of every client's updates, one chart for each method; none where none were seen.

    >>> updates([Run.of({"title": "slfed", "seed": 0}, {"value": []})])
    []
    """
    return [_chart(run) for run in firsts(runs) if has_conduct(run)]


def _chart(run: Run) -> Chart:
    table = everyone(run)
    odd = table[table["looks like"] != OTHERS]
    shown = table if len(table) <= MOST_CLIENTS else odd
    rows = shown.assign(length=shown["length"].fillna(0).clip(lower=LEAST)).fillna({"cosine": 0.0})
    kinds = [OTHERS, OUTLIER, FREE_RIDER]
    colour = {
        "field": "looks like", "type": "nominal", "title": None,
        "scale": {"domain": kinds, "range": [GAIN, LOSS, QUIET]},
    }  # fmt: skip
    length = {"type": "log", "domain": [LEAST, max(10.0, float(rows["length"].max()))]}
    spec: dict[str, Any] = {
        "width": "container", "height": 260, "params": [PICKED],
        "data": {"values": rows.to_dict("records")},
        "mark": {"type": "point", "filled": True, "size": 60},
        "encoding": {
            "x": {"field": "length", "type": "quantitative", "scale": length,
                  "title": "length of its updates, in medians of its group's"},
            "y": {"field": "cosine", "type": "quantitative", "scale": {"domain": [-1, 1]},
                  "title": "cosine to the others of its group"},
            "color": colour, "shape": {"field": "looks like", "type": "nominal", "title": None,
                                       "scale": {"domain": kinds}},
            "opacity": opacity(),
            "tooltip": [{"field": "client"}, {"field": "looks like"}, {"field": "signs"},
                        {"field": "length", "format": ".3~g"}, {"field": "cosine", "format": ".2f"}],
        },
    }  # fmt: skip
    signs = {sign for told in odd["signs"] for sign in told.split(", ")}
    notes = [
        f"Seed {run.seed}; medians over rounds. Unknown cosines (small groups) are drawn at 0, lengths below "
        f"{LEAST:g} there. A sign is no proof.",
        *(f"{sign}: {words}." for sign, (_, words) in SIGNS.items() if sign in signs),
    ]
    if len(shown) < len(table):
        notes.append(f"More than {MOST_CLIENTS:,} clients: only those that look odd are drawn.")
    says = " ".join(f"{line[:1].upper()}{line[1:]}." for line in conduct_lines(run))
    return Chart(f"conduct-{run.title}", f"Conduct of clients: {run.title}", spec, table, says, tuple(notes))
