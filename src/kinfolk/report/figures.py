"""The figure of a comparison: how the mean over clients grew, and where every client ended."""

from __future__ import annotations

import io
import textwrap
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import write_bytes
from kinfolk.report.diverged import divergence_rounds, scored_clients
from kinfolk.report.read import (
    Run,
    by_title,
    check_score,
    final,
    mean_history,
    shown,
)
from kinfolk.scores import about

# Okabe and Ito (2008), told apart by people with any colour vision; without yellow, too pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
Style = Literal["-", "--", ":"]
STYLES: tuple[Style, ...] = ("-", "--", ":")  # a new one each time the colours run out
INK, PALE = "#222222", "#8a8a8a"
FORMATS = (".png", ".svg", ".pdf")
# One look per method in all figures: (colour, style). Those that are often seen together differ in colour.
LOOKS = {
    "fedavg": (0, 0), "ifca": (1, 0), "fesem": (2, 0), "fedprox": (3, 0), "mdicfl": (4, 0),
    "fedavg_tuned": (5, 0), "local": (6, 0), "fesem_shared": (2, 1), "fesem_ma": (2, 2), "slfed": (3, 1),
    "slfed_similar": (3, 2), "hypcluster": (1, 1), "robust": (1, 2), "clustered_fl": (4, 1),
    "clustered_hdbscan": (4, 2), "feddist": (5, 1), "feddws": (5, 2), "fedsgd": (0, 1), "feddane": (0, 2),
    "fedfomo": (6, 1), "fedem": (6, 2),
}  # fmt: skip


def look(name: str, taken: Collection[tuple[int, int]] = ()) -> tuple[int, int]:
    """The (colour, style) of a method: the same in every figure, unless another of the figure has it already.

    A second series of one method, with other options, keeps the colour and takes another style.

    >>> look("fesem"), look("fesem", taken=[(2, 0)]), look("mine") == look("mine")
    ((2, 0), (2, 1), True)
    """
    styles, n = range(len(STYLES)), len(COLOURS)
    first = LOOKS.get(name) or (zlib.crc32(name.encode()) % n, 0)
    spare = [((first[0] + step) % n, style) for style in styles for step in range(n)]
    own = [(first[0], style) for style in styles] if name in LOOKS else []
    return next((one for one in [first, *own, *spare] if one not in taken), first)


@dataclass(frozen=True)
class Series:
    """What is drawn of one algorithm: its curve over rounds and its clients at the end."""

    label: str
    curve: pd.DataFrame  # by round: mean, std over seeds
    clients: pd.Series  # by client: the mean over seeds of the final score
    worst: float  # the mean over seeds of each seed's worst client, as in tables
    seeds: int
    colour: str
    style: Style
    failure: str = ""  # that it diverged, and when; or that it lost clients
    since: int | None = None  # the first round at which a seed had diverged

    @property
    def end(self) -> float:
        """Where the clients stand in the mean; what the series are ordered by."""
        return float(self.clients.mean()) if len(self.clients) else float("nan")

    @property
    def last(self) -> int:
        """The last round of the curve with a finite mean; 0 if there is none."""
        return int(max(self.curve.index[np.isfinite(self.curve["mean"])], default=0))


def all_series(runs: Iterable[Run], score: str) -> list[Series]:
    """One series per algorithm (its main model), or one per scored model if there is a single algorithm.

    >>> run = Run.of({"title": "local", "seed": 0}, {"client": ["a", "b"], "value": [0.5, 0.75], "rows": 9})
    >>> [(series.label, series.end) for series in all_series([run], "accuracy")]
    [('local', 0.625)]
    """
    groups = by_title(run for run in runs if score in run.metrics)
    shown = slice(1 if len(groups) > 1 else None)
    kinds = [(title, model) for title, same in groups.items() for model in same[0].models[shown]]
    # The kind of model is worth its place in the label only where it tells two series apart.
    named = len({model for _, model in kinds}) > 1
    found: list[Series] = []
    taken: list[tuple[int, int]] = []
    for title, model in kinds:
        same = [run for run in groups[title] if model in run.models and len(final(run, model, score))]
        if not same:
            continue
        label = model if named and len(groups) == 1 else f"{title} ({model})" if named else title
        ends = pd.concat([final(run, model, score) for run in same], axis=1)
        mean = ends.mean(axis=1).dropna()  # infinite if one seed is: a client that diverged is not fine
        worst = float((ends.max() if about(score).lower_is_better else ends.min()).mean())
        taken.append(look(str(same[0].facts.get("algorithm", title)), taken))
        colour, style = COLOURS[taken[-1][0]], STYLES[taken[-1][1]]
        curve, gone = mean_history(same, model, score), divergence_rounds(same, model)
        counts = [scored_clients(run, model, score) for run in same]
        failure, since = _failure(gone, len(same)) or _lost(counts), min(gone, default=None)
        found.append(Series(label, curve, mean, worst, len(same), colour, style, failure, since))
    return found


