"""How many groups, from `choose-k.json` alone: the table and the figure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from kinfolk.report.figures import save
from kinfolk.report.read import shown
from kinfolk.report.whole import WholeTable

BLUE, ORANGE, INK, PALE = "#0072B2", "#D55E00", "#222222", "#8a8a8a"
NAN = float("nan")
Facts = Mapping[str, Any]


def choice_table(facts: Facts) -> tuple[Table, list[str]]:
    """(table, notes): a row for each K, then what was held out and what the columns are.

    >>> row = {"k": 1, "score": {"mean": 0.5, "std": None}, "gain": {}, "spread": None}
    >>> row |= {"silhouette": {"mean": 0.0}, "stability": None, "chance": None}
    >>> facts = {"score": "accuracy", "rows": [row], "recommended": 1, "notes": [], "reason": "One group."}
    >>> facts |= dict(algorithm="fesem", clients=9, of=9, rounds=3, seeds=[0], counted=[1])
    >>> choice_table(facts)[1][-1]
    'One group.'
    """
    score, table = facts["score"], WholeTable(box=None, padding=(0, 1, 0, 0))
    distances = any(row["spread"] for row in facts["rows"])
    columns = ["K", f"validation\n{score}", "vs one\ngroup", "distance\nto centre"]
    columns = [*columns[: 4 if distances else 3], "silhouette", "stability", "by\nchance"]
    for column in columns:
        table.add_column(column, justify="right")
    for row in facts["rows"]:
        first = row["k"] == 1
        cells = [_with(row["score"], score, -1 if score == "mse" else 1)]
        cells.append("-" if first else _gained(row["gain"], score))
        cells += [_with(row["spread"] or {}, "spread")] if distances else []
        cells.append("-" if first else f"{_number(row['silhouette'], 'mean'):.2f}")
        cells += [_plain(row["stability"]), _plain(row["chance"])]
        chosen = row["k"] == facts["recommended"]
        table.add_row(f"{'* ' if chosen else ''}{row['k']}", *cells, style="bold" if chosen else None)
    return table, [*map("note: {}".format, facts["notes"]), *_notes(facts), facts["reason"]]


def _notes(facts: Facts) -> list[str]:
    counted = ", ".join(map(str, facts["counted"]))
    return [
        f"{facts['algorithm']}, {facts['clients']} of {facts['of']} clients, {facts['rounds']} rounds, "
        f"seeds {', '.join(map(str, facts['seeds']))}; ±: sample standard deviation over seeds; "
        "=: within two standard errors.",
        "Silhouette: of k-means among the models that clients train from one common model; a gap "
        f"statistic counts {counted} groups there (seed by seed).",
        "Stability: adjusted Rand index between seeds; by chance: 95 of 100 shuffles stay below.",
    ]


def choice_figure(facts: Facts, path: str | Path) -> Path:
    """Draw score, silhouette and stability (and distances, where told) by K into an image file.

    >>> import tempfile
    >>> row = {"k": 1, "score": {"seeds": [0.5]}, "spread": None, "silhouette": {"seeds": [0.0]}}
    >>> row |= {"stability": None, "chance": None}
    >>> facts = {"score": "accuracy", "rows": [row], "recommended": 1, "reason": "One group.", "seeds": [0]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     choice_figure({**facts, "federation": "digits"}, Path(folder) / "k.png").name
    'k.png'
    """
    path = Path(path)
    distances = any(row["spread"] for row in facts["rows"])
    figure = Figure(figsize=(10, 3.6), dpi=150, facecolor="white", layout="constrained")
    figure.suptitle(_wrapped(facts["reason"]), fontsize=9.5, x=0.01, ha="left", color=INK)
    panels = list(figure.subplots(1, 4 if distances else 3))
    percent = 100 if facts["score"] == "accuracy" else -1
    unit = ", %" if percent == 100 else ""
    _dots(panels[0], facts, "score", f"validation {facts['score']}{unit}", percent)
    _dots(panels[1], facts, "silhouette", "silhouette", 1)
    _steady(panels[2], facts)
    if distances:
        _dots(panels[3], facts, "spread", "squared distance to centre", 1)
    for axes in panels:
        _dress(axes, facts)
    return save(figure, path)


def _dots(axes: Axes, facts: Facts, key: str, title: str, scale: float) -> None:
    """A dot for each seed, and a line through the means."""
    rows = [row for row in facts["rows"] if row[key] and (key != "silhouette" or row["k"] > 1)]
    points = {row["k"]: [NAN if v is None else scale * v for v in row[key]["seeds"]] for row in rows}
    for k, values in points.items():
        axes.plot([k] * len(values), values, "o", ms=5, mew=0, color=BLUE, alpha=0.45)
    axes.plot(list(points), [sum(v) / len(v) for v in points.values()], "-", color=BLUE, lw=1.6)
    axes.set_title(title, fontsize=9, color=INK, loc="left")


def _steady(axes: Axes, facts: Facts) -> None:
    """Agreement of the seeds, and how far shuffled groups agree."""
    rows = [row for row in facts["rows"] if row["stability"] is not None]
    ks = [row["k"] for row in rows]
    axes.plot(ks, [row["stability"] for row in rows], "o-", color=BLUE, ms=5, lw=1.6, label="found groups")
    axes.plot(ks, [row["chance"] for row in rows], "--", color=PALE, lw=1.2, label="shuffled, at most")
    axes.set_ylim(-0.15, 1.08)
    axes.set_title("agreement of the seeds", fontsize=9, color=INK, loc="left")
    if rows:
        axes.legend(frameon=False, fontsize=8, labelcolor=INK, loc="lower right", bbox_to_anchor=(1, 0.18))


def _dress(axes: Axes, facts: Facts) -> None:
    ks = [row["k"] for row in facts["rows"]]
    axes.axvline(facts["recommended"], color=ORANGE, lw=6, alpha=0.25, zorder=0)
    axes.set(xticks=ks, xlim=(min(ks) - 0.5, max(ks) + 0.5))
    axes.set_xlabel("K, number of groups", fontsize=8.5, color=INK)
    axes.tick_params(labelsize=8, colors="#555555")
    axes.grid(axis="y", color="#ececec", lw=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text.replace("$", r"\$"), 130))


def _number(facts: Facts, key: str) -> float:
    value = facts.get(key)
    return NAN if value is None else float(value)


def _with(facts: Facts, score: str, sign: int = 1) -> str:
    return shown(sign * _number(facts, "mean"), score, _number(facts, "std"))


def _gained(facts: Facts, score: str) -> str:
    mean, std = (-1 if score == "mse" else 1) * _number(facts, "mean"), _number(facts, "std")
    text = shown(abs(mean), score, std)
    if text == "-":
        return text
    same = abs(mean) <= 2 * _number(facts, "error")
    return ("= " if same else "") + ("+" if mean >= 0 else "-") + text


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
