"""The `[secure_sums]` table of an experiment file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kinfolk.shares import SCHEMES


@dataclass(frozen=True)
class SecureSumsSpec:
    """The `[secure_sums]` table: whether the server learns sums alone, and how they are formed.

    >>> SecureSumsSpec("shamir61", bits=20).make().needs(7)
    5
    """

    # "off"; "additive64": every member of a sum must answer; "shamir61": two thirds must, for far more bytes.
    scheme: str = "off"
    # Fractional bits of what is shared; 0: the scheme's own, 32 or 24.
    bits: int = 0
    # Largest number of a model that is shared; who has a larger one shares nothing. 0: 16384.
    limit: float = 0.0
    # Fewest members of a sum, also by their weights; a group of fewer keeps its model.
    min_members: int = 3

    def make(self) -> Any:
        """The scheme, which draws from the operating system alone."""
        given = {"bits": self.bits, "limit": self.limit, "min_members": self.min_members}
        return SCHEMES[self.scheme](**{name: value for name, value in given.items() if value})


CHOICES = {"secure_sums.scheme": ("off", *(name for name, kind in SCHEMES.items() if kind.hides))}

# (what holds, what to do if it does not, the settings it is about)
RANGES: list[tuple[Callable[[Any], bool], str, str]] = [
    (lambda v: v == 0 or 8 <= v <= 48, "give 8 to 48, or 0 for the scheme's own", "secure_sums.bits"),
    (lambda v: v >= 0, "give 0 or more", "secure_sums.limit"),
    (lambda v: v >= 2, "give 2 or more: a sum of one is its model", "secure_sums.min_members"),
]
