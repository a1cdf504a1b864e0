"""Clustered FL (FedCluster): a group whose members pull apart when the mean has settled is split in two.

Sattler, Müller, Samek: Clustered Federated Learning. IEEE TNNLS 32(8), 2021. The
thresholds are relative to the first round, since lengths of updates belong to one network and rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import many_models
from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.algorithms.blocks.many_models import copies, model_of_group
from kinfolk.clustering.distances import cosines, flat
from kinfolk.clustering.hierarchy import bipartition
from kinfolk.errors import KinfolkError, at_least
from kinfolk.learning.learner import Learner
from kinfolk.script import Script, TuneSpace, ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Client, Stack, Tree


@dataclass(frozen=True)
class State(many_models.State):
    """The groups so far, which become more, and how long updates were in the first round."""

    lengths: Tensor  # [2] float64: of the mean update, of the longest; 0 until a round was answered


@dataclass(frozen=True)
class ClusteredFL:
    """One model at first; groups are split by the cosines of their members' updates."""

    learner: Learner
    eps1: float = 0.4  # the mean has settled: its update is below eps1 x that of the first round
    eps2: float = 0.5  # members have not: the longest is above eps2 x the longest of the first round
    split_after: int = 20  # rounds before the first split
    min_size: int = 2  # only larger groups are split
    gamma_max: float = 0.0  # a split needs sqrt((1 - largest cosine across) / 2) above this
    aggregate: Aggregator = Aggregator()  # all models of a round are held in any case
    tune_space: ClassVar[TuneSpace] = {"eps1": (0.2, 0.4), "eps2": (0.5, 1.0)}

    def __post_init__(self) -> None:
        for name in ("eps1", "eps2", "split_after", "gamma_max"):
            at_least(f"algorithm.{name}", getattr(self, name), 0)
        at_least("algorithm.min_size", self.min_size, 1)

    tasks, groups = many_models.tasks, many_models.groups
    eval_inputs, eval_tasks = many_models.eval_inputs, many_models.eval_tasks

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """Everybody in one group."""
        everybody = torch.zeros(len(clients), dtype=torch.int64)
        return State(copies(first, 1), everybody, tuple(clients), torch.zeros(2, dtype=torch.float64))

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """Split what is ready to be split; in every group, c <- mean of w_i."""
        splitting = context.round >= self.split_after
        if splitting and len(cohort) < len(state.clients):
            asked = f"{len(cohort)} of {len(state.clients)} clients"
            raise KinfolkError("run.participation", asked, "groups are split only with everybody: give 1")
        got = yield from ask("update", cohort, each=model_of_group(state, cohort))
        if not got.clients:
            return state, {}
        delta = self.updates(state, got)
        if not bool(state.lengths.any()):
            state = replace(state, lengths=lengths(delta))
        if splitting:
            state = self.split(state, got.clients, delta)
        centres = self.aggregate.of(got, state.centres, state.group_of)
        return replace(state, centres=centres), {}

    def updates(self, state: State, got: Stack) -> Tensor:
        """w_i - c_{s_i} over the trainable parameters, [replies, P] in float64."""
        names = self.learner.names
        before = flat(state.centres, names)[state.of(got.clients).to(_device(got))]
        return flat(got.tree("model"), names).double() - before.double()

    def split(self, state: State, who: Sequence[Client], delta: Tensor) -> State:
        """Each group as it is now, split in two if it is ready; the second half gets a new number."""
        group = state.of(who)
        for g in range(state.k):
            here = (group == g).nonzero()[:, 0]
            # A group is split only when everybody in it has answered: the others could not be placed.
            if len(here) <= self.min_size or len(here) < int((state.member == g).sum()):
                continue
            mine = delta[here.to(delta.device)]
            mean, longest = lengths(mine) / state.lengths.cpu().clamp(min=1e-300)
            if not (mean < self.eps1 and longest > self.eps2):
                continue
            cut = bipartition(cosines(mine))
            if math.sqrt((1 - cut.cross) / 2) > self.gamma_max:
                # A cut speaks of positions inside the group: `here` says who stands there.
                leaving = [who[i] for i in here[cut.second.cpu()].tolist()]
                state = split_off(state, g, leaving)
        return state


def lengths(delta: Tensor) -> Tensor:
    """(length of the mean update, length of the longest), on the host.

    >>> lengths(torch.tensor([[3.0, 4.0], [-3.0, 4.0]], dtype=torch.float64))
    tensor([4., 5.], dtype=torch.float64)
    """
    return torch.stack([delta.mean(0).norm(), delta.norm(dim=1).amax()]).double().cpu()


def split_off(state: State, g: int, leaving: Sequence[Client]) -> State:
    """The state with some members of a group in a new one, which starts from the same model."""
    new = torch.full((len(leaving),), state.k)
    centres = {name: torch.cat([t, t[g : g + 1]]) for name, t in state.centres.items()}
    return replace(state, centres=centres, member=state.moved(leaving, new))


def _device(got: Stack) -> torch.device:
    return next(iter(got.tree("model").values())).device
