"""Does prediction similarity track data similarity? Every pair of a federation whose groups are known.

For each source of images and each measure (counts of classes, or image by image): the area under the curve
that tells pairs of one group from pairs of two (0.5 is chance), the rank correlation (Spearman) with being of
one group, and that with the cosine of the pair's label laws. Nothing goes through an exchange: models and
images are made by the algorithm's own tasks, and every pair is compared.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata, spearmanr
from torch import Tensor

from kinfolk.algorithms.slfed.feature_ranges import REACH
from kinfolk.algorithms.slfed.gan import Gan
from kinfolk.algorithms.slfed.probe_images import ImageOptions, ProbeImages, predicted
from kinfolk.algorithms.slfed.similarity import MEASURES, Measure, histogram
from kinfolk.engines.coordinator import Coordinator
from kinfolk.experiment.asking import coordinated, here
from kinfolk.experiment.build import Parts, build_parts
from kinfolk.experiment.sections import AlgorithmSpec, Experiment
from kinfolk.experiment.spec import load, override
from kinfolk.federation.federation import Federation
from kinfolk.learning.learner import Learner
from kinfolk.script import Ask, client_tasks, play
from kinfolk.streams import RoundContext
from kinfolk.types import Message, Tree

DATA = {"digits": "digits", "mnist": "mdicfl/rotated-mnist-small"}
DATA["cifar10"] = "mdicfl/swapped-rotated-cifar10-small"
SOURCES = ("gan", "noise", "back_search", "means", "held_out")
# Groups by rotation with even and with skewed labels, and skewed labels alone.
FEDERATIONS = {
    "even labels": ("data.alpha=100.0",),
    "skewed labels": ("data.alpha=3.0",),
    "no groups": ("data.alpha=3.0", "data.shift=none", "data.groups=1"),
}
# Memories are looked into, so they have to be in this process.
HERE = ("engine.name=batched",)


Shown = tuple[list[Message], NDArray[np.bool_]]  # everybody's images with their ranges; who has any to show


def seen_by_all(learner: Learner, models: list[Tree], shown: list[Message]) -> Tensor:
    """[a, b, images]: the classes that model b gives the images of a."""
    labels = [
        torch.stack([predicted(learner, model, one["images"], -1.0, 1.0, one) for one in shown])
        for model in models
    ]
    return torch.stack(labels, dim=1)


def all_pairs(labels: Tensor, measure: Measure) -> Tensor:
    """[clients, clients]: the PSS of every pair, in float64."""
    seen = torch.stack([torch.stack([measure.note(row) for row in one]) for one in labels])
    own = seen.diagonal().movedim(-1, 0)
    mine, theirs = (own[:, None], seen), (seen.transpose(0, 1), own[None])
    return measure.similarity(mine, theirs, "everybody")


def auc(values: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """The chance that a positive has a higher value than a negative, ties counted half."""
    n, m = int(positive.sum()), int((~positive).sum())
    return float((rankdata(values)[positive].sum() - n * (n + 1) / 2) / (n * m)) if n and m else float("nan")


def label_cosine(federation: Federation) -> NDArray[np.float64]:
    """[clients, clients]: the cosine of the label laws of the training rows."""
    train = federation.splits["train"]
    labels = [federation.y[train.rows(i)].long() for i in range(len(federation.clients))]
    laws = torch.stack([histogram(one, federation.classes) for one in labels]).double()
    laws = laws / laws.norm(dim=1, keepdim=True)
    found: NDArray[np.float64] = (laws @ laws.T).numpy()
    return found


class Play:
    """Clients who train, alone or by SLFed, and who make images of any kind at any time."""

    def __init__(self, parts: Parts, coordinator: Coordinator, training: str) -> None:
        self.parts, self.coordinator, self.training, self.done = parts, coordinator, training, 0
        self.clients, self.state = parts.federation.clients, None
        first = here(coordinator, parts.learner.first)
        coordinator.engine.memories.update({who: {"model": first, "pam": first} for who in self.clients})
        self.made: dict[str, Shown] = {}

    def until(self, rounds: int) -> list[Tree]:
        """Everybody's model after so many rounds."""
        algorithm = self.parts.algorithm
        if self.state is None:
            self.state = algorithm.init(self.parts.learner.first, self.clients, self.parts.seed)
        for number in range(self.done, rounds):
            context = RoundContext(self.parts.seed, number, self.clients)
            if self.training == "local":
                self.coordinator.perform(Ask("local_train", self.clients), context)
            else:
                script = algorithm.round(self.state, self.clients, context)
                self.state, _ = play(
                    script, lambda request, context=context: self.coordinator.perform(request, context)
                )
        self.done = rounds
        return [self.coordinator.engine.memories[who]["model"] for who in self.clients]

    def images(self, kind: str, models: list[Tree]) -> Shown:
        """Everybody's images, and who has any to show; all but back-searched ones are made once."""
        if kind in self.made:
            return self.made[kind]
        memories, seed = self.coordinator.engine.memories, self.parts.seed
        before = dict(memories)
        for who, model in zip(self.clients, models, strict=True):
            memories[who] = {"model": model, "key": torch.tensor(seed.number("gan", 0, who))}
        self.coordinator.perform(
            Ask(f"generate_images.{kind}", self.clients), RoundContext(seed, 0, self.clients)
        )
        shows = np.array([int(memories[who]["made"]) > 0 for who in self.clients])
        held = [memories[who] for who in self.clients]
        found = [{key: one[key] for key in ("images", REACH) if key in one} for one in held], shows
        memories.clear()
        memories.update(before)
        if kind != "back_search":
            self.made[kind] = found
        return found


