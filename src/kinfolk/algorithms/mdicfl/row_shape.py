"""How large a row is: clients tell it axis by axis; a server that is to make rows believes most of them."""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import Tensor

from kinfolk.learning.learner import Learner
from kinfolk.task import Batch, Carry, FloatSpec, Plan, Scan, Task
from kinfolk.types import Tree

# Axes of a row that a client can tell of, and numbers in a row that a server makes rows of.
AXES, LARGEST_ROW = 6, 1 << 24


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
    axes = [*batch.x.shape[1:], *[0] * AXES][:AXES]
    return {"shape": carry["shape"] * 0 + torch.tensor(axes, device=batch.x.device)}


# What every client knows and nobody hides: how many numbers there are to a row, axis by axis.
SHAPE = Task(
    lambda message, memory, facts: {"shape": torch.zeros(AXES, device=facts.rows.device) * facts.rows},
    lambda carry: (carry, None),
    (Scan(_shape_of, Plan(batch=1, steps=1, shuffle=False)),),
    {"shape": FloatSpec((AXES,), 0, LARGEST_ROW)},
)
