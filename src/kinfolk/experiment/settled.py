"""The line about a run's last round once the algorithm has settled: scores and groups, now and before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kinfolk.experiment.record import read_rounds

if TYPE_CHECKING:
    from kinfolk.experiment.run import Running

Facts = dict[str, Any]

# What settling changes, and what it adds to.
_CHANGED, _SPENT, _OURS = ("summary", "groups"), ("bytes", "seconds", "trained"), "settle."


def settle(run: Running) -> None:
    """Write the last round's line and scores anew, by the algorithm's last word."""
    before = run.state
    if run.closing() is None:
        return
    run.spent()  # the last checkpoint's, as in runs that do not settle
    info = run.finalize()
    found = {"answered": len(run.stage.answered), "info": info}
    groups = run.groups(before, run.state, run.clients)
    spent = run.spent()
    run.score()
    facts = settled(read_rounds(run.folder)[-1], found, groups, run.summary, *spent)
    run.records.amend_round(run.done, facts)
    run.watch("round", {**facts, "rounds": run.done, "memories": run.memories})


def unsettle(run: Running) -> None:
    """Write the last round's line and scores as they are in a run that goes on."""
    line = unsettled(read_rounds(run.folder)[-1])
    if "summary" in line:
        run.score()
    run.records.amend_round(run.done, line)


def settled(
    line: Facts,
    found: Facts,
    groups: Facts,
    summary: Facts,
    sent: Mapping[str, Any],
    seconds: Mapping[str, float],
    trained: Mapping[str, int],
) -> Facts:
    """The line with scores and groups as settled; what was spent on it as `settle.<kind>`.

    Who switched in the round itself stays; who did by settling stands beside what was `found`.

    >>> was = {"round": 3, "groups": {"switch": 0.1, "ari": 0.5}, "bytes": {}, "trained": {}}
    >>> was |= {"seconds": {"server": 1.0}}
    >>> now = settled(was, {"answered": 4}, {"switch": 0.25, "ari": 1.0}, {}, {}, {"server": 2.0}, {})
    >>> now["groups"], now["settled"], now["seconds"]
    ({'switch': 0.1, 'ari': 1.0}, {'answered': 4, 'switch': 0.25}, {'server': 1.0, 'settle.server': 2.0})
    """
    line = unsettled(line)
    spent = dict(zip(_SPENT, (sent, seconds, trained), strict=True))
    new: Facts = {
        key: line[key] | {f"{_OURS}{kind}": much for kind, much in by.items()} for key, by in spent.items()
    }
    new["summary"] = summary
    if groups:
        found = found | {"switch": groups["switch"]}
        new["groups"] = groups | line.get("groups", {}) | {k: v for k, v in groups.items() if k != "switch"}
    was = {key: line[key] for key in _CHANGED if key in line}
    return {**line, **new, "settled": found, "unsettled": was}


def unsettled(line: Facts) -> Facts:
    """The line as it was before the algorithm settled, if it has.

    >>> line = {"round": 3, "bytes": {"update": {}}, "seconds": {}, "trained": {}, "groups": {"switch": 0.1}}
    >>> unsettled(settled(line, {}, {"switch": 0.5}, {"centre": {}}, {"law": {}}, {}, {"update": 5})) == line
    True
    """
    if "unsettled" not in line:
        return line
    kept = {key: value for key, value in line.items() if key not in (*_CHANGED, "settled", "unsettled")}
    for key in _SPENT:
        kept[key] = {kind: count for kind, count in line[key].items() if not kind.startswith(_OURS)}
    return {**kept, **line["unsettled"]}
