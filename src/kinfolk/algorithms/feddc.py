"""FedDC: each client keeps how far it drifts from the common model, and the server adds the mean drift.

Gao, Fu, Li, Chen, Xu, Xu: FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and
Correction. CVPR 2022, Algorithm 1. With r_i = n_i / mean n, as in the authors' code:

    local    v minimises F_i(v) + (a / 2 r_i) |v - (w - h_i)|^2 + <v, g / r_i - g_i>, from w
    client   h_i += v - w;  g_i <- g_i - g / r_i - (v - w) / (steps eta)
    server   w <- mean of v over who replied + mean of h over all;  g += sum r_i (change of g_i) / N

Drift is about what is trained; buffers are averaged plainly. Clients keep two vectors of the model's size.
g_i is the mean gradient only under plain SGD. With momentum `steps` counts as many plain ones as would go as
far, else g_i is ten times too long at 0.9 and the correction blows up; with Adam (v - w) / (steps eta) is
something else.
Kept and sent is lr g, the length of a step: g itself would be rounding errors of weights over a small lr.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import one_model
from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.algorithms.blocks.own_gradient import Means, length, one_rate, path
from kinfolk.errors import at_least
from kinfolk.learning.learner import Learner
from kinfolk.script import Script, TuneSpace, ask, fold
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Batch, Carry, ClientInfo, Expected, FloatSpec, Table, Task
from kinfolk.types import Client, Message, Tree, tree_of


@dataclass(frozen=True)
class State:
    """The common model, and what is known of everybody's drift."""

    model: Tree  # w
    g: Tree  # lr g, of the common gradient
    h: Tree  # mean of h_i over all clients
    rows: float  # mean number of training rows; 0 before anybody was asked


@dataclass(frozen=True)
class FedDC:
    """One model; clients are held to where their own drift started, and the mean drift is added back."""

    learner: Learner
    a: float = 0.01  # alpha: strength of the penalty on drift
    aggregate: RobustMean = RobustMean()  # of models, and of changes of gradients
    tune_space: ClassVar[TuneSpace] = {"a": (0.001, 0.01, 0.1)}

    def __post_init__(self) -> None:
        at_least("algorithm.a", self.a, 0)
        one_rate("feddc", self.learner)

    eval_inputs, eval_tasks = one_model.eval_inputs, one_model.eval_tasks

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """The common initial model and no drift."""
        none = self.no_change(first)
        return State(first, none, none, 0.0)

    def init_client(self, who: Client) -> Message:
        """No drift, no gradient."""
        none = {n: torch.zeros_like(t) for n, t in self.learner.params(self.learner.first).items()}
        return {"h": none, "g": none}

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """w <- mean v + mean h."""
        if not state.rows:
            counted = yield from ask("count", context.clients)
            if not counted.clients:
                return state, {}
            state = replace(state, rows=float(counted.size.double().mean()))
        w, everyone = state.model, len(context.clients)
        shared = {"model": w, "g": state.g, "rows": torch.tensor(state.rows)}
        v, change, replies, rows = yield from fold(
            Means(w, self.no_change(w), self.aggregate, "size"), "update", cohort, shared
        )
        if not replies:
            return state, {}
        # What a client has added to its h is v_i - w, which need not be sent.
        h = {n: t + replies / everyone * (v[n] - w[n]) for n, t in state.h.items()}
        g = {n: t + rows / (everyone * state.rows) * change[n] for n, t in state.g.items()}
        return State({**v, **{n: v[n] + t for n, t in h.items()}}, g, h, state.rows), {}

    def no_change(self, w: Tree) -> Tree:
        """Where changes of gradients begin."""
        return {n: torch.zeros_like(w[n]) for n in self.learner.names}

    def tasks(self) -> Table:
        """Train with penalty and correction; reply the model and by how much g_i has changed."""
        model = self.learner.first
        expected = {"model": model, "change": self.learner.params(model)}
        sent: Expected = {"model": model, "g": self.learner.params(model), "rows": FloatSpec((), 0)}
        return {
            # The number of rows comes with every reply.
            "count": Task(lambda message, memory, facts: {"rows": facts.rows}, lambda carry: ({}, None)),
            "update": self.learner.train(self.objective, self.start, self.finish, expected, sent),
        }

    def start(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        """Start at w, with all that the penalty and the correction are made of."""
        weight, sent = facts.rows.clamp(min=1) / message["rows"], tree_of(message, "model")
        return {
            "model": sent, "w": sent, "h": memory["h"], "own": memory["g"],
            "g": {n: t / weight for n, t in message["g"].items()}, "a": self.a / weight,
            **path(self.learner, facts),
        }  # fmt: skip

    def objective(self, model: Tree, batch: Batch, carry: Carry) -> Tensor:
        """F_i(v) + (a_i / 2) |v - (w - h_i)|^2 + <v, g - g_i> over the trainable parameters."""
        v, w, h = self.learner.params(model), carry["w"], carry["h"]
        apart = sum(((v[n] - w[n] + h[n]) ** 2).sum() for n in v)
        linear = sum(((carry["g"][n] - carry["own"][n]) * v[n]).sum() for n in v)
        penalty: Tensor = carry["a"] / 2 * apart + linear / self.learner.lr
        return self.learner.objective(model, batch, carry) + penalty

    def finish(self, carry: Carry) -> tuple[Message, Message]:
        """Keep h_i and g_i; a client that took no step has met no gradient and keeps its old one."""
        v, w, g = self.learner.params(carry["model"]), carry["w"], carry["g"]
        moved = carry["steps"] > 0
        far = length(self.learner, carry)
        change = {n: torch.where(moved, -g[n] - (v[n] - w[n]) / far, 0.0) for n in v}
        h = {n: t + v[n] - w[n] for n, t in carry["h"].items()}
        own = {n: t + change[n] for n, t in carry["own"].items()}
        return {"model": carry["model"], "change": change}, {"h": h, "g": own}
