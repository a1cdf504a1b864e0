"""Engine `distributed`: each rank of a process group holds a share of the clients and performs their tasks.

Rank 0 plays the script and holds a share itself; the others serve it. What every client is sent goes out
once, what one client is sent goes to its rank. Replies come back as bytes of safetensors, never as pickles;
where the fold allows it, a rank folds its own clients' replies and sends one total.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from kinfolk.codec import decode, encode
from kinfolk.engines import parcel
from kinfolk.engines.coordinator import Engine, Part, fold_part, part_as_message, part_from_message
from kinfolk.engines.link import Link, Posted
from kinfolk.engines.parcel import Header, Letter
from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation
from kinfolk.fold import Mergeable, from_spec
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Peer, PeerTask
from kinfolk.types import Client, Message, Stack, map_leaves, nbytes

# Chunks of replies that a rank may have on their way while it works on the next.
AHEAD = 64


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
        self.others = range(1, link.size)
        over = "gloo and NCCL" if link.nccl else "gloo"
        self.note = f"distributed: ranks={link.size} over {over}, on each {inner.note}"
        for rank in self.others:
            _, header = self._open(rank)
            if header["ready"] != federation.fingerprint():
                raise KinfolkError(f"rank {rank}", None, "has other data than rank 0; give all the same")
        self.memories.far = self

    def replies(self, request: Ask[Any], turn: RoundContext) -> Iterator[Stack]:
        """The replies to a request, in the chunks that each rank makes, rank after rank."""
        self._ask(request, turn, {})
        mine = _of(self.shares[0], request.to)
        if mine:
            yield from self.inner.replies(replace(request, to=mine), turn)
        for rank in self._asked(request):
            while True:
                message, header = self._open(rank)
                if "clients" not in header:
                    break
                yield parcel.stack(map_leaves(self._here, message), header)

    def parts(self, request: Ask[Any], turn: RoundContext) -> Iterator[Part]:
        """What each rank made of its own clients' replies, in rank order."""
        assert isinstance(request.fold, Mergeable)
        self._ask(request, turn, request.fold.spec())
        mine = _of(self.shares[0], request.to)
        if mine:
            yield fold_part(self.inner, replace(request, to=mine), request.fold, turn)
        for rank in self._asked(request):
            message, header = self._open(rank)
            # The sum of weights stays on the host, as in a fold that is done here.
            host = "total.weight"
            yield part_from_message(
                {k: v if k == host else map_leaves(self._here, {k: v})[k] for k, v in message.items()}, header
            )

    def swap(
        self, swap: PeerTask, among: tuple[Client, ...], turn: RoundContext
    ) -> dict[tuple[Client, Client], int]:
        """Let clients send to one another, from rank to rank; the bytes of every letter."""
        name = next(name for name, known in self.table.items() if known is swap)
        header = {"do": "swap", "swap": name, "among": json.dumps(among), **_when(turn)}
        for rank in self.others:
            self.link.send(encode({}, header), rank)
        sent = _swap(self.inner, self.link, self.shares, swap, among, turn)
        for rank in self.others:
            message, back = self._open(rank)
            sent |= {(Client(a), Client(b)): count for a, b, count in json.loads(back["sent"])}
            self.memories.add(parcel.added(message, back))
        return sent

    def tell(self, word: str) -> None:
        """Let every rank `mark` or `rollback` its clients' memories."""
        for rank in self.others:
            self.link.send(encode({}, {"do": word}), rank)

    def fetch(self) -> dict[Client, Message]:
        """A copy of the memories on the other ranks."""
        self.tell("fetch")
        found: dict[Client, Message] = {}
        for rank in self.others:
            message, header = self._open(rank)
            found |= zip(map(Client, json.loads(header["of"])), parcel.untied(message, header), strict=True)
        return {c: map_leaves(self._here, memory) for c, memory in found.items()}

    def hand_out(self, memories: Mapping[Client, Message]) -> dict[Client, Message]:
        """Give each rank the memories of its clients; those of rank 0 come back."""
        for rank in self.others:
            who = [c for c in self.shares[rank] if c in memories]
            header = {"do": "hold", "of": json.dumps(who)}
            self.link.send(parcel.tied([memories[c] for c in who], header), rank)
        return {c: memories[c] for c in self.shares[0] if c in memories}

    def close(self) -> None:
        """Give back what the engine of this rank holds; the others are told when the link ends."""
        self.inner.close()

    def _ask(self, request: Ask[Any], turn: RoundContext, words: Header) -> None:
        """Send everyone's own messages to its rank and what is shared to all."""
        if not self.others:
            return
        shared = encode(request.shared) if request.shared else b""
        header = {"do": "ask", "task": request.task, "shared": str(len(shared)), **_when(turn)}
        header["words"] = json.dumps(words)
        for rank in self.others:
            who = _of(self.shares[rank], request.to)
            named = {**header, "to": json.dumps(who)}
            each = request.each.at(who) if request.each and who else None
            self.link.send(encode({}, named) if each is None else parcel.stacked(each, named), rank)
        if shared:
            self.link.spread(shared, len(shared))

    def _asked(self, request: Ask[Any]) -> list[int]:
        return [rank for rank in self.others if _of(self.shares[rank], request.to)]

    def _open(self, rank: int) -> tuple[Message, Header]:
        return parcel.opened(self.link.take(rank), rank)

    def _here(self, t: torch.Tensor) -> torch.Tensor:
        return t.to(self.device)


