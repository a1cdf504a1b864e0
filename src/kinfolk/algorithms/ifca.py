"""IFCA: clients receive all K models, choose the one that fits them best and train it.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning. NeurIPS 2020,
Algorithm 1 with model averaging. Clients choose by their training rows, never by their test rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.algorithms import many_models
from kinfolk.algorithms.group_middles import Centre, check_trim, group_fold
from kinfolk.algorithms.lowest_loss import (
    choices,
    choose_and_train,
    choose_anew,
    choose_task,
    enough_clients,
    where,
)
from kinfolk.algorithms.many_models import State
from kinfolk.errors import at_least
from kinfolk.fold import Weights
from kinfolk.learning.learner import Learner
from kinfolk.script import Script, fold
from kinfolk.streams import Seed, Turn
from kinfolk.task import Table
from kinfolk.types import Client, Tree


@dataclass(frozen=True)
class IFCA:
    """K models from different starts; each client trains the one of lowest training loss."""

    learner: Learner
    k: int = 3  # number of models; 1 gives FedAvg
    weights: Weights = "uniform"  # the same for every client of a group, or n_i / n
    # What stands for a group: "mean" sums as replies come; "trimmed" and "median" hold the cohort's models.
    mean: Centre = "mean"
    trim: float = 0.1  # share of a group's members that "trimmed" cuts off each side

    def __post_init__(self) -> None:
        at_least("algorithm.k", self.k, 1)
        check_trim("algorithm.trim", self.trim)

    serve, scored, groups = many_models.serve, many_models.scored, many_models.groups

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """K different models: alike ones would all be the best, and nobody would ever part."""
        enough_clients(self.k, clients)
        starts = [first, *(self.another(first, seed, j) for j in range(1, self.k))]
        centres = {name: torch.stack([start[name] for start in starts]) for name in first}
        return State(centres, torch.zeros(len(clients), dtype=torch.int64), tuple(clients))

    def another(self, first: Tree, seed: Seed, j: int) -> Tree:
        """A model like the first: weights are drawn anew, biases, scales and buffers are kept.

        A leaf of two or more axes becomes normal numbers with the mean and the standard deviation that
        it has in the first model, since how a layer draws its first weights is not known here.
        """

        def drawn(name: str, leaf: Tensor) -> Tensor:
            if name not in self.learner.names or leaf.dim() < 2:
                return leaf
            fresh = torch.randn(leaf.shape, generator=seed.torch("ifca", j, name)).to(leaf)
            return leaf.mean() + leaf.std(correction=0) * fresh

        return {name: drawn(name, leaf) for name, leaf in first.items()}

    def round(self, state: State, cohort: tuple[Client, ...], turn: Turn) -> Script[State]:
        """s_i = argmin_j F_i(c_j); c_j <- mean of w_i over s_i = j, with w_i trained from c_j."""
        by = group_fold(self.mean, self.trim, "model", state.centres, self.weights, choices)
        shared = {"models": state.centres}
        centres, member, _ = yield from fold(by, "update", cohort, shared=shared)
        return State(centres, state.moved(list(member), where(member)), state.clients), {}

    def choose(self, state: State, turn: Turn) -> Script[State] | None:
        """s_i = argmin_j F_i(c_j) of all clients, for scores: a round asks its cohort, and trains after."""
        return choose_anew(state, state, turn) if self.k > 1 else None

    def tasks(self) -> Table:
        """Choose and train; choose alone."""
        return {
            "update": choose_and_train(self.learner, self.k),
            "choose": choose_task(self.learner, self.k),
        }
