"""Advice on a federation, from `advice.json` alone: the plan, the answer, the evidence, what comes next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from kinfolk.report.read import human_bytes, shown
from kinfolk.report.whole import WholeTable
from kinfolk.scores import about

Facts = Mapping[str, Any]
# What the answers mean.
MEANS = {
    "local": "let every client train alone (local)",
    "fedavg": "one model for all (fedavg)",
    "fine-tuned": "one model for all, fine-tuned by every client (fedavg_tuned)",
}


def headline(facts: Facts) -> str:
    """The advice in one sentence.

    >>> headline({"advice": {"answer": "groups", "method": "ifca k=3", "k": 3, "confidence": "low"}})
    'Advice: a model for each of 3 groups (ifca). Confidence: low.'
    """
    advice = facts["advice"]
    if advice["answer"] == "unclear":
        return str(advice["reason"])
    means = MEANS.get(advice["answer"])
    if means is None:
        tuned = ", fine-tuned by every client" if advice.get("model") == "fine-tuned" else ""
        means = f"a model for each of {advice['k']} groups{tuned} ({advice['method'].split()[0]})"
    return f"Advice: {means}. Confidence: {advice['confidence']}."


def plan_lines(facts: Facts) -> list[str]:
    """What was found in the data, and what the trials will cost, before they begin.

    >>> look = {"clients": 4, "of": 4, "training rows": [9, 9.0, 9], "validation rows": 8, "classes": 2}
    >>> print(plan_lines({"look": look | {"notes": [], "too_little": "few"}, "validation": "held out"})[0])
    4 clients, 9 training rows each, 8 validation rows, 2 classes
    """
    look = facts["look"]
    low, middle, high = look["training rows"]
    rows = f"{low} training rows each" if low == high else f"{low} to {high} training rows, median {middle:g}"
    what = f"{look['classes']} classes" if look["classes"] else "numbers to predict"
    lines = [f"{look['clients']} clients, {rows}, {look['validation rows']:,} validation rows, {what}"]
    lines += [f"note: {note}" for note in (facts["validation"], *look["notes"])]
    if look["too_little"]:
        return lines
    plan = facts["plan"]
    parts = f"settings {plan['search']}, groups {plan['count']}, trials {plan['trials']:,}"
    lines.append(
        f"plan: at most {plan['cost']:,} rounds' worth of training ({parts}: {plan['seeds']} seeds of "
        f"{plan['rounds']} rounds)" + (f", about {_time(facts['estimate'])}" if facts.get("estimate") else "")
    )
    return lines


def _time(seconds: float) -> str:
    """Seconds in words.

    >>> _time(47), _time(700), _time(9000)
    ('50 s', '12 minutes', '2.5 hours')
    """
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def next_lines(facts: Facts, folder: str, data: str) -> list[str]:
    """The commands that come next.

    >>> next_lines({"advice": {"answer": "local", "longer": False}}, "runs/a", "mine")
    ['kinfolk run runs/a/advice.toml --out runs/advised', 'kinfolk show runs/a']
    """
    advice = facts["advice"]
    longer = f"kinfolk advise {data} --budget {2 * facts['plan']['cost']}" if advice["longer"] else ""
    if advice["answer"] == "unclear":
        again = f"kinfolk compare {folder}/advice.toml -a local -a fedavg --seeds 10"
        return [longer or again]
    run = f"kinfolk run {folder}/advice.toml --out runs/advised"
    return [run, f"kinfolk show {folder}", *([longer] if longer else [])]


def advice_table(facts: Facts) -> tuple[Table | None, list[str]]:
    """(the evidence, what there is to say below it); no table where nothing was tried.

    >>> one = {"method": "local", "model": "personal", "chosen": True, "mean": 0.5, "std": 0.1, "rise": 0.0}
    >>> one |= {"bytes_per_client_round": 0.0, "against": None, "diverged": 0, "answer": "local"}
    >>> facts = {"evidence": [one], "score": "accuracy", "advice": {"answer": "local", "reason": "why",
    ...     "doubts": [], "confidence": "high"}, "groups": {}, "spent": {}, "plan": {"seeds": 5, "cost": 9}}
    >>> advice_table({**facts, "seconds": 3.0})[0].row_count
    1
    """
    score, rows = str(facts["score"]), list(facts["evidence"])
    if not rows:
        return None, []
    worse = 1 if about(score).lower_is_better else -1
    rows.sort(key=lambda row: (row["diverged"] > 0, worse * (row["mean"] if row["mean"] is not None else 0)))
    unit = " in %" if about(score).percent else ", lower is better"
    title = f"{about(score).title}{unit}, on validation rows, {facts['plan']['seeds']} seeds"
    table = WholeTable(
        title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0),
        pad_edge=False,
    )  # fmt: skip
    for head in ("method", "model"):
        table.add_column(head)
    for head in ("score", "vs\nadvised", "last\nquarter", "sent per\nclient, round"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        sent = row["bytes_per_client_round"]
        cells = [
            ("* " if row["chosen"] else "  ") + row["method"],
            row["model"],
            "diverged" if row["diverged"] else shown(_number(row["mean"]), score, _number(row["std"])),
            _against(row, score, next((one["mean"] for one in rows if one["chosen"]), None)),
            _difference(-worse * _number(row["rise"]), score, "+"),
            "-" if sent is None else human_bytes(sent),
        ]
        table.add_row(*map(Text, cells), style="bold" if row["chosen"] else None)
    return table, _notes(facts)


def _notes(facts: Facts) -> list[str]:
    advice, groups = facts["advice"], facts["groups"]
    notes = [f"because {advice['reason']}"] if advice["answer"] != "unclear" else []
    notes += [f"doubt: {doubt}" for doubt in advice["doubts"]]
    if groups:
        notes.append(f"groups, as choose-k counts them: {groups['reason']}")
    notes.append(
        "vs advised: paired difference ± 95 % interval over clients and seeds, of one row for each answer, "
        "with = where the two are not distinguishable; "
        "last quarter: change over the last quarter of the rounds. Test rows were not looked at."
    )
    spent, cost = sum(facts["spent"].values()), facts["plan"]["cost"]
    notes.append(f"spent: {spent:,.0f} of {cost:,} rounds' worth of training, {_time(facts['seconds'])}")
    return notes


def _against(row: Facts, score: str, advised: float | None) -> str:
    """The difference to what is advised; without an interval where another row stands for this answer."""
    duel = row["against"]
    if row["chosen"] or advised is None or row["mean"] is None:
        return ""
    if not duel:
        return _difference(row["mean"] - advised, score, "+")
    sign = -1 if about(score).lower_is_better else 1
    reach = _difference((duel["high"] - duel["low"]) / 2, score)
    mark = "" if duel["apart"] else "= "
    return f"{mark}{_difference(sign * duel['gain'], score, '+')}±{reach}"


def _difference(value: float, score: str, sign: str = "") -> str:
    if math.isnan(value):
        return "-"
    return f"{100 * value:{sign}.1f}" if about(score).percent else f"{value:{sign}.2g}"


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
