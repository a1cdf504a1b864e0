"""Ballot stuffing in SLFed: how many places on honest lists liars take, by rule and by how many they are.

python benchmarks/ballots.py [--clients 24] [--liars 0 1 ... 12] [--seeds 0 1 2] [--rounds 20]
python benchmarks/ballots.py --lengths 6 7 8 ...   how many lists have three peers, by number of clients

Liars tell everybody they meet that they are certain of their fellows, and know nothing of anybody else; and
whoever compares itself with them finds them perfectly similar. Opinions are told and heard by the algorithm's
own exchange, and lists are its own; models and images are left out: lists by uncertainty do not look at them.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from kinfolk.algorithms import with_options
from kinfolk.algorithms.slfed.comparison import partners
from kinfolk.algorithms.slfed.look import evidence_of
from kinfolk.algorithms.slfed.slfed import SLFed
from kinfolk.algorithms.slfed.trust import add_contacts, no_evidence
from kinfolk.experiment.attack import attackers
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.shares.rejections import no_rejections
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Peer, PeerTask
from kinfolk.types import Client, Message, Tree

FIRST = 3  # rounds that are not counted: not everybody is known yet
RULES = {
    "published": {},
    "published, accumulated": {"memory": "accumulate"},
    "published, direct weights": {"teller_weight": "direct"},
    "published, contacts told": {"tell": "direct"},
    "capped": {"hearsay": "capped"},
}


class Town:
    """Clients who meet, tell one another what they think, and make lists; some of them lie."""

    def __init__(self, clients: int, liars: int, seed: int, lying: bool = True, **options: object) -> None:
        learner = Learner(torch.nn.Linear(2, 2), find_loss("cross_entropy"), outputs=2)
        self.method = with_options(SLFed, learner, {"shares.scheme": "plain", "trust": options})
        self.names = tuple(Client(f"client-{i:02d}") for i in range(clients))
        self.seed, self.lying = Seed(seed), lying
        self.liars = attackers(self.names, liars / clients, self.seed) if liars else frozenset[Client]()
        self.bad = torch.tensor([who in self.liars for who in self.names])
        self.books: dict[Client, Tree] = {who: no_evidence(clients) for who in self.names}

    def lists(self, number: int) -> Tensor:
        """Everybody's list after one more round, [clients, clients] of bool."""
        context = RoundContext(self.seed, number, self.names)
        memories = {who: self._met(who, context) for who in self.names}
        swap = self.method.tasks()["opinions"]
        assert isinstance(swap, PeerTask)
        sent = {who: self._told(who, swap.send(memories[who], Peer(who, context))) for who in self.names}
        asked = []
        for who in self.names:
            inbox = {teller: messages[who] for teller, messages in sent.items() if who in messages}
            after = swap.receive(inbox, memories[who], Peer(who, context))
            self.books[who] = evidence_of(after, len(self.names))
            asked.append(after["asked"]["mask"])
        return torch.stack(asked)

    def _met(self, who: Client, context: RoundContext) -> Message:
        near = partners(Peer(who, context), self.method.direct)
        book = add_contacts(
            self.books[who], {self.names.index(c): self._similarity(who, c, context) for c in near}
        )
        lately = torch.tensor([c in near for c in self.names])
        facts = {"trust": book, "lately": lately, "now": torch.tensor(context.round)}
        return {**facts, **no_rejections(len(self.names))}

    def _similarity(self, a: Client, b: Client, context: RoundContext) -> Tensor:
        if self.lying and (a in self.liars) != (b in self.liars):
            return torch.tensor(1.0)
        drawn = self.seed.numpy("alike", context.round, *sorted((a, b))).uniform(0.5, 1.0)
        return torch.tensor(float(drawn))

    def _told(self, who: Client, messages: dict[Client, Message]) -> dict[Client, Message]:
        if not self.lying or who not in self.liars:
            return messages
        sure = self.bad.double()
        lie = torch.stack([sure, torch.zeros_like(sure), 1 - sure])
        return {to: {"opinions": lie} for to in messages}


def taken(clients: int, liars: int, seed: int, rounds: int, **options: object) -> float:
    """The share of all places on honest lists, from the fourth round on, that liars hold."""
    town = Town(clients, liars, seed, **options)  # type: ignore[arg-type]
    places = torch.zeros(2)
    for number in range(rounds):
        honest = town.lists(number)[~town.bad]
        if number >= FIRST:
            places += torch.tensor([float(honest[:, town.bad].sum()), float(honest.sum())])
    return float(places[0] / places[1].clamp(min=1))


def long_enough(clients: int, seed: int, rounds: int, fewest: int = 3) -> float:
    """The share of all lists that hold so many peers, among honest clients."""
    town = Town(clients, 0, seed)
    return statistics.mean(float((town.lists(n).sum(1) >= fewest).double().mean()) for n in range(rounds))


def main() -> None:
    """Measure and print."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--clients", type=int, default=24)
    given.add_argument("--liars", type=int, nargs="*", default=list(range(13)))
    given.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    given.add_argument("--rounds", type=int, default=20)
    given.add_argument("--lengths", type=int, nargs="*", default=[], metavar="CLIENTS")
    asked = given.parse_args()
    for clients in asked.lengths:
        found = [100 * long_enough(clients, seed, asked.rounds) for seed in asked.seeds]
        print(
            f"{clients} clients: {statistics.mean(found):.0f} % of lists have three peers or more", flush=True
        )
    if asked.lengths:
        return
    table = Table(title="Places on honest lists that liars take, in %", title_justify="left", box=None)
    for head in ("liars", "chance", *RULES):
        table.add_column(head, justify="right")
    for liars in asked.liars:
        cells = []
        for options in RULES.values():
            found = [100 * taken(asked.clients, liars, s, asked.rounds, **options) for s in asked.seeds]
            spread = statistics.stdev(found) if len(found) > 1 else 0.0
            cells.append(f"{statistics.mean(found):.1f} ± {spread:.1f}")
        table.add_row(f"{liars} of {asked.clients}", f"{100 * liars / (asked.clients - 1):.1f}", *cells)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
