"""What a run's status is now: one that was killed, or has not begun, cannot write it down itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kinfolk.lock import holder, is_written

KILLED = "its process ended without a word; it can be resumed"


def as_it_is(
    folder: Path, facts: Mapping[str, Any], again: Callable[[], Mapping[str, Any]]
) -> Mapping[str, Any]:
    """The facts of `run.json`, where a run that says `running` names its writer; without one it is `killed`.

    `again` reads the facts anew: the run may have ended between the first reading and a look at its lock.

    >>> as_it_is(Path("runs/a"), {"status": "finished"}, dict)
    {'status': 'finished'}
    """
    if facts.get("status") != "running":
        return facts
    written = is_written(folder)
    if written is False:
        facts = again()
        if facts.get("status") == "running" and is_written(folder) is False:
            return {**facts, "status": "killed", "reason": KILLED}
    elif written and not facts.get("reason"):
        who = holder(folder)
        return {**facts, "reason": str(who)} if who else facts
    return facts


def missing_note(folder: Path, names: Sequence[str]) -> str:
    """A note on the runs of a comparison that have not begun; empty if there are none.

    >>> missing_note(Path("nowhere"), ["local-seed0", "local-seed1"])
    '2 of 2 runs have not begun: local-seed0, local-seed1'
    """
    lacking = [name for name in names if not (folder / name / "run.json").is_file()]
    told = ", ".join(lacking[:3]) + ", ..." * (len(lacking) > 3)
    return f"{len(lacking)} of {len(names)} runs have not begun: {told}" if lacking else ""
