"""The watch on training: planted failures that it must name, healthy runs in which it must say nothing.

python benchmarks/divergence.py [--only WORD ...] [--skip-healthy | --skip-planted] [--seed 0]

prints two tables and ends with exit code 1 if a failure was missed or a healthy run alarmed; about four
minutes on one core
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from kinfolk.algorithms import ALGORITHMS
from kinfolk.contract.spoil import Passing
from kinfolk.errors import KinfolkError
from kinfolk.experiment import run as running
from kinfolk.experiment.record import read_audit
from kinfolk.experiment.spec import Experiment, load, override
from kinfolk.federation.federation import Federation, Split, pack
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.sources import build
from kinfolk.script import Ask
from kinfolk.streams import Seed
from kinfolk.types import Stack

CONFIGS = Path(__file__).parents[1] / "src" / "kinfolk" / "configs"
SMALL = ("data.clients=12", "data.rows=30", "model.hidden=[16]", "local.epochs=1")


@dataclass(frozen=True)
class Case:
    """One run: what changes in rotated digits, on which rows, and when it fails (0: before training)."""

    name: str
    changes: tuple[str, ...]
    rounds: int = 4
    fails: int = 0
    within: int = 1  # evaluations after that in which it must be named at the latest
    rows: Callable[[Federation], Federation] | None = None
    times: float = 1.0  # factor on the replies of one client, from round `fails` on
    config: str = "digits.toml"
    small: bool = True


@dataclass(frozen=True)
class Found:
    """What the watch said: the first round, and what; 0 and nothing if it kept silent."""

    round: int
    text: str


def constant_labels(data: Federation) -> Federation:
    """All training rows have the label 3; the test rows are as they were."""
    y = data.y.clone()
    y[data.splits["train"].row] = 3
    return replace(data, y=y)


def loud_client(data: Federation) -> Federation:
    """The rows of one client times a million."""
    x = data.x.float() if data.scale is None else data.x.float() * data.scale[0] + data.scale[1]
    own = torch.cat([split.rows(3) for split in data.splits.values()])
    return replace(
        data,
        x=torch.cat([x, x[own] * 1e6]),
        y=torch.cat([data.y, data.y[own]]),
        scale=None,
        splits={name: _moved(split, len(x), own) for name, split in data.splits.items()},
    )


def _moved(split: Split, pool: int, own: torch.Tensor) -> Split:
    """The split in which client 3 has the copies of its rows, which stand at the end of the pool."""
    place = {int(row): pool + i for i, row in enumerate(own)}
    sets = [split.rows(i) for i in range(len(split.of))]
    sets[3] = torch.tensor([place[int(row)] for row in sets[3]], dtype=torch.int64)
    return pack(sets)


def regression(rows: float, targets: float, offset: float = 0.0) -> Callable[[Federation], Federation]:
    """Clients with a linear law between ten columns and a number, in some units."""

    def made(_: Federation) -> Federation:
        draw = np.random.default_rng(0)
        law = draw.normal(size=10)
        x = [draw.normal(size=(40, 10)) for _ in range(12)]
        y = [(one @ law + 0.1 * draw.normal(size=40)) * targets + offset for one in x]
        return from_arrays([(a * rows, b) for a, b in zip(x, y, strict=True)])

    return made


def holes(data: Federation) -> Federation:
    """Pixels that are not numbers, given as a user would give them."""
    rows = {}
    for i, who in enumerate(data.clients):
        x, y = data.take(data.splits["train"].rows(i))
        x = x.clone()
        x[0] = float("nan")
        rows[str(who)] = (x, y)
    return from_arrays(rows)


def lr(rate: float, *more: str) -> tuple[str, ...]:
    return (f"local.lr={rate}", *more)


UNSCALED, SCALED = regression(300.0, 3000.0), regression(1.0, 1.0)
PLANTED = (
    Case("rate 1000, fedavg, loop", lr(1e3, "engine.name=loop"), fails=1),
    Case("rate 30, fedavg, batched", lr(30, "engine.name=batched"), fails=1),
    Case("rate 1000, ifca, workers", lr(1e3, "algorithm.name=ifca", "engine.name=workers"), fails=1),
    Case("rate 1000, fesem", lr(1e3, "algorithm.name=fesem"), rounds=8, fails=1),
    Case("rate 1000, local", lr(1e3, "algorithm.name=local"), fails=1),
    Case("rate 1000, slfed", lr(1e3, "algorithm.name=slfed"), rounds=2, fails=1),
    Case("rate 1000, fedem", lr(1e3, "algorithm.name=fedem"), fails=1),
    Case("rate 1000, feddc", lr(1e3, "algorithm.name=feddc"), fails=1),
    Case("rate 3, local: dead units", lr(3, "algorithm.name=local"), rounds=8, fails=1, within=5),
    Case("Adam at rate 10", lr(10, "local.optimiser=adam"), fails=1),
    Case(
        "momentum 0.99, rate 3", lr(3, "local.momentum=0.99", "local.epochs=10"), rounds=6, fails=1, within=5
    ),
    Case("float32 overflows", lr(1e30, "local.epochs=5"), fails=1),
    Case("float32 overflows, wire", lr(1e30, "local.epochs=5", "engine.name=wire"), fails=1),
    Case("fine-tuning at rate 1000", ("algorithm.name=fedavg_tuned", "local.tune_lr=1000"), fails=1),
    Case("regression, nothing scaled, fedavg", (), fails=1, rows=UNSCALED),
    Case("regression, nothing scaled, local", ("algorithm.name=local",), fails=1, rows=UNSCALED),
    Case("regression, rate 0.3", lr(0.3), fails=1, rows=regression(5.0, 1.0)),
    Case("regression, rate 1", lr(1), fails=2, rows=regression(1.0, 1.0)),
    Case("regression, rate 0.1", lr(0.1), fails=1, rows=regression(4.0, 10.0)),
    Case("training labels all 3", (), rounds=6, fails=1, within=5, rows=constant_labels),
    Case("one client's rows x 1e6, fedavg", (), fails=0, rows=loud_client),
    Case("one client's rows x 1e6, local", ("algorithm.name=local",), fails=0, rows=loud_client),
    Case("NaN pixels", (), fails=0, rows=holes),
    Case("one reply x 500 in round 5", ("engine.name=loop",), rounds=6, fails=5, times=500.0),
    Case("one reply x 500, batched", ("engine.name=batched",), rounds=6, fails=5, times=500.0),
    Case("one reply x 500, ifca", ("algorithm.name=ifca",), rounds=6, fails=5, times=500.0),
    Case("one reply x 1e9 in round 5", ("engine.name=loop",), rounds=6, fails=5, times=1e9),
    Case(
        "40 % scaled attackers, rate 3",
        lr(3, "run.attack=scaled", "run.attackers=0.4"),
        rounds=6,
        fails=1,
        within=5,
    ),
)

QUARTER = ("run.participation=0.25",)
SKEW = ("data.alpha=0.3", "data.test=local", *QUARTER)
HEALTHY = (
    *(
        Case(f"{name}, defaults", (f"algorithm.name={name}",), rounds=2 if name == "slfed" else 10)
        for name in ALGORITHMS
    ),
    *(
        Case(f"{name}, a quarter a round", (f"algorithm.name={name}", *QUARTER), rounds=24)
        for name in ("fedavg", "fedavg_tuned", "ifca", "fesem", "local", "feddc")
    ),
    *(
        Case(f"{name}, label skew 0.3", (f"algorithm.name={name}", *SKEW), rounds=24)
        for name in ("fedavg", "fedprox", "ifca", "fesem", "local", "fedem")
    ),
    *(
        Case(f"{attack} by a fifth", (f"run.attack={attack}", "run.attackers=0.2"), rounds=10)
        for attack in ("sign_flip", "scaled", "noise", "label_flip")
    ),
    *(
        Case(f"regression, {name}", lr(0.02, f"algorithm.name={name}"), rounds=10, rows=SCALED)
        for name in ("fedavg", "local", "ifca", "fedavg_tuned")
    ),
    Case("regression, targets near 100", lr(0.002), rounds=10, rows=regression(1.0, 3.0, 100.0)),
    Case("clients of 4 rows, local", ("data.rows=4", "algorithm.name=local"), rounds=20),
    Case("clients of 4 rows, fedavg", ("data.rows=4", "data.test=local"), rounds=20),
    Case("overfitting alone", lr(0.5, "algorithm.name=local", "data.test=global"), rounds=30),
    Case("slow plateau", lr(0.001), rounds=20),
    Case("slow plateau, a quarter a round", lr(0.001, *QUARTER), rounds=20),
    Case("void rounds", ("run.absent=0.4", "run.quorum=0.6"), rounds=15),
    Case("two classes a client", ("data.partition=shards", "data.shards=2", *QUARTER), rounds=24),
    Case("momentum 0.9", lr(0.05, "local.momentum=0.9"), rounds=10),
    Case("Adam", lr(0.003, "local.optimiser=adam"), rounds=10),
    Case("digits-skewed.toml", ("run.rounds=20",), 20, config="digits-skewed.toml", small=False),
    Case("digits.toml", (), 20, small=False),
)


@contextmanager
def altered(case: Case) -> Iterator[None]:
    """Let one client reply with its model times a number, from a round on."""
    usual, seen = running.make, {"round": 0}

    def change(request: Ask[Any], reply: Stack) -> Stack:
        if "model" not in reply.body or reply.clients[0] != "client-00":
            return reply
        seen["round"] += 1  # a client sends its model once a round
        by = case.times if seen["round"] >= case.fails else 1.0
        model = {n: t * by for n, t in reply.tree("model").items()}
        return Stack(reply.clients, reply.size, {**reply.body, "model": model})

    def make(*given: Any) -> Any:
        return Passing(usual(*given), change)

    running.make = make if case.times != 1.0 else usual
    try:
        yield
    finally:
        running.make = usual


def spec_of(case: Case, seed: int = 0) -> Experiment:
    base = load(CONFIGS / case.config)
    return override(
        base, [*(SMALL if case.small else ()), f"run.rounds={case.rounds}", f"run.seed={seed}", *case.changes]
    )


def watched(case: Case, seed: int = 0) -> Found:
    """Run a case and say what the watch said first."""
    spec = spec_of(case, seed)
    with tempfile.TemporaryDirectory() as folder, altered(case):
        where = Path(folder) / "run"
        try:
            rows = build(spec.data, Seed(spec.run.seed))
            running.run(spec, where, federation=case.rows(rows) if case.rows else rows)
        except KinfolkError as error:
            if not (where / "audit.jsonl").exists():
                return Found(0, f"refused: {error}")
        said = [line for line in read_audit(where) if line["event"] == "diverged"]
    if not said:
        return Found(0, "")
    first = said[0]
    clients = first.get("clients") or [first[key] for key in ("client",) if key in first]
    who = f"client {clients[0]}: " if len(clients) == 1 else f"{len(clients)} clients: " if clients else ""
    return Found(int(first["round"]), f"{who}{first['text']}")


def is_named(case: Case, found: Found) -> bool:
    """Whether a planted failure was named in time, or refused before the run began."""
    return bool(found.text) and case.fails <= found.round <= case.fails + case.within


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--skip-healthy", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip-planted", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)

    def some(cases: tuple[Case, ...], skip: bool) -> list[Case]:
        return [c for c in cases if not skip and (not asked.only or any(w in c.name for w in asked.only))]

    wrong = 0
    table = Table("planted", "fails", "named", "as")
    for case in some(PLANTED, asked.skip_planted):
        found = watched(case, asked.seed)
        fine = is_named(case, found)
        wrong += not fine
        at = (str(found.round) if found.text else "-") + ("" if fine else " !")
        table.add_row(case.name, str(case.fails), at, found.text)
    console = Console(width=110)
    if table.rows:
        console.print(table)
    quiet, cases = 0, some(HEALTHY, asked.skip_healthy)
    for case in cases:
        found = watched(case, asked.seed)
        quiet += not found.text
        if found.text:
            console.print(f"false alarm: {case.name}, round {found.round}: {found.text}", markup=False)
    if cases:
        console.print(f"healthy: {quiet} of {len(cases)} without an alarm")
    sys.exit(bool(wrong or quiet < len(cases)))


if __name__ == "__main__":
    main()
