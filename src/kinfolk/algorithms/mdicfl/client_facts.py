"""What clients tell the server once: how large a row is, and where privacy is weak label distributions p_i.

A server that is to make rows believes most clients about their shape. Where privacy is strong, label
distributions are used by clients alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kinfolk.algorithms.blocks.label_counts import label_scan, no_labels
from kinfolk.algorithms.mdicfl.state import State
from kinfolk.learning.learner import Learner
from kinfolk.script import Request, ask
from kinfolk.task import Batch, Carry, FloatSpec, Info, Plan, Scan, Task
from kinfolk.types import Client, Tree, plain_rows

# How far from 1 the sum of a label distribution may be.
SLACK = 1e-3
# Axes of a row that a client can tell of, and numbers in a row that a server makes rows of.
AXES, LARGEST_ROW = 6, 1 << 24


def distribution_task(classes: int, batch: int) -> Task:
    """A task: the label distribution p_i of the client's training rows."""
    finish = lambda carry: ({"labels": distribution(carry)}, None)  # noqa: E731
    return Task(no_labels(classes), finish, (label_scan(batch),), {"labels": FloatSpec((classes,), 0, 1)})


def distribution(carry: Carry) -> Tensor:
    """Counts over the number of rows."""
    shares: Tensor = carry["counts"] / carry["rows"].clamp(min=1)
    return shares


def hear_labels(state: State, cohort: Sequence[Client]) -> Generator[Request, Any, tuple[State, Info]]:
    """The state with the label distributions of all who tell a usable one; and who did not."""
    new = [c for c, known in zip(cohort, state.has_labels(cohort), strict=True) if not known]
    if not new:
        return state, {"bad_labels": []}
    got = yield from ask("labels", new)
    told = got.tensor("labels").cpu().float()
    good = (told.double().sum(1) - 1).abs() <= SLACK
    usable = [c for c, fine in zip(got.clients, good.tolist(), strict=True) if fine]
    held = state.labels.cpu().index_copy(0, state.places(usable), told[good])
    return replace(state, labels=held), {"bad_labels": sorted(set(got.clients) - set(usable))}


def row_shape(told: Tensor, learner: Learner, models: Tree) -> tuple[int, ...]:
    """The shape that most clients tell, of those that the network takes; empty if there is none."""
    votes = Counter(tuple(int(n) for n in row if n > 0) for row in told.tolist())
    for shape, _ in sorted(votes.items(), key=lambda vote: (-vote[1], vote[0])):
        if math.prod(shape) > LARGEST_ROW:
            continue
        model = {n: t[0] for n, t in models.items()}
        try:
            with torch.no_grad():
                learner.apply(model, torch.zeros(2, *shape, device=next(iter(model.values())).device))
        except (RuntimeError, ValueError, IndexError):  # whatever a network says of rows it cannot take
            continue
        return shape
    return ()


def _shape_of(carry: Carry, batch: Batch) -> Carry:
    axes = [*plain_rows(batch.x).shape[1:], *[0] * AXES][:AXES]
    return {"shape": carry["shape"] * 0 + torch.tensor(axes, device=plain_rows(batch.x).device)}


# What every client knows and nobody hides: how many numbers there are to a row, axis by axis.
SHAPE = Task(
    lambda message, memory, facts: {"shape": torch.zeros(AXES, device=facts.rows.device) * facts.rows},
    lambda carry: (carry, None),
    (Scan(_shape_of, Plan(batch=1, steps=1, shuffle=False)),),
    {"shape": FloatSpec((AXES,), 0, LARGEST_ROW)},
)
