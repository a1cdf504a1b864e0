"""The trials: settings for every method, how many groups, and all methods at equal budgets.

Everything is judged on validation rows; test rows are never looked at. Each seed of the trials holds other
rows out, so that seeds differ in rows as well; settings and the number of groups are searched on rows that
yet another seed holds out.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from kinfolk.advice.plan import COUNT_ROUNDS, COUNT_SEEDS, SEARCHED, Pace, Plan
from kinfolk.errors import BrokeDown, KinfolkError
from kinfolk.experiment.budget import head_start
from kinfolk.experiment.build import Network, build_parts
from kinfolk.experiment.choose_k import HELD, Trial, choose_k, held_out, sample_clients
from kinfolk.experiment.compare import compare
from kinfolk.experiment.run import Watch, run
from kinfolk.experiment.sections import AlgorithmSpec, Experiment
from kinfolk.experiment.spec import as_value, override
from kinfolk.experiment.tune import Search, tune
from kinfolk.federation.federation import Federation
from kinfolk.federation.sources import build
from kinfolk.streams import Seed

# Rounds that are run to see how fast they are.
PACE = 5
# Makes a listener for a run, by its name and its own rounds.
Listen = Callable[[str, int], Watch]
# Methods with groups that are tried: they work for any rows, and one of them wherever the other fails.
GROUPED = ("fesem_shared", "ifca")


@dataclass(frozen=True, eq=False)
class Bench:
    """What all trials share: rows, rules, and where they are kept."""

    spec: Experiment
    whole: Federation  # the sampled clients, without rows held out unless they came so
    of: int  # how many clients there are
    note: str  # which rows are validation rows
    network: Network | None = None
    held: dict[int, Federation] = field(default_factory=dict)  # with rows held out, by seed

    @staticmethod
    def open(spec: Experiment, federation: Federation | None, network: Network | None, sample: int) -> Bench:
        """The bench for an experiment's data; `federation` is theirs if it is at hand already."""
        seed = Seed(spec.run.seed)
        spec = replace(spec, data=replace(spec.data, seed=seed.run) if spec.data.seed == -1 else spec.data)
        note = "a fifth of the training rows is held out for validation, others for each seed"
        made = build(spec.data, seed) if federation is None else federation
        if int(made.splits["valid"].counts().sum()):
            note = "the validation rows of the data are used, the same for all seeds"
        elif made.maker is not None:
            if federation is not None:
                raise KinfolkError(
                    "data.valid", made.name, "its rows are made when asked for; set it above 0"
                )
            spec = replace(spec, data=replace(spec.data, valid=HELD))
            made, note = (
                build(spec.data, seed),
                "a fifth of the rows is for validation, the same for all seeds",
            )
        return Bench(_trial(spec), sample_clients(made, sample, seed), len(made.clients), note, network)

    def rows(self, seed: Seed) -> Federation:
        """The clients with validation rows: those they have, or others for each seed."""
        if int(self.whole.splits["valid"].counts().sum()):
            return self.whole
        if seed.run not in self.held:
            self.held[seed.run] = held_out(self.whole, HELD, seed)
        return self.held[seed.run]

    def start(self) -> int:
        """Rounds' worth of training that splitting the clients costs."""
        most = min(2, len(self.whole.clients))
        spec = replace(self.spec, algorithm=AlgorithmSpec("fesem", {"k": most}))
        return head_start(build_parts(spec, self.rows(Seed(self.spec.run.seed)), self.network))

    def pace(self) -> Pace:
        """How fast a few rounds are here; what they have trained is not used."""
        length: dict[str, Any] = dict.fromkeys(("rounds", "evaluate_every", "checkpoint_every"), PACE)
        spec = replace(self.spec, run=replace(self.spec.run, **length))
        spec = replace(spec, algorithm=AlgorithmSpec("fedavg_tuned"))
        rows, found = self.rows(Seed(spec.run.seed)), Pace(0.0, 0.0)
        for _ in range(2):  # the first pays for what is loaded and compiled once
            stamps: list[float] = []
            began = time.perf_counter()

            def watch(event: str, facts: dict[str, Any], stamps: list[float] = stamps) -> None:
                if event == "round":
                    stamps.append(time.perf_counter())

            with tempfile.TemporaryDirectory(prefix="kinfolk-") as folder, suppress(BrokeDown):
                run(spec, Path(folder) / "pace", federation=rows, network=self.network, watch=watch)
            # Round 0 is scoring alone, and the last is scored and saved too.
            rounds = [after - before for before, after in pairwise(stamps[:-1])]
            training = median(rounds) if rounds else 0.0
            found = Pace(max(time.perf_counter() - began - PACE * training, 0.0), training)
        return found

    def search(self, folder: Path, plan: Plan, resume: bool, listen: Listen) -> dict[str, Any]:
        """Settings for Local, and for FedAvg and its fine-tuning: what `kinfolk tune` makes of them."""
        length: dict[str, Any] = dict.fromkeys(("rounds", "evaluate_every"), plan.search_rounds)
        seed = self.spec.run.seed + plan.seeds  # the trials have those below
        spec = replace(self.spec, run=replace(self.spec.run, **length, seed=seed))
        each = plan.search // len(SEARCHED)
        listeners: dict[str, Watch] = {}

        def tell(title: str, spent: float) -> None:
            told = listeners.setdefault(title, listen(f"settings of {title}", each))
            told("round", {"round": min(int(spent), each), "rounds": each})

        return tune(
            spec, SEARCHED, folder, Search(float(each)),
            federation=self.rows, network=self.network, resume=resume, tell=tell,
        )  # fmt: skip

    def count(self, spec: Experiment, folder: Path, plan: Plan, resume: bool, listen: Listen) -> Any:
        """How many groups there are: what `kinfolk choose-k` says."""
        each = COUNT_ROUNDS + plan.start
        ks = tuple(range(1, plan.most_groups + 1))
        spec = replace(spec, algorithm=AlgorithmSpec("fesem"))
        rows = self.rows(Seed(spec.run.seed + plan.seeds))
        return choose_k(
            spec, folder, Trial(ks, len(rows.clients), COUNT_ROUNDS, COUNT_SEEDS),
            federation=rows, network=self.network, resume=resume,
            watch=lambda k, seed: _quiet(listen(f"K = {k} seed {seed}", each)),
        )  # fmt: skip

    def compare(
        self, spec: Experiment, lines: list[str], folder: Path, plan: Plan, resume: bool, listen: Listen
    ) -> None:
        """All methods at equal budgets, into a folder as `kinfolk compare` writes it."""
        quarter = plan.rounds // 4
        rules = replace(spec.run, rounds=plan.rounds, evaluate_every=quarter, checkpoint_every=plan.rounds)
        compare(
            replace(spec, run=rules), lines, plan.seeds, folder,
            federation=self.rows, network=self.network, resume=resume,
            watch=lambda title, seed: listen(f"{title} seed {seed}", plan.rounds),
        )  # fmt: skip


