"""A reproduced paper: reported next to obtained, as tables for the terminal and for Markdown, and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.table import Table
from rich.text import Text

from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import readable_json
from kinfolk.papers.paper import COSTS
from kinfolk.report.figures import COLOURS, INK, PALE, STYLES, save
from kinfolk.report.read import (
    Run,
    extra_rounds,
    last,
    load_run,
    mean_history,
    sample_std,
    shown,
    training_seconds,
)
from kinfolk.report.whole import WholeTable
from kinfolk.scores import about, plus_minus, summary

GROUPS = ("ari", "nmi", "purity")
# The row that the time of all others is told beside.
BASE = "FedAvg"


@dataclass(frozen=True)
class TableRuns:
    """One reproduced table as it lies on disk."""

    folder: Path
    facts: Mapping[str, Any]

    @property
    def columns(self) -> list[tuple[str, str]]:
        """(score, over) of every column."""
        return [(str(score), str(over)) for score, over in self.facts["columns"]]

    @property
    def costs(self) -> list[str]:
        """What is told of the runs' costs; tables of earlier versions have none."""
        return [str(name) for name in self.facts.get("costs", [])]

    def runs(self, row: Mapping[str, Any]) -> list[Run]:
        """The runs of a row that have begun."""
        paths = [self.folder / name for name in row["runs"]]
        return [load_run(path) for path in paths if (path / "run.json").is_file()]


def load_tables(folder: Path) -> list[TableRuns]:
    """The tables in a folder that `kinfolk reproduce` has written."""
    found = sorted(folder.glob("*/reproduction.json"))
    if not found:
        raise KinfolkError("folder", str(folder), "holds no reproduction; run `kinfolk reproduce` into it")
    return [TableRuns(path.parent, readable_json(path.read_text(encoding="utf-8"))) for path in found]


def obtained(runs: Sequence[Run], model: str, score: str, over: str) -> tuple[float, float, int]:
    """(mean, sample standard deviation, number of seeds) of one cell; NaN where nothing was recorded."""
    values = [value for run in runs if not math.isnan(value := _value(run, model, score, over))]
    return _known(values), sample_std(values) if values else math.nan, len(values)


def _known(values: Iterable[float], middle: Callable[[list[float]], Any] = np.mean) -> float:
    """The mean, or another middle, of the numbers that are known; NaN if none is."""
    known = [value for value in values if not math.isnan(value)]
    return float(middle(known)) if known else math.nan


def _told(facts: Iterable[Mapping[str, Any]], key: str) -> list[Any]:
    return [fact[key] for fact in facts if fact.get(key)]


def _value(run: Run, model: str, score: str, over: str) -> float:
    if score in GROUPS:
        return float(([{}, *_told(run.rounds, "groups")])[-1].get(score, math.nan))
    kind = model or (run.models[0] if run.models else "")
    if kind not in run.models or score not in run.metrics:
        return math.nan
    if over == "pooled":
        told = _told(run.rounds, "summary")
        value = told[-1][kind][score].get("pooled") if told else None
        return math.nan if value is None else float(value)
    end = last(run, kind, score)
    return summary(end["value"], end["rows"], about(score).lower_is_better)[over]


def cost(run: Run, name: str) -> float:
    """What a run has cost, by the names of COSTS; NaN if that was not recorded.

    Megabytes are means over participants and rounds. Of the server's seconds a round the median counts: one
    round may have held a start that others do not.

    >>> sent = {"update": {"down": 3_000_000}, "law": {"down": 0, "up": 40}}
    >>> facts = [{"round": 1, "cohort": 2, "bytes": sent, "seconds": {"server": 0.5, "update": 9.0}}]
    >>> run = Run.of({"title": "mdicfl", "seed": 0}, {"value": []}, facts)
    >>> cost(run, "down"), cost(run, "server")
    (1.5, 0.5)
    """
    played = [fact for fact in run.rounds if fact.get("cohort")]
    if name in ("down", "up"):
        sent = sum(ways.get(name, 0) for fact in played for ways in fact["bytes"].values())
        return sent / 1e6 / sum(fact["cohort"] for fact in played) if played else math.nan
    if name == "server":
        return _known((fact["seconds"].get(name, math.nan) for fact in played), np.median)
    return float([math.nan, *(info[name] for info in _told(played, "info") if name in info)][-1])


def _finished(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.facts.get("status") == "finished"]


