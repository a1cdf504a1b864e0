"""Letters that are refused: an error about one costs no more than that letter, and is counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.types import Client


class Refusals:
    """How often letters of each peer were refused, or were missing, [peers].

    >>> import torch
    >>> refusals = Refusals(("ann", "bob"), torch.zeros(2, dtype=torch.int64))
    >>> with refusals.by("bob"):
    ...     raise KinfolkError("letter of 'bob'", None, "is no letter")
    >>> refusals.count
    tensor([0, 1])
    """

    def __init__(self, names: Sequence[Client], before: Tensor) -> None:
        self.names, self.count = names, before.clone()

    def add(self, who: Client) -> None:
        """One more."""
        self.count[self.names.index(who)] += 1

    @contextmanager
    def by(self, sender: Client, others: Sequence[Client] = ()) -> Iterator[None]:
        """Within: an error ends the block and counts for those others whom it names, else for the sender."""
        try:
            yield
        except KinfolkError as error:
            named = [who for who in others if who != sender and repr(who) in error.field]
            for who in named or [sender]:
                self.add(who)

    def expected(self, inbox: Iterable[Client], wanted: Iterable[Client]) -> list[Client]:
        """Who wrote, of those who were to write, sorted; a letter of anybody else is refused."""
        for stranger in sorted(set(inbox) - set(wanted)):
            self.add(stranger)
        return sorted(set(inbox) & set(wanted))
