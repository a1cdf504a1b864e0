"""What a search for settings has found, from `tune.json` alone: the table, the frame and the notes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from kinfolk.report.read import shown
from kinfolk.report.whole import WholeTable
from kinfolk.scores import about

Facts = Mapping[str, Any]


def tune_frame(facts: Facts) -> pd.DataFrame:
    """One row per method: what was tried, what it cost, what was chosen, and its validation scores.

    >>> one = {"algorithm": "fedavg", "tried": 5, "spent": 60, "settings": {"local.lr": 0.3}, "failed": 0}
    >>> one |= {"score": 0.9, "default": 0.8, "chosen": "fedavg;local.lr=0.3", "model": "centre"}
    >>> tune_frame({"methods": [one]})[["algorithm", "score", "default"]].values.tolist()
    [['fedavg', 0.9, 0.8]]
    """
    names = ("algorithm", "tried", "failed", "spent", "settings", "model", "score", "default", "chosen")
    return pd.DataFrame([{name: one[name] for name in names} for one in facts["methods"]])


def tune_table(facts: Facts) -> tuple[Table, list[str]]:
    """(table, notes): a row for each method, and what a reader must know.

    >>> one = {"algorithm": "fedavg", "tried": 5, "spent": 60, "settings": {}, "model": "centre", "failed": 0}
    >>> one |= {"score": 0.8, "default": 0.8, "left_out": [], "chosen": "fedavg", "file": "fedavg.toml"}
    >>> facts = {"methods": [one], "score": "accuracy", "budget": 60, "rounds": 10, "rungs": [3, 10]}
    >>> tune_table({**facts, "seeds": [0], "notes": [], "backend": "halving"})[0].row_count
    1
    """
    score = facts["score"]
    unit = " in %" if about(score).percent else ", lower is better"
    title = Text(
        f"{about(score).title}{unit}, on validation rows after {facts['rounds']} rounds", style="bold"
    )
    table = WholeTable(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    table.add_column("method")
    for head in ("tried", "rounds\nspent"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("chosen settings")
    table.add_column("model", no_wrap=True)
    for head in ("chosen", "as\ngiven"):
        table.add_column(head, justify="right", no_wrap=True)
    for one in facts["methods"]:
        settings = [f"{name.partition('.')[2]}={_number(value)}" for name, value in one["settings"].items()]
        cells = [str(one["tried"]), f"{one['spent']:.4g}", ", ".join(settings) or "as given", one["model"]]
        values = [shown(math.nan if v is None else v, score) for v in (one["score"], one["default"])]
        table.add_row(*map(Text, [one["algorithm"], *cells, *values]))
    return table, _notes(facts)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _notes(facts: Facts) -> list[str]:
    """What was spent how, what failed or could not be tried, and the lines to compare with."""
    steps, seeds = ", ".join(map(str, facts["rungs"])), ", ".join(map(str, facts["seeds"]))
    how = f"a third goes on after {steps} rounds" if len(facts["rungs"]) > 1 else "all to the end"
    notes = [
        *facts["notes"],
        f"budget: {facts['budget']:g} rounds' worth of training for each method, starts and fine-tuning "
        f"included; seeds {seeds}; {facts['backend']}: {how}",
        "test rows were not looked at; chosen scores are the best of several, so they flatter",
    ]
    for one in facts["methods"]:
        if one["failed"]:
            notes.append(
                f"{one['algorithm']}: {one['failed']} trials diverged or broke down, and count as worst"
            )
        if one["left_out"]:
            more = f" and {len(one['left_out']) - 1} more" if len(one["left_out"]) > 1 else ""
            notes.append(f"{one['algorithm']}: not tried: {one['left_out'][0]}{more}")
    return [*notes, *(f'-a "{one["chosen"]}"' for one in facts["methods"])]