def rank_correlation(values: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Spearman's; nothing where either side does not vary."""
    flat = np.ptp(values) == 0 or np.ptp(other) == 0
    return float("nan") if flat else float(spearmanr(values, other).statistic)


Line = tuple[str, int, str, str, float, float, float, float]


def measure(spec: Experiment, options: argparse.Namespace) -> Iterator[Line]:
    """(training, rounds, source, measure, AUC, rank correlations with groups and labels, pairs) for one seed.

    Pairs are those in which both have images to show.
    """
    slfed = {"images.kind": "held_out", "images.count": options.images, "shares.scheme": "plain"}
    parts = build_parts(replace(spec, algorithm=AlgorithmSpec("slfed", slfed)))
    gan = Gan(options.gan_width, steps=options.gan_steps)
    makers = {
        kind: ProbeImages(parts.learner, ImageOptions(kind, options.images), gan) for kind in options.sources
    }
    table = {
        **client_tasks(parts.algorithm),
        **{f"generate_images.{k}": one.task() for k, one in makers.items()},
    }
    truth, laws = parts.federation.truth, label_cosine(parts.federation)
    rows, columns = np.triu_indices(len(laws), 1)
    same = np.zeros(len(rows), bool) if truth is None else (truth[rows] == truth[columns]).numpy()
    made: dict[str, Shown] = {}
    for training in options.training:
        with coordinated(parts, table) as coordinator:
            player = Play(parts, coordinator, training)
            player.made = made  # they depend on rows alone
            for rounds in options.rounds:
                models = player.until(rounds)
                for kind in options.sources:
                    images, shows = player.images(kind, models)
                    labels = seen_by_all(parts.learner, models, images)
                    a, b, kin = (one[shows[rows] & shows[columns]] for one in (rows, columns, same))
                    for compare, of in MEASURES.items():
                        pairs = all_pairs(labels, of(parts.learner.outputs, options.images)).cpu().numpy()
                        of_groups = rank_correlation(pairs[a, b], kin.astype(float))
                        of_laws = rank_correlation(pairs[a, b], laws[a, b])
                        found = auc(pairs[a, b], kin), of_groups, of_laws, float(len(a))
                        yield training, rounds, kind, compare, *found


def shown(values: list[float]) -> str:
    """mean ± sample standard deviation; a dash where there is nothing to tell."""
    if np.isnan(values).all():
        return "-"
    return f"{np.nanmean(values):.2f} ± {np.nanstd(values, ddof=1) if len(values) > 1 else 0:.2f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits", help=f"{', '.join(DATA)}, or the path of a spec")
    parser.add_argument("--federations", nargs="*", choices=FEDERATIONS, default=list(FEDERATIONS))
    parser.add_argument("--training", nargs="*", choices=("local", "slfed"), default=["local", "slfed"])
    parser.add_argument("--sources", nargs="*", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--rounds", type=int, nargs="*", default=[1, 3, 10])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--gan-steps", type=int, default=300)
    parser.add_argument("--gan-width", type=float, default=0.25)
    parser.add_argument("--set", nargs="*", default=[], metavar="a.b=c")
    options = parser.parse_args()
    heads = "".join(f"{word:>16}" for word in ("AUC of groups", "rho, groups", "rho, labels"))
    head = f"{'training':9}{'rounds':>7}  {'images':12}{'compare':8}{heads}{'pairs':>7}"
    for name in options.federations:
        began, cells = time.perf_counter(), {}
        for seed in range(options.seeds):
            sets = ["data.valid=0.2", *FEDERATIONS[name], *HERE, *options.set]
            spec = override(load(DATA.get(options.data, options.data)), sets)
            spec = replace(spec, run=replace(spec.run, seed=seed))
            for line in measure(spec, options):
                cells.setdefault(line[:4], []).append(line[4:])
        print(
            f"\n{options.data}, {name}, {options.seeds} seeds ({time.perf_counter() - began:.0f} s)\n{head}"
        )
        for (training, rounds, kind, compare), found in cells.items():
            numbers = "".join(f"{shown([one[i] for one in found]):>16}" for i in range(3))
            pairs = f"{np.mean([one[3] for one in found]):7.0f}"
            print(f"{training:9}{rounds:7}  {kind:12}{compare:8}{numbers}{pairs}", flush=True)


if __name__ == "__main__":
    main()
