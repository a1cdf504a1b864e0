"""Who is left out when members say that shares did not come: on whose word, and what stays open.

A member that says so cannot answer; that much is its own affair. That somebody else is at fault is only
believed if that one says so itself, or keeps silent, or if more than half of the others say it too. Else
it is a dispute: the one who cannot answer is left out, the one it names stays, and both are named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from kinfolk.shares.rejections import Rejections
from kinfolk.types import Client


@dataclass(frozen=True)
class Finding:
    """What the members' reports come to, by their places among all peers."""

    out: set[int] = field(default_factory=set)  # who is left out
    at_fault: dict[int, list[int]] = field(default_factory=dict)  # whose shares did not come, and who says so
    disputes: list[tuple[int, int]] = field(default_factory=list)  # (who says it, of whom)


def find(reports: Mapping[int, Tensor], members: list[int]) -> Finding:
    """What follows from each member's report of whose shares it lacks, [peers]; the silent have none.

    >>> import torch
    >>> nothing, not_2 = torch.zeros(4, dtype=torch.bool), torch.arange(4) == 2
    >>> find({0: not_2, 1: not_2, 2: nothing, 3: nothing}, [0, 1, 2, 3])
    Finding(out={2}, at_fault={2: [0, 1]}, disputes=[])
    >>> find({0: not_2, 1: nothing, 2: nothing, 3: nothing}, [0, 1, 2, 3])
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


def note(found: Finding, names: Sequence[Client], rejections: Rejections) -> None:
    """Write down who said what of whom; a dispute is told of both sides and counts for neither.

    >>> from kinfolk.shares.rejections import no_rejections, reasons
    >>> rejections = Rejections(("ann", "bob"), no_rejections(2))
    >>> note(Finding({1}, {1: [0]}), ("ann", "bob"), rejections)
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
