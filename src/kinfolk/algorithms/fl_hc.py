"""FL+HC: one model for everyone for some rounds; then a hierarchy of the clients' updates is cut into groups.

Briggs, Fan, Andras: Federated learning with hierarchical clustering of local updates to improve training on
non-IID data. IJCNN 2020, Algorithm 1:

    rounds 1 .. n   FedAvg
    then, once      every client trains from w; dw_i = w_i - w; agglomerative clustering of the dw_i merges
                    groups until none lie closer than a threshold
    afterwards      FedAvg in each group by itself, from w

How many groups there are follows from the threshold, which is a distance between updates of one network at
one rate. By default, and that is ours, it is the number that a gap statistic sees in the updates. It may be
one, and with a dozen clients two groups are sometimes not seen. Of the paper's distances the L1 norm is not
here. The server holds all updates once, or sketches of them.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import many_models
from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.algorithms.blocks.many_models import copies, model_of_group
from kinfolk.algorithms.blocks.warm_start import MOST, Points, directions_from, sketch_for
from kinfolk.clustering.count import how_many
from kinfolk.clustering.distances import cosine_distances, squared
from kinfolk.clustering.hierarchy import Linkage, agglomerate
from kinfolk.errors import KinfolkError, at_least
from kinfolk.learning.learner import Learner
from kinfolk.script import Request, Script, TuneSpace, fold
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Table
from kinfolk.types import Client, Tree

# Clients by whose updates groups are counted: of more, a sample.
COUNTED = 300


@dataclass(frozen=True)
class State(many_models.State):
    """The models of the groups, one at first, and whether groups were sought."""

    split: bool


@dataclass(frozen=True)
class FLHC:
    """One model at first; then one for each group of clients whose updates are alike, without a given K."""

    learner: Learner
    cluster_after: int = 5  # n: rounds of one model
    distance: Literal["cosine", "euclidean"] = "cosine"  # between updates; cosine: whatever their length
    linkage: Linkage = "average"  # how far groups are apart; "ward" needs the Euclidean distance
    threshold: float = 0.0  # distance up to which groups are merged; 0, ours: into as many as are counted
    most: int = 10  # groups, if they are counted
    aggregate: Aggregator = Aggregator(weights="size")
    tune_space: ClassVar[TuneSpace] = {"cluster_after": (3, 5, 10), "linkage": ("average", "complete")}

    def __post_init__(self) -> None:
        for name, least in (("cluster_after", 0), ("threshold", 0), ("most", 1)):
            at_least(f"algorithm.{name}", getattr(self, name), least)
        if self.linkage == "ward" and self.distance != "euclidean":
            remedy = "needs algorithm.distance = 'euclidean'"
            raise KinfolkError("algorithm.linkage", self.linkage, remedy)

    eval_inputs, eval_tasks, groups = many_models.eval_inputs, many_models.eval_tasks, many_models.groups

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """Everybody in one group."""
        if len(clients) > MOST:
            remedy = f"compares every two of {len(clients)} clients; at most {MOST}"
            raise KinfolkError("algorithm.name", "fl_hc", remedy)
        everybody = torch.zeros(len(clients), dtype=torch.int64)
        return State(copies(first, 1), everybody, tuple(clients), split=False)

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """In each group, c <- sum (n_i / n) w_i; before that, once, the groups."""
        if not state.split and context.round >= self.cluster_after:
            state = yield from self.clustered(state, context)
        means = self.aggregate.fold(state.centres, state.group_of)
        centres, _, _ = yield from fold(means, "update", cohort, each=model_of_group(state, cohort))
        return replace(state, centres=centres), {"clusters": state.k}

    def clustered(self, state: State, context: RoundContext) -> Generator[Request, Any, State]:
        """Every client in the group that its update puts it into; as it was if fewer than two answered.

        Who did not answer joins the largest group.
        """
        w, names = {n: t[0] for n, t in state.centres.items()}, self.learner.names
        points = Points(names, sketch_for(w, names, len(context.clients), context.seed))
        who, _, table = yield from fold(points, "cluster", context.clients, {"model": w})
        if len(who) < 2:
            return state
        label = self.cut(table - points.row(w), context.seed).cpu()
        rest = torch.full((len(state.clients),), int(label.bincount().argmax()))
        member = replace(state, member=rest).moved(who, label)
        return replace(state, centres=copies(w, int(label.max()) + 1), member=member, split=True)

    def cut(self, updates: Tensor, seed: Seed) -> Tensor:
        """The groups of updates [clients, D], numbered by first member."""
        if self.distance == "cosine":
            apart, points = cosine_distances(updates), directions_from(torch.zeros_like(updates[:1]), updates)
        else:
            apart, points = squared(updates).sqrt(), updates
        if self.threshold:
            return agglomerate(apart, self.linkage, self.threshold)
        some = seed.numpy("cluster", "count").permutation(len(points))[:COUNTED]
        points = points.cpu()[sorted(some.tolist())]
        k = how_many(points, min(self.most, len(points)), seed)
        return agglomerate(apart, self.linkage, k=k)

    def tasks(self) -> Table:
        """Train the received model; once more, to be told apart by what comes of it."""
        update = self.learner.train()
        return {"update": update, "cluster": replace(update, stream="cluster", extra=1)}
