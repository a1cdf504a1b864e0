"""How sums of models are formed: the options `[algorithm.shares]` of a method that uses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from kinfolk.errors import at_least
from kinfolk.shares import SCHEMES
from kinfolk.shares.scheme import Scheme

if TYPE_CHECKING:
    SchemeName = str
else:  # so that a line in the registry is enough for a new choice
    SchemeName = Literal[tuple(SCHEMES)]


@dataclass(frozen=True)
class ShareOptions:
    """A scheme and what can be set of it; 0 stands for the scheme's own.

    >>> ShareOptions().make(bytes).bits, ShareOptions("shamir61", min_members=4).make(bytes).min_members
    (32, 4)
    """

    # "plain" and "layerwise" serve every request, as published; else a model is part of one sum in a round.
    scheme: SchemeName = "additive64"
    layers: Literal["tensor", "module"] = "tensor"  # what "layerwise" cuts
    bits: int = 0  # fractional bits of shares
    limit: float = 0.0  # the largest number that is shared
    min_members: int = 0  # the fewest members of a sum, also by their weights
    max_share: float = 0.0  # the largest part of all sigma that a member agrees to
    retries: int = 1  # how often a sum is tried again, with a shorter list and fresh seeds
    # Of masks: the operating system's; those of the run's seed, "stream", are public and for tests only.
    entropy: Literal["system", "stream"] = "system"

    def __post_init__(self) -> None:
        for name in ("bits", "limit", "min_members", "max_share", "retries"):
            at_least(f"algorithm.shares.{name}", getattr(self, name), 0)

    def make(self, entropy: Callable[[int], bytes]) -> Any:
        """The scheme, drawing from `entropy`."""
        kind = SCHEMES[self.scheme]
        given = {**vars(self), "entropy": entropy}
        return kind(**{f.name: given[f.name] for f in fields(kind) if given.get(f.name)})

    @cached_property
    def limits(self) -> Scheme:
        """The scheme for what it asks of lists; it draws nothing."""
        made: Scheme = self.make(bytes)
        return made