def _quiet(watch: Watch) -> Watch:
    """A listener that is told no warnings: that a start takes most of a short run is as planned here."""
    return lambda event, facts: None if event == "warning" else watch(event, facts)


def _trial(spec: Experiment) -> Experiment:
    """The rules of trials: all clients take part, nobody attacks, validation rows judge."""
    rules = replace(
        spec.run, participation=1.0, absent=0.0, target=0.0, patience=0, keep="last", split="valid",
        attack="none", attackers=0.0, models="all",
    )  # fmt: skip
    return replace(spec, run=rules)


def settled(spec: Experiment, found: Mapping[str, Any]) -> tuple[Experiment, str]:
    """(the spec at FedAvg's settings, the line for Local at its own) after a search.

    >>> one, two = ({"given": n, "settings": s} for n, s in (("local", {"local.lr": 1.0}), ("fedavg_tuned",
    ...     {"local.lr": 0.3, "local.tune_epochs": 3})))
    >>> spec, line = settled(Experiment(), {"methods": [one, two]})
    >>> spec.local.lr, spec.local.tune_epochs, line
    (0.3, 3, 'local;local.lr=1.0')
    """
    by = {one["given"]: one["settings"] for one in found["methods"]}
    base = override(spec, by["fedavg_tuned"])
    usual = {name: getattr(spec.local, name.removeprefix("local.")) for name in ("local.lr", "local.clip")}
    mine = usual | by["local"]
    own = {name: v for name, v in mine.items() if v != getattr(base.local, name.removeprefix("local."))}
    return base, ";".join(["local", *(f"{name}={as_value(value)}" for name, value in own.items())])


def lines_for(local: str, ks: Sequence[int]) -> list[str]:
    """What is compared: no training together, one model (its fine-tuned ones beside it), and groups.

    Of one number of groups two methods are tried, since either may fail; of two numbers the surer one.

    >>> lines_for("local", []), lines_for("local", [3])[2:], lines_for("local", [3, 2])[2:]
    (['local', 'fedavg_tuned'], ['fesem_shared,k=3', 'ifca,k=3'], ['fesem_shared,k=3', 'fesem_shared,k=2'])
    """
    first, second = GROUPED
    grouped = [f"{first},k={k}" for k in ks[:2]]
    return [local, "fedavg_tuned", *grouped, *(f"{second},k={k}" for k in ks if len(ks) == 1)]
