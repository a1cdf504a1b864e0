"""Clients that keep what they train: a task replies all but its model, which stays in the client's memory.

What secure sums add to memories and carries begins with PREFIX; no algorithm gets to see it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import torch
from torch import Tensor

from kinfolk.shares.answer_log import empty_log
from kinfolk.shares.fixed_point import SEED
from kinfolk.shares.vector import layers_of
from kinfolk.task import Batch, Carry, ClientInfo, Expected, IntSpec, Scan, Table, Task
from kinfolk.types import Client, Message, Tree

PREFIX = "sums."
HELD = "sums.held"  # the model that is to be summed
LOG = "sums.answered"  # which sums were answered, forever: see `shares.answer_log`
LIST = "sums.list"  # with whom, by which weights
RESPONSE, ANSWER = "sums.response", "sums.answer"  # what could be answered, and what may be
LOST, WHY = "sums.lost", "sums.why"  # whose shares did not come; why one makes none itself
OWN = "sums.own."  # and a key: what the algorithm keeps, while a task runs
FIT = "sums.fit"  # whether all numbers of a model are finite and within the limit
COUNTS = "sums.counts"  # the whole numbers of a model, which no sum is made of

# Why a client has no part in a sum. It says no more, since the numbers of its model are its own.
REASONS = (
    "",
    "was not there when lists were told",
    "does not agree to the list, its weights or its number",
    "its model is not finite or out of range, and is not shared",
)
FINE, ABSENT, UNWILLING, UNFIT = range(4)


def first_memory(remember: Callable[[Client], Message]) -> Callable[[Client], Message]:
    """What clients hold at first, with an empty log of answers.

    >>> first_memory(lambda who: {})(Client("ann"))["sums.answered"].shape
    torch.Size([0, 72])
    """
    return lambda who: {**remember(who), LOG: empty_log()}


def summed_trees(table: Table, summed: Collection[str]) -> dict[str, tuple[str, Tree]]:
    """The key and the form of what each of some tasks replies to be summed.

    >>> tree = {"w": torch.zeros(2)}
    >>> reply = {"model": tree, "choice": IntSpec(0, 2)}
    >>> task = Task(lambda *given: {}, lambda carry: ({}, None), reply=reply)
    >>> summed_trees({"update": task}, ["update", "try"])
    {'update': ('model', {'w': tensor([0., 0.])})}
    """
    return {name: trees(table[name])[0] for name in summed if name in table}


def trees(entry: object) -> list[tuple[str, Tree]]:
    """What a task replies that is a model."""
    declared = entry.reply.items() if isinstance(entry, Task) else ()
    return [(key, value) for key, value in declared if isinstance(value, dict)]


def armed(table: Table, summed: Collection[str], clients: int, limit: float) -> Table:
    """The tasks, in which models stay where they are, and the steps by which they are summed.

    >>> from kinfolk.learning.learner import keep_model
    >>> task = Task(lambda *given: {}, keep_model, reply={"model": {"w": torch.zeros(2)}})
    >>> sorted(armed({"update": task}, ("update",), 3, 1.0))
    ['sums.answer.update', 'sums.list', 'sums.ready', 'update']
    """
    found = summed_trees(table, summed)
    made: dict[str, Task] = {"sums.list": TAKE_LIST, "sums.ready": _ready(clients)}
    for name, (_, tree) in found.items():
        made[f"sums.answer.{name}"] = _answer(clients, sum(length for _, length in layers_of(tree)))
    around = {
        name: _around(task, found[name][0] if name in found else "", limit)
        if isinstance(task, Task)
        else task
        for name, task in table.items()
    }
    return {**around, **made}


def _split_off(held: Message) -> tuple[Message, Message]:
    """(what is the algorithm's, what is ours)."""
    ours = {k: v for k, v in held.items() if k.startswith(PREFIX)}
    return {k: v for k, v in held.items() if k not in ours}, ours


def _around(task: Task, key: str, limit: float) -> Task:
    """A task as it is, but that the tree `key` of its reply stays in the memory; with no key, as it is."""

    def start(message: Message, memory: Message, facts: ClientInfo) -> Carry:
        own, ours = _split_off(memory)
        log = {LOG: ours[LOG]} if key else ours
        kept = {OWN + k: v for k, v in own.items()} if key else {}
        return {**task.start(message, own, facts), **log, **kept}

    def finish(carry: Carry) -> tuple[Message, Message | None]:
        own, ours = _split_off(carry)
        reply, memory = task.finish(own)
        if not key:
            return reply, None if memory is None else {**memory, **ours}
        if memory is None:
            memory = {k.removeprefix(OWN): v for k, v in ours.items() if k.startswith(OWN)}
        model = reply[key]
        held = {n: t for n, t in model.items() if t.is_floating_point()}
        whole = [t.reshape(-1).long() for n, t in model.items() if n not in held]
        fit = torch.stack([(t.abs() <= limit).all() for t in held.values()]).all().long()
        told = {FIT: fit, **({COUNTS: torch.cat(whole)} if whole else {})}
        rest = {k: v for k, v in reply.items() if k != key}
        return {**rest, **told}, {**memory, LOG: ours[LOG], HELD: held}

    passes = tuple(replace(one, step=_blind(one)) if isinstance(one, Scan) else one for one in task.passes)
    expected = _without(task.reply, key) if key else task.reply
    return replace(task, start=start, finish=finish, passes=passes, reply=expected)


def _blind(scan: Scan) -> Callable[[Carry, Batch], Carry]:
    def step(carry: Carry, batch: Batch) -> Carry:
        own, ours = _split_off(carry)
        return {**scan.step(own, batch), **ours}

    return step


def _without(reply: Expected, key: str) -> Expected:
    tree: Tree = reply[key]  # type: ignore[assignment]
    count = sum(t.numel() for t in tree.values() if not t.is_floating_point())
    told = {COUNTS: torch.zeros(count, dtype=torch.int64)} if count else {}
    return {**{k: v for k, v in reply.items() if k != key}, FIT: IntSpec(0, 2), **told}


def _take_list(message: Message, memory: Message, facts: ClientInfo) -> Carry:
    """Hold the list, whatever it is: only who has been told one looks at it (`member`)."""
    gone = (RESPONSE, ANSWER, LOST, WHY)
    kept = {k: v for k, v in memory.items() if k not in gone and not k.startswith("sums.share.")}
    return {**kept, LIST: {k: message[k] for k in ("mask", "sigma", "number", "group")}}


TAKE_LIST = Task(_take_list, lambda carry: ({}, carry))


def _ready(clients: int) -> Task:
    """Say whose shares did not come, and why one has made none."""

    def start(message: Message, memory: Message, facts: ClientInfo) -> Carry:
        none = facts.rows * 0
        lost = memory.get(LOST, torch.zeros(clients, dtype=torch.bool, device=none.device))
        return {"why": memory.get(WHY, none + ABSENT), "lost": lost}

    reply: Expected = {"why": IntSpec(0, len(REASONS)), "lost": torch.zeros(clients, dtype=torch.bool)}
    return Task(start, lambda carry: (carry, None), reply=reply)


def _answer(clients: int, size: int) -> Task:
    """The part of the sum that one may answer; zeros, which are nobody's answer, without one."""
    reply: dict[str, Tensor] = {
        "exchange": torch.zeros(SEED, dtype=torch.uint8),
        "sum": torch.zeros(size, dtype=torch.int64),
        "seen": torch.zeros(clients, SEED, dtype=torch.uint8),
        "digest": torch.zeros(SEED, dtype=torch.uint8),
    }

    def start(message: Message, memory: Message, facts: ClientInfo) -> Carry:
        device = facts.rows.device
        none = {key: (t.to(device) + (facts.rows * 0).to(t.dtype)) for key, t in reply.items()}
        found = memory.get(ANSWER, none)
        return dict(found) if found["sum"].shape == none["sum"].shape else none

    return Task(start, lambda carry: (carry, None), reply=reply)


def cleared(memory: Message) -> Message:
    """A memory without anything of a sum but the log of answers.

    >>> sorted(cleared({"pi": 1, "sums.answered": 2, "sums.held": 3, "sums.share.0": 4}))
    ['pi', 'sums.answered']
    """
    return {k: v for k, v in memory.items() if k == LOG or not k.startswith(PREFIX)}
