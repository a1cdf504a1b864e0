"""What processes say to one another, whatever carries it: requests, replies, memories and errors, as bytes.

A `Transport` takes bytes to one process and back: pipes with shared memory under `workers`, a process group
under `distributed`. Everything travels as safetensors with a header of text, never as a pickle. A header's
"do" names what is wanted: "shared" holds what the requests after it have in common, "ask" is a request for
some clients, "fetch", "hold", "snapshot" and "rollback" are about memories that stay here, "end" ends it.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Protocol

from kinfolk.codec import decode, encode
from kinfolk.engines.cohort import Limits
from kinfolk.engines.coordinator import Engine, Part, fold_part, warnings_of
from kinfolk.engines.sketched import fold_from
from kinfolk.errors import KinfolkError
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Client, Message, Stack, map_leaves

Header = dict[str, str]
Packed = tuple[Message, Header]


class Transport(Protocol):
    """One end of the way to another process."""

    def put(self, data: bytes) -> None:
        """Send."""
        ...

    def take(self) -> bytes:
        """Wait for the next message."""
        ...


@contextmanager
def _unpacking() -> Iterator[None]:
    """Turn whatever a message sets off that is not what its sender packs into one line."""
    try:
        yield
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
        remedy = (
            f"is not what it should be ({type(error).__name__}: {error}); another version may have sent it"
        )
        raise KinfolkError("message", None, remedy) from error


def pack_stack(stack: Stack) -> Packed:
    """A stack as a message and a header.

    >>> import torch
    >>> one = Stack.of({Client("a"): (3, {"v": torch.tensor(1.0)})})
    >>> back = unpack_stack(*decode(encode(*pack_stack(one))))
    >>> back.clients, back.size, back.body
    (('a',), tensor([3]), {'v': tensor([1.])})
    """
    body = {f"body.{key}": value for key, value in stack.body.items()}
    return {"size": stack.size, **body}, {"clients": json.dumps(stack.clients)}


@_unpacking()
def unpack_stack(message: Message, header: Header) -> Stack:
    """The stack behind `pack_stack`; sizes stay on the host."""
    return Stack(tuple(json.loads(header["clients"])), message["size"].cpu(), _under("body.", message))


def pack_part(part: Part) -> Packed:
    """What a process made of its clients' replies, as a message and a header."""
    waiting = {f"waiting.body.{key}": value for key, value in part.waiting.body.items()}
    body = {f"total.{key}": value for key, value in part.total.items()} | waiting
    body |= {f"lengths.{key}": value for key, value in part.lengths.items()}
    told = json.dumps([part.heard, part.rejected, part.sent, part.waiting.clients, part.grown])
    return {**body, "norms": part.norms, "waiting.size": part.waiting.size}, {"part": told}


@_unpacking()
def unpack_part(message: Message, header: Header) -> Part:
    """The part behind `pack_part`."""
    heard, rejected, sent, waiting, grown = json.loads(header["part"])
    held = Stack(tuple(waiting), message["waiting.size"].cpu(), _under("waiting.body.", message))
    own = {Client(c): (norm, was) for c, (norm, was) in grown.items()}
    lengths = {key: length.cpu() for key, length in _under("lengths.", message).items()}
    total, norms = _under("total.", message), message["norms"].cpu()
    return Part(total, tuple(heard), rejected, sent, norms, lengths, held, own)


def pack_several(messages: Iterable[tuple[Any, Message]]) -> Packed:
    """Several messages in one, each with a label that JSON can write.

    >>> import torch
    >>> unpack_several(*decode(encode(*pack_several([("a", {"v": torch.tensor(1)}), (["b", "c"], {})]))))
    [('a', {'v': tensor(1)}), (['b', 'c'], {})]
    """
    labels: list[Any] = []
    parts: Message = {}
    for i, (label, message) in enumerate(messages):
        labels.append(label)
        parts |= {f"{i}.{key}": value for key, value in message.items()}
    return parts, {"labels": json.dumps(labels)}


@_unpacking()
def unpack_several(message: Message, header: Header) -> list[tuple[Any, Message]]:
    """The messages behind `pack_several`, whatever else is in the message."""
    found: list[tuple[Any, Message]] = [(label, {}) for label in json.loads(header["labels"])]
    for path, value in message.items():
        number, _, key = path.partition(".")
        if number.isdigit():
            found[int(number)][1][key] = value
    return found


def pack_request(
    request: Ask[Any], context: RoundContext, who: Sequence[Client], fold: Header, limits: Limits
) -> Packed:
    """A request for some clients, without what all are sent; `fold` says how replies are folded there.

    What is folded there is checked there, by `limits`.
    """
    header = {"do": "ask", "task": request.task, "to": json.dumps(who), "fold": json.dumps(fold)}
    header |= {"limits": limits.text()}
    header |= {"shared": "yes" if request.shared else "", **pack_context(context)}
    own, named = pack_stack(request.each.at(who)) if request.each else ({}, {})
    return own, {**header, **named}


def pack_context(context: RoundContext) -> Header:
    """Which round of which run it is."""
    return {"run": str(context.seed.run), "round": str(context.round), "share": repr(context.participation)}


