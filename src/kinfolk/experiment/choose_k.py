"""How many groups a federation has: short runs on a sample of its clients for several K.

Long, Xie, Shen, Zhou, Wang, Jiang: Multi-center federated learning: clients clustering for better
personalization. World Wide Web 26, 2023, choose K so; here by validation rows, never by test rows.
Silhouettes and the gap statistic are about models that all clients trained from one common model, the one
that the run with one group ends with: models that were trained from different centres lie apart whether
there are groups or not, and models trained from a first network differ by their clients' labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kinfolk.algorithms import ALGORITHMS, find_algorithm, options_of
from kinfolk.algorithms.options import check_options, option_groups
from kinfolk.clustering.agreement import stability
from kinfolk.clustering.count import how_many
from kinfolk.clustering.distances import squared
from kinfolk.clustering.hierarchy import silhouette
from kinfolk.clustering.kmeans import kmeans
from kinfolk.errors import KinfolkError, at_least
from kinfolk.experiment.asking import one_process, trained_alike
from kinfolk.experiment.budget import head_start
from kinfolk.experiment.build import Network, build_parts
from kinfolk.experiment.recommend import Row, as_facts, chance, check_criterion, recommend
from kinfolk.experiment.record import FORMAT, check_format, plain, read_rounds, read_scores, write_json
from kinfolk.experiment.run import Watch, run
from kinfolk.experiment.sections import AlgorithmSpec, Experiment
from kinfolk.experiment.seeds import Seeds, seed_numbers
from kinfolk.federation.federation import Federation, Maker, Split, pack
from kinfolk.federation.partition.holdout import hold_out
from kinfolk.federation.sources import build
from kinfolk.scores import about
from kinfolk.streams import Seed
from kinfolk.types import Rows, Tree

# Fraction of the training rows that is held out where a spec has no validation rows.
HELD = 0.2
# Epochs from the common model before distances are taken, as FeSEM's own start has.
WARM = 5
# Starts of k-means; the best counts.
RESTARTS = 20


@dataclass(frozen=True)
class Trial:
    """What is tried: which K, on how many clients, how long and how often."""

    ks: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    clients: int = 100
    rounds: int = 3
    seeds: Seeds = 3
    criterion: str = "agreement"

    def __post_init__(self) -> None:
        at_least("sample", self.clients, 1)
        at_least("rounds", self.rounds, 1)
        seed_numbers(self.seeds)
        for k in self.ks:
            at_least("ks", k, 1)
        check_criterion(self.criterion)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Every K once, in order; 1 is always tried, since "one group" must be a possible answer."""
        return tuple(sorted({1, *self.ks}))


def choose_k(
    spec: Experiment,
    folder: Path,
    trial: Trial = Trial(),  # noqa: B008 - a Trial never changes
    *,
    federation: Federation | None = None,
    network: Network | None = None,
    resume: bool = False,
    watch: Callable[[int, int], Watch] = lambda k, seed: lambda event, facts: None,
) -> dict[str, Any]:
    """Run every K with every seed, and say which K to use; all of it is in `choose-k.json` of the folder.

    All runs are about the same clients and rows; a seed changes first weights, row order and starts.
    """
    _ready(spec, folder, resume)
    seed, ks = Seed(spec.run.seed), trial.numbers
    whole, spec, notes = validated(spec, federation, seed)
    sample = sample_clients(whole, trial.clients, seed)
    if ks[-1] > len(sample.clients):
        raise KinfolkError("ks", ks[-1], f"give at most {len(sample.clients)}, the number of clients")
    numbers = seed_numbers(trial.seeds, spec.run.seed)
    start = head_start(build_parts(short(spec, trial, ks[-1], numbers[0]), sample, network))
    specs = {k: [short(spec, trial, k, number, start) for number in numbers] for k in ks}
    for k in ks:  # everything is checked before the first of them runs
        build_parts(specs[k][0], sample, network)
    runs: dict[int, list[_Ran]] = {k: [] for k in ks}
    for one in (one for k in ks for one in specs[k]):
        k, number = one.algorithm.options["k"], one.run.seed
        where = folder / "runs" / f"k{k}-seed{number}"
        runs[k].append(_run(one, where, sample, network, resume, watch(k, number)))
        _told(trial.criterion, spec.algorithm.name, runs[k][-1])
    looks = [_look(one, sample, network, ks, ran.common) for one, ran in zip(specs[1], runs[1], strict=True)]
    rows = [_row(k, runs[k], looks, seed) for k in ks]
    late = _late([one for k in ks[1:] for one in runs[k]], trial)
    facts = {
        **_answer(rows, trial, [look.counted for look in looks], runs[1][0].score, notes, late),
        "format": FORMAT,
        "algorithm": spec.algorithm.name,
        "federation": whole.name,
        "clients": len(sample.clients),
        "of": len(whole.clients),
        "rounds": trial.rounds + common_rounds(spec),
        "seeds": [one.run.seed for one in specs[1]],
        "groups": {k: [dict(zip(sample.clients, one.groups, strict=True)) for one in runs[k]] for k in ks},
    }
    write_json(folder / "choose-k.json", facts)
    told: dict[str, Any] = plain(facts)
    return told


