"""What SLFed's peers think of one another, as whoever simulates all of them can see it between two rounds.

Opinions lie in the clients' memories, and no request of the algorithm brings them out.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from kinfolk.algorithms.slfed.peer_lists import PeerLists
from kinfolk.algorithms.slfed.trust import known, no_evidence, opinions
from kinfolk.shares.books import opened
from kinfolk.streams import Few, RoundContext
from kinfolk.task import Peer
from kinfolk.types import Client, Message, Tree, tree_of

# Clients of whom every single opinion is shown.
MOST_PAIRED = 100


def look(memories: Mapping[Client, Message], context: RoundContext, lists: PeerLists) -> dict[str, Tensor]:
    """[clients, clients] each: s and u of the row's client about the column's, whom it knows and asks.

    A list that was too short to be sent counts as empty, as do those of a round alone, and of those who were
    not in the round's cohort.
    """
    clients, cohort = context.clients, set(context.cohort)
    place = {c: i for i, c in enumerate(clients)}
    rows: dict[str, list[Tensor]] = {"s": [], "u": [], "known": [], "listed": []}
    for who in clients:
        trust = evidence_of(memories.get(who, {}), len(clients))
        s, _, u = opinions(trust, lists.trust.conflict_aware)
        asked = lists.choose(trust, Peer(who, context)) if who in cohort else ()
        mask = torch.zeros(len(clients), dtype=torch.bool)
        mask[[place[c] for c in asked]] = True
        for key, row in (("s", s), ("u", u), ("known", known(trust)), ("listed", mask)):
            rows[key].append(row)
    return {key: torch.stack(found) for key, found in rows.items()}


def evidence_of(memory: Message, peers: int) -> Tree:
    """The evidence that a client holds about every peer, out of its memory.

    >>> evidence_of({}, 2)["met"]
    tensor([0., 0.], dtype=torch.float64)
    """
    if "trust" not in memory:
        return no_evidence(peers)
    trust = tree_of(opened({"trust": memory["trust"]}, ["trust"], peers), "trust")
    return {name: leaf.cpu() for name, leaf in trust.items()}


def shown(seen: Mapping[str, Tensor], context: RoundContext) -> dict[str, Tensor]:
    """The same in less: of every client its mean uncertainty about others, and how many it knows and asks.

    Every single opinion of a few: `who` are their places, `similarity` is s, `asks` who is on whose list.

    >>> from kinfolk.streams import Seed
    >>> one = torch.tensor([[0.0, 0.5], [0.25, 0.0]], dtype=torch.float64)
    >>> seen = {"s": one, "u": 1 - one, "known": one > 0, "listed": one > 0.3}
    >>> got = shown(seen, RoundContext(Seed(0), 0, (Client("a"), Client("b"))))
    >>> got["uncertainty"].tolist(), got["asked"].tolist(), got["who"].tolist()
    ([0.5, 0.75], [1, 0], [0, 1])
    """
    others = ~torch.eye(len(seen["u"]), dtype=torch.bool)
    place = {c: i for i, c in enumerate(context.clients)}
    few = Few(context.seed, context.clients).of(context.clients, MOST_PAIRED)
    who = torch.tensor([place[c] for c in few], dtype=torch.int64)
    mean = (seen["u"] * others).sum(1) / others.sum(1).clamp(min=1)
    return {
        "uncertainty": mean.float(),
        "known": seen["known"].sum(1).int(),
        "asked": seen["listed"].sum(1).int(),
        "who": who,
        "similarity": seen["s"][who][:, who].float(),
        "asks": seen["listed"][who][:, who],
    }
