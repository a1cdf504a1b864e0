"""Whom a client asks for a model: the paper's threshold on uncertainty, or, ours, those who are most similar.

Palanisamy Sundar et al.: Subjective Logic-based Decentralized Federated Learning for Non-IID Data. ARES 2024.

The paper lists those of whom a client is least uncertain, which are those it met or heard of most often, of
whatever kind. By similarity, own contacts are split in two where that explains most of the variance of their
similarities, and the upper side is listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.algorithms.slfed.trust import Rank, TrustOptions, direct_evidence, known, opinions
from kinfolk.task import Peer
from kinfolk.types import Client, Tree

# Equal uncertainties must not be separated from their own mean by rounding.
SLACK = 1e-9


@dataclass(frozen=True)
class PeerLists:
    """Whom a client with some knowledge of its peers asks in a round."""

    trust: TrustOptions
    local_rounds: int  # before them nobody is asked
    min_members: int

    def longest(self, round: int, peers: int, direct: int) -> int:
        """About how many peers the longest list of a round names, by what everybody knows.

        Clients meet 2 x direct peers in a round, in the mean; it is reckoned with twice as many.

        >>> [PeerLists(TrustOptions(), 0, 3).longest(round, 10_000, direct=2) for round in range(4)]
        [36, 392, 3628, 4999]
        """
        others, each = peers - 1, 4 * direct
        met = known = 0
        for _ in range(self.local_rounds // 2, round + 1):
            met = min(met + each, others)
            known = min(known + each * (1 + (known + met if self.trust.tell == "all" else met)), others)
            if known == others:
                break
        return max(1, known // 2)

    def choose(self, trust: Tree, me: Peer) -> tuple[Client, ...]:
        """The peers to ask; nobody while clients are alone, or if they are too few for a sum."""
        if me.context.round < self.local_rounds:
            return ()
        draws = None
        if self.trust.hearsay == "capped":
            draw = me.context.seed.numpy("equals", me.context.round, me.name)
            draws = torch.from_numpy(draw.random(len(me.context.clients)))
        whom = listed(trust, me.context.clients, self.trust.rank, self.trust.conflict_aware, draws)
        return whom if len(whom) >= self.min_members else ()


def listed(
    trust: Tree,
    names: Sequence[Client],
    rank: Rank,
    conflict_aware: bool = False,
    draws: Tensor | None = None,
) -> tuple[Client, ...]:
    """The peers to ask by one of the two rules, sorted by name, at most half of those known.

    "uncertainty" is the paper's. With `draws`, a number for each peer, it goes by own contacts alone: how
    many there were, which nobody can lie about, and of equals those with the higher draw. "similarity": those
    who stand out among the peers met so far; as long as fewer than half of the known were met, nobody.

    >>> from kinfolk.algorithms.slfed.trust import no_evidence, add_contacts
    >>> met = {i: torch.tensor(v) for i, v in enumerate([0.9, 0.2, 0.8, 0.3])}
    >>> listed(add_contacts(no_evidence(5), met), list(map(Client, "abcde")), "similarity")
    ('a', 'c')
    """
    apart = rank == "uncertainty" and draws is not None
    trust = direct_evidence(trust) if apart else trust
    whom = known(trust)
    here = [i for i, there in enumerate(whom.tolist()) if there]
    if rank == "uncertainty":
        s, _, u = opinions(trust, conflict_aware and not apart)
        return least_uncertain(u[whom], (s if draws is None else draws)[whom], [names[i] for i in here])
    met = [i for i in here if trust["met"][i]]
    if 2 * len(met) < len(here):
        return ()
    total, times = trust["sum"][met], trust["met"][met]
    # Everybody has one contact of the usual similarity beforehand: who was met once must differ by more.
    similarity = (total + total.sum() / times.sum()) / (times + 1)
    return tuple(sorted(most_similar(similarity, [names[i] for i in met])))


def most_similar(values: Tensor, names: Sequence[Client]) -> tuple[Client, ...]:
    """Of the better half, those above the split in two that leaves the least variance; the highest first.

    The worse half has levels of its own, which would draw the split down. It takes the first floor(n/2) + 1
    of n to split them, so that at most half are above. Of equals, and of a single one, nobody stands out.

    >>> most_similar(torch.tensor([0.1, 0.9, 0.55, 0.8, 0.2, 0.5]), list(map(Client, "abcdef")))
    ('b', 'd')
    """
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


def threshold(uncertainty: Tensor) -> float:
    """The mean of the known peers' uncertainty if it lies below their median, else that of the lower half.

    The lower half of n are floor(n/2) peers, at least one.

    >>> import torch
    >>> threshold(torch.tensor([0.125, 0.75, 1.0])), threshold(torch.tensor([0.25, 0.5, 1.0, 1.0]))
    (0.625, 0.6875)
    """
    ranked = uncertainty.double().sort().values
    n = len(ranked)
    median = (ranked[(n - 1) // 2] + ranked[n // 2]) / 2
    mean = ranked.mean()
    # A mean that is the median but for rounding is not below it: the list must not hang on the last bit.
    return float(mean if mean < median - SLACK else ranked[: max(1, n // 2)].mean())


def least_uncertain(uncertainty: Tensor, similarity: Tensor, names: Sequence[Client]) -> tuple[Client, ...]:
    """The peers to ask, sorted by name: u <= threshold, never more than floor(n/2) of the n known.

    Where more pass, those of low uncertainty come first, then of high similarity, then by name. Of
    nobody, and of a single known peer (half of one is none), nobody is asked.

    >>> u, s = torch.tensor([0.5, 0.5, 0.5, 0.5]), torch.tensor([0.1, 0.4, 0.2, 0.4])
    >>> least_uncertain(u, s, ["a", "b", "c", "d"])
    ('b', 'd')
    """
    u, s = uncertainty.tolist(), similarity.tolist()
    if not u:
        return ()
    limit = threshold(uncertainty) + SLACK
    # Differences that are only rounding do not decide before similarity does.
    ranked = sorted((round(u[i], 9), -s[i], names[i]) for i in range(len(u)) if u[i] <= limit)
    return tuple(sorted(name for _, _, name in ranked[: len(u) // 2]))