def _ready(spec: Experiment, folder: Path, resume: bool) -> None:
    """Refuse what can be refused at once."""
    check_algorithm(spec.algorithm.name)
    one_process(spec.engine.name)
    if (folder / "choose-k.json").exists() and not resume:
        raise KinfolkError("folder", str(folder), "a choice is there already; choose another folder")
    check_format(folder, "choose-k.json")


def _told(criterion: str, algorithm: str, ran: _Ran) -> None:
    """Refuse, after the first run already, to choose by distances that nobody tells."""
    if criterion == "intra_distance" and ran.spread is None:
        remedy = f"{algorithm} does not tell distances; use accuracy or silhouette"
        raise KinfolkError("criterion", criterion, remedy)


def _answer(
    rows: Sequence[Row], trial: Trial, counted: list[int], score: str, notes: list[str], late: list[str]
) -> dict[str, Any]:
    advice = recommend(rows, trial.criterion, counted, score, bool(late))
    return {
        "recommended": advice.k,
        "confidence": advice.confidence,
        "reason": advice.reason,
        "named": dict(advice.named),
        "criterion": trial.criterion,
        "score": score,
        "counted": counted,
        "rows": [as_facts(row, rows[0]) for row in rows],
        "notes": notes + late,
    }


def _late(runs: Sequence[_Ran], trial: Trial) -> list[str]:
    """A note where clients shared one model for longer than planned, so that groups had fewer rounds."""
    left = min((one.grouped for one in runs), default=trial.rounds)
    if left >= trial.rounds:
        return []
    more = trial.rounds + trial.rounds - max(left, 0)
    return [
        f"the loss was on its plateau for longer than planned: groups trained for {max(left, 0)} of "
        f"{trial.rounds} rounds; give --rounds {more} or more"
    ]


def check_algorithm(name: str) -> None:
    """Refuse an algorithm without groups, or without a number of them to choose.

    >>> check_algorithm("ifca")
    >>> check_algorithm("fedavg")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.name = 'fedavg': has no number of groups k; use one of ...
    """
    if not _has_k(find_algorithm(name)):
        able = ", ".join(known for known, kind in ALGORITHMS.items() if _has_k(kind))
        raise KinfolkError("algorithm.name", name, f"has no number of groups k; use one of {able}")


def _has_k(kind: type[Any]) -> bool:
    return "k" in options_of(kind) and hasattr(kind, "groups")


def or_fesem(spec: Experiment) -> Experiment:
    """The spec with FeSEM for its algorithm where it names none; options that are set are FeSEM's then.

    >>> or_fesem(Experiment(algorithm=AlgorithmSpec(options={"start.warm_epochs": 10}))).algorithm
    AlgorithmSpec(name='fesem', options={'start.warm_epochs': 10})
    """
    unnamed = spec.algorithm.name == AlgorithmSpec().name
    return replace(spec, algorithm=replace(spec.algorithm, name="fesem")) if unnamed else spec


