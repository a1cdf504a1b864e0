"""How groups are first found: the options `[algorithm.start]` and what follows from them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import many_models
from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.algorithms.blocks.common_start import WithBlind, telling
from kinfolk.algorithms.blocks.lowest_loss import enough_clients, where
from kinfolk.algorithms.blocks.many_models import copies
from kinfolk.algorithms.blocks.warm_start import drawn_groups, warm_kmeans, warm_task, without_head
from kinfolk.errors import KinfolkError, at_least
from kinfolk.fold import Fold
from kinfolk.learning.learner import Learner
from kinfolk.script import Request, fold
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Task
from kinfolk.types import Client, Message, PerClient, Tree

R = TypeVar("R")
# (models of the groups, group of every client, whether these groups stand for the first round)
Groups = tuple[Tree, Tensor, bool]


@dataclass(frozen=True)
class Start:
    """Options `[algorithm.start]`: how groups are first found.

    "warm_kmeans": every client trains one model alone, and k-means splits them by the results.
    "shared_kmeans": the same, from a model that all have trained together for some rounds. Before, a network
    knows labels only, and clients of few classes each differ by their labels more than by anything else.
    "random_partition": groups are drawn, from one model. "distinct_models": K different models, which
    may lock in.

    >>> Start(warm_epochs=0)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.start.warm_epochs = 0: give 1 or more
    """

    name: Literal["warm_kmeans", "shared_kmeans", "random_partition", "distinct_models"] = "warm_kmeans"
    warm_epochs: int = 5  # epochs of every client before k-means
    restarts: int = 20  # of k-means; the best counts
    # What k-means compares: "models"; "body_directions", which way clients went from the common model,
    # without its last layer; "auto": models, but directions (of all layers) where clients have unlike
    # numbers of rows, since who takes more steps gets farther.
    on: Literal["auto", "models", "body_directions"] = "auto"
    # k-means is not shown clients whose models are so many times as far from others' as most are; 0: it sees
    # all. Without it each of a few attackers far away may get a group to itself.
    set_aside: float = 0.0
    shared_rounds: int = 3  # of "shared_kmeans": common rounds that count
    plateau: float = 0.9  # they count once the loss is at most this part of a constant answer's; 0: all do
    shared_most: int = 15  # rounds after which clients are split though the loss is on its plateau still

    def __post_init__(self) -> None:
        for name in ("warm_epochs", "restarts", "shared_rounds", "shared_most"):
            at_least(f"algorithm.start.{name}", getattr(self, name), 1)
        for name in ("plateau", "set_aside"):
            at_least(f"algorithm.start.{name}", getattr(self, name), 0)
        if 0 < self.set_aside <= 1:
            remedy = "give more than 1 (2 is a good one), or 0"
            raise KinfolkError("algorithm.start.set_aside", self.set_aside, remedy)
        if self.set_aside and not self.trains:
            remedy = "needs start.name = 'warm_kmeans' or 'shared_kmeans'"
            raise KinfolkError("algorithm.start.set_aside", self.set_aside, remedy)

    @property
    def trains(self) -> bool:
        """Whether clients train alone before groups are found."""
        return self.name in ("warm_kmeans", "shared_kmeans")

    @property
    def common_rounds(self) -> int:
        """Rounds in which all clients share one model, if all of them count."""
        return self.shared_rounds if self.name == "shared_kmeans" else 0

    @property
    def measures(self) -> bool:
        """Whether clients tell how far the common model is from a constant answer."""
        return bool(self.common_rounds and self.plateau)

    def first(
        self, model: Tree, k: int, clients: tuple[Client, ...], learner: Learner, seed: Seed
    ) -> tuple[Tree, Tensor]:
        """K models, equal unless they are to be distinct; groups as even as can be, or one for all."""
        enough_clients(k, clients)
        centres = copies(model, k)
        if self.name == "distinct_models":
            centres = many_models.distinct(centres, learner.names, seed)
        return centres, drawn_groups(len(clients), 1 if self.common_rounds else k, seed)

    def is_common(self, counted: int, context: RoundContext) -> bool:
        """Whether all clients share one model in this round, after `counted` rounds that count."""
        late = self.plateau and context.round >= self.shared_most
        return counted < self.common_rounds and not late

    def common_round(
        self, by: Fold[R], cohort: tuple[Client, ...], shared: Message, each: PerClient | None = None
    ) -> Generator[Request, Any, tuple[R, int, dict[str, float]]]:
        """A round of one model for all: (what `by` makes of it, 1 if it counts, what there is to record)."""
        if not self.measures:
            return (yield from fold(by, "update", cohort, shared, each)), 1, {}
        made, blind = yield from fold(WithBlind(by), "common", cohort, shared, each)
        return made, int(blind <= self.plateau), {"blind": blind}

    def common_mean(
        self,
        state: many_models.State,
        aggregate: Aggregator,
        cohort: tuple[Client, ...],
        shared: Message | None = None,
    ) -> Generator[Request, Any, tuple[Tree, int, dict[str, float]]]:
        """A common round that aggregates what clients make of the one model: (K copies of it, as above)."""
        one = {n: t[:1] for n, t in state.centres.items()}
        by = aggregate.fold(one, lambda chunk: torch.zeros(len(chunk), dtype=torch.int64))
        sent = {**(shared or {}), "model": {n: t[0] for n, t in one.items()}}
        (one, _, _), counts, told = yield from self.common_round(by, cohort, sent)
        return copies({n: t[0] for n, t in one.items()}, state.k), counts, told

    def split(
        self, state: many_models.State, learner: Learner, aggregate: Aggregator, context: RoundContext,
        names: tuple[str, ...] = (),
    ) -> Generator[Request, Any, Groups | None]:  # fmt: skip
        """The groups to begin with; None if fewer clients than groups have answered.

        `names` are the parameters that k-means compares, if not all.
        """
        if self.name == "distinct_models":
            return state.centres, state.member, False
        if self.name == "random_partition":
            return self.drawn(state, context)
        first = {n: t[0] for n, t in state.centres.items()}
        body = self.on == "body_directions"
        found = yield from warm_kmeans(
            first,
            without_head(learner) if body else names or learner.names,
            state.k,
            self.restarts,
            context,
            aggregate,
            self.set_aside,
            directions=None if self.on == "auto" else body,
        )
        if found is None:
            return None
        centres, labels = found
        return centres, state.moved(tuple(labels), where(labels)), False

    def drawn(self, state: many_models.State, context: RoundContext) -> Groups:
        """Drawn groups, which stand for a round: they make models differ that are equal."""
        return state.centres, drawn_groups(len(state.clients), state.k, context.seed), True

    def tasks(self, learner: Learner, update: Task) -> dict[str, Task]:
        """What clients do for it, beside their `update`."""
        table = {"warm": warm_task(learner, self.warm_epochs)} if self.trains else {}
        if self.measures:
            table["common"] = telling(learner, update)
        return table
