"""Messages that are refused: an error about one costs no more than that message, and is kept.

A member that says that shares did not come cannot answer; that much is its own affair. That somebody else is
at fault is only believed if that one says so itself, or keeps silent, or if more than half of the others say
it too. Else it is a dispute: who cannot answer is left out, whom it names stays, and both are named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.types import Client, Message

# Bytes of a reason that are kept: a memory holds tensors, and of each peer one line is enough.
WIDTH = 160
# What a memory holds of every peer: see `.books`.
BOOKS = ("reasons", "rejected")


class Rejections:
    """How often messages of each peer were refused, or were missing, [peers]; and why, the first time.

    >>> rejections = Rejections(("ann", "bob"), no_rejections(2))
    >>> with rejections.by("bob"):
    ...     raise KinfolkError("message of 'bob'", None, "is no message")
    >>> rejections.count, reasons(rejections.noted(), ("ann", "bob"))
    (tensor([0, 1]), {'bob': "message of 'bob': is no message"})
    """

    def __init__(self, names: Sequence[Client], before: Message) -> None:
        self.names, self.count, self.why = names, before["rejected"], before["reasons"]

    def add(self, who: Client, reason: str) -> None:
        """One more."""
        self.count = self.count.clone()  # a memory's own is never written to
        self.count[self.names.index(who)] += 1
        self.tell(who, reason)

    def tell(self, who: Client, reason: str) -> None:
        """What is kept about a peer, or about oneself, that nobody is to blame for."""
        place, text = self.names.index(who), reason.encode()[:WIDTH]
        if not self.why[place].any():  # what follows from the first is no news
            self.why = self.why.clone()
            self.why[place, : len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    @contextmanager
    def by(self, sender: Client | None, others: Sequence[Client] = ()) -> Iterator[list[Client]]:
        """Within: an error ends the block and counts for those others whom it names, else for the sender.

        Whom it counted for is in the list that this gives.
        """
        offenders: list[Client] = []
        try:
            yield offenders
        except KinfolkError as error:
            offenders += self.blame(error, sender, others)

    def blame(
        self, error: KinfolkError, sender: Client | None, others: Sequence[Client] = ()
    ) -> list[Client]:
        """Count an error for those others whom it names, else for the sender; whom it counted for.

        A dispute is told of all whom it names, and counts for nobody. Without a sender, an error that names
        nobody is told of all others: one of them is at fault, and nobody knows which.
        """
        named = [who for who in others if who != sender and repr(who) in error.field]
        if error.field.startswith("dispute") or (not named and sender is None):
            for who in named or others:
                self.tell(who, str(error))
            return []
        offenders = named or [who for who in (sender,) if who is not None]
        for who in offenders:
            self.add(who, str(error))
        return offenders

    def strangers(self, inbox: Iterable[Client], expected: Iterable[Client]) -> None:
        """Messages of those who had nothing to write are noted, and let be."""
        for stranger in sorted((set(inbox) & set(self.names)) - set(expected)):
            self.add(stranger, f"message of {stranger!r}: is not expected here")

    def expected(self, inbox: Iterable[Client], wanted: Iterable[Client]) -> list[Client]:
        """Who wrote, of those who were to write, sorted; a message of anybody else is refused."""
        self.strangers(inbox, wanted)
        return sorted(set(inbox) & set(wanted))

    def noted(self) -> Message:
        """What a memory keeps of it."""
        return {"rejected": self.count, "reasons": self.why}


def no_rejections(peers: int) -> Message:
    """Nothing was refused yet.

    >>> no_rejections(2)["rejected"]
    tensor([0, 0])
    """
    return {"rejected": torch.zeros(peers, dtype=torch.int64), "reasons": _blank(peers)}


def without_reasons(memory: Message) -> Message:
    """Counts go on from round to round; reasons are those of one round.

    >>> without_reasons({"rejected": torch.tensor([3])})["rejected"]
    tensor([3])
    """
    return {"rejected": memory["rejected"], "reasons": _blank(len(memory["rejected"]))}


def reasons(memory: Message, names: Sequence[Client]) -> dict[Client, str]:
    """Whose messages were refused since the reasons were last cleared, and why.

    >>> reasons(no_rejections(1), ("ann",))
    {}
    """
    rows = memory["reasons"].cpu()  # once, and not row by row
    there = rows.any(1).nonzero()[:, 0].tolist()
    # A reason may end in the middle of a message of several bytes.
    return {names[i]: bytes(rows[i].tolist()).rstrip(b"\0").decode(errors="ignore") for i in there}


def _blank(peers: int) -> Tensor:
    return torch.zeros(peers, WIDTH, dtype=torch.uint8)


@dataclass(frozen=True)
class Finding:
    """What the members' reports come to, by their places among all peers."""

    out: set[int] = field(default_factory=set)  # who is left out
    at_fault: dict[int, list[int]] = field(default_factory=dict)  # whose shares did not come, and who says so
    disputes: list[tuple[int, int]] = field(default_factory=list)  # (who says it, of whom)


def find_disputes(reports: Mapping[int, Tensor], members: list[int]) -> Finding:
    """What follows from each member's report of whose shares it lacks, [peers]; the silent have none.

    >>> import torch
    >>> nothing, not_2 = torch.zeros(4, dtype=torch.bool), torch.arange(4) == 2
    >>> find_disputes({0: not_2, 1: not_2, 2: nothing, 3: nothing}, [0, 1, 2, 3])
    Finding(out={2}, at_fault={2: [0, 1]}, disputes=[])
    >>> find_disputes({0: not_2, 1: nothing, 2: nothing, 3: nothing}, [0, 1, 2, 3])
    Finding(out={0}, at_fault={}, disputes=[(0, 2)])
    """
    found = Finding(set(members) - set(reports))
    says = {i: {j for j in members if bool(report[j])} for i, report in reports.items()}
    for j in members:
        voices = [i for i in says if i != j and j in says[i]]
        others = len(says) - (j in says)
        if j in found.out or j in says[j] or 2 * len(voices) > others:
            found.out.add(j)
            found.at_fault[j] = voices
    for i in says:
        unconfirmed = sorted(says[i] - set(found.at_fault))
        if unconfirmed:
            found.out.add(i)
            found.disputes.extend((i, j) for j in unconfirmed)
    return found


def note_disputes(found: Finding, names: Sequence[Client], rejections: Rejections) -> None:
    """Write down who said what of whom; a dispute is told of both sides and counts for neither.

    >>> rejections = Rejections(("ann", "bob"), no_rejections(2))
    >>> note_disputes(Finding({1}, {1: [0]}), ("ann", "bob"), rejections)
    >>> reasons(rejections.noted(), ("ann", "bob"))
    {'bob': "shares of 'bob': missing or bad, says 'ann'"}
    """
    for j, voices in found.at_fault.items():
        said = ", ".join(repr(names[i]) for i in voices) or "nobody but itself"
        rejections.add(names[j], f"shares of {names[j]!r}: missing or bad, says {said}")
    for i, j in found.disputes:
        why = f"{names[i]!r} lacks a good share, too few others say so; {names[i]!r} is left out"
        for who in (names[i], names[j]):
            rejections.tell(who, f"dispute of {names[i]!r} and {names[j]!r}: {why}")
