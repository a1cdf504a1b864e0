"""Replies that are not what they should be, and an engine that lets them through to the guard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kinfolk.engines.coordinator import Engine, Registers, Rejects
from kinfolk.script import Ask
from kinfolk.streams import RoundContext
from kinfolk.task import Expected, FloatSpec
from kinfolk.types import Client, Message, Stack, Tree, leaves


class Passing:
    """An engine in front of another: `change` may alter or watch each reply, one client at a time."""

    def __init__(self, engine: Engine, change: Callable[[Ask[Any], Stack], Stack]) -> None:
        self.engine, self.change = engine, change
        self.name, self.note, self.device = engine.name, engine.note, engine.device
        self.table, self.memories = engine.table, engine.memories
        self.swap, self.close = engine.swap, engine.close

    def claims(self, who: Sequence[Client]) -> Mapping[Client, int]:
        """What the engine's clients said of their rows, before anything was changed."""
        return self.engine.claims(who) if isinstance(self.engine, Registers) else {}

    def take_rejected(self) -> dict[Client, str]:
        """Whose messages the engine could not read."""
        return self.engine.take_rejected() if isinstance(self.engine, Rejects) else {}

    def replies(self, request: Ask[Any], context: RoundContext) -> Iterator[Stack]:
        """The engine's replies, each changed."""
        for chunk in self.engine.replies(request, context):
            for who in chunk.clients:
                yield self.change(request, chunk.at([who]))


def spoil(how: Mapping[Client, str]) -> Callable[[Engine], Engine]:
    """A wrapper that damages what chosen clients reply in the rounds, each in one of the ways of HARMS."""

    def change(request: Ask[Any], reply: Stack) -> Stack:
        harm = how.get(reply.clients[0])
        if harm is None or request.task.startswith("score."):
            return reply
        return HARMS[harm](reply)

    return lambda engine: Passing(engine, change)


def _leaf(reply: Stack, change: Callable[[Tensor], Tensor]) -> Stack:
    """The reply with one of its floating tensors of two or more entries changed, if it has one."""
    for key, name, leaf in leaves(reply.body):
        if leaf.is_floating_point() and leaf.numel() > 1:
            new = change(leaf)
            value = {**reply.body[key], name: new} if name is not None else new
            return Stack(reply.clients, reply.size, {**reply.body, key: value})
    return _stray(reply)


def _last(value: float) -> Callable[[Tensor], Tensor]:
    """One bad entry at the very end, where a careless look misses it."""

    def change(leaf: Tensor) -> Tensor:
        flat = leaf.reshape(-1).clone()
        flat[-1] = value
        return flat.reshape(leaf.shape)

    return change


def _stray(reply: Stack) -> Stack:
    return Stack(reply.clients, reply.size, {**reply.body, "stray": torch.zeros(1, 1)})


def _tree(reply: Stack, change: Callable[[Tree], Tree]) -> Stack:
    """The reply with its first tree of several tensors changed, if it has one."""
    for key, value in reply.body.items():
        if isinstance(value, dict) and len(value) > 1:
            return Stack(reply.clients, reply.size, {**reply.body, key: change(value)})
    return _stray(reply)


def _scaled(factor: float) -> Callable[[Stack], Stack]:
    """Finite, of the right form, and absurd: beside the cohort's models it is larger by this factor."""

    def scaled(tree: Tree) -> Tree:
        return {n: t * factor + factor if t.is_floating_point() else t for n, t in tree.items()}

    return lambda reply: _tree(reply, scaled)


def _count(number: int) -> Callable[[Stack], Stack]:
    return lambda reply: Stack(reply.clients, torch.tensor([number]), reply.body)


class Misled:
    """A wrapper by which one client is sent something else for a task: `harm` makes it, or None."""

    def __init__(self, who: Client, task: str, harm: Callable[[Message], Message | None]) -> None:
        self.who, self.task, self.harm = who, task, harm
        self.reached = False  # whether it has been

    def __call__(self, engine: Engine) -> Engine:
        """The engine, in which this client is misled."""
        made = Passing(engine, lambda request, reply: reply)
        made.replies = partial(self._replies, engine)  # type: ignore[method-assign]
        return made

    def _replies(self, engine: Engine, request: Ask[Any], context: RoundContext) -> Iterator[Stack]:
        changed = None
        if request.task == self.task and self.who in request.to:
            own = request.each.row(self.who) if request.each else {}
            changed = self.harm({**request.shared, **own})
        if changed is None:
            yield from engine.replies(request, context)
            return
        self.reached = True
        yield from engine.replies(replace(request, to=tuple(c for c in request.to if c != self.who)), context)
        yield from engine.replies(Ask(request.task, (self.who,), changed), context)


def _number(change: Callable[[Tensor], Tensor]) -> Callable[[Expected, Message], Message | None]:
    """The message with a declared number, or several, changed; None if none is declared."""

    def harmed(sent: Expected, message: Message) -> Message | None:
        key = next((key for key, one in sent.items() if isinstance(one, FloatSpec)), None)
        return None if key is None else {**message, key: change(message[key])}

    return harmed


def _sent_tree(change: Callable[[Tree], Tree]) -> Callable[[Expected, Message], Message | None]:
    """The message with a declared tree changed; None if none is declared."""

    def harmed(sent: Expected, message: Message) -> Message | None:
        key = next((key for key, one in sent.items() if isinstance(one, dict)), None)
        return None if key is None else {**message, key: change(message[key])}

    return harmed


def _first(change: Callable[[Tensor], Tensor]) -> Callable[[Tree], Tree]:
    return lambda tree: {n: change(t) if i == 0 else t for i, (n, t) in enumerate(tree.items())}


# Ways to damage what a client is sent. One that does not fit gives None.
QUESTIONS: dict[str, Callable[[Expected, Message], Message | None]] = {
    "nothing": lambda sent, message: {},
    "a number that is none": _number(lambda t: t * float("nan")),
    "a negative number": _number(lambda t: -1 - t.abs()),
    "one number more": _number(lambda t: torch.cat([t.reshape(1, -1), t.reshape(1, -1)])),
    "a number less": _number(lambda t: t.reshape(-1)[:-1]),
    "a model without a tensor": _sent_tree(lambda tree: dict(list(tree.items())[1:])),
    "a model of another shape": _sent_tree(_first(lambda t: t.reshape(-1)[:-1])),
    "a model of another type": _sent_tree(_first(lambda t: t.double())),
}

# Ways to damage a reply. One that does not fit (no tree, no floats) adds a stray tensor instead.
HARMS: dict[str, Callable[[Stack], Stack]] = {
    "a NaN": lambda reply: _leaf(reply, _last(float("nan"))),
    "an infinity": lambda reply: _leaf(reply, _last(float("inf"))),
    "another type": lambda reply: _leaf(reply, lambda t: t.long()),
    "a shape that broadcasts": lambda reply: _leaf(reply, lambda t: t.reshape(1, -1)[:, :1]),
    "a missing tensor": lambda reply: _tree(reply, lambda t: dict(list(t.items())[:-1])),
    "an extra tensor": lambda reply: _tree(reply, lambda t: {**t, "stray": torch.zeros(1, 1)}),
    "other order of names": lambda reply: _tree(reply, lambda t: dict(reversed(t.items()))),
    "a negative count": _count(-1),
    "a count of zero": _count(0),
    "a count of a billion": _count(10**9),
    "a huge count": _count(10**18),
    "a model 200 times as large": _scaled(200.0),
    "a model 1e5 times as large": _scaled(1e5),
    "a model 1e12 times as large": _scaled(1e12),
}
