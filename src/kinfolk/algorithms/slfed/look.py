"""What SLFed's peers think of one another, as whoever simulates all of them can see it between two rounds.

Opinions lie in the clients' memories, and no request of the algorithm brings them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
    rows = list(_rows(memories, context, lists))
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def _rows(
    memories: Mapping[Client, Message], context: RoundContext, lists: PeerLists
) -> Iterator[dict[str, Tensor]]:
    """The rows of that, one client after another."""
    clients, cohort = context.clients, set(context.cohort)
    place = {c: i for i, c in enumerate(clients)}
    for who in clients:
        trust = evidence_of(memories.get(who, {}), len(clients))
        s, _, u = opinions(trust, lists.trust.conflict_aware)
        asked = lists.choose(trust, Peer(who, context)) if who in cohort else ()
        listed = torch.zeros(len(clients), dtype=torch.bool)
        listed[[place[c] for c in asked]] = True
        yield {"s": s, "u": u, "known": known(trust), "listed": listed}


def evidence_of(memory: Message, peers: int) -> Tree:
    """The evidence that a client holds about every peer, out of its memory.

    >>> evidence_of({}, 2)["met"]
    tensor([0., 0.], dtype=torch.float64)
    """
    if "trust" not in memory:
        return no_evidence(peers)
    trust = tree_of(opened({"trust": memory["trust"]}, ["trust"], peers), "trust")
    return {name: leaf.cpu() for name, leaf in trust.items()}


def shown(memories: Mapping[Client, Message], context: RoundContext, lists: PeerLists) -> dict[str, Tensor]:
    """The same in less: of every client its mean uncertainty about others, and how many it knows and asks.

    Every single opinion of a few: `who` are their places, `similarity` is s, `asks` who is on whose list.
    """
    few = set(Few(context.seed, context.clients).of(context.clients, MOST_PAIRED))
    who = torch.tensor([i for i, c in enumerate(context.clients) if c in few], dtype=torch.int64)
    of_all: dict[str, list[Tensor]] = {"uncertainty": [], "known": [], "asked": []}
    of_few: dict[str, list[Tensor]] = {"similarity": [], "asks": []}
    others = max(len(context.clients) - 1, 1)
    # Row by row: all of them side by side would be a table of clients by clients.
    for i, (client, row) in enumerate(zip(context.clients, _rows(memories, context, lists), strict=True)):
        of_all["uncertainty"].append(((row["u"].sum() - row["u"][i]) / others).float())
        of_all["known"].append(row["known"].sum().int())
        of_all["asked"].append(row["listed"].sum().int())
        if client in few:
            of_few["similarity"].append(row["s"][who].float())
            of_few["asks"].append(row["listed"][who])
    return {**{key: torch.stack(found) for key, found in {**of_all, **of_few}.items()}, "who": who}
