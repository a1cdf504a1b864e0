"""What tables say of runs that diverged: they are never ranked, and a reader learns when and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kinfolk.report.read import Run


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


def unranked(row: Mapping[str, Any]) -> str:
    """What stands in place of a comparison in the row of a method that diverged.

    >>> unranked({"diverged": 3, "runs": 3}), unranked({"diverged": 1, "runs": 3}), unranked({"diverged": 0})
    ('diverged', '1 of 3\\ndiverged', '')
    """
    if not row["diverged"]:
        return ""
    return "diverged" if row["diverged"] == row["runs"] else f"{row['diverged']} of {row['runs']}\ndiverged"


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
    exploded = [who for who in run.facts.get("exploded") or {} if who not in excluded]
    if exploded:
        lines.append(f"replies far out of bounds or not finite: {_some(exploded)}")
    return lines


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} others" if len(names) > 3 else "")