def cells(table: TableRuns) -> list[dict[str, Any]]:
    """Every row: its label, and for each column what was reported and what was obtained, as text.

    Only runs that have finished count; `some` says so where others have not.
    """
    rows = []
    for row in table.facts["rows"]:
        begun = table.runs(row)
        runs = _finished(begun)
        lost = sum(run.facts.get("status") in ("stopped", "diverged") for run in begun)
        broke = f"broke down in {lost} of {len(begun)} seeds" if lost else ""
        some = 0 < len(runs) < len(row["runs"])
        got = [obtained(runs, row["model"], score, over) for score, over in table.columns]
        scored = zip(got, table.columns, strict=True)
        rows.append(
            {
                "label": row["label"],
                "model": row["model"] or (runs[0].models[0] if runs and runs[0].models else ""),
                "reported": [str(value) for value in row["reported"]] or ["-"] * len(table.columns),
                "obtained": [_text(mean, std, score) for (mean, std, _), (score, _) in scored],
                "costs": {name: _known(cost(run, name) for run in runs) for name in table.costs},
                "numbers": [{"mean": mean, "std": std, "seeds": n} for mean, std, n in got],
                "some": f"{len(runs)} of {len(row['runs'])} seeds" if some else "",
                "seconds": seconds(runs),
                "rounds": [_with_start(run) for run in runs if extra_rounds(run)],
                "why": "; ".join(filter(None, (broke, row["why"]))),
            }
        )
    return rows


def _with_start(run: Run) -> str:
    return f"{run.rounds[-1]['round']}+{extra_rounds(run):.3g}"


def seconds(runs: Sequence[Run]) -> float:
    """What a round took, training only: the median over rounds and seeds, so that a start does not count.

    >>> math.isnan(seconds([]))
    True
    """
    facts = (fact for run in runs for fact in run.rounds if fact.get("cohort"))
    return _known(map(training_seconds, facts), np.median)


