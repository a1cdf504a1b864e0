"""What a run's records lack when it is resumed: made again from the rest where that is possible, else named.

Nothing here is silent: each repair is a warning, in the audit trail too.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from kinfolk.errors import KinfolkError
from kinfolk.experiment.best import judged
from kinfolk.experiment.client_facts import write_client_facts
from kinfolk.experiment.outline import FILE as OUTLINE
from kinfolk.experiment.outline import is_torn, write_outline
from kinfolk.experiment.record import (
    CLIENT_FACTS,
    disk_errors,
    is_cut,
    read_client_facts,
    read_round,
    read_rounds,
    round_files,
)
from kinfolk.scores import about, summary

if TYPE_CHECKING:
    from kinfolk.experiment.run import Running


def mend(run: Running) -> None:
    """Look at the records up to the round that a checkpoint holds, with the run standing there."""
    if not (run.folder / "audit.jsonl").exists():
        _warn(run, "audit.jsonl is missing: what was rejected or absent before is lost")
    lines = {line["round"]: line for line in read_rounds(run.folder)}
    files = dict(round_files(run.folder, "records"))
    torn = [number for number, path in files.items() if is_cut(path)]
    lost = [number for number in range(run.done + 1) if number not in lines]
    gone = [number for number, line in lines.items() if "summary" in line and number not in files]
    again = run.done in (*torn, *gone) or (run.done in lost and run.done in files)
    if again:
        _score_again(run)
    if run.done in (*torn, *gone):
        _warn(run, f"scores of round {run.done} were lost and were made again")
    _set_aside(run, [number for number in torn if number != run.done], files)
    missing = [number for number in gone if number != run.done]
    if missing:
        _warn(run, f"scores of {_named(missing)} are missing; their means over clients are left")
    if lost:
        _write_lines(run, lost, lines, again)
        left = "scores are those of the records, bytes and seconds are lost"
        _warn(run, f"rounds.jsonl lacked {_named(lost)}: {left}")
    _data(run)


def warn_of_a_new_start(run: Running) -> None:
    """Say that a run begins again whose checkpoints are gone, though it has records."""
    done = max((line["round"] for line in read_rounds(run.folder)), default=0) if run.folder.is_dir() else 0
    if done:
        _warn(run, f"no checkpoint is left: the run begins again, and {done} rounds of records are dropped")


def _warn(run: Running, text: str) -> None:
    run.records.audit("warning", text=text)
    run.watch("warning", {"text": text})


def _score_again(run: Running) -> None:
    """Score the round anew; the watch on training has looked at it already, and its cost was paid."""
    before = copy.deepcopy(run.health, {id(run.health.start): run.health.start})
    run.score()
    run.health = before
    run.spent()


def _set_aside(run: Running, torn: Sequence[int], files: dict[int, Path]) -> None:
    """Take scores of earlier rounds, whose models are gone, out of the way of those who read."""
    for number in torn:
        aside = files[number].with_suffix(".torn")
        with disk_errors("run", run.folder):
            files.pop(number).replace(aside)
        _warn(run, f"scores of round {number} cannot be read and are set aside as {aside.name}")


def _write_lines(run: Running, lost: Sequence[int], lines: dict[int, dict[str, Any]], again: bool) -> None:
    """Lines for rounds that have none, marked as `lost`: with their scores, and what a start had cost."""
    files, extra = dict(round_files(run.folder, "records")), _extra_of(lines)
    for number in lost:
        lines[number] = {"lost": True, "bytes": {}, "trained": {}, "seconds": {}}
        if number == run.done and again:
            lines[number]["summary"] = run.summary
            if judged(run.spec.run):
                lines[number]["valid"] = run.valid
        elif number in files:
            lines[number]["summary"] = _means(read_round(files[number]), run.spec.run.split)
    worth = float(run.budget.worth()) - extra
    if worth > 1e-9:  # not a rest of rounding
        lines[lost[0]]["extra"] = worth
    run.records.write_rounds(lines)


def _extra_of(lines: dict[int, dict[str, Any]]) -> float:
    return float(sum(line.get("extra") or 0.0 for line in lines.values()))


def _means(frame: pd.DataFrame, split: str) -> dict[str, Any]:
    """The summary of a round from its scores; what counts over all rows at once cannot be had of them."""
    found: dict[str, Any] = {}
    frame = frame[frame["split"] == split]
    for (model, score), part in frame.groupby(["model", "score"], sort=False):
        over = summary(part["value"], part["rows"], about(score).lower_is_better)
        heard = {"clients": int(part["value"].notna().sum())}
        found.setdefault(model, {})[score] = over | heard
    return found


def _data(run: Running) -> None:
    """Write again what follows from the data."""
    broken = []
    if _unreadable_facts(run.folder):
        write_client_facts(run.parts.federation, run.folder)
        broken.append(CLIENT_FACTS)
    if is_torn(run.folder):
        write_outline(run.folder, run.parts.federation, run.parts.learner)
        broken.append(OUTLINE)
    if broken:
        _warn(run, f"{', '.join(broken)} could not be read and were made again")


def _unreadable_facts(folder: Path) -> bool:
    try:
        read_client_facts(folder)
    except KinfolkError:
        return True
    return False


def _named(numbers: Sequence[int]) -> str:
    """Rounds in few words.

    >>> _named([4]), _named([0, 1, 2]), _named([0, 2])
    ('round 4', 'rounds 0 to 2', 'rounds 0, 2')
    """
    if len(numbers) == 1:
        return f"round {numbers[0]}"
    whole = len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
    return f"rounds {numbers[0]} to {numbers[-1]}" if whole else "rounds " + ", ".join(map(str, numbers))
