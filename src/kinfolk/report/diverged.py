"""What tables say of runs that diverged or lost clients: they are never ranked, and a reader learns why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kinfolk.report.read import Run, last


def has_diverged(run: Run, model: str) -> bool:
    """Whether a kind of model of this run was no longer any use at its end.

    >>> facts = {"title": "fedavg", "seed": 0, "diverged": {"text": "diverged", "models": {"centre": {}}}}
    >>> run = Run.of(facts, {"value": []})
    >>> has_diverged(run, "centre"), has_diverged(run, "fine-tuned")
    (True, False)
    """
    return model in (run.facts.get("diverged") or {}).get("models", ())


def divergence_rounds(runs: Sequence[Run], model: str) -> list[int]:
    """The round of each run at which this kind of model had diverged for good; runs that went well have none.

    >>> facts = {"title": "fedavg", "seed": 0, "diverged": {"text": "", "models": {"centre": {"round": 51}}}}
    >>> runs = [Run.of(facts, {"value": []}), Run.of({"title": "local", "seed": 0}, {"value": []})]
    >>> divergence_rounds(runs, "centre")
    [51]
    """
    gone = [run.facts["diverged"]["models"][model] for run in runs if has_diverged(run, model)]
    return [int(facts.get("round", 0)) for facts in gone]


def lost_clients(run: Run, model: str) -> list[str]:
    """The clients whose score at the end of a run could not be used: this model of theirs is of no use.

    Who was never scored at all, as without rows, is none of them.

    >>> scores = {"round": [0, 0, 5], "client": ["ann", "bob", "ann"], "value": 0.5}
    >>> run = Run.of({"title": "fedavg", "seed": 0}, scores, [{"round": 5, "summary": {}}])
    >>> lost_clients(run, "centre"), lost_clients(run, "personal")
    (['bob'], [])
    """
    ever = run.scored.seen.rows
    there = set(ever.loc[ever["model"] == model, "client"])
    told = [fact for fact in run.rounds if "summary" in fact]
    if not there or not told:
        return []
    left = there - run.scored.served(model, told[-1]["round"])
    return sorted({*map(str, left), *((told[-1].get("lost") or {}).get(model) or ())})


def scored_clients(run: Run, model: str, score: str) -> tuple[int, int]:
    """Over how many clients a score at the end of a run is, and how many it should be over.

    >>> scores = {"round": [0, 0, 5], "client": ["ann", "bob", "ann"], "value": 0.5}
    >>> run = Run.of({"title": "fedavg", "seed": 0}, scores, [{"round": 5, "summary": {}}])
    >>> scored_clients(run, "centre", "accuracy")
    (1, 2)
    """
    lost = lost_clients(run, model)
    known = set(map(str, last(run, model, score)["value"].dropna().index)) - set(lost)
    return len(known), len(known) + len(lost)


def is_ranked(row: Mapping[str, Any]) -> bool:
    """Whether a method can be compared with others: all its models served all clients.

    >>> is_ranked({"diverged": 0, "lost": 0}), is_ranked({"diverged": 0, "lost": 1})
    (True, False)
    """
    return not row["diverged"] and not row["lost"]


def unranked(row: Mapping[str, Any]) -> str:
    """What stands in place of a comparison in the row of a method that diverged, or that lost clients.

    >>> unranked({"diverged": 3, "runs": 3}), unranked({"diverged": 1, "runs": 3})
    ('diverged', '1 of 3\\ndiverged')
    >>> unranked({"diverged": 0, "lost": 1, "clients": 5, "everyone": 12})
    '5 of 12\\nclients'
    """
    if row["diverged"]:
        many = f"{row['diverged']} of {row['runs']}\n" if row["diverged"] != row["runs"] else ""
        return f"{many}diverged"
    return f"{row['clients']} of {row['everyone']}\nclients" if row["lost"] else ""


def divergences(run: Run) -> list[str]:
    """Lines on what went wrong in a run, what was done about it, and who was left out; none if all went well.

    >>> facts = {"title": "fedavg", "seed": 0, "excluded": ["ann"], "events": [
    ...     {"round": 6, "text": "diverged at round 6: client ann, norm 1e+09", "did": "back to round 4"}]}
    >>> divergences(Run.of(facts, {"value": []}))
    ['diverged at round 6: client ann, norm 1e+09: back to round 4', 'without 1 client from then on: ann']
    """
    lines = [": ".join(filter(None, (one["text"], one["did"]))) for one in run.facts.get("events") or ()]
    if run.facts.get("diverged"):
        lines.append(str(run.facts["diverged"]["text"]))
    excluded = run.facts.get("excluded") or []
    if excluded:
        more = f"without {len(excluded)} client{'s' if excluded[1:] else ''} from then on"
        lines.append(f"{more}: {_some(excluded)}")
    for model in run.models:
        lost = lost_clients(run, model)
        if lost:
            lines.append(f"no {model} score of {len(lost)} clients, whose models are no use: {_some(lost)}")
    exploded = [who for who in run.facts.get("exploded") or {} if who not in excluded]
    if exploded:
        lines.append(f"replies far out of bounds or not finite: {_some(exploded)}")
    return lines


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} others" if len(names) > 3 else "")
