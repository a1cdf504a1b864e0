"""The comparison folder that runs are in, and what it names that is not there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from kinfolk.report.read import Run


def together(runs: Sequence[Run]) -> Path | None:
    """The comparison folder whose methods and seeds are those of the runs; None if there is none.

    A command for some of its methods would make it a comparison of these alone.
    """
    folder, named = _named(runs)
    stems = {run.path.name.removesuffix(f"-seed{run.seed}") for run in runs}
    known = {f"{stem}-seed{seed}" for stem in stems for seed in {run.seed for run in runs}}
    return folder if named and named <= known else None


def not_begun(runs: Sequence[Run]) -> list[str]:
    """Runs that the comparison folder of these runs names and that are not there.

    >>> not_begun([Run.of({"title": "local", "seed": 0}, {"value": []})])
    []
    """
    folder, named = _named(runs)
    return sorted(name for name in named if folder and not (folder / name / "run.json").exists())


def _named(runs: Sequence[Run]) -> tuple[Path | None, set[str]]:
    folders = {run.path.parent for run in runs}
    if len(folders) != 1:
        return None, set()
    folder = folders.pop()
    try:
        names = json.loads((folder / "compare.json").read_bytes())["runs"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None, set()
    return folder, {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()
