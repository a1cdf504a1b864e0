"""SCAFFOLD: clients correct their gradients by how their own mean gradient differs from everybody's.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning. ICML 2020, Algorithm 1 with option II.

    local    y <- y - eta (g_i(y) - c_i + c), K steps from x
    client   c_i+ = c_i - c + (x - y) / (K eta)
    server   x <- x + eta_g mean (y_i - x);  c <- c + |S| / N mean (c_i+ - c_i), over the S who replied

Both means are plain ones, whatever rows clients have. Control variates c_i are about what is trained, and
stay with clients; who is not asked keeps its old one. Buffers are averaged plainly.
c_i is the mean gradient only under plain SGD: see `own_gradient` for momentum; with Adam (x - y) / (K eta) is
something else. Kept and sent is lr c, the length of a step: c itself would be rounding errors of weights
over a small lr.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import one_model
from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.algorithms.blocks.own_gradient import Means, length, one_rate, path
from kinfolk.errors import at_least
from kinfolk.learning.learner import Learner
from kinfolk.script import Script, TuneSpace, fold
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Batch, Carry, ClientInfo, Table
from kinfolk.types import Client, Message, Tree, tree_of


@dataclass(frozen=True)
class State:
    """The common model and the common control variate."""

    model: Tree  # x
    c: Tree  # lr c


@dataclass(frozen=True)
class SCAFFOLD:
    """One model; control variates take the clients' drift out of their steps."""

    learner: Learner
    server_lr: float = 1.0  # eta_g: how far the server goes towards the clients' mean
    aggregate: RobustMean = RobustMean()  # of models, and of changes of control variates
    tune_space: ClassVar[TuneSpace] = {"server_lr": (0.5, 1.0)}

    def __post_init__(self) -> None:
        at_least("algorithm.server_lr", self.server_lr, 0)
        one_rate("scaffold", self.learner)

    eval_inputs, eval_tasks = one_model.eval_inputs, one_model.eval_tasks

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """The common initial model, c = 0."""
        return State(first, self.none(first))

    def init_client(self, who: Client) -> Message:
        """c_i = 0."""
        return {"c": self.none(self.learner.first)}

    def none(self, model: Tree) -> Tree:
        """Zeros for all that is trained."""
        return {n: torch.zeros_like(t) for n, t in self.learner.params(model).items()}

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """x <- x + eta_g mean (y_i - x);  c <- c + |S| / N mean (c_i+ - c_i)."""
        x, shared = state.model, {"model": state.model, "c": state.c}
        by = Means(x, self.none(x), self.aggregate, "uniform")
        y, change, replies, _ = yield from fold(by, "update", cohort, shared)
        if not replies:
            return state, {}
        share = replies / len(context.clients)
        moved = {n: x[n] + self.server_lr * (y[n] - x[n]) for n in state.c}
        return State({**y, **moved}, {n: t + share * change[n] for n, t in state.c.items()}), {}

    def tasks(self) -> Table:
        """Train with the correction; reply the model and by how much c_i has changed."""
        model, c = self.learner.first, self.learner.params(self.learner.first)
        sent, expected = {"model": model, "c": c}, {"model": model, "change": c}
        return {"update": self.learner.train(self.objective, self.start, self.finish, expected, sent)}

    def start(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        """Start at x, with both control variates."""
        x = tree_of(message, "model")
        return {"model": x, "x": x, "c": message["c"], "own": memory["c"], **path(self.learner, facts)}

    def objective(self, model: Tree, batch: Batch, carry: Carry) -> Tensor:
        """F_i(y) + <c - c_i, y>, whose gradient is g_i(y) - c_i + c."""
        y, c, own = self.learner.params(model), carry["c"], carry["own"]
        linear = sum(((c[n] - own[n]) * y[n]).sum() for n in y)
        correction: Tensor = linear / self.learner.lr
        return self.learner.objective(model, batch, carry) + correction

    def finish(self, carry: Carry) -> tuple[Message, Message]:
        """c_i+ - c_i = -c + (x - y) / (K eta); who took no step has met no gradient and keeps its c_i."""
        y, x, c = self.learner.params(carry["model"]), carry["x"], carry["c"]
        far, moved = length(self.learner, carry), carry["steps"] > 0
        change = {n: torch.where(moved, (x[n] - y[n]) / far - c[n], 0.0) for n in y}
        return {"model": carry["model"], "change": change}, {
            "c": {n: t + change[n] for n, t in carry["own"].items()}
        }