def _failure(rounds: Sequence[int], runs: int) -> str:
    """In a few words, how many of a series' runs diverged, and when."""
    if not rounds:
        return ""
    if len(rounds) < runs:
        return f"{len(rounds)} of {runs} diverged"
    first, last = min(rounds), max(rounds)
    return f"diverged at round {first}" if first == last else f"diverged at {first}-{last}"


def _lost(counts: Sequence[tuple[int, int]]) -> str:
    """Over how many clients the worst seed's score is, if not over all."""
    heard, of = min(counts, key=lambda count: count[0] - count[1])
    return f"{heard} of {of} clients" if heard < of else ""


def comparison_figure(runs: Iterable[Run], path: str | Path, score: str | None = None) -> Path:
    """Draw the mean over clients by round, and each client's final score, into an image file.

    Lines are means over seeds with a band of one sample standard deviation; dots are clients, each the
    mean over its seeds. The circle is the worst client as tables have it: that of each seed, in the mean.

    >>> import tempfile
    >>> run = Run.of({"title": "local", "seed": 0}, {"client": ["a", "b"], "value": [0.5, 0.75], "rows": 9})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     comparison_figure([run], Path(folder) / "local.png").name
    'local.png'
    """
    path, runs = Path(path), list(runs)
    if path.suffix.lower() not in FORMATS:
        raise KinfolkError("figure", str(path), f"give a name that ends in {', '.join(FORMATS)}")
    score = check_score(runs, score)
    drawn = _ordered(all_series(runs, score))
    figure = Figure(figsize=(10, max(4.34, 1.5 + 0.29 * len(drawn))), dpi=150, facecolor="white")
    left, right = figure.add_axes((0.075, 0.125, 0.345, 0.66)), figure.add_axes((0.615, 0.125, 0.32, 0.66))
    _curves(left, drawn, score)
    _strips(right, drawn, score)
    _leaders(figure, left, right, drawn)
    what, where = _headline(runs, drawn, score)
    figure.text(0.012, 0.945, what, fontsize=12.5, fontweight="bold", color=INK)
    figure.text(0.012, 0.905, where, fontsize=9, color=PALE)
    return save(figure, path)


