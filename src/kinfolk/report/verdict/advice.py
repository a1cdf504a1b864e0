"""What to run next, and why: the command where one can be written from the run folders, else in words."""

from __future__ import annotations

import math
from collections.abc import Callable

from kinfolk.report.against import Row
from kinfolk.report.read import Run
from kinfolk.report.verdict import commands
from kinfolk.report.verdict.blocks import FEWEST_SEEDS, open_runs, rounds_planned
from kinfolk.report.verdict.cautions import near_the_edge
from kinfolk.report.verdict.evidence import Evidence
from kinfolk.report.verdict.folder import together
from kinfolk.report.verdict.groups import GroupFindings, asked_groups
from kinfolk.report.verdict.sentence import Sentence, count, listed, say

# More would not be read.
MOST = 4
# The least by which docs/results/divergence.md advises to lower a rate: "by a factor of 3 to 10".
LOWER = 3
# Evaluations that a run should have: one at least lies between half and three quarters of its rounds.
LOOKS = 10


def advice(known: Evidence, said: set[str], found: GroupFindings, chosen: Row | None) -> list[Sentence]:
    """The next steps, the most urgent first; `said`: rules that hold; `chosen`: whom a conclusion names."""
    steps: list[Callable[[], Sentence | None]] = []
    if "other-data" in said:
        return []
    if "unfinished" in said:
        steps.append(lambda: _finish(known))
    if {"diverged", "edge", "falling"} & said:
        steps.append(lambda: _lower_rate(known, said))
    if "rising" in said or ("unseen" in said and not _looks(known)):
        steps.append(lambda: _longer(known, said))
    elif "unseen" in said:
        steps.append(lambda: _look(known))
    if "few-seeds" in said and not _missing(known):
        steps.append(lambda: _seeds(known))
    steps += [lambda: _baselines(known), lambda: _groups(known, found)]
    if chosen is not None:
        steps += [lambda: _tune(known, said), lambda: _use(known, chosen)]
    return [step for make in steps if (step := make())][:MOST]


def _step(rule: str, text: str, command: str | None, **numbers: float) -> Sentence:
    return say(rule, f"{text}: `{command}`" if command else f"{text}.", "plain", **numbers)


def _finish(known: Evidence) -> Sentence:
    left = open_runs(known.runs)
    command = commands.compare(known.runs) if together(known.runs) else None
    command = command or (commands.resume(left[0]) if left else None)
    return _step("next-resume", "Finish what was begun; what is done is kept", command, runs=len(left))


def _lower_rate(known: Evidence, said: set[str]) -> Sentence | None:
    """The method that diverged or swings again, at a third of its rate."""
    names = [str(row["algorithm"]) for row in known.gone] or _swinging(known)
    if not names:
        return None
    run = known.of[names[0]][0]
    mine, spec = run.facts.get("own") or {}, run.spec.get("local") or {}
    rate = mine.get("local.lr", spec.get("lr"))
    early = "; or stop it early with run.patience, which needs data.valid" if "falling" in said else ""
    if not isinstance(rate, int | float) or not rate > 0:
        return _step("next-rate", f"Lower local.lr of {names[0]} by a factor of {LOWER} to 10{early}", None)
    lower = float(f"{rate / LOWER:.1g}")
    line = commands.line_of(run, **{"local.lr": lower})
    command = commands.compare(known.runs, more=[line]) if line else None
    text = f"Try {names[0]} with a learning rate of {lower:g} instead of {rate:g}{early}"
    return _step("next-rate", text, command, rate=lower, was=float(rate))


def _swinging(known: Evidence) -> list[str]:
    """Methods that came close to diverging or became worse at the end."""
    near = [run.title for run in known.runs if near_the_edge(run) and not run.facts.get("diverged")]
    return near or [title for (title, _), (_, share) in known.moves.items() if share < -1]


def _longer(known: Evidence, said: set[str]) -> Sentence:
    planned = max(map(rounds_planned, known.runs), default=0)
    why = (
        "scores still rise" if "rising" in said else "so few rounds cannot show whether training is finished"
    )
    text = f"Run twice the rounds, since {why}"
    sets = [f"run.rounds={2 * planned}"] if planned else []
    command = _again(known, sets) if planned else None
    return _step("next-rounds", text, command, rounds=2 * planned if planned else math.nan)


def _again(known: Evidence, sets: list[str]) -> str | None:
    if len(known.runs) == 1 and not together(known.runs):
        return commands.resume(known.runs[0], sets)
    return commands.compare(known.runs, sets=sets)


def _looks(known: Evidence) -> int:
    """How many rounds should lie between two evaluations, where that are fewer than now; else 0."""
    every = max(1, max(map(rounds_planned, known.runs), default=0) // LOOKS)
    now = max((int((run.spec.get("run") or {}).get("evaluate_every") or 0) for run in known.runs), default=0)
    return every if every < now else 0


def _look(known: Evidence) -> Sentence:
    every = _looks(known)
    text = f"Score every {count(every, 'round')}, to see whether training is finished"
    command = commands.compare(known.runs, sets=[f"run.evaluate_every={every}"], fresh=True)
    return _step("next-looks", text, command, every=every)


def _seeds(known: Evidence) -> Sentence:
    text = f"Run {FEWEST_SEEDS} seeds, since fewer cannot tell a difference from chance"
    return _step("next-seeds", text, commands.compare(known.runs, seeds=FEWEST_SEEDS), seeds=FEWEST_SEEDS)


def _missing(known: Evidence) -> list[str]:
    kinds = {known.kind(row) for row in [*known.rows, *known.gone]}
    return [name for name, kind in (("local", "alone"), ("fedavg", "one")) if kind not in kinds]


def _baselines(known: Evidence) -> Sentence | None:
    """One model for all, and clients that train alone: what anything else is measured by."""
    more = _missing(known)
    if not more:
        return None
    what = {"local": "training alone (local)", "fedavg": "one model for all (fedavg)"}
    text = f"Compare with {listed([what[name] for name in more])}: without it nobody knows what is gained"
    seeds = max(FEWEST_SEEDS, len(known.seeds))
    return _step(
        "next-baselines", text, commands.compare(known.runs, more=more, seeds=seeds), methods=len(more)
    )


def _groups(known: Evidence, found: GroupFindings) -> Sentence | None:
    """The number of groups, where none was tried or the number was given and not searched."""
    if known.choice is not None or found.answer == "one":
        return None
    if not found.runs:
        text = "Look for groups, since no method was run that does: first how many"
        return _step("next-groups", text, commands.choose_k(known.runs))
    asked = asked_groups(found.runs[0])
    if not asked:
        return None
    text = f"See whether another number of groups than {asked} fits better"
    return _step("next-choose-k", text, commands.choose_k(known.runs), asked=asked)


def _tune(known: Evidence, said: set[str]) -> Sentence | None:
    if "own-settings" in said or len(known.titles) < 2:
        return None
    text = "Give every method its own best settings, since all were run with the same: the order may change"
    return _step("next-tune", text, commands.tune(known.runs))


def _use(known: Evidence, chosen: Row) -> Sentence | None:
    run: Run = min(known.of[chosen["algorithm"]], key=lambda run: run.seed)
    if not (run.path / "run.json").is_file():
        return None
    one = known.kind(chosen) == "one"
    return _step(
        "next-use", f"Take {chosen['algorithm']} home", commands.export(run, str(chosen["model"]), one)
    )
