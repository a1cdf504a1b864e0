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
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from kinfolk.algorithms import many_models
from kinfolk.algorithms.many_models import GroupMeans, copies, model_of_group
from kinfolk.clustering.distances import flat
from kinfolk.clustering.kmeans import kmeans
from kinfolk.clustering.sketch import Sketch, width_for
from kinfolk.errors import KinfolkError, at_least
from kinfolk.fold import Weights
from kinfolk.learning.learner import Learner
from kinfolk.script import Request, Script, ask, fold
from kinfolk.streams import Seed, Turn
from kinfolk.task import Batch, Carry, Facts, Fit, Table, Task
from kinfolk.types import Client, Message, Stack, Tree

# Bytes of client models that are held for an exact k-means; beyond, distances are taken on sketches.
EXACT = 1 << 30


@dataclass(frozen=True)
class State(many_models.State):
    """Centres and memberships, and how long each centre has been without members."""

    idle: Tensor  # [K] int64: rounds in a row that nobody was nearest
    rows: float  # mean number of training rows, n / N; 0 before anybody was asked
    spread: float  # mean |w_i - c_{s_i}|^2 of the last round
    calm: int  # rounds in a row that neither memberships nor spread have changed


@dataclass(frozen=True)
class FeSEM:
    """A model for each of k groups; clients belong to the centre that their own model is nearest to."""

    learner: Learner
    k: int = 3  # number of centres
    lam: float = 0.05  # lambda: how strongly clients are held to their centre
    # "normalised": lambda / (N a_i), the paper's weights divided by a_i; "plain": lambda for everyone.
    prox_scaling: Literal["normalised", "plain"] = "normalised"
    weights: Weights = "uniform"  # of clients in the mean of a group; the paper's is uniform
    cluster_on: Literal["all", "last_layer"] = "all"  # the parameters that distances are about
    # "warm_kmeans": k-means on models after `warm_epochs` from one start; "random_partition": random
    # groups of one start; "distinct_models": K different starts, which locks in.
    start: Literal["warm_kmeans", "random_partition", "distinct_models"] = "warm_kmeans"
    warm_epochs: int = 5  # epochs of every client before k-means
    restarts: int = 20  # of k-means; the best counts
    reseed_after: int = 3  # rounds without members before a centre is moved; 0: never
    settle: int = 5  # rounds without change after which the run may stop; 0: never

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("lam", 0), ("warm_epochs", 1), ("restarts", 1), ("reseed_after", 0)):
            at_least(f"algorithm.{name}", getattr(self, name), least)
        at_least("algorithm.settle", self.settle, 0)
        if self.cluster_on == "last_layer" and not any(n.startswith("head.") for n in self.learner.names):
            remedy = "the network has no layer called 'head'; name its last layer so, or use 'all'"
            raise KinfolkError("algorithm.cluster_on", self.cluster_on, remedy)

    serve, groups = many_models.serve, many_models.groups

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """K copies of the common start; memberships are drawn, and stand if the start is to be random."""
        if self.k > len(clients):
            raise KinfolkError("algorithm.k", self.k, f"no more groups than the {len(clients)} clients")
        member = torch.from_numpy(seed.numpy("cluster", "start").permutation(len(clients)) % self.k)
        centres = copies(first, self.k)
        if self.start == "distinct_models":
            centres = many_models.distinct(centres, self.learner.names, seed)
        return State(centres, member, clients, torch.zeros(self.k, dtype=torch.int64), 0.0, 0.0, 0)

    def round(self, state: State, cohort: tuple[Client, ...], turn: Turn) -> Script[State]:
        """Local updates from the centres, then E and M."""
        given = None
        if state.rows == 0:
            state = yield from self._begin(state, turn)
            if (
                self.start == "random_partition"
            ):  # all centres are one model still: the drawn groups part them
                given = dict(zip(state.clients, state.member.tolist(), strict=True))
        em = EM("model", state.centres, self.weights, self.names, self.reseed_after, given)
        pull = torch.tensor(self.lam * (state.rows if self.prox_scaling == "normalised" else 1.0))
        found = yield from fold(em, "update", cohort, {"pull": pull}, model_of_group(state, cohort))
        who = tuple(found.member)
        member = state.moved(who, torch.tensor([found.member[c] for c in who], dtype=torch.int64))
        idle = torch.where(found.mass > 0, 0, state.idle + 1)
        centres, moved = self._reseed(found, idle)
        calm = torch.equal(member, state.member) and abs(found.spread - state.spread) <= 1e-4 * state.spread
        new = State(
            centres, member, state.clients, torch.where(moved, 0, idle), state.rows, found.spread,
            state.calm + 1 if calm else 0,
        )  # fmt: skip
        return new, {"spread": found.spread, "reseeded": int(moved.sum())}

    def _begin(self, state: State, turn: Turn) -> Generator[Request, Any, State]:
        """Count rows, and if the start is to be warm cluster what everyone has trained from one model."""
        counted = yield from ask("count", turn.clients)
        rows = float(counted.size.double().mean()) if counted.clients else 1.0
        state = replace(state, rows=max(rows, 1.0))
        if self.start != "warm_kmeans":
            return state
        first = {"model": {n: t[0] for n, t in state.centres.items()}}
        exact = len(turn.clients) * 4 * sum(first["model"][n].numel() for n in self.names) <= EXACT
        points = Points(
            self.names, None if exact else self._sketch(first["model"], len(turn.clients), turn.seed)
        )
        who, table = yield from fold(points, "warm", turn.clients, first)
        if len(who) < self.k:
            return state
        found = kmeans(table, self.k, turn.seed, self.restarts)
        labels = dict(zip(who, found.labels.tolist(), strict=True))
        # The same work again gives the same models: their means are taken without having held them all.
        means = GroupMeans("model", state.centres, self.weights, lambda chunk: _of(labels, chunk))
        centres, _, _ = yield from fold(means, "warm", who, first)
        return replace(state, centres=centres, member=state.moved(who, found.labels))

    def _sketch(self, model: Tree, clients: int, seed: Seed) -> Sketch | None:
        """None where all models together are small enough to be held as they are."""
        shapes = {n: tuple(model[n].shape) for n in self.names}
        if 4 * clients * sum(model[n].numel() for n in self.names) <= EXACT:
            return None
        return Sketch.of(shapes, width_for(clients, 0.25), seed)

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
        return tuple(n for n in self.learner.names if self.cluster_on == "all" or n.startswith("head."))

    def finished(self, state: State) -> str:
        """Memberships and spread have settled."""
        settled = self.settle and state.calm >= self.settle
        return f"memberships and spread did not change for {state.calm} rounds" if settled else ""

    def tasks(self) -> Table:
        """Train from the centre with the penalty; before the first round, without it and for longer."""
        plan = replace(self.learner.plan, epochs=self.warm_epochs, steps=0)
        warm = self.learner.train()
        return {
            # The number of rows comes with every reply; there is nothing else to say.
            "count": Task(lambda message, memory, facts: {"rows": facts.rows}, lambda carry: ({}, None)),
            "warm": replace(warm, passes=(Fit((self.learner.descent(),), plan),), stream="warm"),
            "update": self.learner.train(self.objective, self.begin),
        }

    def begin(self, message: Message, memory: Message, facts: Facts) -> Carry:
        """Start at c_{s_i}, and remember where that was and how strongly it pulls."""
        scale = facts.rows.clamp(min=1) if self.prox_scaling == "normalised" else 1
        return {"model": message["model"], "centre": message["model"], "pull": message["pull"] / scale}

    def objective(self, model: Tree, batch: Batch, carry: Carry) -> Tensor:
        """F_i(w) + lambda_i |w - c|^2 over the trainable parameters."""
        w, c = self.learner.params(model), self.learner.params(carry["centre"])
        apart = sum(((w[n] - c[n]) ** 2).sum() for n in w)
        loss = self.learner.objective(model, batch, carry)
        return loss + carry["pull"] * apart if self.lam else loss

    def scored(self) -> Mapping[str, Task]:
        """The centre as it is, and after one epoch on the client's own rows."""
        return {"centre": self.learner.score(), "fine-tuned": self.learner.score(tune_epochs=1)}