def validated(
    spec: Experiment, federation: Federation | None, seed: Seed
) -> tuple[Federation, Experiment, list[str]]:
    """A federation with validation rows, the spec that says so, and a note if some had to be held out.

    >>> made, spec, notes = validated(Experiment(), None, Seed(0))
    >>> made.splits["valid"].counts().sum(), spec.data.valid, notes
    (tensor(288), 0.2, ['no validation rows in the spec: a fifth of the training rows is held out'])
    """
    note = "no validation rows in the spec: a fifth of the training rows is held out"
    data = spec.data if spec.data.seed != -1 else replace(spec.data, seed=seed.run)
    if federation is None and data.name != "own" and data.valid == 0:
        data = replace(data, valid=HELD)
        return build(data, seed), replace(spec, data=data), [note]
    made = build(data, seed) if federation is None else federation
    spec = replace(spec, data=data)
    if int(made.splits["valid"].counts().sum()):
        return made, spec, []
    return held_out(made, HELD, seed), spec, [note]


def held_out(federation: Federation, fraction: float, seed: Seed) -> Federation:
    """The same federation with some of each client's training rows kept for validation.

    >>> from kinfolk.federation.own_data.arrays import from_arrays
    >>> rows = (np.zeros((20, 1)), np.arange(20) % 2)
    >>> held_out(from_arrays([rows]), 0.25, Seed(0)).splits["valid"].counts()
    tensor([4])
    """
    if federation.maker is not None:
        remedy = "its rows are made when a client is asked; set data.valid above 0"
        raise KinfolkError("data.valid", federation.name, remedy)
    train = federation.splits["train"]
    parts = [
        hold_out(train.rows(i).numpy(force=True), fraction, seed.numpy("data", "valid", who))
        for i, who in enumerate(federation.clients)
    ]
    kept, held = (pack([torch.from_numpy(part[j]) for part in parts]) for j in (0, 1))
    return replace(federation, splits={**federation.splits, "train": kept, "valid": held})


@dataclass(frozen=True)
class Chosen:
    """Makes the rows of some of another maker's clients."""

    maker: Maker
    numbers: tuple[int, ...]

    def __call__(self, i: int) -> Mapping[str, tuple[Rows, Rows]]:
        """The rows of client number i of the chosen."""
        return self.maker(self.numbers[i])


def sample_clients(federation: Federation, count: int, seed: Seed) -> Federation:
    """The federation of `count` clients drawn evenly, or of all if there are no more; no row is copied.

    >>> some = sample_clients(build(Experiment().data, Seed(0)), 5, Seed(0))
    >>> len(some.clients), some.splits["train"].counts()
    (5, tensor([60, 60, 60, 60, 60]))
    """
    if count >= len(federation.clients):
        return federation
    drawn = np.sort(seed.numpy("choose k", "sample").permutation(len(federation.clients))[:count])
    place = torch.from_numpy(drawn)
    return replace(
        federation,
        clients=tuple(federation.clients[i] for i in drawn.tolist()),
        splits={name: Split(s.start, s.row, s.of[place]) for name, s in federation.splits.items()},
        truth=None if federation.truth is None else federation.truth[place],
        maker=None if federation.maker is None else Chosen(federation.maker, tuple(drawn.tolist())),
    )


def common_rounds(spec: Experiment) -> int:
    """Rounds in which the algorithm has one model for all: they tell nothing of groups, so they are extra.

    What an algorithm's groups of options declare as their `common_rounds`: see `blocks.start.Start`.

    >>> [common_rounds(Experiment(algorithm=AlgorithmSpec(name))) for name in ("fesem_shared", "ifca")]
    [3, 0]
    """
    name, kind = spec.algorithm.name, find_algorithm(spec.algorithm.name)
    groups = option_groups(kind, check_options(name, kind, spec.algorithm.options))
    return sum(getattr(group, "common_rounds", 0) for group in groups.values())


