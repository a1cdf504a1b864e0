"""The contract as one run: every check in order on one algorithm class, each reported on one line."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kinfolk.algorithms import with_options
from kinfolk.contract.checks import CHECKS, Skip
from kinfolk.learning.learner import Learner
from kinfolk.script import Algorithm

# Called for each check with its name, "passed", "failed" or "skipped", and one line of detail.
Report = Callable[[str, str, str], None]


def run_suite(kind: type[Any], options: Mapping[str, Any], report: Report) -> bool:
    """Put an algorithm class through every check of the contract; true if none failed.

    >>> lines = []
    >>> run_suite(dict, {}, lambda name, status, detail: lines.append(f"{name} {status}: {detail}"))
    False
    >>> lines[0]
    'is_an_algorithm failed: dict must be a frozen dataclass: what changes belongs in its state'
    """
    sound = True
    for name in CHECKS:
        status, detail = run_one(name, kind, options)
        report(name, status, detail)
        sound = sound and status != "failed"
    return sound


def run_one(name: str, kind: type[Any], options: Mapping[str, Any]) -> tuple[str, str]:
    """("passed", "failed" or "skipped", one line) of one check on one algorithm class.

    >>> from kinfolk.algorithms.local import Local
    >>> run_one("bad_replies", Local, {})
    ('skipped', 'its clients reply with nothing')
    """

    def make(learner: Learner) -> Algorithm[Any]:
        made: Algorithm[Any] = with_options(kind, learner, options)
        return made

    try:
        CHECKS[name](make)
    except Skip as reason:
        return "skipped", str(reason)
    except AssertionError as wrong:
        return "failed", _line(wrong) + ("" if str(wrong) else _place(wrong, kind))
    except Exception as error:  # whatever somebody else's algorithm raises is a finding, not a crash of ours
        return "failed", f"{type(error).__name__}: {_line(error)}{_place(error, kind)}"
    return "passed", (inspect.getdoc(CHECKS[name]) or "").split("\n")[0]


def _line(error: BaseException) -> str:
    """The line of an error that says most: of a traceback that came from a worker, the last."""
    lines = str(error).strip().splitlines() or ["(no message)"]
    return lines[-1 if any(line.startswith("Traceback") for line in lines) else 0]


def _place(error: BaseException, kind: type[Any]) -> str:
    """Where in the algorithm's own file it happened, if it did."""
    try:
        own = inspect.getfile(kind)
    except (TypeError, OSError):
        return ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    return f" ({Path(own).name}, line {lines[-1]})" if lines else ""
