"""K centres: each client trains its own group's centre, and what it sends joins the nearest centre.

The first round gathers the replies and spreads the centres over them; later rounds fold the replies
chunk by chunk, holding K sums and one chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kinfolk.learning.learner import Learner
from kinfolk.script import Script, ask, fold
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Table, Task
from kinfolk.types import Client, Message, Stack, Tree


@dataclass(frozen=True)
class State:
    """The centres, each client's group, and whether the centres have been spread yet."""

    centres: Tree  # every leaf [K, ...]
    group: Tree  # by client's name, so that a position can not be taken for an identity
    spread: bool


class Total(NamedTuple):
    """Sums so far, how many replies each holds, and where each reply went."""

    sums: Tree
    counts: Tensor
    label: dict[Client, int]


@dataclass(frozen=True)
class ByNearest:
    """A fold: each reply is added to the sum of the centre it is nearest to; its label is kept."""

    centres: Tree
    names: tuple[str, ...]  # the entries that distances are about

    def begin(self) -> Total:
        k = len(next(iter(self.centres.values())))
        sums = {
            n: torch.zeros_like(t, dtype=torch.float64 if t.is_floating_point() else t.dtype)
            for n, t in self.centres.items()
        }
        return Total(sums, torch.zeros(k, dtype=torch.float64), {})

    def add(self, total: Total, chunk: Stack) -> Total:
        models = chunk.tree("model")
        near = torch.cdist(flat(models, self.names), flat(self.centres, self.names)).argmin(1)
        labels = dict(zip(chunk.clients, near.tolist(), strict=True))
        counts = total.counts + torch.bincount(near, minlength=len(total.counts))
        return Total(
            {n: _added(t, near, models[n]) for n, t in total.sums.items()}, counts, total.label | labels
        )

    def end(self, total: Total) -> tuple[Tree, dict[Client, int]]:
        """(centres, label by client); a centre that nothing joined stays where it was."""
        return {n: _moved(t, total.sums[n], total.counts) for n, t in self.centres.items()}, total.label


def _added(total: Tensor, near: Tensor, leaf: Tensor) -> Tensor:
    if leaf.is_floating_point():
        return total.index_add(0, near, leaf.double())
    out = total.clone()
    for label, value in zip(near.tolist(), leaf, strict=True):
        out[label] = torch.maximum(out[label], value)
    return out


def _moved(old: Tensor, total: Tensor, counts: Tensor) -> Tensor:
    shape = [-1, *[1] * (old.dim() - 1)]
    mean = total / counts.clamp(min=1).reshape(shape) if old.is_floating_point() else total
    return torch.where(counts.reshape(shape) > 0, mean.to(old.dtype), old)


def flat(models: Tree, names: tuple[str, ...]) -> Tensor:
    """Stacked models as rows of float64 numbers."""
    return torch.cat([models[n].double().flatten(1) for n in names], dim=1)


@dataclass(frozen=True)
class Nearest:
    """K models; a client belongs to the one its own is nearest to."""

    learner: Learner
    k: int = 2  # number of centres; 1 gives FedAvg with uniform weights

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        centres = {n: torch.stack([t] * self.k) for n, t in first.items()}
        return State(centres, {c: torch.tensor(0) for c in clients}, False)

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        each = self.own_centre(state, cohort)
        if state.spread:
            by = ByNearest(state.centres, self.learner.names)
            centres, label = yield from fold(by, "update", cohort, each=each)
        else:
            got = yield from ask("update", cohort, each=each)
            if not got.clients:
                return state, {}
            by = ByNearest(self.spread(state.centres, got.tree("model")), self.learner.names)
            centres, label = by.end(by.add(by.begin(), got))
        moved = {c: torch.tensor(number) for c, number in label.items()}
        return State(centres, {**state.group, **moved}, True), {"joined": len(label)}

    def own_centre(self, state: State, who: Sequence[Client]) -> Stack:
        """Each client's own centre."""
        names = tuple(sorted(who))
        group = torch.stack([state.group[c] for c in names])
        body = {"model": {n: t[group] for n, t in state.centres.items()}}
        return Stack(names, torch.ones(len(names), dtype=torch.int64), body)

    def spread(self, old: Tree, models: Tree) -> Tree:
        """Centres at models that are far from one another; the first is the farthest from the mean."""
        points = flat(models, self.learner.names)
        chosen = [int(torch.cdist(points, points.mean(0, keepdim=True)).argmax())]
        while len(chosen) < min(self.k, len(points)):
            chosen.append(int(torch.cdist(points, points[chosen]).amin(1).argmax()))
        return {n: torch.cat([t[chosen], old[n][len(chosen) :]]) for n, t in models.items()}

    def tasks(self) -> Table:
        return {"update": self.learner.train()}

    def groups(self, state: State) -> Tensor:
        return torch.stack([state.group[c] for c in sorted(state.group)])

    def eval_inputs(self, state: State, who: Sequence[Client]) -> tuple[Message, Stack | None]:
        return {}, self.own_centre(state, who)

    def eval_tasks(self) -> Mapping[str, Task]:
        return {"centre": self.learner.score()}
