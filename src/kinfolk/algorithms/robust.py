"""Robust federated learning: group the clients' own models by trimmed k-means, then trimmed means.

Ghosh, Hong, Yin, Ramchandran: Robust Federated Learning in a Heterogeneous Environment.
arXiv:1906.06629, 2019: its three stages, with trimmed k-means (TKM) for the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import many_models
from kinfolk.algorithms.blocks.aggregator import Aggregator, check_trim
from kinfolk.algorithms.blocks.lowest_loss import enough_clients
from kinfolk.algorithms.blocks.many_models import copies, model_of_group
from kinfolk.clustering.distances import flat
from kinfolk.clustering.kmeans import kmeans, nearest
from kinfolk.errors import at_least
from kinfolk.learning.learner import Learner
from kinfolk.script import AssignBy, Script, ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Fit, Table
from kinfolk.types import Client, Stack, Tree


@dataclass(frozen=True)
class State(many_models.State):
    """The models of the groups, and what is needed to place clients who come later."""

    placed: Tensor  # [clients] int64: 1 for those who were put into a group
    points: Tensor  # [K, P]: the centres that k-means found

    def known(self, who: Sequence[Client]) -> list[Client]:
        """Those of some clients who have a group."""
        have = {c for c, placed in zip(self.clients, self.placed.tolist(), strict=True) if placed}
        return [c for c in who if c in have]


@dataclass(frozen=True)
class Robust:
    """K groups found once from models that clients trained alone; trimmed means inside each."""

    learner: Learner
    k: int = 3  # number of groups
    first_epochs: int = 5  # local epochs of the first stage, which ought to reach a local optimum
    cluster_trim: float = 0.05  # share cut off each side in k-means
    # What stands for a group. The paper has the trimmed mean; the code that FeSEM's authors ran, the median.
    aggregate: Aggregator = Aggregator("trimmed")

    def __post_init__(self) -> None:
        at_least("algorithm.k", self.k, 1)
        at_least("algorithm.first_epochs", self.first_epochs, 1)
        check_trim("algorithm.cluster_trim", self.cluster_trim)

    # Who has no group yet is served the model of the first.
    eval_inputs, eval_tasks, groups = many_models.eval_inputs, many_models.eval_tasks, many_models.groups
    assign_by: ClassVar[AssignBy] = "distance"

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """Nobody has a group yet."""
        enough_clients(self.k, clients)
        none = torch.zeros(len(clients), dtype=torch.int64)
        centres = copies(first, self.k)
        return State(centres, none, tuple(clients), none, flat(centres, self.learner.names))

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """Those who have a group train its model; the others train alone and are given one."""
        old = state.known(cohort)
        new = [c for c in cohort if c not in set(old)]
        if old:
            got = yield from ask("update", old, each=model_of_group(state, old))
            state = replace(state, centres=self.means(state, got))
        if new:
            got = yield from ask("alone", new, shared={"model": self.learner.first})
            state = self.place(state, got, context)
        return state, {}

    def place(self, state: State, got: Stack, context: RoundContext) -> State:
        """Trimmed k-means of the clients' models; who comes later joins the nearest centre it found."""
        if not got.clients:
            return state
        points = flat(got.tree("model"), self.learner.names)
        if bool(state.placed.any()):
            labels, _ = nearest(points, state.points)
            return self.joined(state, got.clients, labels)
        if len(got) < self.k:  # another round will have more replies
            return state
        seed = Seed(context.seed.number("robust", context.round))
        found = kmeans(points, self.k, seed, trim=self.cluster_trim)
        state = replace(self.joined(state, got.clients, found.labels), points=found.centres)
        return replace(state, centres=self.means(state, got))

    def joined(self, state: State, who: Sequence[Client], labels: Tensor) -> State:
        """The state with some clients placed."""
        placed = replace(state, member=state.placed).moved(who, torch.ones(len(who)))
        return replace(state, member=state.moved(who, labels.cpu()), placed=placed)

    def means(self, state: State, got: Stack) -> Tree:
        """In every group the trimmed mean, or the median, of what its members sent."""
        return self.aggregate.of(got, state.centres, state.group_of)

    def tasks(self) -> Table:
        """Train alone for the first stage; train the group's model in every round after it."""
        plan = replace(self.learner.plan, epochs=self.first_epochs, steps=0)
        alone = self.learner.train()
        return {
            "alone": replace(
                alone, passes=(Fit((self.learner.descent(),), plan),), extra=1, spares=self.learner.plan
            ),
            "update": self.learner.train(),
        }
