"""Clusters whose models agree become one: fewer clusters than K."""

from __future__ import annotations

from dataclasses import replace

import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from kinfolk.algorithms.blocks.many_models import GroupMeans
from kinfolk.algorithms.mdicfl.output_distance import Probe
from kinfolk.algorithms.mdicfl.state import State
from kinfolk.learning.learner import Learner
from kinfolk.task import Info
from kinfolk.types import Client, Stack

# Two models agree if their outputs on the pseudo rows of either are less apart than this, of at most 2.
AGREE = 0.25


def merged(state: State, learner: Learner, probe: Probe | None, join: bool) -> tuple[State, Info]:
    """How many clusters have members, and, by pseudo rows, how many differ; with `join` equals are merged."""
    held = torch.unique(state.member.cpu())
    if probe is None:
        return state, {"clusters": len(held)}
    models = {n: t[held.to(t.device)] for n, t in state.centres.items()}
    said = probe.ask(learner, models, probe.x[held.to(probe.x.device)])
    said = said.reshape(len(held), len(held), -1, said.shape[-1])
    one_with = held[joined(mutual_distances(said), AGREE)]
    found: Info = {"clusters": len(held), "effective": len(torch.unique(one_with))}
    if not join or found["clusters"] == found["effective"]:
        return state, found
    to = torch.arange(state.k)
    to[held] = one_with
    # Those merged before follow theirs.
    return as_one(state, to[state.one_with.cpu()]), {**found, "clusters": found["effective"]}


def as_one(state: State, to: Tensor) -> State:
    """The state in which every cluster k is one with cluster to[k]: all have the mean by members."""
    count = torch.bincount(state.member.cpu(), minlength=state.k)
    held = torch.nonzero(count)[:, 0]
    models = {n: t[held.to(t.device)] for n, t in state.centres.items()}
    stack = Stack(tuple(Client(str(k)) for k in held.tolist()), count[held], {"model": models})
    means = GroupMeans(state.centres, "size", lambda chunk: to[held])
    centres, _, _ = means.end(means.add(means.begin(), stack))
    centres = {n: t[to.to(t.device)] for n, t in centres.items()}
    return replace(state, centres=centres, member=to[state.member.cpu()], one_with=to)


def mutual_distances(outputs: Tensor) -> Tensor:
    """The distance of every two models on the rows made of either: [K, K], in [0, 2].

    outputs [K, K, rows, outputs]: model a (first) on the rows of model b (second). On rows of a third model
    two may differ by chance that belong to one group.

    >>> mutual_distances(torch.tensor([[[[1.0, 0.0]], [[1.0, 0.0]]], [[[0.5, 0.5]], [[0.0, 1.0]]]]))
    tensor([[0.0000, 1.5000],
            [1.5000, 0.0000]])
    """
    own = outputs.diagonal().movedim(-1, 0)
    there = (outputs - own).abs().sum(-1).mean(-1)
    return (there + there.T) / 2


def joined(apart: Tensor, tolerance: float) -> Tensor:
    """For each model the first of those it agrees with: less than `tolerance` apart, also by way of others.

    >>> joined(torch.tensor([[0.0, 0.9, 0.01], [0.9, 0.0, 1.0], [0.01, 1.0, 0.0]]), 0.1)
    tensor([0, 1, 0])
    """
    if not len(apart):
        return torch.zeros(0, dtype=torch.int64)
    near = (apart < tolerance).cpu().numpy()
    _, part = connected_components(near, directed=False)
    return torch.tensor([part.tolist().index(p) for p in part.tolist()])
