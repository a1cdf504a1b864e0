"""The contract as one run: every check in order on one algorithm class, each reported on one line."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from kinfolk.contract.checks import CHECKS, Skip
from kinfolk.learning.learner import Learner
from kinfolk.script import Algorithm

# Called for each check with its name, "passed", "failed" or "skipped", and one line of detail.
Report = Callable[[str, str, str], None]


def run_suite(kind: type[Any], options: Mapping[str, Any], report: Report) -> bool:
    """Put an algorithm class through every check of the contract; true if none failed.

    >>> from kinfolk.contract import checks
    >>> from kinfolk.algorithms.fedavg import FedAvg
    >>> run_one("is_an_algorithm", FedAvg, {})
    ('passed', 'It is a frozen dataclass with the methods of `script.Algorithm`, and names what it scores.')
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
        made: Algorithm[Any] = kind(learner=learner, **options)
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
    return (str(error).strip().splitlines() or ["(no message)"])[-1]


def _place(error: BaseException, kind: type[Any]) -> str:
    """Where in the algorithm's own file it happened, if it did."""
    try:
        own = inspect.getfile(kind)
    except (TypeError, OSError):
        return ""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == own]
    return f" ({own.rpartition('/')[2]}, line {lines[-1]})" if lines else ""
