"""Newcomers: clients who were not in training are put into the groups of a finished run.

`loss`: the group whose model has the lowest loss on the newcomer's training rows, as IFCA's clients choose.
`distance`: one local pass from the mean of all centres, then the nearest centre, as FeSEM's E-step does.
Either sees training rows only; accuracies are those of test rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.algorithms.blocks.lowest_loss import training_loss
from kinfolk.algorithms.blocks.near_centre import squared_distances
from kinfolk.engines.coordinator import Coordinator
from kinfolk.errors import KinfolkError, near
from kinfolk.experiment.asking import coordinated, here, middle
from kinfolk.experiment.build import Network, Parts, build_parts
from kinfolk.experiment.newcomers import Trained
from kinfolk.experiment.outline import read_first
from kinfolk.federation.federation import Federation
from kinfolk.learning.metrics import scores
from kinfolk.scores import about
from kinfolk.script import Ask, AssignBy
from kinfolk.streams import RoundContext
from kinfolk.task import Table
from kinfolk.types import Client, IndexedMessages, Message, PerClient, Stack, Tree

RULES = get_args(AssignBy)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Distances:
    """A fold: squared distances of the clients' models to all centres, by client."""

    centres: Tree
    names: Sequence[str]

    def begin(self) -> dict[Client, Tensor]:
        """Nobody yet."""
        return {}

    def add(self, total: dict[Client, Tensor], chunk: Stack) -> dict[Client, Tensor]:
        """The distances of a chunk."""
        apart = squared_distances(chunk.tree("model"), self.centres, self.names).cpu()
        return total | dict(zip(chunk.clients, apart.unbind(), strict=True))

    def end(self, total: dict[Client, Tensor]) -> dict[Client, Tensor]:
        """All of them."""
        return total


def assign(
    trained: Trained, federation: Federation, *, by: str | None = None, network: Network | None = None
) -> dict[str, Any]:
    """The group of each newcomer, and what it gains: its scores before, after, and after fine-tuning."""
    if trained.k < 2:
        remedy = "has all clients in one group: there is nothing to choose; name a run with several"
        raise KinfolkError("run", str(trained.folder), remedy)
    parts = fitted(trained, federation, network)
    rule = str(by or getattr(parts.algorithm, "assign_by", "loss"))
    if rule not in RULES:
        raise KinfolkError("by", rule, near(rule, RULES))
    with coordinated(parts, tasks(parts)) as coordinator:
        asking = _Asking(
            parts, coordinator, here(coordinator, {"model": trained.centres})["model"], trained.round
        )
        fit, warnings = asking.fit(rule)
        group = fit.argmin(axis=1)
        before = asking.score("score", {"model": middle(asking.centres)})
        each = np.stack([asking.score("score", asking.centre(k)) for k in range(trained.k)], axis=1)
        mine = IndexedMessages(asking.clients, torch.from_numpy(group), {"model": asking.centres})
        tuned = asking.score("tuned", {}, mine)
    worst = each.max(1) if about(asking.name).lower_is_better else each.min(1)
    known = set(asking.clients) & set(trained.clients)
    if known:
        warnings.append(f"{len(known)} of them have names that were in training, as {min(known)!r}")
    return {
        "run": str(trained.folder),
        "round": trained.round,
        "by": rule,
        "score": asking.name,
        "tune_epochs": parts.learner.tune_epochs or 1,
        "warnings": [*trained.warnings, *warnings],
        "newcomers": _rows(parts.federation, trained.groups, group, fit, before, worst, each, tuned),
    }


def _rows(
    federation: Federation,
    numbers: Sequence[int],
    group: NDArray[np.int64],
    fit: Floats,
    before: Floats,
    worst: Floats,
    each: Floats,
    tuned: Floats,
) -> list[dict[str, Any]]:
    counts = federation.splits["train"].counts().tolist()
    fits = np.full((len(fit), numbers[-1] + 1), np.nan)  # by the run's numbers; NaN where nobody is
    fits[:, list(numbers)] = fit
    return [
        {
            "newcomer": who,
            "rows": counts[i],
            "group": int(numbers[group[i]]),
            "one_model": float(before[i]),
            "worst_centre": float(worst[i]),
            "centre": float(each[i, group[i]]),
            "fine_tuned": float(tuned[i]),
            "fit": fits[i].tolist(),
        }
        for i, who in enumerate(federation.clients)
    ]