def save(figure: Figure, path: Path) -> Path:
    """Write a figure in the format that its name ends in; it is drawn first, so no half of it is written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(Figure(), Path(folder) / "new" / "empty.png").name
    'empty.png'
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix.lower()[1:] or "png")
    write_bytes(path, buffer.getvalue(), "figure")
    return path


def _ordered(found: Sequence[Series]) -> list[Series]:
    """The series from the lowest value to the highest, as they lie in the left panel."""
    lost = [series.failure and series.since is None for series in found]
    ends = [
        -np.inf if gone or np.isnan(series.end) else series.end
        for gone, series in zip(lost, found, strict=True)
    ]
    return [found[i] for i in np.argsort(ends, kind="stable")]


def _headline(runs: Sequence[Run], drawn: Sequence[Series], score: str) -> tuple[str, str]:
    """What is shown, and on which federation."""
    titles = list(by_title(runs))
    what = (
        textwrap.shorten(titles[0], 50, placeholder=" …") if len(titles) == 1 else f"{len(titles)} algorithms"
    )
    many = sorted({series.seeds for series in drawn})
    seeds = f"seed {runs[0].seed}" if len(runs) == 1 else f"{'-'.join(map(str, many))} seeds"
    clients = max((len(series.clients) for series in drawn), default=0)
    data = (runs[0].facts.get("federation") or {}).get("name") or ""
    line = f"{about(score).title} of {what} on {clients} clients, {seeds}"
    return _plain(line), _plain(textwrap.shorten(data, 140, placeholder=" …"))


def _plain(text: str) -> str:
    """Text in which a dollar sign is a dollar sign and not the start of a formula."""
    return text.replace("$", r"\$")


def _curves(axes: Axes, drawn: Sequence[Series], score: str) -> None:
    """Mean over clients by round, a line and a band for each series."""
    reach: list[float] = []
    for series in drawn:
        curve = series.curve.replace([np.inf, -np.inf], np.nan)  # a gap where a model diverged
        mean, std = curve["mean"], curve["std"].fillna(0.0)
        mark = "o" if mean.notna().sum() == 1 else None
        look: dict[str, Any] = {"color": series.colour, "linestyle": series.style, "marker": mark}
        if series.since is None:
            axes.plot(curve.index, mean, lw=1.7, ms=4, zorder=3, **look)
        else:
            _broken(axes, mean.dropna(), series)
        # An error has no band below zero, least of all on a logarithmic axis.
        low = (mean - std).where(mean > std, mean / 2) if about(score).lower_is_better else mean - std
        if (std > 0).any():
            axes.fill_between(curve.index, low, mean + std, color=series.colour, alpha=0.16, lw=0)
        reach += [*low.dropna(), *(mean + std).dropna()]
    _scale(axes, "y", reach, score)
    axes.set_xlabel("finished rounds", fontsize=9.5, color=INK)
    axes.set_ylabel(about(score).title.lower(), fontsize=9.5, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    longest = max((series.last for series in drawn), default=0)
    axes.set_xlim(-0.01 * longest, 1.01 * longest or 1)
    said = ["band: ± standard deviation over seeds"] if any(series.seeds > 1 for series in drawn) else []
    said += ["dashed, ×: diverged"] if any(series.since is not None for series in drawn) else []
    dress(axes, "Mean over clients, by round", "; ".join(said))


def _broken(axes: Axes, mean: pd.Series, series: Series) -> None:
    """A curve that goes on dashed from the last evaluation before it diverged, and ends with a cross."""
    if mean.empty:
        return
    before, after = mean[mean.index < series.since], mean[mean.index >= series.since]
    after = pd.concat([before.tail(1), after])
    axes.plot(before.index, before, lw=1.7, zorder=3, color=series.colour, linestyle=series.style)
    cross: dict[str, Any] = {"marker": "X", "ms": 8, "mec": "white", "markevery": [len(after) - 1]}
    axes.plot(after.index, after, lw=1.4, zorder=4, color=series.colour, linestyle="--", **cross)


def _strips(axes: Axes, drawn: Sequence[Series], score: str) -> None:
    """Each client's final score as a dot in the strip of its series."""
    lower = about(score).lower_is_better
    every = [value for series in drawn for value in [*series.clients, series.worst] if np.isfinite(value)]
    _scale(axes, "x", every, score, room="after" if lower else "before")
    for height, series in enumerate(drawn):
        axes.axhline(height, color="#ececec", lw=0.8, zorder=0)
        _strip(axes, height, series, lower)
        lost = int(np.isinf(series.clients).sum())
        text = f"{lost} of {len(series.clients)}\ndiverged" if lost else shown(series.end, score, unit=True)
        ink = PALE if series.failure else INK  # a number that stands for nothing
        axes.text(
            1.02, height, text, transform=axes.get_yaxis_transform(), fontsize=8.5, va="center", color=ink
        )
    axes.text(1.02, 1.02, "mean", transform=axes.transAxes, fontsize=8.5, color=PALE)
    spare = max(0.0, (4 - len(drawn)) / 2)  # a few strips must not swell to fill the panel
    axes.set_ylim(-0.6 - spare, len(drawn) - 0.4 + spare)
    axes.set_yticks([])
    hint = " (lower is better)" if lower else ""
    axes.set_xlabel(f"{about(score).title.lower()}{hint}", fontsize=9.5, color=INK)
    dress(axes, "Each client at the last evaluated round", "")
    several = any(series.seeds > 1 for series in drawn)
    least = "worst, mean of seeds" if several else "worst client, by name"
    marks = {"client": ("o", 4.5, PALE), "mean": ("|", 10, INK), least: ("o", 7, INK)}
    handles = [
        Line2D(
            [], [], ls="", marker=m, ms=size, color=c, label=label, fillstyle="none" if size == 7 else "full"
        )
        for label, (m, size, c) in marks.items()
    ]
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.02, 0.985), ncols=3, frameon=False,
        fontsize=8.5, handletextpad=0.1, columnspacing=1.2, labelcolor=PALE, borderaxespad=0.2,
    )  # fmt: skip


