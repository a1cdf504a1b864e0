"""An algorithm's state and its clients' memories as messages, so that they can be written without pickle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from kinfolk.types import Client, Message, map_leaves

S = TypeVar("S")


def to_message(state: Any) -> tuple[Message, dict[str, Any]]:
    """(tensors, plain values) of a state: a dataclass of tensors, trees and plain values."""
    tensors: Message = {}
    plain: dict[str, Any] = {}
    for f in fields(state):
        value = getattr(state, f.name)
        if isinstance(value, Tensor | dict):
            tensors[f.name] = value
        elif isinstance(value, float) and not math.isfinite(value):
            plain[f.name] = {"float": str(value)}  # JSON has no word for it
        elif value is None or isinstance(value, bool | int | float | str):
            plain[f.name] = value
        elif isinstance(value, tuple) and all(isinstance(v, str | int) for v in value):
            plain[f.name] = list(value)  # names of clients, for one
        else:
            raise TypeError(
                f"state.{f.name} is a {type(value).__name__}; use tensors, trees and plain values"
            )
    return tensors, plain


def from_message(like: S, tensors: Message, plain: Mapping[str, Any], device: torch.device) -> S:
    """A state of the same class as `like` out of what `to_message` gave; trees are of the same network."""
    for name, value in tensors.items():
        first = getattr(like, name, None)
        if isinstance(first, dict) and first and _form(first) != _form(value):
            raise ValueError(f"state.{name} is of another network")
    here = map_leaves(lambda t: t.to(device), tensors)
    values = {
        key: float(v["float"]) if isinstance(v, dict) else tuple(v) if isinstance(v, list) else v
        for key, v in plain.items()
    }
    return type(like)(**here, **values)


def _form(value: Any) -> dict[str, int] | None:
    """The names of a tree and how many axes each leaf has: how many groups there are may change."""
    return {name: leaf.dim() for name, leaf in value.items()} if isinstance(value, dict) else None


def changes(before: Any, after: Any) -> tuple[Message, dict[str, Any]]:
    """(tensors, plain values) of a state that are other than in the state before it.

    >>> from dataclasses import dataclass
    >>> State = dataclass(type("State", (), {"__annotations__": {"w": Tensor, "n": int}}))
    >>> w = torch.zeros(1)
    >>> changes(State(w, 1), State(w, 2)), changes(State(w, 1), State(w + 1, 1))
    (({}, {'n': 2}), ({'w': tensor([1.])}, {}))
    """
    (old, said), (new, says) = to_message(before), to_message(after)
    moved = {key: value for key, value in new.items() if key not in old or not _equal(old[key], value)}
    return moved, {key: value for key, value in says.items() if key not in said or said[key] != value}


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[name], b[name]) for name in a)
    return a is b or (isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a.cpu(), b.cpu()))


def memories_to_message(memories: Mapping[int, Message]) -> Message:
    """Memories by their clients' numbers in the sorted list of names, in one message.

    >>> memories_to_message({1: {"n": torch.tensor(1)}})
    {'1.n': tensor(1)}
    """
    # A memory that is empty is not the same as none: it leaves an entry without a name.
    return {
        f"{number}.{key}": value
        for number, memory in sorted(memories.items())
        for key, value in (memory or {"": {}}).items()
    }


def memories_from_message(message: Message, clients: tuple[Client, ...]) -> dict[Client, Message]:
    """The memories behind `memories_to_message`.

    >>> memories_from_message({"1.n": torch.tensor(1)}, (Client("a"), Client("b")))
    {'b': {'n': tensor(1)}}
    """
    memories: dict[Client, Message] = {}
    for path, value in message.items():
        number, _, key = path.partition(".")
        memory = memories.setdefault(clients[int(number)], {})
        if key:
            memory[key] = value
    return memories
