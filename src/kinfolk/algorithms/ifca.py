"""IFCA: clients receive all K models, choose the one that fits them best and train it.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning. NeurIPS 2020,
Algorithm 1 with model averaging. Clients choose by their training rows, never by their test rows.
From a bad start groups never split; the authors try several and keep the one of lowest training loss.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import many_models
from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.algorithms.blocks.lowest_loss import (
    choices,
    choose_and_train,
    choose_anew,
    choose_task,
    enough_clients,
    lowest_loss_task,
    mean_told_loss,
    where,
)
from kinfolk.errors import at_least
from kinfolk.learning.learner import Learner
from kinfolk.script import Request, Script, ask, fold
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Info, Table, Task
from kinfolk.types import Client, Tree

Stepped = Generator[Request, Any, tuple[Tree, dict[Client, int]]]


@dataclass(frozen=True)
class State(many_models.State):
    """Models and choices, and whether a start was picked."""

    begun: bool


@dataclass(frozen=True)
class IFCA:
    """K models from different starts; each client trains the one of lowest training loss."""

    learner: Learner
    k: int = 3  # number of models; 1 gives FedAvg
    aggregate: Aggregator = Aggregator()
    restarts: int = 1  # starts that the first cohort tries; 1: the first as it is
    restart_rounds: int = 3  # rounds that each is tried for; all of them are taken off the run's
    summed: ClassVar[tuple[str, ...]] = ("update", "try")

    def __post_init__(self) -> None:
        for name in ("k", "restarts", "restart_rounds"):
            at_least(f"algorithm.{name}", getattr(self, name), 1)

    eval_inputs, eval_tasks, groups = many_models.eval_inputs, many_models.eval_tasks, many_models.groups

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """K different models: alike ones would all be the best, and nobody would ever split."""
        enough_clients(self.k, clients)
        nobody_chose = torch.zeros(len(clients), dtype=torch.int64)
        return State(self.start(first, seed, 0), nobody_chose, tuple(clients), self.restarts == 1)

    def start(self, first: Tree, seed: Seed, number: int) -> Tree:
        """K different models; the very first of all is the common initial model."""
        drawn = range(number * self.k, (number + 1) * self.k)
        models = [self.another(first, seed, j) if j else first for j in drawn]
        return self.aggregate.begun({name: torch.stack([model[name] for model in models]) for name in first})

    def another(self, first: Tree, seed: Seed, j: int) -> Tree:
        """A model like the first: weights are drawn again, biases, scales and buffers are kept.

        A leaf of two or more axes becomes normal numbers with the mean and the standard deviation that
        it has in the first model, since how a layer draws its first weights is not known here.
        """

        def drawn(name: str, leaf: Tensor) -> Tensor:
            if name not in self.learner.names or leaf.dim() < 2:
                return leaf
            fresh = torch.randn(leaf.shape, generator=seed.torch("ifca", j, name)).to(leaf)
            return leaf.mean() + leaf.std(correction=0) * fresh

        return {name: drawn(name, leaf) for name, leaf in first.items()}

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """s_i = argmin_j F_i(c_j); c_j <- mean of w_i over s_i = j, with w_i trained from c_j."""
        info: Info = {}
        if not state.begun:
            state, info = yield from self.best_start(state, cohort, context)
        centres, member = yield from self.step("update", state.centres, cohort)
        return replace(state, centres=centres, member=state.moved(list(member), where(member))), info

    def step(self, task: str, centres: Tree, cohort: Sequence[Client]) -> Stepped:
        """(models after the step, what each client chose)."""
        by = self.aggregate.fold(centres, choices)
        centres, member, _ = yield from fold(by, task, cohort, shared={"models": centres})
        return centres, member

    def best_start(self, state: State, cohort: Sequence[Client], context: RoundContext) -> Script[State]:
        """The start that has the lowest training loss after some rounds, sum_i (n_i / n) min_j F_i(c_j)."""
        first = {name: t[0] for name, t in state.centres.items()}
        tried: list[tuple[float, Tree]] = []
        for number in range(self.restarts):
            centres = self.start(first, context.seed, number)
            for _ in range(self.restart_rounds):
                centres, _ = yield from self.step("try", centres, cohort)
            got = yield from ask("fit", cohort, shared={"models": centres})
            if not got.clients:  # another round will have replies
                return state, {}
            tried.append((mean_told_loss(got), centres))
        losses = [loss for loss, _ in tried]
        best = losses.index(min(losses))
        return replace(state, centres=tried[best][1], begun=True), {"start": best, "start_losses": losses}

    def chosen_now(self, state: State, context: RoundContext) -> Script[State] | None:
        """s_i = argmin_j F_i(c_j) of all clients, for scores: a round asks its cohort, and trains after."""
        return choose_anew(state, context) if self.k > 1 else None

    def tasks(self) -> Table:
        """Choose and train; choose alone; of several starts, try one and say how well it fits."""
        update = choose_and_train(self.learner, self.k)
        table: dict[str, Task] = {"update": update, "choose": choose_task(self.learner, self.k)}
        if self.restarts > 1:
            table["try"] = replace(update, stream="try", extra=self.restarts * self.restart_rounds)
            table["fit"] = lowest_loss_task(self.learner, self.k)
        return table
