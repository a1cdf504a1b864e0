"""What clients keep between requests, and letters from client to client within one process."""

from __future__ import annotations

from collections.abc import Callable

from kinfolk.streams import Turn
from kinfolk.task import Peer, Swap
from kinfolk.types import Client, Message, nbytes


class Memories(dict[Client, Message]):
    """Each client's memory; one that was never asked holds what the algorithm says it starts with.

    >>> Memories(lambda who: {})[Client("a")]
    {}
    """

    def __init__(self, remember: Callable[[Client], Message]) -> None:
        super().__init__()
        self.remember = remember

    def __missing__(self, who: Client) -> Message:
        return self.remember(who)


def swap_in_process(
    swap: Swap, among: tuple[Client, ...], turn: Turn, memories: Memories
) -> dict[tuple[Client, Client], int]:
    """Every client sends before any receives, so nobody hears of this exchange in what it sends."""
    inbox: dict[Client, dict[Client, Message]] = {c: {} for c in among}
    sent: dict[tuple[Client, Client], int] = {}
    for sender in among:
        for to, payload in swap.send(memories[sender], Peer(sender, turn)).items():
            sent[sender, to] = nbytes(payload)
            if to in inbox:
                inbox[to][sender] = payload
    for receiver in among:
        memories[receiver] = swap.receive(inbox[receiver], memories[receiver], Peer(receiver, turn))
    return sent
