"""How runs that are followed look: one in full, several as a table, and each as a line."""

from __future__ import annotations

import math
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kinfolk.live.standing import RUNNING, Standing, groups_text, named
from kinfolk.live.table import RunsTable
from kinfolk.live.text import clock, score_text, sparkline
from kinfolk.report.follow import AMISS, Followed, FollowedRun
from kinfolk.report.read import human_bytes

CURVE = 50  # letters of a curve
BAR = 20
SIZES = 8  # groups whose sizes are told


def view(followed: Followed) -> RenderableType:
    """What there is to see.

    >>> from pathlib import Path
    >>> str(view(Followed(Path("nowhere"))))
    'nowhere: no run there yet; waiting for one (Ctrl-C ends)'
    """
    if not followed.runs:
        return Text(f"{followed.folder}: no run there yet; waiting for one (Ctrl-C ends)")
    return run_view(followed.runs[""]) if followed.single else RunsTable(followed.standings)


def run_view(run: FollowedRun) -> Table:
    """One run: how far it is, its scores and groups, what it sent and took, what was amiss."""
    one, grid = run.standing, Table.grid(padding=(0, 2))
    lines = {
        "run": ", ".join([f"{one.title} seed {one.seed}", *_federation(run.facts)]),
        "status": ", ".join(filter(None, [one.status, one.reason])),
        "rounds": _rounds(one),
        one.score or "score": _scores(one),
        "curve": sparkline([value for value, _ in one.curve.values()], CURVE),
        "groups": _groups(one),
        "switched": sparkline(list(one.switches.values()), CURVE, low=0.0),
        "bytes": _bytes(one),
        "time": _time(one),
        "answers": _answers(one),
        "audit": ", ".join(f"{word} {run.amiss[word]}" for word in AMISS if run.amiss[word]),
        "warning": run.warning,
        "folder": str(run.folder),
    }
    for name, line in lines.items():
        if line:
            grid.add_row(Text(name, style="dim"), Text(line, overflow="fold"))
    return grid


def line(one: Standing) -> str:
    """One run in a line, for a log.

    >>> one = Standing("fedavg", 0, rounds=20, status="running", score="accuracy", model="centre")
    >>> one.round({"round": 1, "seconds": {"update": 2.0}})
    >>> one.evaluated(1, {"centre": {"accuracy": {"macro": 0.871}}})
    >>> line(one)
    'fedavg seed 0: round 1/20, accuracy 87.1% (centre), 0:38 left'
    """
    head = f"{one.title} seed {one.seed}: "
    if one.status != RUNNING:
        return head + ", ".join(filter(None, [one.status, one.reason]))
    score = f"{one.score} {score_text(one.value, one.score)} ({one.model})" if one.curve else ""
    left = f"{clock(one.left)} left" if math.isfinite(one.left) else ""
    said = [f"round {one.done}/{one.rounds}", score, groups_text(one.groups), left]
    return head + ", ".join(filter(None, said))


def _federation(facts: dict[str, Any]) -> list[str]:
    data = named(facts.get("federation"))
    counted = [
        f"{data[key]:,} {key}" for key in ("clients", "rows", "classes") if isinstance(data.get(key), int)
    ]
    return [one for one in counted if not one.startswith("0 ")]


def _rounds(one: Standing) -> str:
    filled = min(BAR, BAR * one.done // max(one.rounds, 1))
    left = f", {clock(one.left)} left" if one.status == RUNNING and math.isfinite(one.left) else ""
    return f"{one.done} of {one.rounds} [{'#' * filled}{'.' * (BAR - filled)}]{left}"


def _scores(one: Standing) -> str:
    if not one.curve:
        return "none yet"
    worst = f", worst client {score_text(one.worst, one.score)}" if math.isfinite(one.worst) else ""
    return f"{score_text(one.value, one.score)} ({one.model}){worst}, after round {next(reversed(one.curve))}"


def _groups(one: Standing) -> str:
    if not one.groups:
        return ""
    sizes = [str(count) for count in named(one.groups.get("sizes")).values() if count]
    said = [groups_text(one.groups)]
    if sizes:
        said.append(f"clients {', '.join(sizes[:SIZES])}" + ", ..." * (len(sizes) > SIZES))
    if isinstance(one.groups.get("ari"), float):
        said.append(f"ARI {one.groups['ari']:.2f}")
    return "; ".join(filter(None, said))


def _bytes(one: Standing) -> str:
    sent = one.sent
    whole = ", ".join(f"{human_bytes(sent[way])} {way}" for way in ("down", "up", "across") if sent.get(way))
    return f"{whole}; {human_bytes(sum(sent.values()) / one.done)} a round" if whole and one.done else whole


def _time(one: Standing) -> str:
    if not math.isfinite(one.pace):
        return ""
    return f"{one.pace:.2g} s a round, {one.seconds_per_round:.2g} s of it in training"


def _answers(one: Standing) -> str:
    asked, answered, unheard = (one.last.get(name) for name in ("cohort", "answered", "unheard"))
    if not asked:
        return ""
    more = f"; {unheard} clients had no part in any round so far" if unheard else ""
    return f"{answered} of {asked} asked{more}"
