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
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import many_models, near_centre
from kinfolk.algorithms.blocks.aggregator import Centre, GroupMiddles, check_trim, group_fold
from kinfolk.algorithms.blocks.common_start import WithBlind, counts, telling
from kinfolk.algorithms.blocks.lowest_loss import where
from kinfolk.algorithms.blocks.many_models import GroupMeans, copies, model_of_group
from kinfolk.algorithms.blocks.near_centre import squared_distances
from kinfolk.algorithms.blocks.warm_start import drawn_groups, warm_kmeans, warm_task
from kinfolk.errors import KinfolkError, at_least
from kinfolk.fold import Weights
from kinfolk.learning.learner import Learner
from kinfolk.script import Request, Script, ask, fold
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Fit, Table, Task
from kinfolk.types import Client, Message, PerClient, Stack, Tree


@dataclass(frozen=True)
class State(many_models.State):
    """Centres and memberships, and how long each centre has been without members."""

    idle: Tensor  # [K] int64: rounds in a row that nobody belonged to it
    rows: float  # mean number of training rows, n / N; 0 before anybody was asked
    parted: bool  # whether the centres have become different
    spread: float  # mean |w_i - c_{s_i}|^2 of the last round
    calm: int  # rounds in a row that neither memberships nor spread have changed
    last: Tree  # what each client sent last, [clients, ...]; empty unless means are over all of them
    seen: Tensor  # [clients] int64: the training rows behind what was sent; 0: nothing was
    counted: int  # common rounds that counted: see `common_start`

    def after(self, got: Stack) -> tuple[State, Stack]:
        """With what was sent now in place of what was sent last; and everything that was sent last."""
        place = {c: i for i, c in enumerate(self.clients)}
        rows = torch.tensor([place[c] for c in got.clients], dtype=torch.int64)
        last = {n: t.index_copy(0, rows.to(t.device), got.tree("model")[n]) for n, t in self.last.items()}
        seen = self.seen.cpu().index_copy(0, rows, got.size.cpu())
        known = torch.nonzero(seen).flatten()
        body = {"model": {n: t[known.to(t.device)] for n, t in last.items()}}
        who = tuple(Client(self.clients[i]) for i in known.tolist())
        return replace(self, last=last, seen=seen), Stack(who, seen[known], body)

    def groups_of(self, who: Sequence[Client]) -> dict[str, int]:
        """The groups of some clients by name."""
        return dict(zip(who, self.of(who).tolist(), strict=True))


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
    # What k-means sees there: "models", as the paper has it; or, ours, where clients have unlike numbers of
    # rows, "directions" of their updates, since who takes more steps gets farther. Else both are models.
    start_on: Literal["directions", "models"] = "directions"
    # Whose models make up a mean: those of this round, or what every client sent last, which the server
    # then has to keep. They differ only where a round asks a part of the clients.
    members: Literal["participants", "all_last_seen"] = "participants"
    # Ours, not the paper's: rounds that all clients share one centre before they are parted. Without them
    # models of clients with few classes each differ by their labels more than by anything else.
    shared_rounds: int = 0
    plateau: float = 0.0  # they count once the loss is at most this part of a constant answer's; 0: all do
    shared_most: int = 15  # common rounds after which clients are parted anyhow
    warm_epochs: int = 5  # epochs of every client before k-means
    restarts: int = 20  # of k-means; the best counts
    # Ours: k-means is not shown clients whose models are so many times as far from others' as most are; 0:
    # it sees all. Without it each of a few attackers far away may get a centre to itself.
    set_aside: float = 0.0
    reseed_after: int = 3  # rounds without members before a centre is moved; 0: never
    settle: int = 5  # rounds without change after which the run may stop; 0: never
    # What stands for a group: "mean" sums as replies come; "trimmed" and "median" hold the cohort's models.
    mean: Centre = "mean"
    trim: float = 0.1  # share of a group's members that "trimmed" cuts off each side

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("lam", 0), ("warm_epochs", 1), ("restarts", 1), ("reseed_after", 0),
                            ("settle", 0), ("shared_rounds", 0), ("set_aside", 0), ("plateau", 0),
                            ("shared_most", 1)):  # fmt: skip
            at_least(f"algorithm.{name}", getattr(self, name), least)
        check_trim("algorithm.trim", self.trim)
        if self.cluster_on == "last_layer" and not any(n.startswith("head.") for n in self.learner.names):
            remedy = "the network has no layer called 'head'; name its last layer so, or use 'all'"
            raise KinfolkError("algorithm.cluster_on", self.cluster_on, remedy)
        if 0 < self.set_aside <= 1:
            raise KinfolkError(
                "algorithm.set_aside", self.set_aside, "give more than 1 (2 is a good one), or 0"
            )
        if self.set_aside and self.start != "warm_kmeans":
            raise KinfolkError("algorithm.set_aside", self.set_aside, "needs start = 'warm_kmeans'")
        if self.shared_rounds and self.start == "distinct_models":
            raise KinfolkError("algorithm.shared_rounds", self.shared_rounds, "needs a start from one model")

    groups = many_models.groups
    begin, objective, implicit = near_centre.begin, near_centre.objective, near_centre.implicit

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """K copies of the common start; memberships are drawn unless all are to share one centre first."""
        if self.k > len(clients):
            raise KinfolkError("algorithm.k", self.k, f"no more groups than the {len(clients)} clients")
        member = drawn_groups(len(clients), self.k, seed)
        centres = copies(first, self.k)
        if self.shared_rounds:
            member = torch.zeros_like(member)
        elif self.start == "distinct_models":
            centres = many_models.distinct(centres, self.learner.names, seed)
        idle, seen = torch.zeros(self.k, dtype=torch.int64), torch.zeros(len(clients), dtype=torch.int64)
        last = copies(first, len(clients)) if self.members == "all_last_seen" else {}
        return State(centres, member, clients, idle, 0.0, False, 0.0, 0, last, seen, 0)

    def round(self, state: State, cohort: tuple[Client, ...], turn: RoundContext) -> Script[State]:
        """Local updates from the centres, then E and M."""
        state, given = yield from self._begin(state, turn)
        em = EM(
            "model", state.centres, self.weights, self.names, self.reseed_after, given, self.mean, self.trim
        )
        sent = {"pull": self._pull(state)}, model_of_group(state, cohort)
        if self.plateau and not state.parted:
            return (yield from self._common(state, em, cohort, sent))
        if self.members == "participants":
            found = yield from fold(em, "update", cohort, *sent)
        else:
            state, everyone = state.after((yield from ask("update", cohort, *sent)))
            absent = {c: k for c, k in state.groups_of(everyone.clients).items() if c not in cohort}
            em = replace(em, given=absent | given)
            found = em.end(em.add(em.begin(), everyone) if everyone.clients else em.begin())
        if not state.parted:  # the one centre of all
            return self._as_one(state, found), {"spread": found.spread}
        member = state.moved(tuple(found.member), where(found.member))
        # By everybody's group: a centre whose members were not asked in this round is not empty.
        idle = torch.where(member.bincount(minlength=self.k) > 0, 0, state.idle.cpu() + 1)
        centres, moved = self._reseed(found, idle)
        calm = torch.equal(member, state.member) and abs(found.spread - state.spread) <= 1e-4 * state.spread
        new = replace(
            state, centres=centres, member=member, idle=torch.where(moved, 0, idle), spread=found.spread,
            calm=state.calm + 1 if calm else 0,
        )  # fmt: skip
        return new, {"spread": found.spread, "reseeded": int(moved.sum())}

    def _as_one(self, state: State, found: Found) -> State:
        """The state after a round of one centre for all."""
        centres = copies({n: t[0] for n, t in found.centres.items()}, self.k)
        return replace(state, centres=centres, spread=found.spread, counted=state.counted + 1)

    def _common(
        self, state: State, em: EM, cohort: tuple[Client, ...], sent: tuple[Message, PerClient]
    ) -> Script[State]:
        """A round of one centre for all who take part, which also tells whether it has begun to learn."""
        found, blind = yield from fold(WithBlind(em), "common", cohort, *sent)
        new = self._as_one(state, found)
        new = new if counts(blind, self.plateau) else replace(new, counted=state.counted)
        return new, {"spread": found.spread, "blind": blind}

    def _sharing(self, state: State, turn: RoundContext) -> bool:
        """Whether all clients are to share one centre still; for ever if there is no other."""
        if state.parted or not self.shared_rounds:
            return False
        late = self.plateau and turn.round >= self.shared_most
        return self.k == 1 or (state.counted < self.shared_rounds and not late)

    def _pull(self, state: State) -> Tensor:
        """lambda, times the mean number of rows where each client is to divide by its own."""
        return torch.tensor(self.lam * (state.rows if self.prox_scaling == "normalised" else 1.0))

    def _begin(
        self, state: State, turn: RoundContext
    ) -> Generator[Request, Any, tuple[State, dict[str, int]]]:
        """What comes before E and M: the state with its centres parted, and whose group stands for now."""
        if state.rows == 0:
            counted = yield from ask("count", turn.clients)
            rows = float(counted.size.double().mean()) if counted.clients else 1.0
            state = replace(state, rows=max(rows, 1.0))
        if self._sharing(state, turn):
            return state, dict.fromkeys(state.clients, 0)
        if state.parted:
            return state, {}
        state = replace(state, parted=True)
        first = {n: t[0] for n, t in state.centres.items()}
        if self.start == "warm_kmeans":
            by = partial(group_fold, self.mean, self.trim)
            found = yield from warm_kmeans(
                first, self.names, self.k, self.restarts, self.weights, turn, by, self.set_aside,
                directions=None if self.start_on == "directions" else False,
            )  # fmt: skip
            if found is None:  # too few answered: share for one more round
                return replace(state, parted=False), dict.fromkeys(state.clients, 0)
            centres, labels = found
            return replace(state, centres=centres, member=state.moved(tuple(labels), where(labels))), {}
        if self.start == "random_partition":
            # All centres are one model still: the drawn groups part them.
            member = drawn_groups(len(state.clients), self.k, turn.seed)
            state = replace(state, member=member)
            return state, dict(zip(state.clients, member.tolist(), strict=True))
        return state, {}

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
        update = self.learner.train(self.implicit, self.begin)
        table = {"count": near_centre.COUNT, "update": update}
        if self.plateau:
            table["common"] = telling(self.learner, update)
        return table | (
            {"warm": warm_task(self.learner, self.warm_epochs)} if self.start == "warm_kmeans" else {}
        )

    def eval_inputs(self, state: State, who: Sequence[Client]) -> tuple[Message, PerClient | None]:
        """Everyone is served the centre of its group, and how strongly that pulls."""
        return {"pull": self._pull(state)}, model_of_group(state, who)

    def eval_tasks(self) -> Mapping[str, Task]:
        """c_{s_i} as it is; w_i, which the local update makes of it; c_{s_i} after one plain epoch."""
        update = Fit((self.learner.descent(self.implicit),), self.learner.plan)
        return {
            "centre": self.learner.score(),
            "personal": self.learner.score(self.begin, update, stream="batch"),
            "fine-tuned": self.learner.score(tune=self.learner.tuning(1)),
        }