def _put(centres: Tensor, place: Tensor, model: Tensor) -> Tensor:
    """The centres with one of them, where `place` is true, exchanged for a model."""
    return torch.where(place.to(centres.device).reshape(-1, *[1] * model.dim()), model, centres)


def _of(labels: Mapping[Client, int], chunk: Stack) -> Tensor:
    return torch.tensor([labels[c] for c in chunk.clients], dtype=torch.int64)


@dataclass(frozen=True)
class Points:
    """A fold: every client's parameters as one row, or a sketch of them; (clients, [clients, D]) by name."""

    names: tuple[str, ...]
    sketch: Sketch | None

    def begin(self) -> dict[Client, Tensor]:
        """Nobody yet."""
        return {}

    def add(self, total: dict[Client, Tensor], chunk: Stack) -> dict[Client, Tensor]:
        """The rows of a chunk."""
        mine = {n: chunk.tree("model")[n] for n in self.names}
        rows = flat(mine, self.names) if self.sketch is None else self.sketch.apply(mine)
        return total | dict(zip(chunk.clients, rows.unbind(), strict=True))

    def end(self, total: dict[Client, Tensor]) -> tuple[tuple[Client, ...], Tensor]:
        """All rows in order of names."""
        who = tuple(sorted(total))
        return who, torch.stack([total[c] for c in who]) if who else torch.zeros(0, 1)


