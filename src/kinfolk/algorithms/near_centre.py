"""What methods share whose clients belong to the centre that their own model is nearest to.

The local step holds a client near its centre: w_i <- argmin_w a_i F_i(w) + (lambda / N) |w - c_{s_i}|^2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kinfolk.task import Batch, Carry, Facts, Task
from kinfolk.types import Message, Tree

# The number of rows comes with every reply; there is nothing else to say.
COUNT = Task(lambda message, memory, facts: {"rows": facts.rows}, lambda carry: ({}, None))


def begin(self: Any, message: Message, memory: Message, facts: Facts) -> Carry:
    """Start at c_{s_i}, and remember where that was and how strongly it pulls."""
    scale = facts.rows.clamp(min=1) if self.prox_scaling == "normalised" else 1
    return {"model": message["model"], "centre": message["model"], "pull": message["pull"] / scale}


def objective(self: Any, model: Tree, batch: Batch, carry: Carry) -> Tensor:
    """F_i(w) + lambda_i |w - c|^2 over the trainable parameters."""
    w, c = self.learner.params(model), self.learner.params(carry["centre"])
    apart = sum(((w[n] - c[n]) ** 2).sum() for n in w)
    loss: Tensor = self.learner.objective(model, batch, carry)
    return loss + carry["pull"] * apart if self.lam else loss


def squared_distances(models: Tree, centres: Tree, names: Sequence[str]) -> Tensor:
    """|w_i - c_k|^2 over the named leaves, [clients, K] in float64.

    >>> w, c = {"v": torch.tensor([[0.0], [3.0]])}, {"v": torch.tensor([[1.0], [3.0]])}
    >>> squared_distances(w, c, ["v"])
    tensor([[1., 9.],
            [4., 0.]], dtype=torch.float64)
    """
    k = len(centres[names[0]])
    return torch.stack(
        [
            torch.stack([_apart(models[n], centres[n][j]) for n in names]).sum(0)
            for j in range(k)
        ],
        dim=1,
    )  # fmt: skip


def _apart(models: Tensor, centre: Tensor) -> Tensor:
    return (models - centre).reshape(len(models), -1).square().sum(1, dtype=torch.float64)
