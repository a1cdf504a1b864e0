"""What all clients of one owner weigh together: no more than one client could that claims what they have.

Registration alone does not keep somebody with many sites from outvoting the rest. In means by rows, the rows
of an owner are those of all its clients; in all else (means in which every client counts alike, medians,
choices) each client is a vote, and of one owner only so many have a part in a round, in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

import torch

from kinfolk.engines.cohort import GuardSpec
from kinfolk.types import Client, Stack


class Owners:
    """Who owns several clients, and for how much these count.

    >>> owners = Owners({Client(c): "hub" for c in "abcd"})
    >>> told = owners.hear({Client(c): 30 for c in "abcdefg"}, GuardSpec(rows=2.0))
    >>> told[Client("a")]
    'with 3 others of its owner it counts as 60 rows of 120 and 2 of 4 sites in a round'
    >>> owners.sent(tuple("abcdefg"), 0), owners.sent(tuple("abcdefg"), 1)
    (('a', 'b', 'e', 'f', 'g'), ('c', 'd', 'e', 'f', 'g'))
    """

    def __init__(self, owners: Mapping[Client, str]) -> None:
        self.owners = dict(owners)
        self._rows: dict[Client, int] = {}  # that each client of a capped owner counts for
        self._turns: list[tuple[tuple[Client, ...], int]] = []  # (an owner's clients, how many of a round)

    def hear(self, claims: Mapping[Client, int], guard: GuardSpec) -> dict[Client, str]:
        """Decide by what all clients say that they have; of whom what is cut."""
        by: dict[tuple[bool, str], list[Client]] = {}
        for client in sorted(claims):
            by.setdefault((client in self.owners, self.owners.get(client, client)), []).append(client)
        own, times, told = list(by.values()), guard.cap(len(by)), dict[Client, str]()
        if not self.owners or not times:
            return told
        totals = [sum(claims[c] for c in clients) for clients in own]
        most, votes = int(times * median(totals)), max(int(times * median(map(len, own))), 1)
        for clients, total in zip(own, totals, strict=True):
            if len(clients) == 1 or (total <= most and len(clients) <= votes):
                continue
            rows, sites = min(total, most), min(len(clients), votes)
            # Those of a round weigh what all are allowed.
            part = rows / total * len(clients) / sites
            self._rows |= {c: max(int(claims[c] * min(part, 1.0)), 1) for c in clients}
            self._turns.append((tuple(clients), sites))
            why = f"it counts as {rows} rows of {total} and {sites} of {len(clients)} sites in a round"
            told |= dict.fromkeys(clients, f"with {len(clients) - 1} others of its owner {why}")
        return told

    def sent(self, who: tuple[Client, ...], round: int) -> tuple[Client, ...]:
        """Of those who are to be asked in a round, those who may be: of each owner some, in turn."""
        out: set[Client] = set()
        for clients, votes in self._turns:
            first = round * votes % len(clients)
            out.update((clients[first:] + clients[:first])[votes:])
        return tuple(c for c in who if c not in out) if out else who

    def weighed(self, chunk: Stack) -> Stack:
        """Replies with the rows that each counts for."""
        if not any(c in self._rows for c in chunk.clients):
            return chunk
        most = [self._rows.get(c, int(n)) for c, n in zip(chunk.clients, chunk.size, strict=True)]
        return replace(chunk, size=torch.minimum(chunk.size, torch.tensor(most).to(chunk.size)))
