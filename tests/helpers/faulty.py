"""One sound algorithm, and everything that can be wrong with it under `fault`.

The server keeps a model for each client and their mean; a client goes on from its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.learning.learner import Learner
from kinfolk.script import Script, ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Batch, Carry, ClientInfo, Table, Task
from kinfolk.types import Client, Message, Stack, Tree


@dataclass(frozen=True)
class State:
    """The mean of all models, each client's own, and which is whose."""

    mean: Tree
    own: Tree  # every leaf [clients, ...]
    number: Tree  # by client's name
    extra: Any = 0


@dataclass(frozen=True)
class Faulty:
    """Each client's own model, kept by the server."""

    learner: Learner
    fault: str = ""

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        own = {n: torch.stack([t] * len(clients)) for n, t in first.items()}
        number = {c: torch.tensor(i) for i, c in enumerate(clients)}
        if self.fault == "knows only whom it asked":
            number = {}
        return State(first, own, number, [] if self.fault == "keeps a list" else 0)

    def init_client(self, who: Client) -> Message:
        return {"asked": torch.tensor(0)}

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        if self.fault == "knows only whom it asked":
            state = State(state.mean, state.own, {c: torch.tensor(i) for i, c in enumerate(context.clients)})
        got = yield from ask("update", cohort, each=self.of(state, cohort))
        if not got.clients and self.fault != "counts on somebody":
            return state, {}
        models = got.tree("model")
        own = {n: t if self.fault == "writes into its state" else t.clone() for n, t in state.own.items()}
        for number, row in self.places(got, cohort, context):
            for n, t in own.items():
                t[number] = models[n][row]
        mean = {n: t.double().mean(0).to(t.dtype) for n, t in models.items()}
        own, mean = self.harmed(own, models), self.scaled(mean)
        if self.fault == "never learns":
            return state, {}
        return State(mean, own, state.number, state.extra), {}

    def places(
        self, got: Stack, cohort: Sequence[Client], context: RoundContext
    ) -> Iterator[tuple[int, int]]:
        """(number of the client, row of its reply)."""
        for row, who in enumerate(got.clients):
            if self.fault == "takes the i-th reply for the i-th client asked":
                yield context.clients.index(cohort[row]), row
            elif self.fault == "takes the i-th reply for client i":
                yield row, row
            elif self.fault != "looks for a reply of everybody asked":
                yield context.clients.index(who), row
        if self.fault == "looks for a reply of everybody asked":
            yield from ((context.clients.index(c), got.clients.index(c)) for c in cohort)

    def harmed(self, own: Tree, models: Tree) -> Tree:
        """Noise from a global generator, or a spread that one reply does not have."""
        draws = {
            "draws from torch": lambda: float(torch.rand(())),
            "draws from numpy": lambda: float(np.random.rand()),
            "draws from random": random.random,
        }
        noise = draws[self.fault]() if self.fault in draws else 0.0
        if self.fault == "needs two replies":
            size = next(iter(models.values())).flatten(1).norm(dim=1)
            noise = float((size - size.mean()).square().sum() / (len(size) - 1))
        return {n: t + 1e-3 * noise if t.is_floating_point() and noise else t for n, t in own.items()}

    def scaled(self, mean: Tree) -> Tree:
        """Something that depends on what the algorithm did before, kept where no checkpoint sees it."""
        if self.fault != "hides a state":
            return mean
        before = getattr(self, "hidden", 1)
        object.__setattr__(self, "hidden", before + 1)
        return {n: t * before for n, t in mean.items()}

    def tasks(self) -> Table:
        reply = {} if self.fault == "does not declare its reply" else {"model": self.learner.first}
        objective = self.careless if self.fault == "counts padding" else None
        sent = {"model": self.learner.first}
        return {"update": self.learner.train(objective, self.start, self.finish, reply, sent)}

    def start(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        if self.fault == "writes into its message":
            next(iter(message["model"].values())).add_(1)
        if self.fault == "writes into its memory":
            memory["asked"].add_(1)
        return {"model": message["model"], "asked": memory["asked"] + 1}

    def finish(self, carry: Carry) -> tuple[Message, Message]:
        return {"model": carry["model"]}, {"asked": carry["asked"]}

    def careless(self, model: Tree, batch: Batch, carry: Carry) -> Tensor:
        """A mean over all rows of the batch, real or not."""
        return F.cross_entropy(
            torch.func.functional_call(self.learner.training_module, model, (batch.x,)), batch.y
        )

    def of(self, state: State, who: Sequence[Client]) -> Stack:
        names = tuple(sorted(who))
        rows = torch.stack([state.number[c] for c in names])
        if self.fault == "serves by position":
            rows = torch.arange(len(names))
        body = {"model": {n: t[rows] for n, t in state.own.items()}}
        return Stack(names, torch.ones(len(names), dtype=torch.int64), body)

    def eval_inputs(self, state: State, who: Sequence[Client]) -> tuple[Message, Stack | None]:
        return {}, self.of(state, who)

    def eval_tasks(self) -> Mapping[str, Task]:
        return {"mine" if self.fault == "names its models freely" else "personal": self.learner.score()}
