"""FeSEM-MA: FeSEM whose centres are matched averages, unit by unit, of their members' networks.

Long, Xie, Shen, Zhou, Wang, Jiang: Multi-center federated learning. World Wide Web 26, 2023. Wang, Yurochkin,
Sun, Papailiopoulos, Khazaeni: Federated Learning with Matched Averaging. ICLR 2020.

    local   w_i <- argmin_w  a_i F_i(w) + (lambda / N) |w - c_{s_i}|^2, from c_{s_i}
    E       s_i <- argmin_k |w_i - c_k|^2, index by index
    M       c_k <- matched average of the w_i with s_i = k, from the first layer up; row c of the output layer
            is the mean with weights n_jc / sum_j n_jc, the plain mean where no member has the class

With `retrain_epochs` the M-step is all of FedMA: after each hidden layer every member gets the matched ones,
trains those above them and sends these, as many uploads as there are layers; who does not answer goes on with
what it sent before. The server sends each member its whole re-indexed model.

Widths: a centre always has the widths of the network, so that distances are defined, and everyone in a group
is served the same model. With `growth = 1` every unit of a member is matched to one of the centre, and the
result depends on none of gamma, sigma, sigma0 and kappa. With more, up to 1.5, units that fit nowhere may
open a new one while a layer is matched, which keeps them out of the means of others; then the layer is cut
back to the units that most members have. FedMA's clients instead go back to units of their own each, which
needs a model per client on the server and leaves no one centre to measure distances to.

Unlike FeSEM, this has to gather: E and M take about four times the memory of the models of all who replied.
A centre that nobody is nearest to stays where it is.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import many_models, near_centre
from kinfolk.algorithms.blocks.aggregator import Aggregator, RobustMean
from kinfolk.algorithms.blocks.label_counts import count_labels
from kinfolk.algorithms.blocks.lowest_loss import where
from kinfolk.algorithms.blocks.many_models import model_of_group
from kinfolk.algorithms.blocks.start import Start
from kinfolk.algorithms.fesem.chain import Chain, chain_of
from kinfolk.algorithms.fesem.matched import Middle, common_model, match_next
from kinfolk.algorithms.fesem.matching import Matching
from kinfolk.clustering.margin import margins
from kinfolk.errors import KinfolkError, at_least
from kinfolk.learning.learner import Learner
from kinfolk.script import AssignBy, Request, Script, TuneSpace, ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Carry, Fit, Table, Task
from kinfolk.types import Client, Message, PerClient, Stack, Tree


@dataclass(frozen=True)
class State(many_models.State):
    """Centres and memberships, and what clients told once of their rows."""

    rows: Tensor  # [clients] int64: training rows; 0 for those not heard yet
    labels: Tensor  # [clients, C] float64: training rows of each class, n_jc
    split: bool  # whether clients have been split into groups
    counted: int  # common rounds that counted: see `Start`


@dataclass(frozen=True)
class FeSEMMA:
    """FeSEM with centres that are matched averages: units may stand in another order in each member."""

    learner: Learner
    k: int = 3  # number of centres
    lam: float = 0.05  # lambda: how strongly clients are held to their centre
    tune_space: ClassVar[TuneSpace] = {"lam": (0.0, 0.05, 0.5)}
    # "normalised": lambda / (N a_i), the paper's weights divided by a_i; "plain": lambda for everyone.
    prox_scaling: Literal["normalised", "plain"] = "normalised"
    start: Start = Start()
    matching: Matching = Matching()
    # Of units that were matched: their mean (in the output layer by rows of each class), or what a few
    # attackers cannot move far, in which every member counts alike.
    aggregate: RobustMean = RobustMean()
    chain: Chain = field(init=False, repr=False)

    def __post_init__(self) -> None:
        at_least("algorithm.k", self.k, 1)
        at_least("algorithm.lam", self.lam, 0)
        if self.aggregate.name != "mean" and self.aggregate.centre is None:
            remedy = "layers are put together one by one, not whole models; use 'trimmed' or 'median'"
            raise KinfolkError("algorithm.aggregate.name", self.aggregate.name, remedy)
        if self.aggregate.name != "mean" and self.matching.growth > 1:
            remedy = "a layer that grows has units that not every member has; use matching.growth = 1"
            raise KinfolkError("algorithm.aggregate.name", self.aggregate.name, remedy)
        if self.learner.frozen:
            remedy = "matched averages put whole layers into another order; train all of them, or use 'fesem'"
            raise KinfolkError(
                "algorithm.name", f"fesem_ma with {next(iter(self.learner.frozen))} frozen", remedy
            )
        object.__setattr__(self, "chain", chain_of(self.learner.module))
        units, outputs = len(self.learner.first[self.chain.layers[-1].weight]), self.learner.outputs
        if units != outputs:
            raise KinfolkError(
                "network", units, f"its last layer must have one unit for each of {outputs} outputs"
            )

    groups, margins = many_models.groups, many_models.margins
    assign_by: ClassVar[AssignBy] = "distance"
    begin, objective, implicit = near_centre.begin, near_centre.objective, near_centre.implicit
    eval_tasks = near_centre.eval_tasks

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """K centres and memberships as the start has them."""
        centres, member = self.start.first(first, self.k, clients, self.learner, seed)
        rows = torch.zeros(len(clients), dtype=torch.int64)
        labels = torch.zeros(len(clients), self.learner.outputs, dtype=torch.float64)
        return State(centres, member, clients, rows, labels, False, 0)

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """Local updates from the centres, then E, then M by matching."""
        state = yield from self._count_labels(state, cohort)
        pull = {"pull": self._pull(state)}
        if not state.split and self.start.is_common(state.counted, context):
            mean = Aggregator(self.aggregate.name, self.aggregate.trim)
            centres, counts, told = yield from self.start.common_mean(state, mean, cohort, pull)
            return replace(state, centres=centres, counted=state.counted + counts), told
        if not state.split:
            state = yield from self._split(state, context)
        # Where centres are one model still, the groups that were drawn make them differ.
        given = all(torch.equal(t, t[:1].expand_as(t)) for t in state.centres.values())
        got = yield from ask("update", cohort, pull, model_of_group(state, cohort))
        if not got.clients:
            return state, {}
        apart = near_centre.squared_distances(got.tree("model"), state.centres, self.learner.names)
        group = state.of(got.clients).to(apart.device) if given else apart.argmin(1)
        spread = float(apart.gather(1, group[:, None]).mean())
        member = dict(zip(got.clients, group.tolist(), strict=True))
        parts = {g: got.at([c for c in member if member[c] == g]) for g in sorted(set(member.values()))}
        parts, moved = yield from self._match(parts, context)
        new = replace(
            state, centres=self._means(state, parts), member=state.moved(tuple(member), where(member)),
            margin=state.margins(dict(zip(got.clients, margins(apart.sqrt(), group).tolist(), strict=True))),
        )  # fmt: skip
        return new, {"spread": spread, "reordered": moved}

    def _count_labels(self, state: State, cohort: Sequence[Client]) -> Generator[Request, Any, State]:
        """Hear rows and labels of whom they are not known: of everyone at first."""
        first = not bool(state.rows.any())
        unknown = [Client(c) for c, n in zip(state.clients, state.rows.tolist(), strict=True) if not n]
        asked = [c for c in unknown if first or c in cohort]
        return _told(state, (yield from ask("count", asked))) if asked else state

    def _split(self, state: State, context: RoundContext) -> Generator[Request, Any, State]:
        """The groups to begin with, drawn if too few have answered; for good once anybody has."""
        found = yield from self.start.split(state, self.learner, Aggregator(), context)
        centres, member, _ = found or self.start.drawn(state, context)
        return replace(state, centres=centres, member=member, split=bool(state.rows.any()))

    def _means(self, state: State, parts: Mapping[int, Stack]) -> Tree:
        """The centres, those of groups that were matched replaced."""
        centres = {n: t.clone(memory_format=torch.contiguous_format) for n, t in state.centres.items()}
        for g, part in parts.items():
            classes = self._classes(state, part.clients)
            model = common_model(part.tree("model"), self.chain, classes, middle=self._middle)
            for name, leaf in model.items():
                centres[name][g] = leaf
        return centres

    def _match(
        self, parts: dict[int, Stack], context: RoundContext
    ) -> Generator[Request, Any, tuple[dict[int, Stack], float]]:
        """Make the hidden layers of every group common; also the share of units that changed their place."""
        moved = []
        for layer in range(len(self.chain.layers) - 1):
            for g, part in parts.items():
                seed = Seed(context.seed.number("matching", context.round, g))
                models, place = match_next(
                    part.tree("model"), self.chain, layer, seed, self.matching, self._middle
                )
                moved.append((place != torch.arange(place.shape[1])).flatten())
                parts = {**parts, g: replace(part, body={"model": models})}
            if self.matching.retrain_epochs:
                everyone = Stack.join(list(parts.values()))
                got = yield from ask(f"retrain.{layer}", everyone.clients, each=everyone)
                parts = {g: _updated(part, got) for g, part in parts.items()}
        return parts, float(torch.cat(moved).double().mean()) if moved else 0.0

    def _pull(self, state: State) -> Tensor:
        """lambda, times the mean number of rows where each client is to divide by its own."""
        known = state.rows[state.rows > 0].double()
        scale = float(known.mean()) if self.prox_scaling == "normalised" and len(known) else 1.0
        return torch.tensor(self.lam * scale)

    @property
    def _middle(self) -> Middle | None:
        """What is taken of matched units in place of their mean."""
        centre = self.aggregate.centre
        return None if centre is None else lambda leaf: centre(leaf, None)

    def _classes(self, state: State, who: Sequence[Client]) -> Tensor | None:
        return state.labels.cpu()[state.places(who)] if self.learner.loss.classification else None

    def tasks(self) -> Table:
        """Count labels once; train from the centre with the penalty; train what is above a matched layer."""
        classes = self.learner.outputs if self.learner.loss.classification else 0
        hidden = range(len(self.chain.layers) - 1 if self.matching.retrain_epochs else 0)
        update = self.learner.train(self.implicit, self.begin, sent=near_centre.sent(self))
        return {
            "count": count_labels(classes, self.learner.score_batch) if classes else near_centre.COUNT,
            "update": update,
            **self.start.tasks(self.learner, update),
            **{f"retrain.{layer}": self._above(layer) for layer in hidden},
        }

    def _above(self, layer: int) -> Task:
        """Plain epochs that move only the layers above a matched one; these are the reply."""
        above = set(self.chain.after(layer))
        descent = self.learner.descent()
        descent = replace(descent, names=tuple(n for n in descent.names if n in above))
        first = {n: t for n, t in self.learner.first.items() if n in above}

        def finish(carry: Carry) -> tuple[Message, None]:
            return {"model": {n: carry["model"][n] for n in first}}, None

        fit = Fit((descent,), replace(self.learner.plan, epochs=self.matching.retrain_epochs, steps=0))
        task = self.learner.train(finish=finish, reply={"model": first})
        return replace(task, passes=(fit,), stream=f"retrain.{layer}", extra=1)

    def eval_inputs(self, state: State, who: Sequence[Client]) -> tuple[Message, PerClient | None]:
        """The centre of the client's group, and how strongly it pulls."""
        return {"pull": self._pull(state)}, model_of_group(state, who)


def _told(state: State, got: Stack) -> State:
    """With the rows and labels of those who told them; of labels no more than the rows that count."""
    at = state.places(got.clients)
    rows, labels = state.rows.cpu().index_copy(0, at, got.size.cpu()), state.labels.cpu()
    if "labels" in got.body:
        told = got.tensor("labels").cpu().to(labels)
        most = got.size.cpu().double()[:, None] / told.sum(1, keepdim=True).clamp(min=1)
        labels = labels.index_copy(0, at, told * most.clamp(max=1))
    return replace(state, rows=rows, labels=labels)


def _updated(part: Stack, got: Stack) -> Stack:
    """The models of a group with what its members sent in place of what was there."""
    heard = sorted(set(part.clients) & set(got.clients))
    if not heard:
        return part
    models, sent = part.tree("model"), got.at(heard).tree("model")
    rows = torch.tensor([part.clients.index(c) for c in heard], dtype=torch.int64)
    new = {n: models[n].index_copy(0, rows.to(t.device), t) for n, t in sent.items()}
    return replace(part, body={"model": {**models, **new}})
