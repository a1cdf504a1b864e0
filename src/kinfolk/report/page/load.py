"""What a report is made of: the runs of some folders, all on the same federation, and choices of K."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinfolk.errors import KinfolkError, near
from kinfolk.report.read import Run, load_runs, read_facts
from kinfolk.scores import SCORES

# A choice of K with its own runs: they are short, on a sample of the clients, and no part of a comparison.
CHOICE = "choose-k"


@dataclass(frozen=True)
class Material:
    """The runs with the score by which they are judged, and what `kinfolk choose-k` found."""

    runs: tuple[Run, ...]
    choices: tuple[Mapping[str, Any], ...]
    score: str  # empty if no run has a score yet


def load(folders: Sequence[str | Path], score: str | None = None) -> Material:
    """Read run folders, comparison folders and folders of `kinfolk choose-k`.

    >>> load(["nowhere"])
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run = 'nowhere': holds no run; name a run folder or a comparison folder
    """
    paths = [Path(one) for one in folders]
    if not paths:
        raise KinfolkError("run", None, "name a run folder or a comparison folder")
    chosen = [path for path in paths if (path / f"{CHOICE}.json").is_file()]
    found = {run.path.resolve(): run for path in paths if path not in chosen for run in load_runs(path)}
    runs = tuple(found.values())
    _same_federation(runs)
    name = _score(runs, score)
    choices = tuple(read_facts(path, CHOICE) for path in chosen)
    return Material(tuple(run.only(name) for run in runs), choices, name)


def _score(runs: Sequence[Run], wanted: str | None) -> str:
    """The score asked for, or the most telling one; what rounds tell is enough, without a look at records."""
    known: dict[str, None] = {}
    for run in runs:
        told = {
            name: None for fact in run.rounds for by in (fact.get("summary") or {}).values() for name in by
        }
        known |= told or dict.fromkeys(run.metrics)
    if wanted is not None and known and wanted not in known:
        raise KinfolkError("score", wanted, near(wanted, known))
    if wanted is not None or not known:
        return wanted or ""
    first = [name for name in SCORES if name in known] + list(known)
    return next((name for name in first if name != "loss"), first[0])


def _same_federation(runs: Iterable[Run]) -> None:
    """Refuse runs on different federations: side by side, they would be no comparison."""
    runs = list(runs)
    for run in runs[1:]:
        _refuse(runs[0], run, _unlike(runs[0], run))
    by_seed: dict[int, Run] = {}
    for run in runs:
        first = by_seed.setdefault(run.seed, run)
        mine, its = (
            str((one.facts.get("federation") or {}).get("fingerprint") or "") for one in (run, first)
        )
        if mine and its and mine != its:
            _refuse(first, run, f"clients and rows (fingerprints {its[:8]} and {mine[:8]}) of the same seed")


def _refuse(first: Run, other: Run, differ: str) -> None:
    if differ:
        pair = f"{first.title} seed {first.seed} and {other.title} seed {other.seed}"
        remedy = f"were made on different federations, which differ in {differ}; report them one by one"
        raise KinfolkError("runs", pair, remedy)


def _unlike(first: Run, other: Run) -> str:
    """The settings of the data in which two runs differ, besides those a method has of its own."""
    own = {name for run in (first, other) for name in run.facts.get("own") or {}}
    one, two = (run.spec.get("data") or {} for run in (first, other))
    names = [name for name in {**one, **two} if one and two and f"data.{name}" not in own]
    return ", ".join(
        f"data.{name} ({_short(one.get(name))} and {_short(two.get(name))})"
        for name in names
        if one.get(name) != two.get(name)
    )


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
