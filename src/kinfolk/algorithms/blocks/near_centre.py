"""What methods share whose clients belong to the centre that their own model is nearest to.

The local step holds a client near its centre: w_i <- argmin_w a_i F_i(w) + (lambda / N) |w - c_{s_i}|^2.

Divided by a_i the penalty weighs lambda_i = lambda / (N a_i), without bound for a client of few rows, and
explicit steps diverge from lr lambda_i = 1 on. So steps are implicit in the penalty:

    w <- (w - lr grad F_i(w) + 2 lr lambda_i c) / (1 + 2 lr lambda_i)
       = w - lr grad (F_i(w) + lambda_i |w - c|^2) / (1 + 2 lr lambda_i),

the explicit step, shorter by a factor that each client knows before it begins. Optimisers and engines do not
know of it, and momentum is stable as well. For small lr lambda_i both steps agree to first order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kinfolk.task import Batch, Carry, ClientInfo, Expected, Fit, FloatSpec, Task
from kinfolk.types import Message, Tree, tree_of

# The number of rows comes with every reply; there is nothing else to say.
COUNT = Task(lambda message, memory, facts: {"rows": facts.rows}, lambda carry: ({}, None))


def begin(self: Any, message: Message, memory: Message, facts: ClientInfo) -> Carry:
    """Start at c_{s_i}, and remember where that was, how strongly it pulls, and what steps are divided by."""
    scale = facts.rows.clamp(min=1) if self.prox_scaling == "normalised" else 1
    pull = message["pull"] / scale
    shorter = 1 + 2 * self.learner.descent().rate(facts.round) * pull
    return {
        "model": tree_of(message, "model"),
        "centre": tree_of(message, "model"),
        "pull": pull,
        "shorter": shorter,
    }


def sent(self: Any) -> Expected:
    """What a client must be sent to begin: the centre, and how strongly it pulls."""
    return {"model": self.learner.first, "pull": FloatSpec((), 0)}


def objective(self: Any, model: Tree, batch: Batch, carry: Carry) -> Tensor:
    """F_i(w) + lambda_i |w - c|^2 over the trainable parameters."""
    w, c = self.learner.params(model), self.learner.params(carry["centre"])
    apart = sum(((w[n] - c[n]) ** 2).sum() for n in w)
    loss: Tensor = self.learner.objective(model, batch, carry)
    return loss + carry["pull"] * apart if self.lam else loss


def implicit(self: Any, model: Tree, batch: Batch, carry: Carry) -> Tensor:
    """The objective over 1 + 2 lr lambda_i: a step along its gradient is implicit in the penalty."""
    value: Tensor = self.objective(model, batch, carry)
    return value / carry["shorter"] if self.lam else value


def eval_tasks(self: Any) -> Mapping[str, Task]:
    """c_{s_i} as it is; w_i, which the local update makes of it; c_{s_i} after one plain epoch."""
    update = Fit((self.learner.descent(self.implicit),), self.learner.plan)
    return {
        "centre": self.learner.score(),
        "personal": self.learner.score(self.begin, update, stream="batch"),
        "fine-tuned": self.learner.score(tune=self.learner.tuning(1)),
    }


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
