"""What was run: the comparison as a table, the runs one by one, and the settings behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from rich.text import Text

from kinfolk.report.diverged import divergences
from kinfolk.report.groups import named
from kinfolk.report.page.chart import Chart
from kinfolk.report.read import Run, human_bytes, privacy, training_seconds
from kinfolk.report.tables import comparison_table

# Unfinished runs that are told one by one.
MOST_LINES = 4
# Settings that say who is compared, not how.
_WHO = ("algorithm.", "run.seed", "engine.")


def comparison(runs: Sequence[Run]) -> Chart | None:
    """The table of `kinfolk show`, with its notes.

    >>> scores = {"local": 0.5, "ifca": 0.75}
    >>> runs = [Run.of({"title": t, "seed": 0}, {"client": ["a"], "value": v}) for t, v in scores.items()]
    >>> comparison(runs).table["algorithm"].tolist()
    ['ifca', 'local']
    """
    if not any(run.metrics for run in runs):
        return None
    table, notes = comparison_table(runs)
    columns = {
        _plain(column.header).replace("\n", " "): [_plain(cell) for cell in column.cells]
        for column in table.columns
    }
    # The head of the page says who has not finished.
    told = tuple(f"{run.title} seed {run.seed} is {run.facts.get('status')}" for run in runs)
    first, *others = [note for note in notes if not note.startswith(told)] or [""]
    says = f"{first[:1].upper()}{first[1:]}."
    return Chart(
        "comparison", _plain(table.title), {}, pd.DataFrame(columns), says, (*others, _plain(table.caption))
    )


def _plain(cell: Any) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell or "")


def every_run(runs: Sequence[Run]) -> Chart:
    """A row for each run: how it ended, on what, and what it took.

    >>> every_run([Run.of({"title": "local", "seed": 0}, {"value": []})]).table["algorithm"].tolist()
    ['local']
    """
    rows = [_of(run) for run in runs]
    ended = sum(row["status"] == "finished" for row in rows)
    says = (
        f"{len(runs)} runs, {ended} of them finished." if len(runs) > 1 else f"One run, {rows[0]['status']}."
    )
    frame = pd.DataFrame(rows).replace("", None).dropna(axis="columns", how="all")
    return Chart("runs", "The runs", {}, frame, says, tuple(_versions(runs)))


def _versions(runs: Sequence[Run]) -> list[str]:
    """A line for each set of versions, and whose it is where there are several."""
    found: dict[str, list[str]] = {}
    for run in runs:
        text = ", ".join(f"{name} {version}" for name, version in (run.facts.get("versions") or {}).items())
        found.setdefault(text or "not recorded", []).append(f"{run.title} seed {run.seed}")
    return [
        f"Versions{f' of {named(who, 4)}' if len(found) > 1 else ''}: {text}." for text, who in found.items()
    ]


def _of(run: Run) -> dict[str, Any]:
    facts, done = run.facts, run.rounds
    model = facts.get("model") or {}
    sent = sum(sum(ways.values()) for fact in done for ways in (fact.get("bytes") or {}).values())
    return {
        "algorithm": run.title,
        "seed": run.seed,
        "status": facts.get("status", "not known"),
        "why it ended": facts.get("reason") or "",
        "rounds": int(done[-1]["round"]) if done else 0,
        "what went wrong": "; ".join(divergences(run)),
        "seconds of training": sum(map(training_seconds, done)) if done else math.nan,
        "bytes, scoring included": human_bytes(sent) if sent else "",
        "privacy": privacy(run),
        "model": model.get("name") or "",
        "parameters": model.get("parameters"),
        "engine": facts.get("engine") or "",
    }


def settings(runs: Sequence[Run]) -> Chart | None:
    """The settings of the experiment; where runs differ, every value. None where no settings are recorded."""
    found: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        for section, table in run.spec.items():
            for key, value in table.items() if isinstance(table, dict) else ():
                titles = found.setdefault(f"{section}.{key}", {}).setdefault(str(value), [])
                titles += [run.title] if run.title not in titles else []
    if not found:
        return None
    rows = [
        {"setting": name, "value": value, "of": "all" if len(values) == 1 else ", ".join(titles)}
        for name, values in found.items()
        for value, titles in values.items()
        if len(values) == 1 or not name.startswith(_WHO) or name == "run.seed"
    ]
    unlike = sorted(name for name, values in found.items() if len(values) > 1 and not name.startswith(_WHO))
    says = f"{len(found)} settings. Besides algorithm, seed and engine the runs differ in " + (
        f"{', '.join(unlike)}." if unlike else "nothing."
    )
    return Chart("settings", "Settings", {}, pd.DataFrame(rows).drop_duplicates(), says)


def headline(runs: Sequence[Run]) -> tuple[str, str]:
    """(the federation, how much of everything there is).

    >>> facts = {"title": "local", "seed": 0, "federation": {"name": "digits", "clients": 24, "rows": 1440}}
    >>> headline([Run.of(facts, {"value": []})])
    ('digits', '24 clients, 1,440 training rows, 1 method, 1 seed')
    """
    data: dict[str, Any] = next((run.facts["federation"] for run in runs if run.facts.get("federation")), {})
    counts = [
        f"{data[key]:,} {words}"
        for key, words in (("clients", "clients"), ("rows", "training rows"))
        if data.get(key)
    ]
    many = [(len({run.title for run in runs}), "method"), (len({run.seed for run in runs}), "seed")]
    counted = ", ".join(f"{number} {word}{'s' if number != 1 else ''}" for number, word in many)
    return str(data.get("name") or "Runs"), ", ".join([*counts, counted])


def unfinished(runs: Sequence[Run]) -> list[str]:
    """A line for every run that has not finished; a report of it says what there is so far.

    >>> run = Run.of({"title": "ifca", "seed": 1, "status": "running"}, {"value": []}, [{"round": 3}])
    >>> unfinished([run])
    ['ifca seed 1 has not finished: it runs still or was killed; 3 rounds are recorded.']
    """
    lines = []
    for run in runs:
        status, reason = run.facts.get("status", "finished"), run.facts.get("reason")
        if status == "finished":
            continue
        why = (
            "it runs still or was killed"
            if status == "running"
            else f"{status}{f' ({reason})' if reason else ''}"
        )
        rounds = int(run.rounds[-1]["round"]) if run.rounds else 0
        lines.append(f"{run.title} seed {run.seed} has not finished: {why}; {rounds} rounds are recorded.")
    more = len(lines) - MOST_LINES
    return lines if more <= 1 else [*lines[:MOST_LINES], f"And {more} of all {len(runs)} runs more have not."]
