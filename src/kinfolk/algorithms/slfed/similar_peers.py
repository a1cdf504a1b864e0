"""Whom to ask, by how alike peers were when they were met: an alternative of ours to the paper's threshold.

The paper lists those of whom a client is least uncertain, which are those it met or heard of most often, of
whatever kind. Here the similarities of own contacts are split in two where that explains most of their
variance, and the upper side is listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from kinfolk.algorithms.slfed.book import at_first_hand, known, opinions
from kinfolk.algorithms.slfed.threshold import choose
from kinfolk.errors import KinfolkError
from kinfolk.types import Client, Tree

Rank = Literal["uncertainty", "similarity"]


def listed(
    book: Tree,
    names: Sequence[Client],
    rank: Rank,
    conflict_aware: bool = False,
    draws: Tensor | None = None,
) -> tuple[Client, ...]:
    """The peers to ask by one of the two rules, sorted by name, at most half of those known.

    "uncertainty" is the paper's. With `draws`, a number for each peer, it goes by own contacts alone: how
    many there were, which nobody can lie about, and of equals those with the higher draw. "similarity": those
    who stand out among the peers met so far; as long as fewer than half of the known were met, nobody.

    >>> from kinfolk.algorithms.slfed.book import blank_book, note_meetings
    >>> met = {i: torch.tensor(v) for i, v in enumerate([0.9, 0.2, 0.8, 0.3])}
    >>> listed(note_meetings(blank_book(5), met), list(map(Client, "abcde")), "similarity")
    ('a', 'c')
    """
    apart = rank == "uncertainty" and draws is not None
    book = at_first_hand(book) if apart else book
    whom = known(book)
    here = [i for i, there in enumerate(whom.tolist()) if there]
    if rank == "uncertainty":
        s, _, u = opinions(book, conflict_aware and not apart)
        return choose(u[whom], (s if draws is None else draws)[whom], [names[i] for i in here])
    met = [i for i in here if book["met"][i]]
    if 2 * len(met) < len(here):
        return ()
    total, times = book["sum"][met], book["met"][met]
    # Everybody has one contact of the usual similarity beforehand: who was met once must differ by more.
    alike = (total + total.sum() / times.sum()) / (times + 1)
    return tuple(sorted(stand_out(alike, [names[i] for i in met])))


def stand_out(values: Tensor, names: Sequence[Client]) -> tuple[Client, ...]:
    """Of the better half, those above the split in two that leaves the least variance; the highest first.

    The worse half has levels of its own, which would draw the split down. It takes the first floor(n/2) + 1
    of n to split them, so that at most half are above. Of equals, and of a single one, nobody stands out.

    >>> stand_out(torch.tensor([0.1, 0.9, 0.55, 0.8, 0.2, 0.5]), list(map(Client, "abcdef")))
    ('b', 'd')
    """
    if values.dim() != 1 or len(values) != len(names) or not bool(values.isfinite().all()):
        raise KinfolkError("values", tuple(values.shape), f"give one finite number for each of {len(names)}")
    # Rounded, so that the order of a sum does not decide between names.
    ranked = sorted((-round(v, 9), name) for v, name in zip(values.double().tolist(), names, strict=True))
    ranked = ranked[: len(ranked) // 2 + 1]
    if not ranked or ranked[0][0] == ranked[-1][0]:
        return ()
    v = -torch.tensor([value for value, _ in ranked], dtype=torch.float64)
    upper = torch.arange(1, len(v), dtype=torch.float64)
    lower = len(v) - upper
    above = v.cumsum(0)[:-1]
    apart = upper * lower * (above / upper - (v.sum() - above) / lower).square()
    return tuple(name for _, name in ranked[: int(apart.argmax()) + 1])
