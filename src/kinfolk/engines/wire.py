"""Engine `wire`: every message becomes bytes and back, and each client is a federation of one.

It is slow and proves a point: a client needs nothing but what travels and what it holds, so what runs
here runs between organisations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from kinfolk.codec import decode, encode
from kinfolk.engines import one
from kinfolk.engines.loop import message_for
from kinfolk.engines.memory import InProcess, Mail, Memories
from kinfolk.engines.spec import EngineSpec
from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Table, Task
from kinfolk.types import Client, Message, Stack


class Site:
    """What one client's own machine holds: its rows, its memory and the installed tasks."""

    def __init__(self, who: Client, rows: Federation, table: Table, memories: Memories) -> None:
        self.who, self.rows, self.table, self.memories = who, rows, table, memories

    def answer(self, data: bytes, clients: tuple[Client, ...]) -> bytes:
        """Run the task that a request names and reply; a request for somebody else is refused."""
        message, header = decode(data)
        task = self.table.get(header.get("task", ""))
        if header.get("to") != self.who or not isinstance(task, Task):
            raise KinfolkError("message", header, f"client {self.who} has no such task or is not addressed")
        context = RoundContext(Seed(int(header["run"])), int(header["round"]), clients)
        reply, kept = one.perform(task, message, self.memories[self.who], self.rows, self.who, context)
        if kept is not None:
            self.memories[self.who] = kept
        rows = str(one.train_rows(self.rows, self.who))
        return encode(reply, {"from": self.who, "round": header["round"], "rows": rows})


class Wire(InProcess):
    """Performs a task by messages to and from as many sites as there are clients."""

    name, in_process, chunked = "wire", False, False

    def __init__(self, federation: Federation, table: Table, memories: Memories) -> None:
        self.clients, self.table, self.memories = federation.clients, table, memories
        self.device = torch.device("cpu")
        self.sites = {c: Site(c, federation.only(c), table, memories) for c in federation.clients}
        self.note = f"wire: {len(self.sites)} sites, every message to bytes and back"

    @classmethod
    def make(cls, spec: EngineSpec, federation: Federation, table: Table, memories: Memories) -> Wire:
        """The engine that a filled-in `[engine]` table describes."""
        return cls(federation, table, memories)

    def replies(self, request: Ask[Any], context: RoundContext) -> Iterator[Stack]:
        """The replies to a request, one client each, in order of names."""
        for who in sorted(request.to):
            header = {
                "to": who,
                "task": request.task,
                "run": str(context.seed.run),
                "round": str(context.round),
            }
            data = self.sites[who].answer(encode(message_for(request, who), header), self.clients)
            reply, back = decode(data)
            yield Stack.of({Client(back["from"]): (int(back["rows"]), reply)})

    def carried(self, mail: deque[tuple[tuple[Client, Client], Message]]) -> Mail:
        """Messages between sites as bytes and back."""
        for pair, what in mail:
            yield pair, decode(encode(what, {"from": pair[0]}))[0]
