"""Clusters whose models say the same become one: fewer clusters than K."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import many_models
from kinfolk.algorithms.blocks.many_models import GroupMeans
from kinfolk.algorithms.blocks.output_distance import joined, mutual_distances
from kinfolk.algorithms.mdicfl.back_search import probabilities
from kinfolk.learning.learner import Learner
from kinfolk.task import Info
from kinfolk.types import Client, Stack


@dataclass(frozen=True)
class Joinable(many_models.State):
    """The models of all clusters, and which of them are one."""

    one_with: Tensor  # [K]: the first of the clusters each was merged with; itself where it was not


S = TypeVar("S", bound=Joinable)


def merged(state: S, learner: Learner, x: Tensor, below: float, join: bool) -> tuple[S, Info]:
    """How many clusters have members, and how many differ; with `join` those that agree are one.

    They agree if on the pseudo rows x [K, rows, ...] of either their outputs are less than `below` apart.
    """
    held = torch.unique(state.member.cpu())
    models = {n: t[held.to(t.device)] for n, t in state.centres.items()}
    said = probabilities(learner, models, x[held.to(x.device)].flatten(0, 1))
    said = said.reshape(len(held), len(held), -1, said.shape[-1])
    one_with = held[joined(mutual_distances(said), below)]
    found: Info = {"clusters": len(held), "effective": len(torch.unique(one_with))}
    if not join or found["clusters"] == found["effective"]:
        return state, found
    to = torch.arange(state.k)
    to[held] = one_with
    # Those merged before go where theirs goes.
    return as_one(state, to[state.one_with.cpu()]), {**found, "clusters": found["effective"]}


def as_one(state: S, to: Tensor) -> S:
    """The state in which every cluster k is one with cluster to[k]: the mean by members, for all."""
    count = torch.bincount(state.member.cpu(), minlength=state.k)
    held = torch.nonzero(count)[:, 0]
    models = {n: t[held.to(t.device)] for n, t in state.centres.items()}
    stack = Stack(tuple(Client(str(k)) for k in held.tolist()), count[held], {"model": models})
    means = GroupMeans("model", state.centres, "size", lambda chunk: to[held])
    centres, _, _ = means.end(means.add(means.begin(), stack))
    centres = {n: t[to.to(t.device)] for n, t in centres.items()}
    return replace(state, centres=centres, member=to[state.member.cpu()], one_with=to)
