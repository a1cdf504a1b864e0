"""MD-ICFL: clients belong to the cluster whose model says what theirs says, on rows made out of models.

Zhang et al.: Communication-efficient clustered federated learning via model distance. Machine Learning, 2024.
In every round, from the models c_k as they are before the means are taken:

    pseudo rows of (k, c)  by back-searching (MD-ICFL-1) or by a conditional generator (MD-ICFL-2)
    d_ikc                  L1 distance of the outputs of w_i and of c_k on them, a mean over rows
    s_i                    argmin_k sum_c p_ic d_ikc
    c_k                    mean of w_i over the clients with s_i = k

A client receives one model where IFCA sends K. Weak privacy: it tells its label law p_i once. Strong: it is
sent d_i, K x C numbers, and answers s_i. That hides the law from honest servers only: one that makes up
distances learns p_i to any precision by bisection, and weights tell of labels as well. `epsilon` makes
answers random, by coins out of a secret of the client's own; all its answers together spend the sum.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import many_models
from kinfolk.algorithms.blocks.aggregator import Aggregator, Centre, check_trim, group_fold
from kinfolk.algorithms.blocks.common_start import WithBlind, counts, telling
from kinfolk.algorithms.blocks.label_distribution import choose_task, law_task, no_coin, throw, with_secret
from kinfolk.algorithms.blocks.lowest_loss import enough_clients, where
from kinfolk.algorithms.blocks.many_models import copies, model_of_group
from kinfolk.algorithms.blocks.output_distance import nearest_cluster
from kinfolk.algorithms.blocks.warm_start import drawn_groups, warm_kmeans, warm_task, without_head
from kinfolk.algorithms.mdicfl.back_search import BackSearch, Prior
from kinfolk.algorithms.mdicfl.generator import Generators
from kinfolk.algorithms.mdicfl.merging import Joinable, merged
from kinfolk.algorithms.mdicfl.model_distance import Probe, answers
from kinfolk.algorithms.mdicfl.row_shape import SHAPE, row_shape
from kinfolk.errors import KinfolkError, at_least
from kinfolk.fold import Weights
from kinfolk.learning.learner import Learner
from kinfolk.learning.norm import by_the_batch
from kinfolk.script import Request, Script, ask, exchange, fold
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Info, PeerTask, Table, Task
from kinfolk.types import Client, Message, Stack, Tree

# How far from 1 the sum of a label law may be.
SLACK = 1e-3

Found = tuple[Tree, dict[Client, int], Tensor]


@dataclass(frozen=True)
class State(Joinable):
    """Models and memberships, and what the server was told."""

    shape: tuple[int, ...]  # of a row; empty before anybody was asked
    laws: Tensor  # [clients, C] label laws; zeros where none was told
    begun: bool  # whether a round has been played from the start
    kept: Tree  # [K, ...]: pseudo rows or generators, where they go on from round to round
    assigned: bool  # whether clients have been assigned by model distance
    answers: Tensor  # [clients] int64: how often each was asked for a random answer
    counted: int  # common rounds that counted: see `common_start`

    @property
    def models(self) -> tuple[Tree, Tree]:
        """Of the clusters, and what their pseudo rows go on from."""
        return self.centres, self.kept

    def law(self, who: Sequence[Client]) -> Tensor:
        """The label laws of some clients, in the order they are named."""
        return self.laws.cpu()[self.places(who)]

    def told(self, who: Sequence[Client]) -> list[bool]:
        """Of which of them the label law is known."""
        known: list[bool] = self.law(who).any(1).tolist()
        return known

    def places(self, who: Sequence[Client]) -> Tensor:
        """Where clients stand."""
        place = {c: i for i, c in enumerate(self.clients)}
        return torch.tensor([place[c] for c in who], dtype=torch.int64)


@dataclass(frozen=True)
class MDICFL:
    """A model for each of k clusters; clients belong where their model's outputs on made-up rows agree."""

    learner: Learner
    k: int = 4  # number of clusters; 1 gives FedAvg
    sampler: Literal["back_search", "generator"] = "back_search"  # MD-ICFL-1, MD-ICFL-2
    privacy: Literal["weak", "strong"] = "weak"  # the server knows label laws, or clients choose
    # "shared": one model, drawn clusters, which stand for one round; "distinct": K different models, which
    # may lock in; "warm_kmeans": k-means on models after `warm_epochs` from one start; "parted", which is
    # ours: k-means on the directions that clients then take from a model that all have trained together,
    # without its last layer.
    start: Literal["shared", "distinct", "warm_kmeans", "parted"] = "parted"
    shared_rounds: int = 3  # of "parted": common rounds that count
    plateau: float = 0.9  # they count once the loss is at most this part of a constant answer's; 0: all do
    shared_most: int = 15  # common rounds after which clients are parted anyhow
    # Clusters that k-means found stand while one of their models is less sure than this of its pseudo rows:
    # every model is near an unsure one. 0: they never do.
    confidence: float = 0.8
    warm_epochs: int = 5  # epochs of every client before k-means
    restarts: int = 20  # of k-means; the best counts
    weights: Weights = "uniform"  # of clients in the mean of a cluster; the paper's is uniform
    # What stands for a cluster: "mean" sums as replies come; "trimmed" and "median" hold the cohort's models.
    mean: Centre = "mean"
    trim: float = 0.1  # share of a cluster's members that "trimmed" cuts off each side
    # Which of a cluster's models clients are compared with: the one that pseudo rows were made of, or the
    # mean that its members would have after this round, for which the cohort's models are held.
    against: Literal["before", "after"] = "before"
    samples: int = 10  # M: pseudo rows for each cluster and class; the paper's is 30
    prior_mean: float = 0.0  # mu of rows; the paper's 0.5 for pixels is 0 once they are normalised
    prior_weight: float = 0.1  # lambda
    norm: Literal["l2", "squared"] = "l2"  # of the pull towards mu
    clip_to_range: bool = False  # rows searched for are kept in [-1, 1]
    search_iterations: int = 100
    warm_rows: int = 5  # rows go on from the round before with so many steps; 0: fresh ones, the paper's
    search_lr: float = 0.1
    noise: int = 16  # numbers that a generator starts from, beside the label
    hidden: int = 0  # a generator's width; 0: 512 for images of three channels, else 256
    generator_batch: int = 100
    generator_iterations: int = 1000
    generator_lr: float = 0.01
    output: Literal["tanh", "none"] = "tanh"  # a generator's last step
    warm_generators: bool = False  # go on from the last round's, in place of fresh ones
    diversity_weight: float = 0.0  # against a generator's rows being all alike
    generator_statistics: Literal["running", "batch"] = "running"  # what its BatchNorm draws rows by
    epsilon: float = 0.0  # above 0: randomised response, this far from telling; strong privacy only
    merge: bool = False  # clusters whose models agree become one, once clients have been assigned before
    merge_below: float = 0.25  # agree: outputs on either's rows are less apart, of at most 2
    final_reassign: bool = False  # after the last round everyone trains and is assigned once more, for scores

    def __post_init__(self) -> None:
        least = {
            "shared_rounds": 1, "plateau": 0, "shared_most": 1, "merge_below": 0,
            "k": 1, "warm_epochs": 1, "restarts": 1, "samples": 1, "prior_weight": 0, "search_iterations": 0,
            "search_lr": 0, "warm_rows": 0, "confidence": 0, "noise": 1, "hidden": 0, "generator_batch": 2,
            "generator_iterations": 0, "generator_lr": 0, "diversity_weight": 0, "epsilon": 0,
        }  # fmt: skip
        for name, number in least.items():
            at_least(f"algorithm.{name}", getattr(self, name), number)
        check_trim("algorithm.trim", self.trim)
        loss = self.learner.loss
        if not loss.classification:
            remedy = "mdicfl compares the probabilities of classes; use a classification loss, cross_entropy"
            raise KinfolkError("loss", loss.name, remedy)
        if by_the_batch(self.learner.module):
            remedy = "answers must not depend on other rows of a batch; use 'bn', 'gn' or 'none'"
            raise KinfolkError("model.norm", "batch", remedy)
        if self.epsilon and self.privacy == "weak":
            remedy = "with weak privacy clients give no answers to randomise; set privacy = 'strong'"
            raise KinfolkError("algorithm.epsilon", self.epsilon, remedy)

    eval_inputs, groups = many_models.eval_inputs, many_models.groups

    def eval_tasks(self) -> Mapping[str, Task]:
        """The model of the client's cluster; by class only where the server knows label laws anyway."""
        return {"centre": self.learner.score(by_class=self.privacy == "weak")}

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """K models, alike unless the start is to be distinct; memberships drawn, as even as can be."""
        enough_clients(self.k, clients)
        member = drawn_groups(len(clients), self.k if self.start != "parted" else 1, seed)
        centres = copies(first, self.k)
        if self.start == "distinct":
            centres = many_models.distinct(centres, self.learner.names, seed)
        laws = torch.zeros(len(clients), self.learner.outputs)
        once, none = torch.arange(self.k), torch.zeros(len(clients), dtype=torch.int64)
        return State(centres, member, tuple(clients), once, (), laws, False, {}, False, none, 0)

    def begin(self, state: State, turn: RoundContext) -> Generator[Request, Any, tuple[State, bool]]:
        """The models and clusters to begin with, and whether these clusters stand for the first round."""
        if self.start == "distinct":
            return state, False
        if self.start in ("warm_kmeans", "parted"):
            first = {n: t[0] for n, t in state.centres.items()}
            ours = self.start == "parted"
            names = without_head(self.learner) if ours else self.learner.names
            how = self.k, self.restarts, turn, Aggregator(self.mean, self.trim, self.weights)
            found = yield from warm_kmeans(first, names, *how, directions=ours)
            if found is not None:
                centres, labels = found
                return replace(state, centres=centres, member=state.moved(list(labels), where(labels))), False
        # Models that are alike are parted by the clusters that were drawn.
        drawn = drawn_groups(len(state.clients), self.k, turn.seed)
        return replace(state, member=drawn), True

    def round(self, state: State, cohort: tuple[Client, ...], turn: RoundContext) -> Script[State]:
        """Local updates from the clusters' models, then clusters and means."""
        if self.in_common(state, turn):
            return (yield from self.common(state, cohort))
        known, facts = (yield from self.hear(state, cohort)) if self.k > 1 else (state, {})
        able = self.able(known, cohort)
        new, stand = known, self.k == 1
        if not able:
            return known, facts
        if not known.begun and self.k > 1:
            new, stand = yield from self.begin(known, turn)
        probe = None
        if not stand:
            new, probe = self.probe(new, turn)
            facts["confidence"] = sure = probe.least_sure(new.member)
            stand = self.holds(sure)
        if probe is None or stand or self.privacy == "weak":
            centres, member, _ = yield from self.assigned(new, able, None if stand else probe)
        else:
            new, (centres, member, _) = yield from self.chosen(new, able, probe)
            facts |= {"epsilon": max(self.spent(new).values())} if self.epsilon else {}
        if not member:  # nobody took part: the start is still to come
            return self.still_spent(known, new), facts
        moved = new.moved(list(member), where(member))
        # A cluster that was merged goes on as a copy of the one it was merged with.
        centres = {n: t[new.one_with.to(t.device)] for n, t in centres.items()}
        new = replace(new, centres=centres, member=moved, begun=True, assigned=known.assigned or not stand)
        if probe is None:
            return new, facts | {"clusters": len(torch.unique(moved))}
        # Models that have just been parted may agree for want of training.
        join = self.merge and known.assigned and not stand
        new, told = merged(new, self.learner, probe.x, self.merge_below, join)
        return new, facts | told

    def holds(self, sure: float) -> bool:
        """Whether clusters that k-means has found are to stand, the least sure model being so sure."""
        return self.start in ("warm_kmeans", "parted") and sure < self.confidence

    def in_common(self, state: State, turn: RoundContext) -> bool:
        """Whether all clients share one model still."""
        if self.start != "parted" or self.k == 1 or state.begun:
            return False
        return state.counted < self.shared_rounds and turn.round < self.shared_most

    def common(self, state: State, cohort: tuple[Client, ...]) -> Script[State]:
        """A round of one model for everybody, which also tells whether it has begun to learn."""
        one = {n: t[:1] for n, t in state.centres.items()}
        by = WithBlind(group_fold(self.mean, self.trim, "model", one, self.weights, all_in_one))
        sent = {"model": {n: t[0] for n, t in one.items()}}
        (one, _, _), blind = yield from fold(by, "common", cohort, sent)
        counted = state.counted + counts(blind, self.plateau)
        new = replace(state, centres=copies({n: t[0] for n, t in one.items()}, self.k), counted=counted)
        return new, {"clusters": 1, "blind": blind}

    def finalize(self, state: State, turn: RoundContext) -> Script[State] | None:
        """Everyone in the cluster that a round of all would put it into, once there are clusters."""
        return self.reassigned(state, turn) if self.final_reassign and self.k > 1 and state.begun else None

    def reassigned(self, state: State, turn: RoundContext) -> Script[State]:
        """The same models with clusters found anew."""
        known, facts = yield from self.hear(state, turn.clients)
        able, (_, probe) = self.able(known, turn.clients), self.probe(known, turn)
        if self.holds(probe.least_sure(known.member)):
            return known, facts
        if self.privacy == "weak":
            _, member, _ = yield from self.assigned(known, able, probe)
        else:
            known, (_, member, _) = yield from self.chosen(known, able, probe)
        return replace(known, member=known.moved(list(member), where(member))), facts

    def hear(self, state: State, cohort: Sequence[Client]) -> Generator[Request, Any, tuple[State, Info]]:
        """What the server has to be told once: the shape of rows; with weak privacy, label laws."""
        if not state.shape:
            got = yield from ask("shape", cohort)
            state = replace(state, shape=row_shape(got.tensor("shape"), self.learner, state.centres))
        if self.privacy == "strong":
            return state, {}
        new = [c for c, known in zip(cohort, state.told(cohort), strict=True) if not known]
        if not new:
            return state, {"bad_laws": []}
        got = yield from ask("law", new)
        laws = got.tensor("law").cpu().float()
        good = (laws.double().sum(1) - 1).abs() <= SLACK
        told = [c for c, fine in zip(got.clients, good.tolist(), strict=True) if fine]
        held = state.laws.cpu().index_copy(0, state.places(told), laws[good])
        return replace(state, laws=held), {"bad_laws": sorted(set(got.clients) - set(told))}

    def able(self, state: State, cohort: Sequence[Client]) -> tuple[Client, ...]:
        """Who can take part: who told no usable law counts as missing; without a shape there are no rows."""
        if self.k > 1 and not state.shape:
            return ()
        if self.k == 1 or self.privacy == "strong":
            return tuple(cohort)
        return tuple(c for c, known in zip(cohort, state.told(cohort), strict=True) if known)

    def probe(self, state: State, turn: RoundContext) -> tuple[State, Probe]:
        """Pseudo rows from the clusters' models as they are now."""
        prior = Prior(self.prior_mean, self.prior_weight, self.norm)
        sampler: BackSearch | Generators
        if self.sampler == "back_search":
            steps = self.search_iterations, self.search_lr
            sampler = BackSearch(self.samples, *steps, prior, self.clip_to_range, self.warm_rows)
        else:
            sampler = Generators(
                self.samples, self.generator_iterations, self.generator_lr, self.generator_batch, self.noise,
                self.hidden, self.output, self.warm_generators, self.diversity_weight,
                self.generator_statistics, prior,
            )  # fmt: skip
        # Of clusters that were merged, rows are made once.
        alive, slot = torch.unique(state.one_with.cpu(), return_inverse=True)
        models, nets = ({n: t[alive.to(t.device)] for n, t in tree.items()} for tree in state.models)
        x, kept = sampler.draw(self.learner, models, state.shape, turn, nets)
        own, slot = answers(self.learner, models, x), slot.to(x.device)
        return replace(state, kept={n: t[slot] for n, t in kept.items()}), Probe(x[slot], own[slot])

    def compared(self, state: State, got: Stack, probe: Probe) -> Probe:
        """The pseudo rows with what the models say that clients are to be compared with."""
        if self.against == "before" or not got.clients:
            return probe
        of = lambda chunk: state.of(chunk.clients)  # noqa: E731
        means = group_fold(self.mean, self.trim, "model", state.centres, self.weights, of)
        centres, _, _ = means.end(means.add(means.begin(), got))
        centres = {n: t[state.one_with.to(t.device)] for n, t in centres.items()}
        return replace(probe, own=answers(self.learner, centres, probe.x))

    def assigned(
        self, state: State, able: tuple[Client, ...], probe: Probe | None
    ) -> Generator[Request, Any, Found]:
        """Clusters by what the server knows, chunk by chunk: no more than K + a chunk of models are held."""

        def group(chunk: Stack) -> Tensor:
            if probe is None:
                return state.of(chunk.clients)
            apart = probe.distances(self.learner, chunk.tree("model"))
            # Twins are as near as each other but for the last bit.
            near = nearest_cluster(apart, state.law(chunk.clients).to(apart.device))
            return state.one_with.cpu()[near.cpu()]

        means = group_fold(self.mean, self.trim, "model", state.centres, self.weights, group)
        if probe is not None and self.against == "after":
            got = yield from ask("update", able, each=model_of_group(state, able))
            probe = self.compared(state, got, probe)
            return means.end(means.add(means.begin(), got) if got.clients else means.begin())
        found: Found = yield from fold(means, "update", able, each=model_of_group(state, able))
        return found

    def chosen(
        self, state: State, able: tuple[Client, ...], probe: Probe
    ) -> Generator[Request, Any, tuple[State, Found]]:
        """Clusters by the clients' own choice; who makes none has not taken part."""
        choices: dict[Client, int] = {}
        chosen = lambda chunk: where({c: choices[c] for c in chunk.clients})  # noqa: E731
        means = group_fold(self.mean, self.trim, "model", state.centres, self.weights, chosen)
        total = means.begin()
        got = yield from ask("update", able, each=model_of_group(state, able))
        if not got.clients:
            return state, means.end(total)
        probe = self.compared(state, got, probe)
        apart = {"distances": probe.distances(self.learner, got.tree("model"))}
        if self.epsilon:
            yield from exchange("coin", got.clients)
            # Who was asked may have answered, whether or not that was heard.
            asked = torch.zeros_like(state.answers.cpu()).index_fill(0, state.places(got.clients), 1)
            state = replace(state, answers=state.answers.cpu() + asked)
        told = yield from ask("choose", got.clients, each=replace(got, body=apart))
        choice = state.one_with.cpu()[told.tensor("choice").cpu()]
        choices = dict(zip(told.clients, choice.tolist(), strict=True))
        if choices:
            total = means.add(total, got.at(told.clients))
        return state, means.end(total)

    def spent(self, state: State) -> Mapping[Client, float]:
        """The epsilon of all random answers that a client was asked for; they add up."""
        if not self.epsilon:
            return {}
        total = (self.epsilon * state.answers.double()).tolist()
        return dict(zip(map(Client, state.clients), total, strict=True))

    def still_spent(self, before: State, after: State) -> State:
        """What was answered in a void round was answered."""
        return replace(before, answers=after.answers)

    def preparation(self) -> str:
        """Secrets are there, and saved, before anybody answers: see `throw`."""
        return "secret" if self.epsilon else ""

    def init_client(self, who: Client) -> Message:
        """With randomised answers: room for a secret and a coin."""
        return no_coin() if self.epsilon else {}

    def tasks(self) -> Table:
        """Train; tell the shape of a row; with weak privacy the label law, with strong choose a cluster."""
        classes = self.learner.outputs
        table: dict[str, Task | PeerTask] = {"shape": SHAPE, "update": self.learner.train()}
        if self.start in ("warm_kmeans", "parted"):
            table["warm"] = warm_task(self.learner, self.warm_epochs)
            table["common"] = telling(self.learner, self.learner.train())
        if self.privacy == "weak":
            return table | {"law": law_task(classes, self.learner.score_batch)}
        if self.epsilon:
            table["secret"] = PeerTask(lambda memory, me: {}, lambda inbox, memory, me: with_secret(memory))
            table["coin"] = PeerTask(lambda memory, me: {}, lambda inbox, memory, me: throw(memory, me))
        return table | {"choose": choose_task(classes, self.k, self.learner.score_batch, self.epsilon)}


def all_in_one(chunk: Stack) -> Tensor:
    """Everybody in the first cluster."""
    return torch.zeros(len(chunk), dtype=torch.int64)
