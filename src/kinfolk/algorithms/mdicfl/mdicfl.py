"""MD-ICFL: clients belong to the cluster whose model agrees with theirs on rows made out of the models.

Zhang et al.: Communication-efficient clustered federated learning via model distance. Machine Learning, 2024.
In every round, from the models c_k as they are before the means are taken:

    pseudo rows of (k, c)  by back-searching (MD-ICFL-1) or by a conditional generator (MD-ICFL-2); ours, for
                           networks that give the next token: written by the model
    d_ikc                  L1 distance of the outputs of w_i and of c_k on them, a mean over rows
    s_i                    argmin_k sum_c p_ic d_ikc
    c_k                    mean of w_i over the clients with s_i = k

A client receives one model where IFCA sends K. Weak privacy: it tells its label distribution p_i once.
Strong: it is sent d_i, K x C numbers, and answers s_i. That hides p_i from honest servers only: one that
makes up distances learns it to any precision by bisection, and weights reveal labels as well. `epsilon` makes
answers random, by coins from a secret of the client's own; all its answers together spend the sum.
"""

from __future__ import annotations

from collections.abc import Generator as Dialogue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import many_models
from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.algorithms.blocks.lowest_loss import where
from kinfolk.algorithms.blocks.many_models import model_of_group
from kinfolk.algorithms.mdicfl.back_search import BackSearch
from kinfolk.algorithms.mdicfl.client_facts import SHAPE, distribution_task, hear_labels, row_shape
from kinfolk.algorithms.mdicfl.generator import Generator
from kinfolk.algorithms.mdicfl.merging import merged
from kinfolk.algorithms.mdicfl.output_distance import Probe, cluster_cost
from kinfolk.algorithms.mdicfl.output_distance import told as told_distances
from kinfolk.algorithms.mdicfl.pseudo import PseudoRows
from kinfolk.algorithms.mdicfl.randomised_response import choose_task, coin_tasks, no_coin
from kinfolk.algorithms.mdicfl.shown import shown
from kinfolk.algorithms.mdicfl.start import HeldStart
from kinfolk.algorithms.mdicfl.state import State
from kinfolk.algorithms.mdicfl.written_text import WrittenText
from kinfolk.clustering.margin import margins
from kinfolk.errors import KinfolkError, at_least
from kinfolk.learning.learner import Learner
from kinfolk.learning.norm import by_the_batch
from kinfolk.script import MADE, Request, Script, ask, exchange, fold
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Info, Table, Task
from kinfolk.types import Client, Message, Stack, Tree

Assigned = tuple[State, Tree, dict[Client, int]]


