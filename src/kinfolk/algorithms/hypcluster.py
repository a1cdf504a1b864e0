"""HypCluster (HypoCluster): as IFCA, with a start that spreads the models and a server's learning rate.

Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization with Applications to Federated Learning.
arXiv:2002.10619, 2020. The start is that of k-means++ with a loss for a distance.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from kinfolk.algorithms.blocks import many_models
from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.algorithms.blocks.lowest_loss import (
    choices,
    choose_and_train,
    choose_anew,
    choose_task,
    enough_clients,
    training_loss,
    where,
)
from kinfolk.algorithms.blocks.many_models import copies
from kinfolk.errors import at_least
from kinfolk.learning.learner import Learner
from kinfolk.script import Request, Script, TuneSpace, ask, fold
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Table
from kinfolk.types import Client, Stack, Tree


@dataclass(frozen=True)
class State(many_models.State):
    """The hypotheses h_j, who uses which, and whether they have been spread."""

    spread: bool


@dataclass(frozen=True)
class HypCluster:
    """K models spread over the clients' own; each client trains the one of lowest training loss."""

    learner: Learner
    k: int = 3  # number of models; 1 gives FedAvg
    server_lr: float = 1.0  # length of the server's step along the mean change
    aggregate: Aggregator = Aggregator(weights="size")
    tune_space: ClassVar[TuneSpace] = {"server_lr": (0.5, 1.0)}

    def __post_init__(self) -> None:
        at_least("algorithm.k", self.k, 1)
        at_least("algorithm.server_lr", self.server_lr, 0)

    eval_inputs, eval_tasks, groups = many_models.eval_inputs, many_models.eval_tasks, many_models.groups

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """K times the first model; one model alone needs no spreading."""
        enough_clients(self.k, clients)
        nobody_moved = torch.zeros(len(clients), dtype=torch.int64)
        return State(copies(first, self.k), nobody_moved, tuple(clients), spread=self.k == 1)

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """h_j <- h_j + server_lr sum over s_i = j of (n_i / n) (w_i - h_j), where s_i = argmin_j F_i(h_j)."""
        if not state.spread:
            state = yield from self.spread(state, cohort, context)
        if not state.spread:
            return state, {}
        h = self.aggregate.begun(state.centres)
        by = self.aggregate.fold(h, choices)
        means, member, _ = yield from fold(by, "update", cohort, shared={"models": h})
        centres = {
            n: h[n] + self.server_lr * (t - h[n]) if t.is_floating_point() else t for n, t in means.items()
        }
        moved = state.moved(list(member), where(member))
        return replace(state, centres=centres, member=moved), {}

    def spread(
        self, state: State, cohort: Sequence[Client], context: RoundContext
    ) -> Generator[Request, Any, State]:
        """The first model is a random client's; the next, that of the client worst served by those before."""
        trained = yield from ask(
            "train", cohort, shared={"model": {n: t[0] for n, t in state.centres.items()}}
        )
        if len(trained) < self.k:  # another round will have more replies
            return state
        draw = context.seed.numpy("hypcluster", context.round)
        chosen = [trained.clients[int(draw.integers(len(trained)))]]
        best = dict.fromkeys(trained.clients, float("inf"))
        while len(chosen) < self.k:
            latest = trained.row(chosen[-1])
            got = yield from ask("loss", trained.clients, shared=latest)
            best = lowered(best, got)
            chosen.append(worst(best, without=chosen))
        models = [trained.row(who)["model"] for who in chosen]
        centres = {name: torch.stack([m[name] for m in models]) for name in state.centres}
        return replace(state, centres=centres, spread=True)

    def chosen_now(self, state: State, context: RoundContext) -> Script[State] | None:
        """Everyone chooses among the models as they are now, for scores; not while they are one."""
        return choose_anew(state, context) if self.k > 1 and state.spread else None

    def tasks(self) -> Table:
        """Train the one model; say how well a model fits; choose and train; choose alone."""
        return {
            "train": replace(self.learner.train(), extra=1),
            "loss": training_loss(self.learner),
            "update": choose_and_train(self.learner, self.k),
            "choose": choose_task(self.learner, self.k),
        }


def lowered(best: dict[Client, float], got: Stack) -> dict[Client, float]:
    """The lowest loss of each client so far; who does not answer is as well served as anybody can be.

    >>> got = Stack.of({Client("ann"): (1, {"loss": torch.tensor(2.0)})})
    >>> lowered({Client("ann"): 3.0, Client("bob"): 9.0}, got)
    {'ann': 2.0, 'bob': -inf}
    """
    now = dict(zip(got.clients, got.tensor("loss").tolist(), strict=True))
    return {who: min(old, now.get(who, float("-inf"))) for who, old in best.items()}


def worst(best: dict[Client, float], without: Sequence[Client]) -> Client:
    """Whose lowest loss is highest, ties to the first name; nobody is taken twice.

    >>> worst({Client("ann"): 2.0, Client("bob"): 9.0}, without=["bob"])
    'ann'
    """
    return max(sorted(set(best) - set(without)), key=lambda who: best[who])