def short(spec: Experiment, trial: Trial, k: int, number: int, start: int = 0) -> Experiment:
    """The spec of the trial run with this seed: few rounds, all clients, scored once on validation rows.

    All K have the same budget: `start` more rounds, for which one model without a start trains on.

    >>> one = short(or_fesem(Experiment()), Trial(), 4, 2)
    >>> one.algorithm.options, one.run.seed, one.run.split
    ({'k': 4}, 2, 'valid')
    """
    options = {**spec.algorithm.options, "k": k}
    rounds = trial.rounds + common_rounds(spec) + start
    length: dict[str, Any] = dict.fromkeys(("rounds", "evaluate_every", "checkpoint_every"), rounds)
    rules = replace(spec.run, **length, participation=1.0, absent=0.0, target=0.0, split="valid")
    rules = replace(rules, seed=number, models="first")
    return replace(spec, algorithm=replace(spec.algorithm, options=options), run=rules)


@dataclass(frozen=True)
class _Ran:
    """What is kept of one run."""

    score: str
    values: list[float]  # by client, larger is better
    groups: list[int]  # by client
    spread: float | None
    grouped: int  # rounds after those in which all clients shared one model
    common: Tree | None = None  # of one group: its model


def _run(
    spec: Experiment,
    folder: Path,
    federation: Federation,
    network: Network | None,
    resume: bool,
    watch: Watch,
) -> _Ran:
    result = run(spec, folder, federation=federation, network=network, resume=resume, watch=watch)
    parts = build_parts(spec, federation, network)
    algorithm: Any = parts.algorithm
    score, sign = parts.monitor, -1.0 if about(parts.monitor).lower_is_better else 1.0
    frame = read_scores(folder)
    main = next(iter(result.summary))
    last = frame[
        (frame["round"] == result.rounds) & (frame["model"] == main) & (frame["score"] == score)
    ].set_index("client")["value"]
    values = [sign * float(last.get(who, math.nan)) for who in federation.clients]
    told = [line.get("info") or {} for line in read_rounds(folder) if line["round"] > 0]
    spread = told[-1].get("spread")
    found = algorithm.groups(result.state).tolist()
    # Rounds that tell how far the common model has come are those in which it is everybody's.
    grouped = sum("blind" not in info for info in told) if common_rounds(spec) else result.rounds
    centres = getattr(result.state, "centres", None) if spec.algorithm.options["k"] == 1 else None
    common = None if centres is None else {name: t[0] for name, t in centres.items()}
    return _Ran(score, values, found, None if spread is None else float(spread), grouped, common)


@dataclass(frozen=True)
class _Look:
    """The clients as points: which way each goes from the same common model."""

    silhouettes: Mapping[int, float]  # of k-means, by K
    counted: int  # groups by the gap statistic


def _look(
    spec: Experiment, federation: Federation, network: Network | None, ks: Sequence[int], common: Tree | None
) -> _Look:
    parts = build_parts(spec, federation, network)
    first = parts.learner.first
    if common is not None and {n: t.shape for n, t in common.items()} != {
        n: t.shape for n, t in first.items()
    }:
        common = None  # matched averaging may have widened it
    points = trained_alike(parts, WARM, common, directions=True)
    apart = squared(points).sqrt()
    found = {k: kmeans(points, k, parts.seed, RESTARTS, start="plusplus").labels for k in ks}
    near = {k: silhouette(apart, labels) for k, labels in found.items()}
    return _Look(near, how_many(points, ks[-1], parts.seed))


def _row(k: int, runs: Sequence[_Ran], looks: Sequence[_Look], seed: Seed) -> Row:
    groups = [torch.tensor(one.groups) for one in runs]
    near = [look.silhouettes[k] for look in looks]
    spreads = tuple(one.spread for one in runs if one.spread is not None)
    scores = np.array([one.values for one in runs])
    steady, by_chance = math.nan, math.nan
    if k > 1 and len(runs) > 1:
        steady, by_chance = stability(groups), chance([one.groups for one in runs], seed)
    return Row(k, scores, tuple(near), spreads, steady, by_chance)
