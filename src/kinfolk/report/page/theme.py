"""How charts look: on a light page, on a dark one, and on paper. One place, so that all are alike."""

from __future__ import annotations

from typing import Any

INK, QUIET, CONTEXT, GRID = "#222222", "#5f6368", "#c4c4c4", "#e6e6e6"
GAIN, LOSS = "#0072B2", "#D55E00"
# Of groups in the order of their numbers, of kinds of message and of phases: Okabe and Ito's colours, and
# five more that stay apart from them.
CATEGORIES = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
    "#7A5BC7", "#8C4F2B", "#7F8F00", "#B0457B", "#2F7F86",
)  # fmt: skip
# Charts name the colour of a light page; a dark page puts the other in.
DARK = {
    "#0072B2": "#4DA3E0", "#D55E00": "#FF8A47", "#009E73": "#2FC79A", "#CC79A7": "#E79AC4",
    "#E69F00": "#F2BD4D", "#56B4E9": "#9AD4F7", "#7A5BC7": "#A991EE", "#8C4F2B": "#C98D66",
    "#7F8F00": "#BCCB45", "#B0457B": "#E07DAE", "#2F7F86": "#62BFC7", "#000000": "#F2F2F2",
    "#8a8a8a": "#8F959B", INK: "#EDEDED", QUIET: "#A9AFB6", CONTEXT: "#55595E", GRID: "#33373C",
}  # fmt: skip
# From little to much, and from one side over nothing to the other: (light, dark).
RAMP = (["#eef4fa", "#9cc4e2", "#3788bf", "#083a63"], ["#1c2a36", "#235a86", "#3d97d3", "#cfe8fb"])
SIDES = (["#D55E00", "#f0b48a", "#ececec", "#8dbfe0", "#0072B2"],
         ["#FF8A47", "#8a4d2a", "#2b2f33", "#2c5f85", "#4DA3E0"])  # fmt: skip
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"
# The axis of finished rounds.
ROUNDS: dict[str, Any] = {
    "type": "quantitative", "title": "finished rounds", "scale": {"nice": False, "zero": False},
    "axis": {"format": "d", "tickMinStep": 1},
}  # fmt: skip
# A figure of a paper: two columns wide; its dots an inch as printers want them.
PAPER_WIDTH, PAPER_DPI = 520, 300


def config(dark: bool = False, font: str = FONT) -> dict[str, Any]:
    """The configuration of every chart.

    >>> config()["axis"]["labelColor"], config(dark=True)["axis"]["labelColor"]
    ('#5f6368', '#A9AFB6')
    """
    ink, quiet, grid = (DARK[one] if dark else one for one in (INK, QUIET, GRID))
    words = {"labelColor": quiet, "titleColor": ink, "labelFontSize": 11, "titleFontSize": 12}
    lines = {"domainColor": quiet, "tickColor": quiet, "gridColor": grid, "titleFontWeight": "normal"}
    return {
        "background": None if dark else "white",
        "font": font,
        "aria": False,  # the page tells in words what a chart shows; a thousand labelled marks do not
        "padding": 5,
        "view": {"stroke": None},
        "axis": {**words, **lines, "titlePadding": 8, "labelLimit": 150},
        "axisX": {"grid": False, "tickCount": 8},
        "axisBand": {"grid": False},
        "legend": {**words, "orient": "top", "titleFontWeight": "normal", "labelLimit": 220, "columns": 4,
                   "symbolStrokeWidth": 2, "symbolOpacity": 1},
        "header": {**words, "titleFontWeight": "normal"},
        "title": {"color": ink, "fontSize": 13, "anchor": "start"},
        "text": {"color": ink, "fontSize": 11},
        "mark": {"tooltip": None},
        "range": {
            "category": [DARK[one] if dark else one for one in CATEGORIES],
            "ramp": RAMP[dark], "heatmap": RAMP[dark], "ordinal": RAMP[dark], "diverging": SIDES[dark],
        },
    }  # fmt: skip