@dataclass(frozen=True)
class Found:
    """What a round of E and M has found."""

    centres: Tree
    member: dict[Client, int]
    mass: Tensor  # [K] weight of each group
    count: dict[int, int]  # members of each group
    spread: float  # mean |w_i - c_{s_i}|^2, before the centres move
    farthest: dict[int, tuple[float, Tree]]  # of each group: its worst fit and that model


@dataclass(frozen=True)
class EM:
    """A fold: the E-step and the M-step over chunks of client models."""

    key: str
    centres: Tree
    weights: Weights
    names: Sequence[str]
    track: int  # above 0: keep the worst fit of every group
    given: Mapping[str, int] | None = None  # groups that stand, in place of an E-step

    def begin(self) -> dict[str, Any]:
        """Nobody yet."""
        return {"means": self._means(None).begin(), "spread": 0.0, "farthest": {}}

    def add(self, total: dict[str, Any], chunk: Stack) -> dict[str, Any]:
        """E: the nearest centre, ties to the lowest; M: add to its sum."""
        distances = squared_distances(chunk.tree(self.key), self.centres, self.names)
        distance, group = distances.min(1)
        if self.given is not None:
            group = torch.tensor([self.given[c] for c in chunk.clients], device=distances.device)
            distance = distances.gather(1, group[:, None])[:, 0]
        farthest = dict(total["farthest"])
        for k in sorted(set(group.tolist())) if self.track else ():
            mine = torch.nonzero(group == k).flatten()
            worst = int(mine[distance[mine].argmax()])
            if float(distance[worst]) > farthest.get(k, (-1.0, {}))[0]:
                farthest[k] = float(distance[worst]), {n: t[worst] for n, t in chunk.tree(self.key).items()}
        means = self._means(group).add(total["means"], chunk)
        return {"means": means, "spread": total["spread"] + float(distance.sum()), "farthest": farthest}

    def end(self, total: dict[str, Any]) -> Found:
        """The new centres and memberships."""
        centres, member, mass = self._means(None).end(total["means"])
        count = {k: sum(g == k for g in member.values()) for k in range(len(mass))}
        return Found(centres, member, mass, count, total["spread"] / max(len(member), 1), total["farthest"])

    def _means(self, group: Tensor | None) -> GroupMeans:
        return GroupMeans(self.key, self.centres, self.weights, lambda chunk: group)


def squared_distances(models: Tree, centres: Tree, names: Sequence[str]) -> Tensor:
    """|w_i - c_k|^2 over the named leaves, [clients, K] in float64.

    >>> w, c = {"v": torch.tensor([[0.0], [3.0]])}, {"v": torch.tensor([[1.0], [3.0]])}
    >>> squared_distances(w, c, ["v"])
    tensor([[1., 9.],
            [4., 0.]], dtype=torch.float64)
    """
    k = len(centres[names[0]])
    return torch.stack(
        [
            torch.stack([_apart(models[n], centres[n][j]) for n in names]).sum(0)
            for j in range(k)
        ],
        dim=1,
    )  # fmt: skip


def _apart(models: Tensor, centre: Tensor) -> Tensor:
    return (models - centre).reshape(len(models), -1).square().sum(1, dtype=torch.float64)