def _strip(axes: Axes, height: int, series: Series, lower: bool) -> None:
    """The dots of one series, spread a little in height so that equal ones stay visible."""
    clients = series.clients[np.isfinite(series.clients)]
    spread = 0.44 * ((np.arange(len(clients)) * 0.6180339887) % 1.0 - 0.5)  # the golden ratio: no two alike
    solid = float(np.clip(14 / max(len(clients), 1), 0.12, 0.6))
    axes.scatter(clients, height + spread, s=18, color=series.colour, alpha=solid, linewidths=0, zorder=2)
    if clients.empty or len(clients) < len(series.clients):
        return  # where a client diverged, the others have neither the mean nor the worst
    axes.plot([series.end] * 2, [height - 0.33, height + 0.33], color=INK, lw=1.8, zorder=4)
    place = int(np.argmax(clients) if lower else np.argmin(clients))
    worst, at = series.worst, float(height + spread[place]) if series.seeds == 1 else float(height)
    axes.plot([worst], [at], marker="o", ms=7, color=INK, fillstyle="none", mew=1.0, zorder=4)
    if series.seeds > 1:
        return  # another client in each seed
    name = str(clients.index[place])
    name = name if len(name) <= 12 else name[:11] + "…"
    axes.annotate(
        _plain(name), (worst, at), xytext=(7 if lower else -7, 0), textcoords="offset points", fontsize=7.5,
        ha="left" if lower else "right", va="center", color=INK,
    )  # fmt: skip


def _scale(axes: Axes, which: str, values: Sequence[float], score: str, room: str = "") -> None:
    """Limits and ticks of an axis with scores: percent, or logarithmic where errors span far."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    set_scale, set_limits = (
        (axes.set_xscale, axes.set_xlim) if which == "x" else (axes.set_yscale, axes.set_ylim)
    )
    low, high = (min(values), max(values)) if len(values) else (0.0, 1.0)
    logarithmic = about(score).lower_is_better and low > 0 and high / low > 30
    if logarithmic:
        set_scale("log")
        axis.set_major_locator(LogLocator(numticks=6))
        axis.set_minor_formatter(NullFormatter())
        low, high = np.log(low), np.log(high)
    least = 0.02 if about(score).percent else 0.1 * max(abs(high), 1e-3)
    if high - low < least:  # nearly equal scores must not look far apart
        low, high = (low + high - least) / 2, (low + high + least) / 2
    wide = high - low
    ends = [
        low - wide * (0.16 if room == "before" else 0.05),
        high + wide * (0.16 if room == "after" else 0.05),
    ]
    if about(score).percent:
        axis.set_major_formatter(lambda value, _: f"{100 * value:.6g}%")
        axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
        ends = [ends[0] if room else max(ends[0], -0.02 * wide), min(ends[1], 1 + 0.02 * wide)]
    set_limits(*(np.exp(ends) if logarithmic else ends))


def _leaders(figure: Figure, left: Axes, right: Axes, drawn: Sequence[Series]) -> None:
    """Names between the panels: each tied to the end of its line, level with its strip."""
    back = figure.transFigure.inverted()
    longest = max((series.last for series in drawn), default=0)
    for height, series in enumerate(drawn):
        level = back.transform(right.transData.transform((0, height)))[1]
        if np.isfinite(series.curve["mean"]).any():
            tip = series.last, series.curve["mean"][series.last]
            start = back.transform(left.transData.transform(tip))
            line = Line2D([start[0], 0.458, 0.47], [start[1], level, level], color=series.colour, lw=1.0)
            line.set_linestyle(series.style if series.last == longest else ":")
            figure.add_artist(line)
        tall = 3 * len(drawn) < 7 * figure.get_figheight()  # three lines of a label fit into its strip
        most = 2 if tall or not series.failure else 1
        words = textwrap.wrap(series.label, 20, max_lines=most, placeholder=" …")
        words += [series.failure] if series.failure else []
        figure.text(
            0.474, level, _plain("\n".join(words)), fontsize=9, va="center", color=INK, linespacing=0.95
        )


def dress(axes: Axes, title: str, under: str = "") -> None:
    """The common look: quiet frame, a title and a line in small print under it.

    >>> axes = Figure().subplots()
    >>> dress(axes, "Rows")
    >>> axes.texts[0].get_text()
    'Rows'
    """
    axes.text(0, 1.10, title, transform=axes.transAxes, fontsize=10.5, color=INK)
    axes.text(0, 1.025, under, transform=axes.transAxes, fontsize=8.5, color=PALE)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#bbbbbb")
    axes.tick_params(labelsize=8.5, colors="#555555", length=3)
    axes.grid(axis="both", color="#ececec", lw=0.7)
    axes.set_axisbelow(True)
