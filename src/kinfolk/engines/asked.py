"""The client's side of the guard: what it is sent must be what its task declares, or it does not answer.

Of models names, shapes and types are looked at and not numbers: one that has diverged is trained as it is,
and what comes of it is refused where it arrives. More than what is declared may be sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from kinfolk.engines.guard import inspect
from kinfolk.errors import KinfolkError
from kinfolk.script import Ask
from kinfolk.task import Expected, Task
from kinfolk.types import Client, IndexedMessages, Message, Stack, map_leaves


def willing(task: Task, request: Ask[Any]) -> Ask[Any]:
    """The request among those who answer it.

    >>> from kinfolk.task import FloatSpec
    >>> task = Task(lambda *given: {}, lambda carry: ({}, None), sent={"rate": FloatSpec((), 0, 1)})
    >>> who = (Client("ann"),)
    >>> [willing(task, Ask("t", who, {"rate": torch.tensor(rate)})).to for rate in (0.5, 2.0)]
    [('ann',), ()]
    """
    bad = declined(task, request)
    return replace(request, to=tuple(c for c in request.to if c not in bad)) if bad else request


def check(task: Task, request: Ask[Any]) -> None:
    """Refuse to send what nobody would answer: that is a slip of the algorithm.

    >>> task = Task(lambda *given: {}, lambda carry: ({}, None), sent={"model": {}})
    >>> check(task, Ask("t", (Client("ann"),)))
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: task = 't': nobody answers what is sent: model is missing
    """
    bad = declined(task, request)
    if bad and len(bad) == len(request.to):
        raise KinfolkError("task", request.task, f"nobody answers what is sent: {next(iter(bad.values()))}")


def declined(task: Task, request: Ask[Any]) -> dict[Client, str]:
    """Who does not answer a request, and why."""
    sent, each = task.sent, request.each
    if sent is None or not request.to:
        return {}
    own: Message = {} if each is None else each.table if isinstance(each, IndexedMessages) else each.body
    missing = sorted(set(sent) - set(request.shared) - set(own))
    if missing:
        return dict.fromkeys(request.to, f"{missing[0]} is missing")
    common = {key: one for key, one in sent.items() if key not in own}
    shared = {key: request.shared[key] for key in common}
    first = Client(request.to[0])
    everybody = Stack((first,), torch.ones(1, dtype=torch.int64), map_leaves(lambda t: t[None], shared))
    why = _unfit(everybody, common)
    if why:
        return dict.fromkeys(request.to, why[first])
    particular = {key: one for key, one in sent.items() if key in own}
    if each is None or not particular:
        return {}
    if not isinstance(each, IndexedMessages):
        return _unfit(replace(each, body={key: own[key] for key in particular}).at(request.to), particular)
    kinds = each.kinds(request.to).tolist()
    names = tuple(Client(str(kind)) for kind in range(len(next(_leaves(own)))))
    bad = _unfit(Stack(names, torch.ones(len(names), dtype=torch.int64), own), particular)
    why_by = {int(name): why for name, why in bad.items()}
    return {c: why_by[kind] for c, kind in zip(request.to, kinds, strict=True) if kind in why_by}


def _unfit(chunk: Stack, sent: Expected) -> dict[Client, str]:
    """Who is sent something else, and what is wrong with it."""
    body = {key: chunk.body[key] for key in sent}
    ones = torch.ones(len(chunk), dtype=torch.int64)
    return inspect(Stack(chunk.clients, ones, body), sent, trees=False)[1]


def _leaves(message: Message) -> Any:
    return (leaf for v in message.values() for leaf in (v.values() if isinstance(v, dict) else [v]))
