"""Of which form the facts in a run folder are, so that those who read a stranger's can rely on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# How many objects lie within one another before a number (or None) stands there. `ANY`: an object of all
# kinds. `NAMES`: an object of lists of names, or simply true.
ANY, NAMES = -1, -2
# What is summed: every number in it must be one.
SUMMED = ("bytes", "seconds", "trained")
ROUND = {
    **{"summary": 3, "valid": 3, "bytes": 2, "seconds": 1, "trained": 1},
    **{"cohort": 0, "answered": 0, "unheard": 0, "extra": 0, "void": 0},
    **{"info": ANY, "groups": ANY, "chosen": ANY, "lost": NAMES},
}
RUN = {
    **{"model": ANY, "versions": ANY, "choice": ANY, "kept": ANY, "federation": ANY, "scores": ANY},
    **{"rounds": 0, "format": 0},
}


def misfit(facts: Mapping[str, Any], forms: Mapping[str, int]) -> str:
    """The first of the facts that is of another form; empty where all are as they should be, or absent.

    >>> misfit({"cohort": 3, "bytes": {"update": {"up": 12}}}, ROUND), misfit({"bytes": {"up": "12"}}, ROUND)
    ('', 'bytes')
    """
    here = ((name, depth) for name, depth in forms.items() if facts.get(name) is not None)
    return next((name for name, depth in here if not _is(facts[name], depth, name in SUMMED)), "")


def _is(value: Any, depth: int, summed: bool) -> bool:
    if depth == 0:
        return isinstance(value, int | float) or (value is None and not summed)
    if not isinstance(value, dict):
        return depth == NAMES and value is True
    if depth == NAMES:
        return all(isinstance(v, list) and all(isinstance(name, str) for name in v) for v in value.values())
    return depth == ANY or all(_is(inner, depth - 1, summed) for inner in value.values())
