"""What the library says in Python's words, in those of the command line."""

from __future__ import annotations

import os

from kinfolk.errors import KinfolkError

# The flag for a parameter of the library.
FLAGS = {
    "algorithm": "--algorithm",
    "budget": "--budget",
    "by": "--by",
    "client": "--client",
    "criterion": "--criterion",
    "folder": "--out",
    "group": "--group",
    "kind": "--kind",
    "ks": "--k",
    "log": "--log",
    "minutes": "--minutes",
    "newcomers": "--data",
    "rounds": "--rounds",
    "sample": "--clients",
    "seeds": "--seeds",
}


def in_flags(text: str) -> str:
    """A sentence of the library's, for somebody who types commands.

    >>> in_flags("stopped at round 132; continue with resume=True")
    'stopped at round 132; continue with --resume'
    """
    for said, typed in (
        ("resume=True", "--resume"),
        ("client=...", "--client NAME"),
        ("group=...", "--group K"),
    ):
        text = text.replace(said, typed)
    return text


def error_line(error: KinfolkError) -> str:
    """An error as one line.

    >>> error_line(KinfolkError("seeds", 0, "give 1 or more"))
    '--seeds = 0: give 1 or more'
    """
    field = FLAGS.get(error.field, error.field)
    return in_flags(str(KinfolkError(field, error.value, error.remedy))).replace("\n", " ")


def speaks() -> bool:
    """Of several ranks that torchrun has started with one command, only the first says what is wrong."""
    return os.environ.get("RANK", "0") == "0" or os.environ.get("WORLD_SIZE", "1") == "1"