def serve(build: Callable[[], tuple[Engine, Federation]], link: Link) -> None:
    """A rank's life: make the engine, tell rank 0 that it is ready, and do what rank 0 says until the end."""
    engine: Engine | None = None
    try:
        engine, federation = build()
        first = encode({}, {"ready": federation.fingerprint()})
    except Exception as error:
        first = parcel.report(error)
    posted = link.post(first, 0)
    while True:
        message, header = decode(link.take(0))
        if header["do"] == "end" or engine is None:
            break
        try:
            _do(engine, federation, link, message, header)
        except Exception as error:
            link.send(parcel.report(error), 0)
    del posted
    if engine is not None:
        engine.close()


def _do(engine: Engine, federation: Federation, link: Link, message: Message, header: Header) -> None:
    """One thing that rank 0 may want."""
    memories, do = engine.memories, header["do"]
    if do == "ask":
        _answer(engine, federation, link, message, header)
    elif do == "swap":
        swap, among = engine.table[header["swap"]], tuple(json.loads(header["among"]))
        assert isinstance(swap, PeerTask)
        sent = _swap(engine, link, shares(federation, link.size), swap, among, _turn(header, federation))
        told = json.dumps([(a, b, count) for (a, b), count in sent.items()])
        link.send(parcel.with_added(memories.take_added(), {"sent": told}), 0)
    elif do == "fetch":
        who = sorted(memories)
        link.send(parcel.tied([memories[c] for c in who], {"of": json.dumps(who)}), 0)
    elif do == "hold":
        here = map_leaves(lambda t: t.to(engine.device), message)
        memories.restore(dict(zip(json.loads(header["of"]), parcel.untied(here, header), strict=True)))
    elif do == "snapshot":
        memories.snapshot()
    elif do == "rollback":
        memories.rollback()


def _answer(engine: Engine, federation: Federation, link: Link, message: Message, header: Header) -> None:
    """Perform a task for this rank's clients and send what they reply, or the total of it."""
    count = int(header["shared"])
    shared = decode(link.spread(b"", count))[0] if count else {}
    who = tuple(json.loads(header["to"]))
    if not who:
        return
    each = parcel.stack(message, header) if "clients" in header else None
    request: Ask[Any] = Ask(header["task"], who, shared, each)
    turn, words = _turn(header, federation), json.loads(header["words"])
    if words:
        link.send(encode(*part_as_message(fold_part(engine, request, from_spec(words), turn))), 0)
        return
    posted: deque[Posted] = deque()
    for chunk in engine.replies(request, turn):
        posted.append(link.post(parcel.stacked(chunk, {}), 0))
        if len(posted) > AHEAD:
            link.settle(posted.popleft(), 0)
    posted.append(link.post(encode({}), 0))
    for one in posted:
        link.settle(one, 0)


def _swap(
    engine: Engine,
    link: Link,
    shared: list[tuple[Client, ...]],
    swap: PeerTask,
    among: tuple[Client, ...],
    turn: RoundContext,
) -> dict[tuple[Client, Client], int]:
    """One rank's side of an exchange: all letters are written before any is read."""
    mine, home = _of(shared[link.rank], among), {c: r for r, who in enumerate(shared) for c in who}
    sent: dict[tuple[Client, Client], int] = {}
    letters: list[list[Letter]] = [[] for _ in shared]
    failed: Exception | None = None
    try:
        for sender in mine:
            for to, what in swap.send(engine.memories[sender], Peer(sender, turn)).items():
                sent[sender, to] = nbytes(what)
                if to in among:
                    letters[home[to]].append((sender, to, what))
    except Exception as error:  # the others are waiting for letters: they must hear of it
        failed = error
    others = [r for r in range(link.size) if r != link.rank]
    posted = [
        (r, link.post(parcel.report(failed) if failed else parcel.enveloped(letters[r]), r)) for r in others
    ]
    if failed:
        raise failed
    inbox: dict[Client, dict[Client, Message]] = {c: {} for c in mine}
    for rank in range(link.size):
        arrived = letters[rank] if rank == link.rank else parcel.letters(link.take(rank), rank)
        for sender, to, what in arrived:
            inbox[to][sender] = map_leaves(lambda t: t.to(engine.device), what)
    for who in mine:
        engine.memories[who] = swap.receive(inbox[who], engine.memories[who], Peer(who, turn))
    for rank, one in posted:
        link.settle(one, rank)
    return sent


def _of(share: Iterable[Client], who: Sequence[Client]) -> tuple[Client, ...]:
    wanted = set(who)
    return tuple(c for c in share if c in wanted)


def _when(turn: RoundContext) -> Header:
    return {"run": str(turn.seed.run), "round": str(turn.round), "share": repr(turn.participation)}


def _turn(header: Header, federation: Federation) -> RoundContext:
    share = float(header["share"])
    return RoundContext(Seed(int(header["run"])), int(header["round"]), federation.clients, share)
