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
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import many_models, near_centre
from kinfolk.algorithms.blocks.aggregator import Centre, check_trim
from kinfolk.algorithms.blocks.label_counts import count_labels
from kinfolk.algorithms.blocks.lowest_loss import enough_clients, where
from kinfolk.algorithms.blocks.many_models import copies, model_of_group
from kinfolk.algorithms.blocks.warm_start import warm_kmeans, warm_task
from kinfolk.algorithms.fesem.chain import Chain, chain_of
from kinfolk.algorithms.fesem.matched import Middle, common_model, cut_back, match_next
from kinfolk.algorithms.fesem.matching import Prior
from kinfolk.clustering.trimmed import median, trimmed_mean
from kinfolk.errors import KinfolkError, at_least
from kinfolk.learning.learner import Learner
from kinfolk.script import Request, Script, ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Carry, Fit, Table, Task
from kinfolk.types import Client, Message, PerClient, Stack, Tree


@dataclass(frozen=True)
class State(many_models.State):
    """Centres and memberships, and what clients told once of their rows."""

    rows: Tensor  # [clients] int64: training rows; 0 for those not heard yet
    labels: Tensor  # [clients, C] float64: training rows of each class, n_jc


@dataclass(frozen=True)
class FeSEMMA:
    """FeSEM with centres that are matched averages: units may stand in another order in each member."""

    learner: Learner
    k: int = 3  # number of centres
    lam: float = 0.05  # lambda: how strongly clients are held to their centre
    # "normalised": lambda / (N a_i), the paper's weights divided by a_i; "plain": lambda for everyone.
    prox_scaling: Literal["normalised", "plain"] = "normalised"
    start: Literal["warm_kmeans", "random_partition", "distinct_models"] = "warm_kmeans"  # as in FeSEM
    warm_epochs: int = 5  # epochs of every client before k-means
    restarts: int = 20  # of k-means; the best counts
    retrain_epochs: int = 0  # of every member after each matched layer; 0: the server matches alone
    sweeps: int = 8  # times that every member may be matched again
    growth: float = 1.0  # how far a layer may widen while it is matched, before it is cut back
    gamma: float = 1.0  # mass of the buffet: how readily a new unit appears
    sigma: float = 1.0  # of a member's unit around the common one
    sigma0: float = 1.0  # of common units around 0
    kappa: float = 2.0  # weight of a unit's popularity
    # What stands for units that were put together: their mean (in the output layer by rows of each class),
    # or what a few attackers can not move far, in which every member counts alike.
    mean: Centre = "mean"
    trim: float = 0.1  # share of a group's members that "trimmed" cuts off each side
    chain: Chain = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("lam", 0), ("warm_epochs", 1), ("restarts", 1), ("retrain_epochs", 0)):
            at_least(f"algorithm.{name}", getattr(self, name), least)
        for name in ("sweeps", "kappa"):
            at_least(f"algorithm.{name}", getattr(self, name), 0)
        for name in ("gamma", "sigma", "sigma0"):
            if not getattr(self, name) > 0:
                raise KinfolkError(f"algorithm.{name}", getattr(self, name), "give a number above 0")
        if not 1 <= self.growth <= 1.5:
            raise KinfolkError("algorithm.growth", self.growth, "give 1 to 1.5, the factor of a width")
        check_trim("algorithm.trim", self.trim)
        if self.mean != "mean" and self.growth > 1:
            told = "a layer that grows has units that not every member has; use algorithm.growth = 1"
            raise KinfolkError("algorithm.mean", self.mean, told)
        object.__setattr__(self, "chain", chain_of(self.learner.module))
        units, outputs = len(self.learner.first[self.chain.layers[-1].weight]), self.learner.outputs
        if units != outputs:
            raise KinfolkError(
                "network", units, f"its last layer must have one unit for each of {outputs} outputs"
            )

    @property
    def middle(self) -> Middle | None:
        """The middle that is wanted in place of the mean."""
        wanted: dict[str, Middle] = {"median": median, "trimmed": partial(trimmed_mean, trim=self.trim)}
        return wanted.get(self.mean)

    groups = many_models.groups
    begin, objective, implicit = near_centre.begin, near_centre.objective, near_centre.implicit

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """K copies of the common start, and memberships that are drawn: they part centres that are alike."""
        enough_clients(self.k, clients)
        member = torch.from_numpy(seed.numpy("cluster", "start").permutation(len(clients)) % self.k)
        rows = torch.zeros(len(clients), dtype=torch.int64)
        labels = torch.zeros(len(clients), self.learner.outputs, dtype=torch.float64)
        centres, distinct = copies(first, self.k), self.start == "distinct_models"
        centres = many_models.distinct(centres, self.learner.names, seed) if distinct else centres
        return State(centres, member, clients, rows, labels)

    def round(self, state: State, cohort: tuple[Client, ...], turn: RoundContext) -> Script[State]:
        """Local updates from the centres, then E, then M by matching."""
        state, given = yield from self._begin(state, cohort, turn)
        pull = {"pull": self._pull(state)}
        got = yield from ask("update", cohort, pull, model_of_group(state, cohort))
        if not got.clients:
            return state, {}
        apart = near_centre.squared_distances(got.tree("model"), state.centres, self.learner.names)
        group = state.of(got.clients).to(apart.device) if given else apart.argmin(1)
        spread = float(apart.gather(1, group[:, None]).mean())
        member = dict(zip(got.clients, group.tolist(), strict=True))
        parts = {g: got.at([c for c in member if member[c] == g]) for g in sorted(set(member.values()))}
        parts, moved = yield from self._match(parts, turn)
        centres = {n: t.clone(memory_format=torch.contiguous_format) for n, t in state.centres.items()}
        for g, part in parts.items():
            model = common_model(
                part.tree("model"), self.chain, self._classes(state, part.clients), middle=self.middle
            )
            for name, leaf in model.items():
                centres[name][g] = leaf
        new = replace(state, centres=centres, member=state.moved(tuple(member), where(member)))
        return new, {"spread": spread, "reordered": moved}

    def _begin(
        self, state: State, cohort: Sequence[Client], turn: RoundContext
    ) -> Generator[Request, Any, tuple[State, bool]]:
        """Hear rows and labels of whom they are not known, everyone at first, who then also start warm.

        Also tells whether the centres are one model still, so that the groups that were drawn must part them.
        """
        first = not bool(state.rows.any())
        unknown = [Client(c) for c, n in zip(state.clients, state.rows.tolist(), strict=True) if not n]
        asked = [c for c in unknown if first or c in cohort]
        if asked:
            state = _told(state, (yield from ask("count", asked)))
        if first and self.start == "warm_kmeans":
            model, names = {n: t[0] for n, t in state.centres.items()}, self.learner.names
            found = yield from warm_kmeans(model, names, self.k, self.restarts, "uniform", turn)
            if found:
                state = replace(state, centres=found[0], member=state.moved(tuple(found[1]), where(found[1])))
        return state, all(torch.equal(t, t[:1].expand_as(t)) for t in state.centres.values())

    def _match(
        self, parts: dict[int, Stack], turn: RoundContext
    ) -> Generator[Request, Any, tuple[dict[int, Stack], float]]:
        """Make the hidden layers of every group common; also the share of units that changed their place."""
        prior, moved = Prior(self.sigma, self.sigma0, self.gamma, kappa=self.kappa), []
        for layer, here in enumerate(self.chain.layers[:-1]):
            matched = {}
            for g, part in parts.items():
                models, seed = part.tree("model"), Seed(turn.seed.number("matching", turn.round, g))
                step = match_next(
                    models, self.chain, layer, seed, prior, self.sweeps, self.growth, middle=self.middle
                )
                step = cut_back(step, self.chain, layer, models[here.weight].shape[1])
                moved.append((step.assignment != torch.arange(step.assignment.shape[1])).flatten())
                matched[g] = replace(part, body={"model": step.models})
            parts = matched
            if self.retrain_epochs:
                everyone = Stack.join(list(parts.values()))
                got = yield from ask(f"retrain.{layer}", everyone.clients, each=everyone)
                parts = {g: _updated(part, got) for g, part in parts.items()}
        return parts, float(torch.cat(moved).double().mean()) if moved else 0.0

    def _pull(self, state: State) -> Tensor:
        """lambda, times the mean number of rows where each client is to divide by its own."""
        known = state.rows[state.rows > 0].double()
        scale = float(known.mean()) if self.prox_scaling == "normalised" and len(known) else 1.0
        return torch.tensor(self.lam * scale)

    def _classes(self, state: State, who: Sequence[Client]) -> Tensor | None:
        place = {c: i for i, c in enumerate(state.clients)}
        return state.labels.cpu()[[place[c] for c in who]] if self.learner.loss.classification else None

    def tasks(self) -> Table:
        """Count labels once; train from the centre with the penalty; train what is above a matched layer."""
        classes = self.learner.outputs if self.learner.loss.classification else 0
        hidden = range(len(self.chain.layers) - 1 if self.retrain_epochs else 0)
        return {
            "count": count_labels(classes, self.learner.score_batch) if classes else near_centre.COUNT,
            "update": self.learner.train(self.implicit, self.begin),
            "warm": warm_task(self.learner, self.warm_epochs),
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

        fit = Fit((descent,), replace(self.learner.plan, epochs=self.retrain_epochs, steps=0))
        task = self.learner.train(finish=finish, reply={"model": first})
        return replace(task, passes=(fit,), stream=f"retrain.{layer}", extra=1)

    def eval_inputs(self, state: State, who: Sequence[Client]) -> tuple[Message, PerClient | None]:
        """The centre of the client's group, and how strongly it pulls."""
        return {"pull": self._pull(state)}, model_of_group(state, who)

    def eval_tasks(self) -> Mapping[str, Task]:
        """As in FeSEM: the centre, what the local update makes of it, and what one plain epoch does."""
        learner = self.learner
        local = Fit((learner.descent(self.implicit),), learner.plan)
        personal = learner.score(self.begin, local, stream="batch")
        return {
            "centre": learner.score(),
            "personal": personal,
            "fine-tuned": learner.score(tune=learner.tuning(1)),
        }


def _told(state: State, got: Stack) -> State:
    """With the rows and labels of those who told them."""
    place = {c: i for i, c in enumerate(state.clients)}
    at = torch.tensor([place[c] for c in got.clients], dtype=torch.int64)
    rows, labels = state.rows.cpu().index_copy(0, at, got.size.cpu()), state.labels.cpu()
    if "labels" in got.body:
        labels = labels.index_copy(0, at, got.tensor("labels").cpu().to(labels))
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
