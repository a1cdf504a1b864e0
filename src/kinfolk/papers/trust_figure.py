"""Who trusts whom in SLFed, from `trust.json` alone: curves by round, and every opinion at a few rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from rich.table import Table
from rich.text import Text

from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import readable_json
from kinfolk.report.figures import save

COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")
INK, QUIET = "#222222", "#555555"
Trace = Mapping[str, Any]


def read_trust(folder: str | Path) -> list[dict[str, Any]]:
    """The traces in a folder and in the folders inside it, fewest direct partners first.

    >>> read_trust("nowhere")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: trust = 'nowhere': has no trust.json; name a folder of kinfolk trust
    """
    paths = [Path(folder) / "trust.json", *sorted(Path(folder).glob("*/trust.json"))]
    try:
        found = [readable_json(path.read_text()) for path in paths if path.exists()]
    except (OSError, ValueError) as error:
        raise KinfolkError("trust", str(folder), f"cannot be read: {error}") from error
    if not found:
        raise KinfolkError("trust", str(folder), "has no trust.json; name a folder of kinfolk trust")
    return sorted(found, key=lambda trace: int(trace["direct"]))


def trust_heading(folder: Path) -> Text:
    """What a reproduced figure shows, and what the paper reports of it.

    >>> import json, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     facts = {"title": "Dist-3", "reported": "lists below 26", "small": True}
    ...     _ = (Path(folder) / "figure.json").write_text(json.dumps(facts))
    ...     trust_heading(Path(folder)).plain.splitlines()
    ['Dist-3 (1 seed, reduced)', 'reported: lists below 26']
    """
    facts = readable_json((folder / "figure.json").read_text(encoding="utf-8"))
    title = Text(f"{facts['title']} (1 seed{', reduced' if facts['small'] else ''})", style="bold")
    return title.append(f"\nreported: {facts['reported']}", style="dim") if facts["reported"] else title


def trust_table(traces: Sequence[Trace]) -> Table:
    """A row for each trace and pictured round.

    >>> one = {"round": 1, "u": 0.5, "known": 3.0, "listed": 1.0, "listed_most": 2.0}
    >>> one |= {"s_same": 0.5, "s_other": None, "listed_same": None, "chance_same": None, "sent": 1.0}
    >>> trust_table([{"direct": 2, "rounds": [one], "pictures": {"1": {}}}]).row_count
    1
    """
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("DS", "round", "mean u", "known", "sent", "list", "longest", "s, own group",
                 "s, others", "own on list", "chance"):  # fmt: skip
        table.add_column(head, justify="right")
    for trace in traces:
        for one in (one for one in trace["rounds"] if str(one["round"]) in trace["pictures"]):
            first = [str(trace["direct"]), str(one["round"]), f"{one['u']:.3f}", f"{one['known']:.1f}"]
            # Of a trace that is older than the column nobody knows.
            sizes = [_or_dash(one.get("sent")), f"{one['listed']:.1f}", f"{one['listed_most']:.0f}"]
            groups = ("s_same", "s_other", "listed_same", "chance_same")
            table.add_row(*first, *sizes, *(_or_dash(one.get(key)) for key in groups))
    return table


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def trust_figure(traces: Sequence[Trace], path: str | Path) -> Path:
    """Draw uncertainty, list sizes and similarity by round, and the opinions at a few rounds, into a file.

    >>> import tempfile
    >>> one = {"round": 1, "u": 0.5, "listed": 1.0, "listed_least": 1, "listed_most": 1}
    >>> one |= {"s_same": None, "s_other": None}
    >>> trace = {"direct": 2, "federation": "digits", "clients": ["a", "b"], "groups": None, "rounds": [one]}
    >>> trace["pictures"] = {"1": {"s": [[0, 0.5], [0.5, 0]], "listed": [[False, True], [True, False]]}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trust_figure([trace], Path(folder) / "trust.png").name
    'trust.png'
    """
    path, most = Path(path), max(len(trace["pictures"]) for trace in traces)
    figure = Figure(figsize=(10, 3.3 + 2.5 * len(traces)), dpi=150, facecolor="white", layout="constrained")
    # A dollar sign in a name is no formula.
    where = traces[0]["federation"].replace("$", r"\$")
    figure.suptitle(f"Trust in SLFed: {where}", fontsize=11, x=0.01, ha="left", color=INK)
    top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=[2.7, 2.5 * len(traces)])[:, 0]
    _curves(top, traces)
    panels = bottom.subplots(len(traces), most, squeeze=False)
    shown: AxesImage | None = None
    ceiling = _highest(traces)
    for trace, row in zip(traces, panels, strict=True):
        for axes in row:
            axes.set_axis_off()
        for axes, number in zip(row, trace["pictures"], strict=False):
            shown = _matrix(axes, trace, number, ceiling)
    if shown is not None:
        bar = bottom.colorbar(shown, ax=list(panels.flat), shrink=0.7, pad=0.01)
        bar.set_label("s of the row's client about the column's; a dot: asked", fontsize=8.5, color=INK)
        bar.ax.tick_params(labelsize=8, colors=QUIET)
    return save(figure, path)


def _curves(figure: SubFigure, traces: Sequence[Trace]) -> None:
    """Three panels by round, a colour for each number of direct partners."""
    panels = list(figure.subplots(1, 3))
    for trace, colour in zip(traces, COLOURS * len(traces), strict=False):
        rounds = trace["rounds"]
        x = [one["round"] for one in rounds]

        def values(key: str, rounds: Sequence[Mapping[str, Any]] = rounds) -> list[float]:
            return [float("nan") if one[key] is None else float(one[key]) for one in rounds]

        name = f"DS = {trace['direct']}"
        mark = "o" if len(x) == 1 else None
        panels[0].plot(x, values("u"), color=colour, lw=1.7, marker=mark, label=name)
        panels[1].plot(x, values("listed"), color=colour, lw=1.7, marker=mark, label=f"{name}, mean")
        low, high = values("listed_least"), values("listed_most")
        panels[1].fill_between(x, low, high, color=colour, alpha=0.13, lw=0, label=f"{name}, range")
        panels[2].plot(x, values("s_same"), color=colour, lw=1.7, marker=mark, label=f"{name}, own group")
        panels[2].plot(x, values("s_other"), "--", color=colour, lw=1.4, marker=mark, label=f"{name}, others")
    half = (len(traces[0]["clients"]) - 1) // 2
    panels[1].axhline(half, color=QUIET, lw=0.8, ls=":")
    for axes, text in zip(
        panels, ("mean uncertainty u", f"peers asked (half of all: {half})", "mean s"), strict=True
    ):
        _dress(axes, text)
    if traces[0]["groups"] is None:
        panels[2].set_visible(False)


def _dress(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=9.5, loc="left", color=INK)
    axes.set_xlabel("finished rounds", fontsize=8.5, color=INK)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.tick_params(labelsize=8, colors=QUIET)
    axes.grid(color="#ececec", lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7.5, labelcolor=INK)


def _highest(traces: Sequence[Trace]) -> float:
    """The end of the colours: the largest s, up to a tenth."""
    most = max((np.max(p["s"]) for trace in traces for p in trace["pictures"].values()), default=1.0)
    return float(max(0.1, np.ceil(10 * most) / 10))


def _matrix(axes: Axes, trace: Trace, number: str, ceiling: float) -> AxesImage:
    """Opinions of the row's client about the column's; a dot where it asks. Clients lie group by group."""
    n = len(trace["clients"])
    groups = np.asarray(trace["groups"] if trace["groups"] is not None else np.zeros(n, int))
    order = np.argsort(groups, kind="stable")
    s = np.asarray(trace["pictures"][number]["s"], float)[np.ix_(order, order)]
    np.fill_diagonal(s, np.nan)
    asked = np.asarray(trace["pictures"][number]["listed"], bool)[np.ix_(order, order)]
    image = axes.imshow(s, cmap="viridis", vmin=0, vmax=ceiling, interpolation="nearest")
    down, across = asked.nonzero()
    size = max(1.0, 300 / n) / 3
    # The edge is for bright squares.
    axes.scatter(across, down, s=size, color="white", edgecolors="black", linewidths=0.35)
    for edge in np.flatnonzero(np.diff(groups[order])) + 0.5:
        axes.axhline(edge, color="white", lw=1.0)
        axes.axvline(edge, color="white", lw=1.0)
    axes.set_title(f"DS = {trace['direct']}, round {number}", fontsize=8.5, color=INK)
    return image
