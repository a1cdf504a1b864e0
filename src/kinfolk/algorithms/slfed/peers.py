"""What an algorithm without a server needs of a round: who meets whom, when, and with which model."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch

from kinfolk.streams import RoundContext
from kinfolk.task import Peer, PeerTask
from kinfolk.types import Client, Message, Tree, map_leaves


def holding(
    needs: str,
    send: Callable[[Message, Peer], dict[Client, Message]],
    receive: Callable[[dict[Client, Message], Message, Peer], Message],
    gives: tuple[str, ...] = (),
) -> PeerTask:
    """An exchange for those who were there for what came before it; anybody else lets it pass.

    >>> from kinfolk.streams import Seed
    >>> me = Peer(Client("a"), RoundContext(Seed(0), 3, (Client("a"), Client("b"))))
    >>> swap = holding("word", lambda memory, me: {Client("b"): {}}, lambda inbox, memory, me: memory)
    >>> swap.send({}, me), swap.send({"word": 1, "now": 2}, me), swap.send({"word": 1, "now": 3}, me)
    ({}, {}, {'b': {}})
    """

    def ready(memory: Message, me: Peer) -> bool:
        return needs in memory and int(memory.get("now", -1)) == me.turn.round

    return PeerTask(
        lambda memory, me: send(memory, me) if ready(memory, me) else {},
        lambda inbox, memory, me: receive(inbox, memory, me) if ready(memory, me) else memory,
        gives,
    )


def on_host(large: tuple[str, ...], memory: Message) -> Message:
    """The memory with all but what is large on the host: letters and lists are read number by number.

    A task that an engine runs on a device, such as training or making images, leaves everything there.

    >>> on_host(("model",), {"now": torch.tensor(3)})["now"]
    tensor(3)
    """
    return {**memory, **map_leaves(lambda t: t.cpu(), {k: memory[k] for k in memory if k not in large})}


def finite_or(*trees: Tree) -> Tree:
    """The first tree whose numbers are all finite; the last whatever it is. Without a branch on numbers.

    >>> bad, good = {"w": torch.tensor([float("nan"), 1.0])}, {"w": torch.tensor([2.0, 3.0])}
    >>> finite_or(bad, good), finite_or(good, bad)
    ({'w': tensor([2., 3.])}, {'w': tensor([2., 3.])})
    """
    first, *others = trees
    if not others:
        return first
    sound = is_finite(first)
    rest = finite_or(*others)
    return {name: torch.where(sound, leaf, rest[name].to(leaf)) for name, leaf in first.items()}


def is_finite(tree: Tree) -> torch.Tensor:
    """Whether all numbers of a model are: a tensor of one bool.

    >>> is_finite({"w": torch.tensor([1.0, float("inf")])})
    tensor(False)
    """
    return torch.stack([leaf.isfinite().all() for leaf in tree.values()]).all()


def due(round: int, every: int, growth: float) -> bool:
    """Whether images are made anew in this round: first in round 0, then after gaps of every * growth ** i.

    >>> [[r for r in range(40) if due(r, 3, growth)] for growth in (1.0, 2.0)]
    [[0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39], [0, 3, 9, 21]]
    """
    at, gap = 0.0, float(every)
    while at < round:
        at, gap = at + gap, gap * growth
    return at < round + 1


def partners(me: Peer, direct: int) -> tuple[Client, ...]:
    """This round's direct partners in its cohort: those a client chooses, and those who choose it.

    >>> from kinfolk.streams import Seed
    >>> turn = RoundContext(Seed(1), 0, tuple(map(Client, "abcdef")))
    >>> partners(Peer(Client("a"), turn), 1), partners(Peer(Client("b"), turn), 1)
    (('b', 'c', 'e'), ('a', 'f'))
    """
    return _links(me.turn, direct).get(me.name, ())


@lru_cache(maxsize=4)
def _links(turn: RoundContext, direct: int) -> dict[Client, tuple[Client, ...]]:
    """The partners of everybody in the cohort; a link goes both ways."""
    cohort = turn.cohort
    found: dict[Client, set[Client]] = {who: set() for who in cohort}
    for i, who in enumerate(cohort):
        others = cohort[:i] + cohort[i + 1 :]
        for j in turn.seed.numpy("link", turn.round, who).permutation(len(others))[:direct]:
            found[who].add(others[j])
            found[others[j]].add(who)
    return {who: tuple(sorted(linked)) for who, linked in found.items()}
