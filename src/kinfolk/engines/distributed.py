"""Engine `distributed`: each rank of a process group holds a share of the clients and performs their tasks.

Rank 0 plays the script and holds a share itself; the others serve it. What every client is sent goes out
once, what one client is sent goes to its rank. Where the fold allows it, a rank folds its own clients'
replies and sends one total.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from kinfolk.codec import encode
from kinfolk.engines import rpc
from kinfolk.engines.cohort import Limits
from kinfolk.engines.coordinator import Engine, Part, Registers, fold_part, warnings_of
from kinfolk.engines.link import Link, Posted, Served
from kinfolk.engines.memory import Mail, Sent, read, written
from kinfolk.engines.rpc import Header, Packed
from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation
from kinfolk.fold import Mergeable
from kinfolk.script import Ask
from kinfolk.streams import RoundContext
from kinfolk.task import PeerTask
from kinfolk.types import Client, Message, Stack, map_leaves, nbytes


def shares(federation: Federation, ranks: int) -> list[tuple[Client, ...]]:
    """The clients of each rank: neighbours in order of names, with about as many rows on each rank.

    In rank order the replies are in order of names, as in a single process.
    """
    rows = federation.splits["train"].counts().double().clamp(min=1)
    middle = rows.cumsum(0) - rows / 2
    of = (middle / rows.sum() * ranks).long().clamp(max=ranks - 1).tolist()
    return [tuple(c for c, r in zip(federation.clients, of, strict=True) if r == k) for k in range(ranks)]


class Distributed:
    """Performs requests on all ranks, seen from rank 0."""

    name = "distributed"

    def __init__(self, inner: Engine, link: Link, federation: Federation) -> None:
        self.inner, self.link, self.shares = inner, link, shares(federation, link.size)
        self.device, self.table, self.memories = inner.device, inner.table, inner.memories
        self.others = link.others
        self._posted: dict[int, Posted] = {}  # requests on their way, which must live until they arrive
        self._warnings = rpc.Warnings()
        over = "gloo and NCCL" if link.nccl else "gloo"
        self.note = f"distributed: ranks={link.size} over {over}, on each {inner.note}"
        for rank in self.others:
            _, header = self._take(rank)
            if header["ready"] != federation.fingerprint():
                raise KinfolkError(f"rank {rank}", None, "has other data than rank 0; give all the same")
        self.memories.far = self

    def replies(self, request: Ask[Any], context: RoundContext) -> Iterator[Stack]:
        """The replies to a request, in the chunks that each rank makes, rank after rank."""
        asked = self._ask(request, context, {}, Limits())
        mine = _of(self.shares[0], request.to)
        if mine:
            yield from self.inner.replies(replace(request, to=mine), context)
        for rank in asked:
            while True:
                message, header = self._take(rank)
                if "clients" not in header:
                    break
                yield rpc.unpack_stack(self._here(message), header)

    def claims(self, who: Sequence[Client]) -> Mapping[Client, int]:
        """How many training rows each client has: all ranks hold the same data."""
        return self.inner.claims(who) if isinstance(self.inner, Registers) else {}

    def parts(self, request: Ask[Any], context: RoundContext, limits: Limits) -> Iterator[Part]:
        """What each rank made of its own clients' replies, in rank order."""
        assert isinstance(request.fold, Mergeable)
        asked = self._ask(request, context, request.fold.spec(), limits)
        mine = _of(self.shares[0], request.to)
        if mine:
            yield fold_part(self.inner, replace(request, to=mine), request.fold, context, limits)
        for rank in asked:
            message, header = self._take(rank)
            # The sum of weights stays on the host, as in a fold that is done here.
            host = {"total.weight": message["total.weight"]} if "total.weight" in message else {}
            yield rpc.unpack_part({**self._here(message), **host}, header)

    def swap(self, swap: PeerTask, among: tuple[Client, ...], context: RoundContext) -> Sent:
        """Let clients send to one another, from rank to rank; the bytes of every message."""
        name = next(name for name, known in self.table.items() if known is swap)
        header = {"do": "swap", "swap": name, "among": json.dumps(among), **rpc.pack_context(context)}
        self._tell(header)
        sent = _exchange(self.inner, self.link, self.shares, swap, among, context)
        for rank in self.others:
            message, back = self._take(rank)
            sent |= {(Client(a), Client(b)): count for a, b, count in json.loads(back["sent"])}
            new = rpc.unpack_several(message, back)
            self.memories.add([(Client(who), entry, one["rows"]) for (who, entry), one in new])
        return sent

    def tell(self, word: str) -> None:
        """Let every rank `snapshot` or `rollback` its clients' memories."""
        self._tell({"do": word})

    def fetch(self) -> dict[Client, Message]:
        """A copy of the memories on the other ranks."""
        self._tell({"do": "fetch"})
        found = [one for rank in self.others for one in rpc.unpack_several(*self._take(rank))]
        return {Client(who): self._here(memory) for who, memory in found}

    def hand_out(self, memories: Mapping[Client, Message]) -> dict[Client, Message]:
        """Give each rank the memories of its clients; those of rank 0 come back."""
        for rank in self.others:
            held, named = rpc.pack_several((c, memories[c]) for c in self.shares[rank] if c in memories)
            self.link.send(encode(held, {"do": "hold", **named}), rank)
        return {c: memories[c] for c in self.shares[0] if c in memories}

    def take_warnings(self) -> list[str]:
        """What the engines of all ranks had to tell since the last call."""
        self._warnings.hear(warnings_of(self.inner))
        return self._warnings.take()

    def close(self) -> None:
        """Give back what the engine of this rank holds; the others are told when the link ends."""
        self.inner.close()

    def _ask(self, request: Ask[Any], context: RoundContext, fold: Header, limits: Limits) -> list[int]:
        """Send what is shared to all and everyone's own messages to its rank; the ranks that will answer."""
        if request.shared and self.others:
            self.link.spread(encode(request.shared, {"do": "shared"}))
        asked = {rank: who for rank in self.others if (who := _of(self.shares[rank], request.to))}
        for rank, who in asked.items():
            packed = rpc.pack_request(request, context, who, fold, limits)
            self._posted[rank] = self.link.post(encode(*packed), rank)
        return list(asked)

    def _tell(self, header: Header) -> None:
        for rank in self.others:
            self.link.send(encode({}, header), rank)

    def _take(self, rank: int) -> Packed:
        if rank in self._posted:
            self.link.settle(self._posted.pop(rank), rank)
        message, header = rpc.opened(self.link.take(rank), f"rank {rank}")
        self._warnings.hear(rpc.unpack_warnings(header))
        return message, header

    def _here(self, message: Message) -> Message:
        return map_leaves(lambda t: t.to(self.device), message)