@_unpacking()
def unpack_context(header: Header, clients: tuple[Client, ...]) -> RoundContext:
    """The context behind `pack_context`, among these clients.

    >>> here = RoundContext(Seed(5), 7, (Client("a"),), 0.3)
    >>> unpack_context(pack_context(here), here.clients) == here
    True
    """
    return RoundContext(Seed(int(header["run"])), int(header["round"]), clients, float(header["share"]))


def pack_error(error: Exception, request: Header) -> bytes:
    """An error as bytes: one for people as its line, any other with its traceback and the clients' names."""
    if isinstance(error, KinfolkError):
        return encode({}, {"error": str(error)})
    who = json.loads(request.get("to", "[]"))
    names = "" if not who else f" at client {who[0]}" + (f" or {len(who) - 1} others" if who[1:] else "")
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        remedy = "use fewer processes, a smaller engine.chunk or smaller batches"
        return encode({}, {"error": f"ran out of memory{names}; {remedy}"})
    line = f"failed{names}: {type(error).__name__}: {error}"
    return encode({}, {"error": line, "trace": "".join(traceback.format_exception(error))})


@_unpacking()
def unpack_warnings(header: Header) -> list[str]:
    """What came with an answer besides: see `Server.with_warnings`.

    >>> unpack_warnings({})
    []
    """
    return list(json.loads(header.get("warnings", "[]")))


def opened(data: bytes, sender: str) -> Packed:
    """What another process has sent; an error there is an error here."""
    message, header = decode(data)
    if header.get("trace"):
        raise RuntimeError(f"{sender} {header['error']}\n{header['trace']}")
    if "error" in header:
        raise KinfolkError(sender, None, header["error"])
    return message, header


class Warnings:
    """What the engines of other processes have to tell. The same may have happened to each: it is told once.

    >>> heard = Warnings()
    >>> heard.hear(["no vmap", "no vmap"])
    >>> heard.take(), heard.take()
    (['no vmap'], [])
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._new: list[str] = []

    def hear(self, texts: Iterable[str]) -> None:
        """Note what one of them has told."""
        for text in texts:
            if text not in self._known:
                self._known.add(text)
                self._new.append(text)

    def take(self) -> list[str]:
        """What is new since the last call."""
        told, self._new = self._new, []
        return told


class Server:
    """Does for one process what messages say, with an engine of its own."""

    def __init__(self, engine: Engine, clients: tuple[Client, ...]) -> None:
        self.engine, self.clients = engine, clients
        self.shared: Message = {}

    def answers(self, message: Message, header: Header) -> Iterator[Packed]:
        """What is to be sent back."""
        memories, do = self.engine.memories, header["do"]
        if do == "shared":
            self.shared = message
        elif do == "ask":
            yield from self._replies(message, header)
        elif do == "fetch":
            yield pack_several(sorted(memories.items()))
        elif do == "hold":
            memories.restore(dict(unpack_several(self.here(message), header)))
        elif do in ("snapshot", "rollback"):
            getattr(memories, do)()

    def with_warnings(self, answer: Packed) -> Packed:
        """An answer, and what the engine has to tell besides."""
        told = warnings_of(self.engine)
        return (answer[0], {**answer[1], "warnings": json.dumps(told)}) if told else answer

    def here(self, message: Message) -> Message:
        """A message where the engine computes."""
        return map_leaves(lambda t: t.to(self.engine.device), message)

    def _replies(self, message: Message, header: Header) -> Iterator[Packed]:
        """Perform a request: the total of the replies; or all of them in one if memories came along, which
        go back with them; or chunk by chunk, ended by an empty message.
        """
        engine, who = self.engine, tuple(map(Client, json.loads(header["to"])))
        each = unpack_stack(message, header) if "clients" in header else None
        request: Ask[Any] = Ask(header["task"], who, self.shared if header["shared"] else {}, each)
        context, fold = unpack_context(header, self.clients), json.loads(header["fold"])
        visits = dict(unpack_several(message, header)) if "labels" in header else None
        if visits is not None:
            engine.memories.clear()
            engine.memories.update(visits)
        if fold:
            part = fold_part(engine, request, fold_from(fold), context, Limits.read(header["limits"]))
            yield _with_kept(pack_part(part), engine, visits)
        elif visits is not None:
            whole = Stack.join(list(engine.replies(request, context)))
            yield _with_kept(pack_stack(whole), engine, visits)
        else:
            yield from chain(map(pack_stack, engine.replies(request, context)), [({}, {})])


def serve(server: Server, transport: Transport) -> None:
    """Do what messages say until one says that it is the end."""
    while True:
        message, header = decode(transport.take())
        if header["do"] == "end":
            return
        try:
            for answer in server.answers(message, header):
                transport.put(encode(*server.with_warnings(answer)))
        except Exception as error:
            transport.put(pack_error(error, header))


def _with_kept(reply: Packed, engine: Engine, visits: Mapping[Client, Message] | None) -> Packed:
    """A reply with the memories that were changed by it, if they had come along."""
    if visits is None:
        return reply
    kept, named = pack_several((c, engine.memories[c]) for c in visits if engine.memories[c] is not visits[c])
    return {**reply[0], **kept}, {**reply[1], **named}


def _under(prefix: str, message: Message) -> Message:
    return {key.removeprefix(prefix): value for key, value in message.items() if key.startswith(prefix)}
