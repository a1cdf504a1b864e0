"""How many training rows of each class a client has."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kinfolk.task import Batch, Carry, ClientInfo, FloatSpec, Plan, Scan, Task
from kinfolk.types import Message, plain_rows


def count_labels(classes: int, batch: int) -> Task:
    """A task: how many training rows of each class there are; as floats, whose range the guard checks."""
    expected = {"labels": FloatSpec((classes,), low=0)}
    finish = lambda carry: ({"labels": carry["counts"]}, None)  # noqa: E731
    return Task(no_labels(classes), finish, (label_scan(batch),), expected)


def no_labels(classes: int) -> Callable[[Message, Message, ClientInfo], Carry]:
    """How a task starts that counts labels: with zeros, and the number of rows."""

    def start(message: Message, memory: Message, facts: ClientInfo) -> Carry:
        # Zeros made of the client's own number of rows: each client has its own from the beginning.
        none = facts.rows * 0.0
        return {"counts": torch.zeros(classes, device=none.device) + none, "rows": facts.rows}

    return start


def label_scan(batch: int) -> Scan:
    """One pass over the rows that adds to the counts."""
    return Scan(_count_labels, Plan(batch, shuffle=False))


def _count_labels(carry: Carry, batch: Batch) -> Carry:
    seen = plain_rows(batch.y)[:, None] == torch.arange(
        len(carry["counts"]), device=plain_rows(batch.y).device
    )
    return {**carry, "counts": carry["counts"] + batch.sum(seen.to(carry["counts"]))}
