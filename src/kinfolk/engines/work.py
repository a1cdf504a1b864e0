"""How much clients train when they are asked: visits of rows in passes with gradients."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from kinfolk.federation.federation import Federation
from kinfolk.learning.plan import row_visits
from kinfolk.task import Fit, Plan, Task
from kinfolk.types import Client


@dataclass(frozen=True)
class Work:
    """What some clients train for one request."""

    task: str
    clients: int
    rows: int  # their training rows
    visits: int  # rows that passes with gradients visit, each as often as it is visited
    extra: int  # of these, what goes beyond a round's own local update


def trained_by(
    name: str, task: Task, who: Sequence[Client], again: Collection[Client], federation: Federation
) -> Work:
    """The work of a task for some clients; those who do it `again` could have kept what they made.

    >>> import torch
    >>> from kinfolk.federation.federation import pack
    >>> from kinfolk.learning.learner import Learner
    >>> from kinfolk.learning.losses import find_loss
    >>> x, y = torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64)
    >>> train = pack([torch.arange(3), torch.arange(3, 5)])
    >>> two = Federation((Client("ann"), Client("bob")), x, y, {"train": train}, classes=3)
    >>> task = Learner(torch.nn.Linear(2, 3), find_loss("cross_entropy"), 3, plan=Plan(2, epochs=4)).train()
    >>> trained_by("update", task, two.clients, (), two)
    Work(task='update', clients=2, rows=5, visits=20, extra=0)
    """
    new = [federation.place(c) for c in who if c not in again] if again else _places(who, federation)
    visits = sum(_visits(one.plan, new, federation) for one in task.passes if isinstance(one, Fit))
    spared = _visits(task.spares, new, federation) if task.spares else 0
    rows = int(_counts("train", new, federation).sum())
    return Work(name, len(new), rows, visits, max(visits - spared, 0) if task.extra else 0)


def _places(who: Sequence[Client], federation: Federation) -> Sequence[int]:
    if len(who) == len(federation.clients):
        return range(len(who))
    return [federation.place(c) for c in who]


def _counts(split: str, places: Sequence[int], federation: Federation) -> np.ndarray:
    return federation.splits[split].counts().numpy(force=True)[np.asarray(places, dtype=np.int64)]


def _visits(plan: Plan, places: Sequence[int], federation: Federation) -> int:
    sizes, often = np.unique(_counts(plan.split, places, federation), return_counts=True)
    return sum(row_visits(plan, int(n)) * int(times) for n, times in zip(sizes, often, strict=True))
