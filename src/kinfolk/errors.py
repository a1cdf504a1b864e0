"""Errors meant for people: one line that names the field, the value and the remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# What a terminal obeys instead of showing it: control characters, other ends of lines, marks that
# turn the direction of text; and halves of letters, which cannot be written.
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_ONE_LINE = str.maketrans("\n\t", "  ")


class KinfolkError(Exception):
    """Something the user can mend. The command line prints it as one line and exits with 2.

    >>> str(KinfolkError("local.lr", -1, "give a positive number"))
    'local.lr = -1: give a positive number'
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field, self.value, self.remedy = field, value, remedy
        shown = repr(value)
        # A long value keeps its end: of a path, that is the name of the file.
        shown = shown if len(shown) <= 80 else f"{shown[:25]}...{shown[-52:]}"
        said = f"{field} = {shown}: {remedy}" if value is not None else f"{field}: {remedy}"
        # Names in it, and reasons that a parser gave, may come from a stranger's file.
        super().__init__(visible(said).translate(_ONE_LINE))


def visible(text: str) -> str:
    """The same text with what a terminal would obey spelled out; names may come from a stranger's files.

    >>> print(visible("ann\\x1b[31m"), visible("ann"))
    ann\\x1b[31m ann
    """
    return _COMMANDS.sub(lambda found: ascii(found[0])[1:-1], text)


class BrokeDown(KinfolkError):
    """A run that cannot go on, since its clients send nothing of use any more; others beside it can.

    >>> str(BrokeDown("run", "runs/a", "3 rounds in a row brought 0 usable replies of 4"))
    "run = 'runs/a': 3 rounds in a row brought 0 usable replies of 4"
    """


def near(name: str, known: Iterable[str]) -> str:
    """A hint that names the closest known word, or lists what there is.

    >>> near("fedavgg", ["fedavg", "local"])
    "did you mean 'fedavg'?"
    >>> near("zzz", ["fedavg", "local"])
    'known: fedavg, local'
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(known)


def at_least(field: str, value: float, least: float) -> None:
    """Refuse a number below `least`.

    >>> at_least("algorithm.mu", 0.1, 0)
    >>> at_least("algorithm.mu", -1, 0)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.mu = -1: give 0 or more
    """
    if not value >= least:
        raise KinfolkError(field, value, f"give {least:g} or more")
