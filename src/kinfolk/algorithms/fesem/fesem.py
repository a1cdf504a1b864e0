"""FeSEM: several centres, found by stochastic expectation maximisation on the clients' models.

Long, Xie, Shen, Zhou, Wang, Jiang: Multi-center federated learning: clients clustering for better
personalization. World Wide Web 26, 2023 (online 2022), Algorithm 1.

    local   w_i <- argmin_w  a_i F_i(w) + (lambda / N) |w - c_{s_i}|^2, from c_{s_i}
    E       s_i <- argmin_k |w_i - c_k|^2
    M       c_k <- mean of w_i over the clients with s_i = k

The published code does otherwise (no penalty, last layer only, memberships never updated); this follows the
paper. E and M are one fold over chunks of replies, so no more than K + a chunk of models are held.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import many_models, near_centre
from kinfolk.algorithms.blocks.aggregator import Aggregator, RobustGroupMean
from kinfolk.algorithms.blocks.lowest_loss import where
from kinfolk.algorithms.blocks.many_models import GroupMeans, copies, model_of_group
from kinfolk.algorithms.blocks.near_centre import squared_distances
from kinfolk.algorithms.blocks.one_body import OneBody
from kinfolk.algorithms.blocks.start import Start
from kinfolk.clustering.margin import margins
from kinfolk.errors import KinfolkError, at_least
from kinfolk.learning.learner import Learner
from kinfolk.script import AssignBy, Request, Script, TuneSpace, ask, fold
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Table
from kinfolk.types import Client, Message, PerClient, Stack, Tree

# Memberships are stable once the spread changes by no more than this part of itself.
STABLE = 1e-4


@dataclass(frozen=True)
class State(many_models.State):
    """Centres and memberships, and how long each centre has been without members."""

    idle: Tensor  # [K] int64: rounds in a row that nobody belonged to it
    rows: float  # mean number of training rows, n / N; 0 before anybody was asked
    split: bool  # whether clients have been split into groups
    spread: float  # mean |w_i - c_{s_i}|^2 of the last round
    stable_rounds: int  # in a row, in which neither memberships nor spread have changed
    counted: int  # common rounds that counted: see `Start`


@dataclass(frozen=True)
class FeSEM:
    """A model for each of k groups; clients belong to the centre that their own model is nearest to."""

    learner: Learner
    k: int = 3  # number of centres
    lam: float = 0.05  # lambda: how strongly clients are held to their centre
    # "normalised": lambda / (N a_i), the paper's weights divided by a_i; "plain": lambda for everyone.
    prox_scaling: Literal["normalised", "plain"] = "normalised"
    cluster_on: Literal["all", "last_layer"] = "all"  # the parameters that distances are about
    reseed_after: int = 3  # rounds without members before a centre is moved; 0: never
    patience: int = 5  # rounds without change after which the run may stop; 0: never
    start: Start = Start()
    aggregate: Aggregator = Aggregator()  # the paper's mean is uniform
    tune_space: ClassVar[TuneSpace] = {"lam": (0.0, 0.05, 0.5)}

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("lam", 0), ("reseed_after", 0), ("patience", 0)):
            at_least(f"algorithm.{name}", getattr(self, name), least)
        if not self.names:
            remedy = "the network has no layer called 'head'; name its last layer so, or use 'all'"
            raise KinfolkError("algorithm.cluster_on", self.cluster_on, remedy)

    groups, margins = many_models.groups, many_models.margins
    assign_by: ClassVar[AssignBy] = "distance"
    begin, objective, implicit = near_centre.begin, near_centre.objective, near_centre.implicit
    eval_tasks = near_centre.eval_tasks

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """K centres, as the start has them."""
        centres, member = self.start.first(first, self.k, clients, self.learner, seed)
        centres = self.aggregate.begun(centres)
        return State(centres, member, clients, torch.zeros(self.k, dtype=torch.int64), 0.0, False, 0.0, 0, 0)

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """Local updates from the centres, then E and M."""
        if state.rows == 0:
            state = yield from self._count_rows(state, context)
        groups = None if self._is_common(state, context) else (yield from self._groups(state, context))
        if groups is None:  # all share one centre still, or too few have answered to find groups
            return (yield from self._common_round(state, cohort))
        state, given = groups
        em = EM(state.centres, self.names, self.aggregate, given, bool(self.reseed_after))
        found = yield from fold(em, "update", cohort, *self._sent(state, cohort))
        member = state.moved(tuple(found.member), where(found.member))
        # By everybody's group: a centre whose members were not asked in this round is not empty.
        idle = torch.where(member.bincount(minlength=self.k) > 0, 0, state.idle.cpu() + 1)
        centres, moved = self._reseed(found, idle)
        drift = abs(found.spread - state.spread)
        # A state that was restored may lie on the device.
        stable = torch.equal(member, state.member.to(member)) and drift <= STABLE * state.spread
        new = replace(
            state, centres=centres, member=member, idle=torch.where(moved, 0, idle), spread=found.spread,
            margin=state.margins(found.margin),
            stable_rounds=state.stable_rounds + 1 if stable else 0,
        )  # fmt: skip
        return new, {"spread": found.spread, "reseeded": int(moved.sum())}

    def _count_rows(self, state: State, context: RoundContext) -> Generator[Request, Any, State]:
        counted = yield from ask("count", context.clients)
        rows = float(counted.size.double().mean()) if counted.clients else 1.0
        return replace(state, rows=max(rows, 1.0))

    def _is_common(self, state: State, context: RoundContext) -> bool:
        """Whether all clients share one centre; for ever if there is no other."""
        if state.split or not self.start.common_rounds:
            return False
        return self.k == 1 or self.start.is_common(state.counted, context)

    def _common_round(self, state: State, cohort: tuple[Client, ...]) -> Script[State]:
        """E and M of one centre for all."""
        em = EM(state.centres, self.names, self.aggregate, dict.fromkeys(state.clients, 0))
        found, counts, told = yield from self.start.common_round(em, cohort, *self._sent(state, cohort))
        centres = copies({n: t[0] for n, t in found.centres.items()}, self.k)
        new = replace(state, centres=centres, spread=found.spread, counted=state.counted + counts)
        return new, {"spread": found.spread, **told}

    def _groups(
        self, state: State, context: RoundContext
    ) -> Generator[Request, Any, tuple[State, dict[str, int]] | None]:
        """The state with its clients split, and whose group stands in this round; None: too few answered."""
        if state.split:
            return state, {}
        found = yield from self.start.split(state, self.learner, self.aggregate, context, self.names)
        if found is None:
            return None
        centres, member, stand = found
        given = dict(zip(state.clients, member.tolist(), strict=True)) if stand else {}
        return replace(state, centres=centres, member=member, split=True), given

    def _sent(self, state: State, who: Sequence[Client]) -> tuple[Message, PerClient]:
        """To everyone how strongly centres pull, and to each the centre of its group.

        That is lambda, times the mean number of rows where each client is to divide by its own.
        """
        pull = self.lam * (state.rows if self.prox_scaling == "normalised" else 1.0)
        return {"pull": torch.tensor(pull)}, model_of_group(state, who)

    def _reseed(self, found: Found, idle: Tensor) -> tuple[Tree, Tensor]:
        """Put centres that were alone for long on the models that fit their own centre worst."""
        moved = torch.zeros_like(idle, dtype=torch.bool)
        centres = found.centres
        if not self.reseed_after:
            return centres, moved
        able = sorted((d, k) for k, (d, _) in found.farthest.items() if found.count[k] > 1)
        for k in torch.nonzero(idle >= self.reseed_after).flatten().tolist():
            if not able:
                break
            _, source = able.pop()
            model = found.farthest[source][1]
            centres = {
                n: t.index_copy(0, torch.tensor([k], device=t.device), model[n][None])
                for n, t in centres.items()
            }
            moved[k] = True
        return centres, moved

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that distances are about."""
        return self.learner.names if self.cluster_on == "all" else self.learner.head

    def finished(self, state: State) -> str:
        """Whether memberships and spread are stable."""
        done = self.patience and state.stable_rounds >= self.patience
        return f"memberships and spread did not change for {state.stable_rounds} rounds" if done else ""

    def tasks(self) -> Table:
        """Train from the centre with the penalty; what the start needs."""
        update = self.learner.train(self.implicit, self.begin, sent=near_centre.sent(self))
        return {"count": near_centre.COUNT, "update": update, **self.start.tasks(self.learner, update)}

    def eval_inputs(self, state: State, who: Sequence[Client]) -> tuple[Message, PerClient | None]:
        """Everyone is served the centre of its group, and how strongly that pulls."""
        return self._sent(state, who)


