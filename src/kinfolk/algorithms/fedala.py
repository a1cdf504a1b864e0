"""FedALA: each client learns, number by number, how much of the common model's last layers it takes over.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for Personalized Federated
Learning. AAAI 2023, Algorithm 1. With w the common model, theta_i the client's after its last training, both
split into lower layers and the last p:

    adapt    theta^ <- theta_i + (w - theta_i) * [1; W_i], element by element: lower layers are w's
             W_i <- W_i - eta (w - theta_i) * grad_theta^ F_i(theta^), kept within 0 and 1, on a share s of
             the rows; W_i is 1 at first
    train    theta_i <- theta^ after local epochs
    server   w <- sum_i (n_i / n) theta_i

The paper learns W_i until it converges the first time and for one epoch in each later round. Here the first
time takes a fixed number of epochs, so that many clients go in one call: the authors' code stops once the
last ten losses vary by less than 0.1, after eleven epochs at the least. In round 0 there is nothing to learn,
since all are at the common start. Losses for W_i are taken in scoring mode; buffers are the common model's.

theta_i and W_i stay with the client. What is scored is theta^ of the common model, as in the paper: the model
that a client begins its next training with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import one_model
from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.algorithms.blocks.one_model import average
from kinfolk.errors import KinfolkError, at_least
from kinfolk.fold import Weights
from kinfolk.learning.learner import Learner
from kinfolk.learning.optim import WithinUnit
from kinfolk.script import Script, TuneSpace, ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Batch, Carry, ClientInfo, Fit, Plan, Scan, Table, Task
from kinfolk.types import Client, Message, Tree, tree_of


@dataclass(frozen=True)
class State:
    """The common model, and who has learned what to take of it."""

    model: Tree  # w
    begun: Tensor  # [clients] bool: whose W_i has had its first epochs
    clients: tuple[str, ...]  # the names, sorted


@dataclass(frozen=True)
class FedALA:
    """A model for each client, begun each round from its own and the common one, mixed by learned weights."""

    learner: Learner
    layers: int = 1  # p: how many of the last layers are mixed; the rest is the common model's
    share: float = 0.8  # s: share of a client's rows on which W_i is learned
    eta: float = 1.0  # eta: rate of W_i
    first_epochs: int = 11  # epochs of W_i the first time; later one a round
    weights: Weights = "size"  # n_i / n, or the same for every client
    aggregate: RobustMean = RobustMean()
    summed: ClassVar[tuple[str, ...]] = ("update",)
    tune_space: ClassVar[TuneSpace] = {"layers": (1, 2), "eta": (0.1, 1.0)}

    def __post_init__(self) -> None:
        at_least("algorithm.layers", self.layers, 1)
        at_least("algorithm.first_epochs", self.first_epochs, 1)
        at_least("algorithm.eta", self.eta, 0)
        if not 0 < self.share <= 1:
            raise KinfolkError("algorithm.share", self.share, "give a number above 0, up to 1")

    eval_inputs = one_model.eval_inputs

    @property
    def higher(self) -> tuple[str, ...]:
        """The parameters of the last p layers.

        >>> from torch import nn
        >>> from kinfolk.learning.losses import find_loss
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3))
        >>> FedALA(Learner(net, find_loss("cross_entropy"), 3)).higher
        ('2.weight', '2.bias')
        """
        of = {name: name.rpartition(".")[0] for name in self.learner.names}
        last = list(dict.fromkeys(of.values()))[-self.layers :]
        return tuple(name for name, layer in of.items() if layer in last)

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """The common initial model; nobody has learned anything."""
        return State(first, torch.zeros(len(clients), dtype=torch.bool), tuple(sorted(clients)))

    def init_client(self, who: Client) -> Message:
        """theta_i starts as the common initial model, W_i as 1: all is taken from the common one."""
        first = self.learner.first
        return {"model": first, "take": {n: torch.ones_like(first[n]) for n in self.higher}}

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """Newcomers after round 0 learn W_i at length; all train; w <- sum_i (n_i / n) theta_i."""
        w, begun, place = state.model, state.begun.cpu().clone(), {c: i for i, c in enumerate(state.clients)}
        new = [c for c in cohort if context.round and not begun[place[c]]]
        if new:
            got = yield from ask("adapt", new, shared={"model": w})
            begun[[place[c] for c in got.clients]] = True
        model = yield from average(w, cohort, self.weights, self.aggregate)
        return State(model, begun, state.clients), {}

    def tasks(self) -> Table:
        """W_i at length; W_i for an epoch, and then theta_i from the mixture."""
        model = {"model": self.learner.first}
        step = replace(
            self.learner.descent(self.loss_of_weights), optimiser=WithinUnit(), names=self.higher,
            part="take", lr=self.eta, decay=1.0, clip=0.0, by_round=None, by_step=None,
        )  # fmt: skip
        rows = replace(self.learner.plan, epochs=1, steps=0, share=self.share)
        mix = Scan(lambda carry, batch: {**carry, "model": self.mixed(carry)}, Plan(1, rows=1, shuffle=False))
        passes = (Fit((step,), rows), mix, Fit((self.learner.descent(),), self.learner.plan))
        at_length = (Fit((step,), replace(rows, epochs=self.first_epochs)),)
        return {
            "adapt": Task(self.start, self.keep_weights, at_length, sent=model, stream="adapt"),
            "update": Task(self.start, self.finish, passes, model, sent=model),
        }

    def start(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        """w, theta_i, W_i and the mixture as it is before W_i moves."""
        carry = {"w": tree_of(message, "model"), "own": tree_of(memory, "model"), "take": memory["take"]}
        return {**carry, "model": self.mixed(carry)}

    def mixed(self, carry: Carry, take: Tree | None = None) -> Tree:
        """theta^ = theta_i + (w - theta_i) * W_i in the last layers, w in all others."""
        w, own, take = carry["w"], carry["own"], carry["take"] if take is None else take
        return {**w, **{n: own[n] + (w[n] - own[n]) * take[n] for n in take}}

    def loss_of_weights(self, take: Tree, batch: Batch, carry: Carry) -> Tensor:
        """F_i(theta^) as a function of W_i, in scoring mode."""
        out = self.learner.apply(self.mixed(carry, take), batch)
        return batch.mean(self.learner.loss.row_loss(out, batch.y))

    def keep_weights(self, carry: Carry) -> tuple[Message, Message]:
        """Keep W_i; theta_i is as it was."""
        return {}, {"model": carry["own"], "take": carry["take"]}

    def finish(self, carry: Carry) -> tuple[Message, Message]:
        """Send theta_i; keep it, and W_i."""
        return {"model": carry["model"]}, {"model": carry["model"], "take": carry["take"]}

    def eval_tasks(self) -> Mapping[str, Task]:
        """Each client's mixture and, beside it, the common model."""
        return {"personal": self.learner.score(start=self.start), "centre": self.learner.score()}
