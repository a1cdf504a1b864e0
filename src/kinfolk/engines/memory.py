"""What clients keep between requests, and letters from client to client within one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from kinfolk.streams import Turn
from kinfolk.task import Peer, Swap
from kinfolk.types import Client, Message, nbytes


class Far(Protocol):
    """Other processes that hold the memories of some clients."""

    def tell(self, word: str) -> None:
        """Let them `mark` or `undo` as well."""
        ...

    def fetch(self) -> dict[Client, Message]:
        """A copy of all that they hold."""
        ...

    def hand_out(self, memories: Mapping[Client, Message]) -> dict[Client, Message]:
        """Give each its own clients' memories, in place of what it holds; the rest comes back."""
        ...


class Memories(dict[Client, Message]):
    """Each client's memory; one that was never asked holds what the algorithm says it starts with.

    >>> held = Memories(lambda who: {})
    >>> held.mark()
    >>> held[Client("a")] = {"n": 1}
    >>> held.undo()
    >>> held, held[Client("a")]
    ({}, {})
    """

    def __init__(self, remember: Callable[[Client], Message]) -> None:
        super().__init__()
        self.remember = remember
        self.far: Far | None = None  # an engine of several processes puts itself here
        self._marked: dict[Client, Message] = {}

    def mark(self) -> None:
        """Note what everyone holds, for `undo`."""
        self._marked = dict(self)
        if self.far is not None:
            self.far.tell("mark")

    def undo(self) -> None:
        """Go back to the last mark: models and memories of a void round stay as they were."""
        self.clear()
        self.update(self._marked)
        if self.far is not None:
            self.far.tell("undo")

    def everyones(self) -> dict[Client, Message]:
        """What all clients hold, wherever it is kept."""
        return {**self, **(self.far.fetch() if self.far is not None else {})}

    def restore(self, memories: Mapping[Client, Message]) -> None:
        """Put saved memories where each is kept."""
        self.clear()
        self.update(memories if self.far is None else self.far.hand_out(memories))

    def __missing__(self, who: Client) -> Message:
        return self.remember(who)


def swap_in_process(
    swap: Swap, among: tuple[Client, ...], turn: Turn, memories: Memories
) -> dict[tuple[Client, Client], int]:
    """Every client sends before any receives, so nobody hears of this exchange in what it sends.

    Nothing is copied: letters stay on the device that they were written on. One that was read is let go.
    """
    inbox: dict[Client, dict[Client, Message]] = {c: {} for c in among}
    sent: dict[tuple[Client, Client], int] = {}
    for sender in among:
        for to, payload in swap.send(memories[sender], Peer(sender, turn)).items():
            sent[sender, to] = nbytes(payload)
            if to in inbox:
                inbox[to][sender] = payload
    for receiver in among:
        memories[receiver] = swap.receive(inbox.pop(receiver), memories[receiver], Peer(receiver, turn))
    return sent