@dataclass(frozen=True)
class FeSEMShared(FeSEM):
    """FeSEM whose clients train one model together first, and who are not held to their centres.

    Ours, not the paper's, which parts clients by what they make of a network that knows nothing, holds
    them to their centre and counts them alike. Here all share one model until its loss has left the
    plateau, and for some rounds more; then k-means on what each makes of it alone parts them; a centre is
    the mean by rows. With K = 1 this is FedAvg. How the settings were chosen: docs/papers/fesem.md.
    """

    lam: float = 0.0
    weights: Weights = "size"
    shared_rounds: int = 3
    plateau: float = 0.9
    shared_most: int = 100  # on the plateau any groups are worse than none: FEMNIST leaves it after 10 rounds


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
    given: Mapping[str, int] = field(default_factory=dict)  # whose group stands, in place of an E-step
    mean: Centre = "mean"
    trim: float = 0.1

    def begin(self) -> dict[str, Any]:
        """Nobody yet."""
        return {"means": self._means(None).begin(), "spread": 0.0, "farthest": {}}

    def add(self, total: dict[str, Any], chunk: Stack) -> dict[str, Any]:
        """E: the nearest centre, ties to the lowest; M: add to its sum."""
        distances = squared_distances(chunk.tree(self.key), self.centres, self.names)
        group = distances.argmin(1)
        for i, c in enumerate(chunk.clients) if self.given else ():
            group[i] = self.given.get(c, group[i])
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

    def _means(self, group: Tensor | None) -> GroupMeans | GroupMiddles:
        return group_fold(self.mean, self.trim, self.key, self.centres, self.weights, lambda chunk: group)
