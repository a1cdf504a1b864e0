"""What ranks send one another, as bytes: stacks, several messages in one, letters between clients, errors."""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence

from kinfolk.codec import decode, encode
from kinfolk.engines.memory import Added
from kinfolk.errors import KinfolkError
from kinfolk.types import Client, Message, Stack

Header = dict[str, str]
Letter = tuple[Client, Client, Message]  # from, to, what


def stacked(stack: Stack, header: Header) -> bytes:
    """A stack as bytes.

    >>> import torch
    >>> one = Stack.of({Client("a"): (3, {"v": torch.tensor(1.0)})})
    >>> back = stack(*decode(stacked(one, {})))
    >>> back.clients, back.size, back.body
    (('a',), tensor([3]), {'v': tensor([1.])})
    """
    body = {f"body.{key}": value for key, value in stack.body.items()}
    return encode({"size": stack.size, **body}, {**header, "clients": json.dumps(stack.clients)})


def stack(message: Message, header: Header) -> Stack:
    """The stack behind `stacked`; sizes stay on the host."""
    body = {key.removeprefix("body."): value for key, value in message.items() if key != "size"}
    return Stack(tuple(json.loads(header["clients"])), message["size"].cpu(), body)


def tied(messages: Sequence[Message], header: Header) -> bytes:
    """Several messages in one, each key under the number of its message.

    >>> import torch
    >>> untied(*decode(tied([{"v": torch.tensor(1)}, {}], {})))
    [{'v': tensor(1)}, {}]
    """
    parts = {f"{i}.{key}": value for i, message in enumerate(messages) for key, value in message.items()}
    return encode(parts, {**header, "count": str(len(messages))})


def untied(message: Message, header: Header) -> list[Message]:
    """The messages behind `tied`."""
    found: list[Message] = [{} for _ in range(int(header["count"]))]
    for path, value in message.items():
        number, _, key = path.partition(".")
        found[int(number)][key] = value
    return found


def enveloped(written: list[Letter]) -> bytes:
    """Letters from the clients of one rank to those of another."""
    return tied([what for _, _, what in written], {"names": json.dumps([(a, b) for a, b, _ in written])})


def letters(data: bytes, rank: int) -> list[Letter]:
    """The letters behind `enveloped`, from a rank."""
    message, header = opened(data, rank)
    names = json.loads(header["names"])
    return [(a, b, what) for (a, b), what in zip(names, untied(message, header), strict=True)]


def with_added(rows: Added, header: Header) -> bytes:
    """What a rank says of an exchange, with the rows that its clients will never forget.

    >>> import torch
    >>> one = [(Client("a"), "log", torch.zeros(1, 2, dtype=torch.uint8))]
    >>> added(*decode(with_added(one, {})))
    [('a', 'log', tensor([[0, 0]], dtype=torch.uint8))]
    """
    named = json.dumps([(who, entry) for who, entry, _ in rows])
    return tied([{"rows": new} for _, _, new in rows], {**header, "added": named})


def added(message: Message, header: Header) -> Added:
    """The rows behind `with_added`."""
    found = zip(json.loads(header["added"]), untied(message, header), strict=True)
    return [(Client(who), entry, one["rows"]) for (who, entry), one in found]


def report(error: Exception) -> bytes:
    """An error as bytes: one for people as its line, any other with its traceback."""
    if isinstance(error, KinfolkError):
        return encode({}, {"error": str(error)})
    line = f"{type(error).__name__}: {error}"
    return encode({}, {"error": line, "trace": "".join(traceback.format_exception(error))})


def opened(data: bytes, rank: int) -> tuple[Message, Header]:
    """What a rank has sent; an error there is an error here."""
    message, header = decode(data)
    if header.get("trace"):
        raise RuntimeError(f"rank {rank} failed: {header['error']}\n{header['trace']}")
    if "error" in header:
        raise KinfolkError(f"rank {rank}", None, header["error"])
    return message, header
