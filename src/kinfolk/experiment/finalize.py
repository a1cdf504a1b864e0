"""What an algorithm does once the rounds are over: played for the last scores alone, and never saved.

More rounds go on from what was before it, and played again it comes to the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinfolk.experiment.record import read_rounds
from kinfolk.script import Finalizes
from kinfolk.task import Info

if TYPE_CHECKING:
    from kinfolk.experiment.run import Running

Facts = dict[str, Any]


def play_final(run: Running) -> Info | None:
    """Let the algorithm finalize the state by which clients are scored; None if it has nothing to do."""
    if not isinstance(run.algorithm, Finalizes):
        return None
    context = run.context()
    script = run.algorithm.finalize(run.state, context)
    if script is None:
        return None
    run.memories.snapshot()
    run.state, info = run.played(script, context)
    run.memories.rollback()
    run.coordinator.forget()
    return info


def finalize(run: Running) -> None:
    """Let the algorithm finalize, and write the last round's line and scores anew by it."""
    before, summary = run.state, run.summary
    run.spent()  # the last checkpoint's, as in runs that do not finalize
    info = play_final(run)
    if info is None:
        return
    found = {"answered": len(run.coordinator.answered), "info": info}
    groups = run.groups(before, run.state, run.clients)
    spent = dict(zip(("bytes", "seconds", "trained"), run.spent(), strict=True))
    run.score()
    run.save(before, summary)  # with what clients are scored by beside it
    facts = with_final(read_rounds(run.folder)[-1], found, groups, spent) | {"summary": run.summary}
    facts |= {"lost": run.lost} if run.lost else {}
    run.records.amend_round(run.done, facts)
    run.watch("round", {**facts, "rounds": run.done, "memories": run.memories})
    run.tell("evaluate", **{**facts, "rounds": run.done})


def go_on(run: Running) -> None:
    """Write the last round's line and scores as they are in a run that goes on."""
    line = read_rounds(run.folder)[-1]
    if "before_final" in line:
        if "summary" in line["before_final"]:
            run.score()
        run.records.amend_round(run.done, without_final(line))


def with_final(line: Facts, found: Facts, groups: Facts, spent: Facts) -> Facts:
    """The line with the final groups; what was spent on them as `final.<kind>`; the line as it was.

    Who switched in the round itself stays; who did at last stands beside what was `found`.

    >>> was = {"round": 3, "groups": {"switch": 0.1, "ari": 0.5}, "seconds": {"server": 1.0}}
    >>> now = with_final(was, {"answered": 4}, {"switch": 0.25, "ari": 1.0}, {"seconds": {"server": 2.0}})
    >>> now["groups"], now["final"], now["seconds"]
    ({'switch': 0.1, 'ari': 1.0}, {'answered': 4, 'switch': 0.25}, {'server': 1.0, 'final.server': 2.0})
    """
    line = without_final(line)  # a finished run finalizes again when it is resumed
    new: Facts = {
        key: line[key] | {f"final.{kind}": much for kind, much in by.items()} for key, by in spent.items()
    }
    was = {key: value for key, value in line.items() if key != "seconds"}
    if groups:
        moves = [name for name in ("switch", "moved") if name in groups]
        found = found | {name: groups[name] for name in moves}
        new["groups"] = groups | {name: line.get("groups", groups)[name] for name in moves}
    return {**line, **new, "final": found, "before_final": was}


def without_final(line: Facts) -> Facts:
    """The line as it was before `with_final`.

    >>> line = {"round": 3, "seconds": {"server": 1.0}, "groups": {"switch": 0.1}}
    >>> without_final(with_final(line, {}, {"switch": 0.5}, {"seconds": {"law": 2.0}})) == line
    True
    """
    if "before_final" not in line:
        return line
    spent = {kind: much for kind, much in line["seconds"].items() if not kind.startswith("final.")}
    return {**line["before_final"], "seconds": spent}
