"""Engine `wire`: every message becomes bytes and back, and each client is a federation of one.

It is slow and proves a point: a client needs nothing but what travels and what it holds, so what runs
here runs between organisations. Bytes that a client sends may be anything: what is no reply to what was asked
costs this client's contribution, and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kinfolk.codec import decode, encode, head
from kinfolk.engines import one
from kinfolk.engines.asked import declined
from kinfolk.engines.guard import LARGEST_COUNT
from kinfolk.engines.loop import message_for
from kinfolk.engines.memory import InProcess, Mail, Memories
from kinfolk.engines.spec import EngineSpec
from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Expected, IntSpec, Table, Task
from kinfolk.types import Client, Message, Stack

Header = dict[str, str]
# Bytes that a message may have beyond those of its tensors as they are declared: its header, and for each
# tensor a line with its name, type and place.
ROOM, LINE = 1 << 16, 1 << 9


class Site:
    """What one client's own machine holds: its rows, its memory and the installed tasks."""

    def __init__(self, who: Client, rows: Federation, table: Table, memories: Memories) -> None:
        self.who, self.rows, self.table, self.memories = who, rows, table, memories

    def join(self) -> bytes:
        """Say who it is and how many training rows it has."""
        return encode({}, {"from": self.who, "rows": self._count()})

    def answer(self, data: bytes, clients: tuple[Client, ...]) -> bytes:
        """Run the task that a request names and reply; a request for somebody else is refused."""
        message, header = decode(data)
        task = self.table.get(header.get("task", ""))
        if header.get("to") != self.who or not isinstance(task, Task):
            raise KinfolkError("message", header, f"client {self.who} has no such task or is not addressed")
        told: Header = {key: header[key] for key in ("run", "round", "request") if key in header}
        told |= {"from": self.who, "rows": self._count()}
        if declined(task, Ask(header["task"], (self.who,), message)):
            return encode({}, {**told, "declined": "yes"})  # why is nobody else's concern
        context = RoundContext(Seed(int(header["run"])), int(header["round"]), clients)
        reply, kept = one.perform(task, message, self.memories[self.who], self.rows, self.who, context)
        if kept is not None:
            self.memories[self.who] = kept
        return encode(reply, told)

    def letter(self, to: Client, what: Message) -> bytes:
        """A message for another client."""
        return encode(what, {"from": self.who, "to": to})

    def _count(self) -> str:
        return str(one.train_rows(self.rows, self.who))


class Wire(InProcess):
    """Performs a task by messages to and from as many sites as there are clients."""

    name, in_process, chunked = "wire", False, False

    def __init__(self, federation: Federation, table: Table, memories: Memories) -> None:
        self.clients, self.table, self.memories = federation.clients, table, memories
        self.device = torch.device("cpu")
        self.sites = {c: Site(c, federation.only(c), table, memories) for c in federation.clients}
        self.note = f"wire: {len(self.sites)} sites, every message to bytes and back"
        self._asked = 0  # requests so far: a reply names the one it belongs to
        self._rejected: dict[Client, str] = {}

    @classmethod
    def make(cls, spec: EngineSpec, federation: Federation, table: Table, memories: Memories) -> Wire:
        """The engine that a filled-in `[engine]` table describes."""
        return cls(federation, table, memories)

    def claims(self, who: Sequence[Client]) -> dict[Client, int]:
        """How many training rows each client says it has, as it joins."""
        found: dict[Client, int] = {}
        for client in who:
            try:
                found[client] = rows_of(checked(self.sites[client].join(), {"from": client}, ROOM))
            except KinfolkError as error:
                self._rejected[client] = str(error)
        return found

    def replies(self, request: Ask[Any], context: RoundContext) -> Iterator[Stack]:
        """The replies to a request, one client each, in order of names."""
        self._asked += 1
        task = self.table[request.task]
        assert isinstance(task, Task)
        room = room_for(task.reply)
        stand = {"run": str(context.seed.run), "round": str(context.round), "request": str(self._asked)}
        for who in sorted(request.to):
            header = {"to": who, "task": request.task, **stand}
            data = self.sites[who].answer(encode(message_for(request, who), header), self.clients)
            try:
                back = checked(data, {"from": who, **stand}, room)
                if "declined" not in back:
                    yield Stack.of({who: (rows_of(back), decode(data)[0])})
            except KinfolkError as error:
                self._rejected[who] = str(error)

    def take_rejected(self) -> dict[Client, str]:
        """Whose messages were none that could be used since the last call, and why."""
        found, self._rejected = self._rejected, {}
        return found

    def carried(self, mail: deque[tuple[tuple[Client, Client], Message]]) -> Mail:
        """Messages between sites as bytes and back; one that cannot be read does not arrive."""
        for (sender, to), what in mail:
            data = self.sites[sender].letter(to, what)
            try:
                checked(data, {"from": sender, "to": to}, None)
                read = decode(data)[0]
            except KinfolkError as error:
                self._rejected[sender] = str(error)
                continue
            yield (sender, to), read


def checked(data: bytes, expected: Header, limit: int | None) -> Header:
    """The header of a message, if it is no larger than it may be and says what it must say.

    >>> checked(encode({}, {"from": "ann", "round": "3"}), {"from": "ann", "round": "4"}, 1000)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: message.round = '3': is not the '4' that was asked
    """
    found = head(data, limit)
    for key, value in expected.items():
        if found.get(key) != value:
            raise KinfolkError(f"message.{key}", found.get(key), f"is not the {value!r} that was asked")
    return found


def rows_of(header: Header) -> int:
    """The row count of a header: a whole number, and no longer than one that may pass.

    >>> rows_of({"rows": "12"})
    12
    """
    text = header.get("rows", "")
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_COUNT))):
        raise KinfolkError("message.rows", text[:20], "is no count of rows")
    return int(text)


def room_for(expected: Expected) -> int:
    """Bytes of a reply at most: a number that is not a model's may come as a double.

    >>> room_for({"model": {"w": torch.zeros(3)}, "choice": IntSpec(0, 4)}) - ROOM - 2 * LINE
    20
    """

    def most(declared: Any) -> int:
        if isinstance(declared, Tensor):
            return declared.numel() * declared.element_size()
        return 8 if isinstance(declared, IntSpec) else 8 * torch.Size(declared.shape).numel()

    declared = [leaf for v in expected.values() for leaf in (v.values() if isinstance(v, dict) else [v])]
    return ROOM + sum(LINE + most(leaf) for leaf in declared)