@dataclass(frozen=True)
class MDICFL:
    """A model for each of k clusters; clients belong where their model agrees on rows made out of models."""

    learner: Learner
    k: int = 4  # number of clusters; 1 gives FedAvg
    privacy: Literal["weak", "strong"] = "weak"  # the server knows label distributions, or clients choose
    epsilon: float = 0.0  # above 0: randomised response, this far from telling; strong privacy only
    pseudo: PseudoRows = PseudoRows()
    search: BackSearch = BackSearch()  # of the sampler "back_search"
    generator: Generator = Generator()  # of the sampler "generator"
    text: WrittenText = WrittenText()  # of the sampler "text"
    # Ours. The paper has one model and drawn clusters, or different models: it does not say.
    start: HeldStart = HeldStart("shared_kmeans", on="body_directions")
    aggregate: Aggregator = Aggregator()  # the paper's mean is uniform
    merge: bool = False  # clusters whose models agree become one, once clients have been assigned before
    final_reassign: bool = False  # after the last round everyone trains and is assigned once more, for scores

    makes_rows: ClassVar[str] = "pseudo rows"

    def __post_init__(self) -> None:
        at_least("algorithm.k", self.k, 1)
        at_least("algorithm.epsilon", self.epsilon, 0)
        loss = self.learner.loss
        if not loss.classification:
            remedy = "mdicfl compares the probabilities of classes; use cross_entropy and one class a row"
            raise KinfolkError("loss", loss.name, remedy)
        if by_the_batch(self.learner.module):
            remedy = "outputs must not depend on other rows of a batch; use 'bn', 'gn' or 'none'"
            raise KinfolkError("model.norm", "batch", remedy)
        if self.learner.metrics and self.privacy == "strong":
            remedy = (
                "with strong privacy clients tell no more than loss, accuracy and F1; set privacy = 'weak'"
            )
            raise KinfolkError("run.metrics", [metric.name for metric in self.learner.metrics], remedy)
        if self.epsilon and self.privacy == "weak":
            remedy = "with weak privacy clients give no answers to randomise; set privacy = 'strong'"
            raise KinfolkError("algorithm.epsilon", self.epsilon, remedy)

    def makes_tokens(self, shape: tuple[int, ...]) -> None:
        """Refuse a sampler that cannot make rows of tokens with this network."""
        self.pseudo.reader(self.learner, shape)

    eval_inputs, groups, margins = many_models.eval_inputs, many_models.groups, many_models.margins

    def eval_tasks(self) -> Mapping[str, Task]:
        """The model of the client's cluster; by class only where the server knows label distributions."""
        return {"centre": self.learner.score(by_class=self.privacy == "weak")}

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """K models, as the start has them."""
        centres, member = self.start.first(first, self.k, clients, self.learner, seed)
        centres = self.aggregate.begun(centres)
        return State.first(centres, member, tuple(clients), self.learner.outputs)

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """Pseudo rows from the models, local updates, clusters by the distance of outputs, means."""
        if self.k > 1 and not state.begun and self.start.is_common(state.counted, context):
            return (yield from self.common_round(state, cohort))
        told, info = yield from self.hear(state, cohort)
        able = self.able(told, cohort)
        if not able:
            return told, info
        new = told if told.begun or self.k == 1 else (yield from self.first_clusters(told, context))
        probe = compared = None
        if self.k > 1 and new.begun:  # clusters that were drawn stand for one round
            new, probe = self.probe(new, context)
            info["confidence"] = sure = probe.least_confidence(new.member)
            info[MADE] = new.centres, probe
            compared = None if self.start.stands(sure) else probe
        new, centres, member = yield from self.assigned(new, able, compared)
        info |= {"epsilon": max(self.spent(new).values())} if self.epsilon and compared else {}
        if not member:  # nobody took part: the start is still to come
            return self.still_spent(told, new), info
        assigned = told.assigned or compared is not None
        new = replace(new.with_clusters(centres, member), begun=True, assigned=assigned)
        # Not when they are first assigned: models that have just been split may agree for want of training.
        join = self.merge and told.assigned and compared is not None
        new, counts = merged(new, self.learner, probe, join)
        return new, info | counts

    def common_round(self, state: State, cohort: tuple[Client, ...]) -> Script[State]:
        """One model for everybody."""
        centres, counts, told = yield from self.start.common_mean(state, self.aggregate, cohort)
        return replace(state, centres=centres, counted=state.counted + counts), {"clusters": 1, **told}

    def first_clusters(self, state: State, context: RoundContext) -> Dialogue[Request, Any, State]:
        """The clusters to begin with; those that were drawn have not `begun`: they stand for one round."""
        found = yield from self.start.split(state, self.learner, self.aggregate, context)
        centres, member, drawn = found or self.start.drawn(state, context)
        return replace(state, centres=centres, member=member, begun=not drawn)

    def hear(self, state: State, cohort: Sequence[Client]) -> Dialogue[Request, Any, tuple[State, Info]]:
        """What the server is told once: the shape of rows; with weak privacy, label distributions."""
        if self.k == 1:
            return state, {}
        if not state.shape:
            got = yield from ask("shape", cohort)
            state = replace(state, shape=row_shape(got.tensor("shape"), self.learner, state.centres))
        return (state, {}) if self.privacy == "strong" else (yield from hear_labels(state, cohort))

    def able(self, state: State, cohort: Sequence[Client]) -> tuple[Client, ...]:
        """Who can take part: nobody without a shape of rows, nor anybody without a label distribution."""
        if self.k > 1 and not state.shape:
            return ()
        if self.k == 1 or self.privacy == "strong":
            return tuple(cohort)
        return tuple(c for c, known in zip(cohort, state.has_labels(cohort), strict=True) if known)

    def probe(self, state: State, context: RoundContext) -> tuple[State, Probe]:
        """Pseudo rows from the clusters' models as they are now."""
        reader, shape = self.pseudo.reader(self.learner, state.shape)
        # Mixtures of tokens are logits, which have no range.
        made = self.generator if reader is self.learner else replace(self.generator, output="none")
        samplers: dict[str, BackSearch | Generator | WrittenText] = {
            "back_search": self.search, "generator": made, "text": self.text,
        }  # fmt: skip
        sampler = samplers[self.pseudo.sampler]
        # Of clusters that were merged, rows are made once.
        alive, slot = torch.unique(state.one_with.cpu(), return_inverse=True)
        models, kept = (
            {n: t[alive.to(t.device)] for n, t in tree.items()} for tree in (state.centres, state.kept)
        )
        x, kept = sampler.draw(self.pseudo, reader, models, shape, context, kept)
        own, slot = Probe.of(reader, models, x).own, slot.to(x.device)
        return replace(state, kept={n: t[slot] for n, t in kept.items()}), Probe(x[slot], own[slot], reader)

    def assigned(
        self, state: State, able: tuple[Client, ...], probe: Probe | None
    ) -> Dialogue[Request, Any, Assigned]:
        """Local updates, clusters and means; without pseudo rows to compare on, clusters as they are."""
        if probe is not None and self.privacy == "strong":
            return (yield from self.chosen(state, able, probe))

        one_with, clear = state.one_with.cpu(), dict[Client, float]()

        def group(chunk: Stack) -> Tensor:
            if probe is None:
                return state.of(chunk.clients)
            apart = probe.distances(self.learner, chunk.tree("model"))
            cost = cluster_cost(apart, state.labels_of(chunk.clients).to(apart.device)).cpu()
            # Of clusters that were merged the first: the others are as near but for the last bit.
            near = one_with[cost.argmin(-1)]
            rivals = cost.masked_fill(one_with != torch.arange(len(one_with)), torch.inf)
            clear.update(zip(chunk.clients, margins(rivals, near).tolist(), strict=True))
            return near

        # Chunk by chunk: no more than K + a chunk of models are held.
        means = self.aggregate.fold(state.centres, group)
        centres, member, _ = yield from fold(means, "update", able, each=model_of_group(state, able))
        return replace(state, margin=state.margins(clear)), centres, member

    def chosen(
        self, state: State, able: tuple[Client, ...], probe: Probe
    ) -> Dialogue[Request, Any, Assigned]:
        """The same with clusters that clients choose; who makes no choice has not taken part."""
        got = yield from ask("update", able, each=model_of_group(state, able))
        if not got.clients:
            return state, state.centres, {}
        apart = {"distances": told_distances(probe.distances(self.learner, got.tree("model")))}
        if self.epsilon:
            yield from exchange("coin", got.clients)
            # Who was asked may have answered, whether or not that was heard.
            asked = torch.zeros_like(state.answers.cpu()).index_fill(0, state.places(got.clients), 1)
            state = replace(state, answers=state.answers.cpu() + asked)
        told = yield from ask("choose", got.clients, each=replace(got, body=apart))
        if not told.clients:
            return state, state.centres, {}
        choice = state.one_with.cpu()[told.tensor("choice").cpu()]
        choices = dict(zip(told.clients, choice.tolist(), strict=True))
        chosen = lambda chunk: where({c: choices[c] for c in chunk.clients})  # noqa: E731
        return state, self.aggregate.of(got.at(told.clients), state.centres, chosen), choices

    def shows(
        self, state: State, memories: Mapping[Client, Message], made: Any, context: RoundContext
    ) -> dict[str, Tensor]:
        """How sure models are of the round's pseudo rows, and some of these where they are images."""
        if made is None:
            return {}
        centres, probe = made
        return shown(self.learner, self.pseudo.labels(self.learner.outputs), centres, probe)

    def finalize(self, state: State, context: RoundContext) -> Script[State] | None:
        """Everyone in the cluster that a round of all would put it into, once there are clusters."""
        return self.reassigned(state, context) if self.final_reassign and self.k > 1 and state.begun else None

    def reassigned(self, state: State, context: RoundContext) -> Script[State]:
        """The same models with new clusters."""
        told, info = yield from self.hear(state, context.clients)
        able, (_, probe) = self.able(told, context.clients), self.probe(told, context)
        if self.start.stands(probe.least_confidence(told.member)):
            return told, info
        told, _, member = yield from self.assigned(told, able, probe)
        return told.with_clusters(told.centres, member), info

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
        """Train; tell the shape of a row; tell the label distribution, or choose a cluster by it."""
        classes, batch = self.learner.outputs, self.learner.score_batch
        update = self.learner.train()
        table: Table = {"shape": SHAPE, "update": update, **self.start.tasks(self.learner, update)}
        if self.privacy == "weak":
            return {**table, "labels": distribution_task(classes, batch)}
        return {
            **table,
            **(coin_tasks() if self.epsilon else {}),
            "choose": choose_task(classes, self.k, batch, self.epsilon),
        }