@dataclass(frozen=True)
class FeSEMShared(FeSEM):
    """FeSEM whose clients train one model together first, and who are not held to their centres.

    Ours, not the paper's, which splits clients by what they make of a network that knows nothing, holds
    them to their centre and counts them alike. Here all share one model until its loss has left the
    plateau, and for some rounds more; then k-means on what each makes of it alone splits them; a centre is
    the mean by rows. With K = 1 this is FedAvg. How the settings were chosen: docs/papers/fesem.md.
    """

    lam: float = 0.0
    # On the plateau any groups are worse than none: FEMNIST leaves it after 10 rounds.
    start: Start = Start("shared_kmeans", shared_most=100)
    aggregate: Aggregator = Aggregator(weights="size")


@dataclass(frozen=True)
class Found:
    """What a round of E and M has found."""

    centres: Tree
    member: dict[Client, int]
    count: dict[int, int]  # members of each group
    spread: float  # mean |w_i - c_{s_i}|^2, before the centres move
    farthest: dict[int, tuple[float, Tree]]  # of each group: its worst fit and that model
    margin: dict[Client, float]  # how clearly each belongs to its group


@dataclass(frozen=True)
class EM:
    """A fold: the E-step and the M-step over chunks of client models."""

    centres: Tree
    names: Sequence[str]
    aggregate: Aggregator
    given: Mapping[str, int] = field(default_factory=dict)  # whose group stands, in place of an E-step
    track: bool = False  # keep the worst fit of every group

    def begin(self) -> dict[str, Any]:
        """Nobody yet."""
        return {"means": self._means(None).begin(), "spread": 0.0, "farthest": {}, "margin": {}}

    def add(self, total: dict[str, Any], chunk: Stack) -> dict[str, Any]:
        """E: the nearest centre, ties to the lowest; M: add to its sum."""
        models = chunk.tree("model")
        distances = squared_distances(models, self.centres, self.names)
        group = distances.argmin(1)
        for i, c in enumerate(chunk.clients) if self.given else ():
            group[i] = self.given.get(c, group[i])
        distance = distances.gather(1, group[:, None])[:, 0]
        farthest = dict(total["farthest"])
        for k in sorted(set(group.tolist())) if self.track else ():
            mine = torch.nonzero(group == k).flatten()
            worst = int(mine[distance[mine].argmax()])
            if float(distance[worst]) > farthest.get(k, (-1.0, {}))[0]:
                farthest[k] = float(distance[worst]), {n: t[worst] for n, t in models.items()}
        means = self._means(group).add(total["means"], chunk)
        clear = dict(zip(chunk.clients, margins(distances.sqrt(), group).tolist(), strict=True))
        return {
            "means": means,
            "spread": total["spread"] + float(distance.sum()),
            "farthest": farthest,
            "margin": total["margin"] | clear,
        }

    def end(self, total: dict[str, Any]) -> Found:
        """The new centres and memberships."""
        centres, member, mass = self._means(None).end(total["means"])
        count = {k: sum(g == k for g in member.values()) for k in range(len(mass))}
        spread = total["spread"] / max(len(member), 1)
        return Found(centres, member, count, spread, total["farthest"], total["margin"])

    def _means(self, group: Any) -> GroupMeans | RobustGroupMean | OneBody:
        return self.aggregate.fold(self.centres, lambda chunk: group)
