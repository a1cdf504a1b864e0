"""What clients keep between requests, and messages from client to client."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from kinfolk.engines.fast import large_blocks_given_back
from kinfolk.streams import RoundContext
from kinfolk.task import Peer, PeerTask
from kinfolk.types import Client, Message, leaves, nbytes


class RemoteMemories(Protocol):
    """Other processes that hold the memories of some clients."""

    def tell(self, word: str) -> None:
        """Let them `snapshot` or `rollback` as well."""
        ...

    def fetch(self) -> dict[Client, Message]:
        """A copy of all that they hold."""
        ...

    def hand_out(self, memories: Mapping[Client, Message]) -> dict[Client, Message]:
        """Give each its own clients' memories, in place of what it holds; the rest comes back."""
        ...


# Rows that clients have added to what they never forget: (client, entry, new rows [rows, bytes]).
Added = list[tuple[Client, str, Tensor]]


class Memories(dict[Client, Message]):
    """Each client's memory; one that was never asked holds what the algorithm says it starts with.

    Entries that are `lasting`, tensors of bytes [rows, width] that only grow, are never undone: what a client
    has answered stays answered. New rows are handed to `journal` when `flush` is called, which is before
    anything that follows from them leaves a client.

    >>> held = Memories(lambda who: {}, lasting=("log",))
    >>> held.snapshot()
    >>> held[Client("a")] = {"n": 1, "log": torch.zeros(1, 2, dtype=torch.uint8)}
    >>> held.rollback()
    >>> held[Client("a")]
    {'log': tensor([[0, 0]], dtype=torch.uint8)}
    """

    def __init__(self, remember: Callable[[Client], Message], lasting: Sequence[str] = ()) -> None:
        super().__init__()
        self.init_client, self.lasting = remember, tuple(lasting)
        self.far: RemoteMemories | None = None  # an engine of several processes puts itself here
        self.journal: Callable[[Added], None] = lambda added: None
        self._marked: dict[Client, Message] = {}
        self._kept: dict[Client, dict[str, Tensor]] = {}
        self._added: Added = []

    def snapshot(self) -> None:
        """Note what everyone holds, for `rollback`."""
        self._marked = dict(self)
        if self.far is not None:
            self.far.tell("snapshot")

    def rollback(self) -> None:
        """Go back to the last snapshot, but for what lasts: a void round changes no model or memory."""
        self._hold(self._marked)
        if self.far is not None:
            self.far.tell("rollback")

    def everyones(self) -> dict[Client, Message]:
        """What all clients hold, wherever it is kept."""
        return {**self, **(self.far.fetch() if self.far is not None else {})}

    def restore(self, memories: Mapping[Client, Message]) -> None:
        """Put saved memories where each is kept, with all rows that the journal has beyond them."""
        self._hold(memories)
        if self.far is not None:
            whole = dict(self)
            self.clear()
            self.update(self.far.hand_out(whole))

    def recall(self, rows: Added) -> None:
        """Know again what a journal holds; `restore` then puts it into the memories."""
        for who, entry, new in rows:
            self._keep(who, entry, new)

    def flush(self) -> None:
        """Hand new rows to the journal."""
        if self._added:
            self.journal(self._added)
            self._added = []

    def take_added(self) -> Added:
        """New rows, for a process that keeps the journal."""
        added, self._added = self._added, []
        return added

    def add(self, rows: Added) -> None:
        """New rows of clients whose memories are kept elsewhere."""
        self._added += rows

    def __setitem__(self, who: Client, memory: Message) -> None:
        super().__setitem__(who, memory)
        for entry in self.lasting:
            rows = memory.get(entry)
            new = self._keep(who, entry, rows) if isinstance(rows, Tensor) else None
            if new is not None and len(new):
                self._added.append((who, entry, new))

    def __missing__(self, who: Client) -> Message:
        return self._with_kept(who, self.init_client(who))

    def _hold(self, memories: Mapping[Client, Message]) -> None:
        whole = {who: self._with_kept(who, memory) for who, memory in memories.items()}
        self.clear()
        self.update(whole)
        self.update({who: self.__missing__(who) for who in sorted(self._kept) if who not in whole})

    def _keep(self, who: Client, entry: str, rows: Tensor) -> Tensor:
        """Those of the rows that were not known, which are from now on."""
        kept = self._kept.setdefault(who, {})
        before = kept.get(entry, rows[:0])
        if torch.equal(rows.cpu(), before.cpu()):
            return rows[:0]
        known = {bytes(row) for row in before.cpu().numpy()}
        fresh = [i for i, row in enumerate(rows.cpu().numpy()) if bytes(row) not in known]
        if fresh:
            kept[entry] = torch.cat([before.to(rows.device), rows[fresh]])
        return rows[fresh]

    def _with_kept(self, who: Client, memory: Message) -> Message:
        for entry in self.lasting:
            rows = memory.get(entry)
            if isinstance(rows, Tensor):
                self._keep(who, entry, rows)
        return {**memory, **self._kept.get(who, {})}


def by_form(who: Iterable[Client], memories: Mapping[Client, Message]) -> list[list[Client]]:
    """The clients in groups whose memories have the same names, shapes and types: those can share a call.

    Where clients only talk to one another, whoever was never there does not hold yet what others hold.

    >>> by_form(["a", "b", "c"], {"a": {}, "b": {"v": torch.zeros(2)}, "c": {}})
    [['a', 'c'], ['b']]
    """
    groups: dict[Any, list[Client]] = {}
    for client in who:
        form = tuple((key, name, leaf.shape, leaf.dtype) for key, name, leaf in leaves(memories[client]))
        groups.setdefault(form, []).append(client)
    return list(groups.values())


# Clients from which on what they open, one after another, must not stay in the process.
MANY = 1000
# Messages between clients: ((from, to), what).
Mail = Iterable[tuple[tuple[Client, Client], Message]]
Sent = dict[tuple[Client, Client], int]  # bytes by (from, to)


def written(swap: PeerTask, senders: Iterable[Client], context: RoundContext, memories: Memories) -> Mail:
    """What clients send to one another, all of it before any is read."""
    return [
        ((who, to), what)
        for who in senders
        for to, what in swap.send(memories[who], Peer(who, context)).items()
    ]


def read(
    swap: PeerTask, arrived: Mail, receivers: tuple[Client, ...], context: RoundContext, memories: Memories
) -> None:
    """Let clients take in what has arrived; a message that was read is let go."""
    inbox: dict[Client, dict[Client, Message]] = {c: {} for c in receivers}
    for (sender, to), what in arrived:
        if to in inbox:
            inbox[to][sender] = what
    del arrived
    for who in receivers:
        memories[who] = swap.receive(inbox.pop(who), memories[who], Peer(who, context))


class InProcess:
    """The part of an engine by which clients whose memories are in this process send to one another.

    Nothing is copied: messages stay on the device that they were written on.
    """

    memories: Memories

    def swap(self, swap: PeerTask, among: tuple[Client, ...], context: RoundContext) -> Sent:
        """Let clients send to one another; the bytes of every message."""
        with large_blocks_given_back() if len(among) > MANY else nullcontext():
            mail = deque(written(swap, among, context, self.memories))
            sent = {pair: nbytes(what) for pair, what in mail}
            read(swap, self.carried(mail), among, context, self.memories)
        return sent

    def carried(self, mail: deque[tuple[tuple[Client, Client], Message]]) -> Mail:
        """What arrives of what was sent, which is no longer held here."""
        while mail:
            yield mail.popleft()

    def close(self) -> None:
        """Nothing to give back."""
