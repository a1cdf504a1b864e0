"""Clustered-HDBSCAN (CM): clients whose output layers point the same way share a model.

The clustered baseline that SLFed is compared with. Its paper leaves open how; here groups are sought again in
every round among the models just trained, by 1 - cosine of the output layer's weights and biases, and a
client of no group is one by itself. HDBSCAN: Campello, Moulavi, Sander. PAKDD 2013.

All models of a round are held at once, and one for each group: never more groups than clients. Whoever was
not heard stays in its group, and is served the model of those who go on under its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from kinfolk.algorithms.blocks import many_models
from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.algorithms.blocks.many_models import State, copies, model_of_group
from kinfolk.clustering.distances import cosine_distances, flat
from kinfolk.clustering.hierarchy import hdbscan
from kinfolk.errors import KinfolkError, at_least
from kinfolk.learning.learner import Learner
from kinfolk.script import Script, ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Client, Stack, Tree


@dataclass(frozen=True)
class ClusteredHDBSCAN:
    """A model for each group that HDBSCAN finds among the clients' output layers."""

    learner: Learner
    min_size: int = 2  # members that make a group
    min_samples: int = 1  # neighbours that make a place dense
    noise: Literal["single", "nearest"] = "single"  # a client of no group: alone, or with the nearest
    aggregate: Aggregator = Aggregator(weights="size")  # all models of a round are held in any case

    def __post_init__(self) -> None:
        at_least("algorithm.min_size", self.min_size, 2)
        at_least("algorithm.min_samples", self.min_samples, 1)
        if not self.learner.head:
            remedy = "needs a network whose last layer is called 'head'"
            raise KinfolkError("algorithm.name", "clustered_hdbscan", remedy)

    tasks, eval_inputs = many_models.tasks, many_models.eval_inputs
    eval_tasks, groups = many_models.eval_tasks, many_models.groups

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """Everybody in one group."""
        return State(copies(first, 1), torch.zeros(len(clients), dtype=torch.int64), tuple(clients))

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """Train in the groups so far; find groups; in each, c <- sum (n_i / n) w_i."""
        got = yield from ask("update", cohort, each=model_of_group(state, cohort))
        if not got.clients:
            return state, {}
        found = self.find(got)
        label = renumbered(found, state.of(got.clients), got.size, self.taken(state, got.clients))
        k = max(state.k, int(label.max()) + 1)
        # New numbers get new places; whatever stands there before the mean is taken is not used.
        keep = {n: torch.cat([t, t[:1].expand(k - state.k, *t.shape[1:])]) for n, t in state.centres.items()}
        centres = self.aggregate.of(got, keep, lambda chunk: label)
        info = {"found": len(set(found.tolist()))}
        return State(centres, state.moved(got.clients, label), state.clients), info

    def find(self, got: Stack) -> Tensor:
        """The groups of those who replied, [replies], numbered from 0 by first member."""
        apart = cosine_distances(flat(got.tree("model"), self.learner.head))
        return hdbscan(apart, self.min_size, self.min_samples, self.noise).cpu()

    def taken(self, state: State, heard: Sequence[Client]) -> set[int]:
        """Numbers of groups with members who were not heard: they are still served these models."""
        away = sorted(set(state.clients) - set(heard))
        return set(state.of([Client(c) for c in away]).tolist())


def renumbered(found: Tensor, old: Tensor, rows: Tensor, taken: set[int]) -> Tensor:
    """New groups under the numbers of those old ones with which they share most members, then most rows.

    A group that continues none gets the lowest number that is neither continued nor `taken`.

    >>> renumbered(torch.tensor([0, 0, 1, 1, 2]), torch.tensor([4, 4, 0, 4, 0]), torch.ones(5), {1})
    tensor([4, 4, 0, 0, 2])
    """
    news, olds = int(found.max()) + 1, int(old.max()) + 1
    shared = np.zeros((news, olds))
    # Rows, all together less than one member, part equals: who is followed must not hang on a name.
    np.add.at(shared, (found.numpy(), old.numpy()), 1 + (rows / (rows.sum() + 1)).cpu().numpy())
    pairs = zip(*linear_sum_assignment(shared, maximize=True), strict=True)
    number = {int(n): int(o) for n, o in pairs if shared[n, o] > 0}
    used = taken | set(number.values())
    free = (i for i in range(len(used) + news) if i not in used)
    # No place for two: what is left over takes the free numbers in order.
    label = [number[n] if n in number else next(free) for n in range(news)]
    return torch.tensor(label, dtype=torch.int64)[found]