def serve(build: Callable[[], tuple[Engine, Federation]], link: Link) -> None:
    """A rank's life: make the engine, tell rank 0 that it is ready, and do what rank 0 says until the end."""
    try:
        engine, federation = build()
    except Exception as error:
        posted = link.post(rpc.pack_error(error, {}), 0)
        link.take(0)  # the end; until then, what was posted must live
        del posted
        return
    posted = link.post(encode({}, {"ready": federation.fingerprint()}), 0)
    rpc.serve(_Rank(engine, federation, link), Served(link))
    del posted
    engine.close()


class _Rank(rpc.Server):
    """What a rank does: as any server, and its side of exchanges between clients."""

    def __init__(self, engine: Engine, federation: Federation, link: Link) -> None:
        super().__init__(engine, federation.clients)
        self.link, self.shares = link, shares(federation, link.size)

    def answers(self, message: Message, header: Header) -> Iterator[Packed]:
        if header["do"] != "swap":
            yield from super().answers(message, header)
            return
        swap, among = self.engine.table[header["swap"]], tuple(json.loads(header["among"]))
        assert isinstance(swap, PeerTask)
        context = rpc.unpack_context(header, self.clients)
        sent = _exchange(self.engine, self.link, self.shares, swap, among, context)
        added = self.engine.memories.take_added()
        rows, named = rpc.pack_several(((who, entry), {"rows": new}) for who, entry, new in added)
        yield rows, {**named, "sent": json.dumps([(a, b, count) for (a, b), count in sent.items()])}


def _exchange(
    engine: Engine,
    link: Link,
    held: list[tuple[Client, ...]],
    swap: PeerTask,
    among: tuple[Client, ...],
    context: RoundContext,
) -> Sent:
    """One rank's side of an exchange: all messages are written before any is read."""
    mine, memories = _of(held[link.rank], among), engine.memories
    try:
        mail = written(swap, mine, context, memories)
    except Exception as error:  # the others are waiting for messages: they must hear of it
        link.all_to_all(dict.fromkeys(link.others, rpc.pack_error(error, {})))
        raise
    home = {c: rank for rank, who in enumerate(held) for c in _of(who, among)}
    read(swap, _carried(mail, home, link, engine.device), mine, context, memories)
    return {pair: nbytes(what) for pair, what in mail}


def _carried(mail: Mail, home: Mapping[Client, int], link: Link, device: torch.device) -> Mail:
    """What arrives at this rank, from its own clients and from those of others, rank after rank."""
    boxes: list[list[Any]] = [[] for _ in range(link.size)]
    for (sender, to), what in mail:
        if to in home:
            boxes[home[to]].append(((sender, to), what))
    taken = link.all_to_all({rank: encode(*rpc.pack_several(boxes[rank])) for rank in link.others})
    for rank, box in enumerate(boxes):
        arrived = rpc.unpack_several(*rpc.opened(taken[rank], f"rank {rank}")) if rank in taken else box
        for pair, what in arrived:
            yield pair, map_leaves(lambda t: t.to(device), what)


def _of(share: Iterable[Client], who: Sequence[Client]) -> tuple[Client, ...]:
    wanted = set(who)
    return tuple(c for c in share if c in wanted)
