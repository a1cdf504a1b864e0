"""How MD-ICFL starts: rounds of one model for all, then the first clusters."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kinfolk.algorithms.blocks.aggregator import group_fold
from kinfolk.algorithms.blocks.common_start import WithBlind, counts
from kinfolk.algorithms.blocks.many_models import copies
from kinfolk.algorithms.blocks.warm_start import drawn_groups, warm_kmeans, without_head
from kinfolk.algorithms.mdicfl.state import State
from kinfolk.script import Request, Script, fold
from kinfolk.streams import RoundContext
from kinfolk.types import Client, Stack


def is_shared(self: Any, state: State, turn: RoundContext) -> bool:
    """Whether all clients still share one model."""
    if self.start != "parted" or self.k == 1 or state.begun:
        return False
    return bool(state.counted < self.shared_rounds and turn.round < self.shared_most)


def shared_round(self: Any, state: State, cohort: tuple[Client, ...]) -> Script[State]:
    """A round of one model for everybody, which also tells whether it has begun to learn."""
    one = {n: t[:1] for n, t in state.centres.items()}
    by = WithBlind(group_fold(self.mean, self.trim, "model", one, self.weights, _all_in_one))
    sent = {"model": {n: t[0] for n, t in one.items()}}
    (one, _, _), blind = yield from fold(by, "common", cohort, sent)
    counted = state.counted + counts(blind, self.plateau)
    new = replace(state, centres=copies({n: t[0] for n, t in one.items()}, self.k), counted=counted)
    return new, {"clusters": 1, "blind": blind}


def first_clusters(self: Any, state: State, turn: RoundContext) -> Generator[Request, Any, State]:
    """The state with clusters, once: different models or k-means; else drawn ones, which are not `begun`."""
    if state.begun or self.k == 1:
        return state
    if self.start == "distinct":
        return replace(state, begun=True)
    if self.start in ("warm_kmeans", "parted"):
        first = {n: t[0] for n, t in state.centres.items()}
        by = partial(group_fold, self.mean, self.trim)
        ours = self.start == "parted"
        names = without_head(self.learner) if ours else self.learner.names
        how = self.k, self.restarts, self.weights, turn, by
        found = yield from warm_kmeans(first, names, *how, directions=ours)
        if found is not None:
            return replace(state.with_clusters(*found), begun=True)
    # Models that are equal are split by the clusters that were drawn.
    return replace(state, member=drawn_groups(len(state.clients), self.k, turn.seed))


def _all_in_one(chunk: Stack) -> Tensor:
    """Everybody in the first cluster."""
    return torch.zeros(len(chunk), dtype=torch.int64)