def tasks(parts: Parts) -> Table:
    """What a newcomer is asked."""
    learner = parts.learner
    return {
        "loss": training_loss(learner),
        "train": learner.train(),
        "score": learner.score(),
        "tuned": learner.score(tune=learner.tuning(1)),
    }


def fitted(trained: Trained, federation: Federation, network: Network | None) -> Parts:
    """The parts of the run around the newcomers' rows, if its models can take them."""
    if not int(federation.splits["test"].counts().sum()):
        raise KinfolkError("newcomers", federation.name, "nobody has test rows; give two rows or more each")
    # Rows are standardised by now, if those of the run were.
    data = replace(trained.spec.data, standardize="auto" if federation.scaling else "none")
    data = replace(data, standardize_target=data.standardize)
    spec = replace(trained.spec, data=data, run=replace(trained.spec.run, split="test", target=0.0))
    misfit = f"rows of this shape do not fit the models of {trained.folder}"
    try:
        parts = build_parts(spec, federation, network, first=read_first(trained.folder))
    except KinfolkError as error:
        if (
            error.field in ("data.shape", "model.name", "network")
            and network is None
            and ":" not in spec.model.name
        ):
            raise KinfolkError("newcomers", federation.shape, misfit) from error
        raise
    first = parts.learner.first
    mine = {name: tuple(t.shape) for name, t in first.items()}
    if mine != {name: tuple(t.shape[1:]) for name, t in trained.centres.items()}:
        raise KinfolkError("newcomers", federation.shape, misfit)
    return parts


@dataclass(frozen=True)
class _Asking:
    """Questions to all newcomers."""

    parts: Parts
    coordinator: Coordinator
    centres: Tree
    round: int

    @property
    def clients(self) -> tuple[Client, ...]:
        return self.parts.federation.clients

    @property
    def name(self) -> str:
        """The score that is told."""
        return self.parts.monitor

    def centre(self, k: int) -> Message:
        return {"model": {name: t[k] for name, t in self.centres.items()}}

    def ask(self, task: str, shared: Message, each: PerClient | None = None, fold: Any = None) -> Any:
        context = RoundContext(self.parts.seed, self.round, self.clients)
        return self.coordinator.perform(Ask(task, self.clients, shared, each, fold), context)

    def score(self, task: str, shared: Message, each: PerClient | None = None) -> Floats:
        """The score of every newcomer; NaN for who has no test rows or whose model diverged."""
        got: Stack = self.ask(task, shared, each)
        return self._by_client(dict(zip(got.clients, scores(got.body)[self.name], strict=True)), ())

    def fit(self, rule: str) -> tuple[Floats, list[str]]:
        """How badly each centre fits each newcomer, [newcomers, K], and what there is to warn of."""
        if rule == "loss":
            return self.losses(), []
        names: Sequence[str] = getattr(self.parts.algorithm, "names", self.parts.learner.names)
        start = {"model": middle(self.centres)}
        found = self.ask("train", start, fold=Distances(self.centres, names))
        k = len(next(iter(self.centres.values())))
        apart = self._by_client({who: d.numpy() for who, d in found.items()}, (k,))
        lost = np.isnan(apart)
        if not lost.any():
            return apart, []
        told = f"{int(lost[:, 0].sum())} newcomers diverged in training and are placed by loss"
        return np.where(lost, self.losses(), apart), [told]

    def losses(self) -> Floats:
        """The mean loss of every centre on the training rows of every newcomer."""
        columns = []
        for k in range(len(next(iter(self.centres.values())))):
            got: Stack = self.ask("loss", self.centre(k))
            columns.append(
                self._by_client(dict(zip(got.clients, got.tensor("loss").tolist(), strict=True)), ())
            )
        return np.nan_to_num(np.stack(columns, axis=1), nan=np.inf)

    def _by_client(self, found: Mapping[Client, Any], shape: tuple[int, ...]) -> Floats:
        out = np.full((len(self.clients), *shape), np.nan)
        for i, who in enumerate(self.clients):
            out[i] = found.get(who, np.nan)
        return out