def notes(table: TableRuns, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why the numbers differ, for all rows and for each; and what a round costs beside that of FedAvg."""
    why = table.facts.get("why")
    told = [f"all rows: {why}"] if why else []
    if table.facts.get("again"):
        told.append(f"all rows: the models of {table.facts['again']}, scored again on these test rows")
    told += [f"{row['label']}: {row['why']}" for row in rows if row["why"]]
    paid = [f"{row['label']} {', '.join(dict.fromkeys(row['rounds']))}" for row in rows if row["rounds"]]
    told += [f"rounds and what a start was worth: {'; '.join(paid)}"] if paid else []
    return [*told, *_times(rows, {row["label"]: tuple(row["runs"]) for row in table.facts["rows"]})]


def _times(rows: Sequence[Mapping[str, Any]], runs: Mapping[str, tuple[str, ...]]) -> list[str]:
    """What a round of each run takes beside FedAvg, if that is there; rows that share a run say it once."""
    base = next((row for row in rows if row["label"] == BASE and row["seconds"] > 0), None)
    if base is None:
        return []
    once = {runs[row["label"]]: row for row in reversed(rows) if runs[row["label"]] != runs[BASE]}
    times = [
        f"{row['label']} {row['seconds']:.3g} ({row['seconds'] / base['seconds']:.2f} x)"
        for row in reversed(once.values())
        if not math.isnan(row["seconds"])
    ]
    beside = "; ".join([f"{BASE} {base['seconds']:.3g}", *([", ".join(times)] if times else [])])
    return [f"seconds a round, training only (median): {beside}"]


def _text(mean: float, std: float, score: str) -> str:
    if score in GROUPS:
        return "-" if math.isnan(mean) else plus_minus(f"{mean:.2f}", f"{std:.2f}")
    return shown(mean, score, std)


def _costs(row: Mapping[str, Any]) -> list[str]:
    """Costs as text."""
    return ["-" if math.isnan(value) else f"{value:.3g}" for value in row["costs"].values()]


def _heads(table: TableRuns) -> list[str]:
    words = {"accuracy": "acc", "macro_f1": "F1", "top5": "top-5", "ari": "ARI", "nmi": "NMI"}
    return [
        words.get(score, score) if score in GROUPS else f"{over} {words.get(score, score)}"
        for score, over in table.columns
    ]


def terminal_table(table: TableRuns) -> Table:
    """The table for the terminal, of at most 100 columns: for every row the reported, then the obtained."""
    drawn = WholeTable(title=Text(_title(table), style="bold"), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    drawn.title_justify = "left"
    drawn.add_column("method", overflow="fold")
    drawn.add_column("model")
    drawn.add_column("")
    for head in [*_heads(table), *(COSTS[name] for name in table.costs)]:
        drawn.add_column(head, justify="right", no_wrap=True)
    for row in cells(table):
        got = [row["model"], row["some"] or "obtained", *row["obtained"], *_costs(row)]
        if any(value != "-" for value in row["reported"]):
            drawn.add_row(*map(Text, [row["label"], "", "reported", *row["reported"]]), style="dim")
            drawn.add_row("", *map(Text, got))
        else:
            drawn.add_row(*map(Text, [row["label"], *got]))
    return drawn


def markdown(table: TableRuns) -> str:
    """The table for a page: reported / obtained in each cell, and the reasons below."""
    rows, heads = cells(table), _heads(table)
    lines = [f"**{_title(table)}** (reported / obtained)", ""]
    heads += [COSTS[name] for name in table.costs]
    lines += ["| method | model | " + " | ".join(heads) + " |", "| --- " * (2 + len(heads)) + "|"]
    for row in rows:
        both = [f"{a} / {b}" for a, b in zip(row["reported"], row["obtained"], strict=True)]
        label = f"{row['label']} ({row['some']})" if row["some"] else row["label"]
        lines.append(f"| {label} | {row['model']} | " + " | ".join([*both, *_costs(row)]) + " |")
    return "\n".join([*lines, "", *(f"- {note}" for note in notes(table, rows)), ""])


def _title(table: TableRuns) -> str:
    seeds = max((len(row["runs"]) for row in table.facts["rows"]), default=0)
    small = ", reduced" if table.facts["small"] else ""
    return f"{table.facts['title']} ({seeds} seed{'s' if seeds != 1 else ''}{small})"


def table_figure(table: TableRuns, path: Path) -> Path | None:
    """The curves of a table over the rounds, and where the clients' models lie if that was recorded."""
    wanted = table.facts["curves"] or [row["label"] for row in table.facts["rows"]]
    # Of runs that were scored again there is one round, which is no curve.
    rows = [
        row
        for row in table.facts["rows"]
        if row["label"] in wanted and any(len(run.scored.seen.rounds) > 1 for run in table.runs(row))
    ]
    held = table.folder / "picture.json"
    if not rows:
        return None
    shown, more = _drawn(table), held.is_file()
    across = len(shown) + more
    figure = Figure(figsize=((7, 10, 13)[min(across, 3) - 1], 4.2), dpi=150, facecolor="white")
    for place, (score, over) in enumerate(shown):
        _curves(figure.add_subplot(1, across, place + 1), table, rows, score, over)
    if more:
        _models(figure.add_subplot(1, across, across), readable_json(held.read_text(encoding="utf-8")))
    figure.tight_layout()
    return save(figure, path)


def models_figure(held: Mapping[str, Any], path: Path) -> Path:
    """Where the clients' models lie, alone: what `kinfolk.papers.local_models` has computed."""
    figure = Figure(figsize=(6, 4.6), dpi=150, facecolor="white")
    _models(figure.add_subplot(), held)
    figure.tight_layout()
    return save(figure, path)


def _drawn(table: TableRuns) -> list[tuple[str, str]]:
    """The columns whose curves are drawn: the first; where worst and best clients are shown, these too."""
    scores = [column for column in table.columns if column[0] not in GROUPS] or [("accuracy", "macro")]
    score = scores[0][0]
    ends = [(score, over) for over in ("worst", "macro", "best")]
    return ends if set(ends) <= set(scores) else scores[:1]


def _curves(axes: Axes, table: TableRuns, rows: Sequence[Mapping[str, Any]], score: str, over: str) -> None:
    for i, row in enumerate(rows):
        begun = [run for run in table.runs(row) if run.models]
        runs = _finished(begun) or begun  # a seed that has only begun would cut the others' curve short
        if not runs:
            continue
        curve = mean_history(runs, row["model"] or runs[0].models[0], score, over)
        colour, style = COLOURS[i % len(COLOURS)], STYLES[i // len(COLOURS) % len(STYLES)]
        axes.plot(curve.index, 100 * curve["mean"], style, color=colour, label=row["label"], linewidth=1.6)
        band = (100 * (curve["mean"] + sign * curve["std"].fillna(0)) for sign in (-1, 1))
        axes.fill_between(curve.index, *band, color=colour, alpha=0.15, linewidth=0)
    axes.set_title(table.facts["title"], loc="left", fontsize=10, color=INK)
    axes.set_xlabel("round", color=INK)
    axes.set_ylabel(f"{over} {score}, %", color=INK)
    axes.legend(fontsize=7, frameon=False, ncols=2 if len(rows) > 6 else 1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eeeeee")


def _models(axes: Axes, held: Mapping[str, Any]) -> None:
    group = np.array(held["group"])
    for i, k in enumerate(sorted(set(group.tolist()))):
        mine = group == k
        x, y = np.array(held["x"])[mine], np.array(held["y"])[mine]
        label, colour = f"group {k}: {mine.sum()}", COLOURS[i % len(COLOURS)]
        axes.scatter(x, y, s=14, alpha=0.8, color=colour, label=label, linewidths=0)
    share = [f"{100 * part:.0f} %" for part in held["share"]]
    axes.set_title(f"{len(group)} clients' models, {held['title']}", loc="left", fontsize=10, color=INK)
    axes.set_xlabel(f"first principal axis ({share[0]} of the variance)", color=INK)
    axes.set_ylabel(f"second ({share[1]})", color=INK)
    axes.legend(fontsize=8, frameon=False)
    axes.tick_params(colors=PALE)
    axes.spines[["top", "right"]].set_visible(False)
