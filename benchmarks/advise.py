"""How often `kinfolk advise` is right, and how sure it was, on federations whose answer is known in advance.

    python benchmarks/advise.py --seeds 0 1 2 --out runs/advise

What counts as right was written down here before any of them was run, each with its reason. Embedded
digits and made-up rows; natural clients too where KINFOLK_DATA names a folder that has them. Everything is
small: one federation takes some 20 seconds of one core. What is in the folder already is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

from kinfolk.advice.advise import Effort, advise
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import override
from kinfolk.federation.datasets.catalogue import where
from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.sources import build
from kinfolk.streams import Seed

torch.set_num_threads(1)

Made = tuple[Experiment, Federation]
Make = Callable[[int], Made]

TABULAR = ("model.name=logistic", "local.batch=20")


def digits(
    clients: int = 20,
    rows: int = 60,
    groups: tuple[int, ...] = (),
    shift: str = "rotation",
    alpha: float = 0.0,
    ragged: float = 0.0,
) -> Make:
    """Embedded digits of 8 by 8, no row with two clients, and an MLP of one layer.

    `groups` are the sizes of the groups, `alpha` each class's Dirichlet parameter (0: as the digits come).
    """

    def make(seed: int) -> Made:
        spec = override(Experiment(), ["data.name=own", "model.hidden=[50]", f"run.seed={seed}"])
        draw = np.random.default_rng(seed)
        x, y = load_digits(return_X_y=True)
        order = draw.permutation(len(x))
        left = {c: [i for i in order.tolist() if y[i] == c] for c in range(10)}
        turns = [draw.permutation(10) for _ in groups]
        member = [g for g, size in enumerate(groups) for _ in range(size)] or [0] * clients
        made = {}
        for who, g in enumerate(member):
            shares = draw.dirichlet([alpha] * 10) if alpha else None
            size = min(200, max(3, int(rows * np.exp(ragged * draw.normal() - ragged**2 / 2))))
            mine = (
                [left[c].pop() for c in draw.choice(10, size, p=shares) if left[c]] if alpha else order[:size]
            )
            order = order[size:]
            images, labels = x[mine].reshape(-1, 1, 8, 8) / 16, y[mine]
            images = np.rot90(images, g, (2, 3)) if groups and shift == "rotation" else images
            labels = turns[g][labels] if groups and shift == "labels" else labels
            made[f"c{who:02}"] = np.ascontiguousarray(images, dtype="float32"), labels
        return spec, from_arrays(made, classes=10, seed=Seed(seed))

    return make


def source(name: str, *sets: str) -> Make:
    """Made-up rows of a source that needs no files, or natural clients of one that does."""

    def make(seed: int) -> Made:
        changes = [f"data.name={name}", "data.test=local", f"data.seed={seed}", f"run.seed={seed}", *sets]
        spec = override(Experiment(), ["data.shift=none", "data.groups=1", "data.valid=0.2", *changes])
        return spec, build(spec.data, Seed(seed))

    return make


def rows(draw_client: Callable[[np.random.Generator, int], Any], clients: int, *sets: str) -> Make:
    """Clients whose rows are drawn here, one function for all of them."""

    def make(seed: int) -> Made:
        spec = override(Experiment(), [*TABULAR, *sets, "data.name=own", f"run.seed={seed}"])
        draw = np.random.default_rng(seed)
        made = {f"c{i:02}": draw_client(draw, i) for i in range(clients)}
        return spec, from_arrays(made, seed=Seed(seed))

    return make


def opposite(draw: np.random.Generator, i: int) -> Any:
    """Ten columns and their sum's sign; odd clients have the opposite label."""
    x = draw.normal(size=(50, 10)).astype("float32")
    return x, ((x.sum(1) + 0.5 * draw.normal(size=50) > 0) ^ bool(i % 2)).astype(int)


def same_line(count: int) -> Callable[[np.random.Generator, int], Any]:
    """Eight columns and one linear rule for everybody; labels are noisy."""

    def client(draw: np.random.Generator, i: int) -> Any:
        x = draw.normal(size=(count, 8)).astype("float32")
        return x, (x @ np.arange(-3, 5) + 3 * draw.normal(size=count) > 0).astype(int)

    return client


def own_concept(draw: np.random.Generator, i: int) -> Any:
    """Eight columns and a linear rule of the client's own."""
    x = draw.normal(size=(200, 8)).astype("float32")
    return x, (x @ draw.normal(size=8) > 0).astype(int)


def noise(draw: np.random.Generator, i: int) -> Any:
    """Labels that have nothing to do with the rows."""
    return draw.normal(size=(60, 8)).astype("float32"), draw.integers(0, 4, 60)


def own_gain(draw: np.random.Generator, i: int) -> Any:
    """One rule, seen by instruments that read up to a tenth too much and are off by a little."""
    centres = np.random.default_rng(5).normal(size=(6, 12)) * 1.2
    y = draw.integers(0, 6, 50)
    x = centres[y] + draw.normal(size=(50, 12))
    return (x * (1 + 0.1 * draw.uniform(-1, 1)) + 0.2 * draw.normal(size=12)).astype("float32"), y


def rare(draw: np.random.Generator, i: int) -> Any:
    """One rule for everybody; about one row in fifteen is positive."""
    x = draw.normal(size=(120, 8)).astype("float32")
    return x, (x @ np.ones(8) + draw.normal(size=120) > 4.5).astype(int)


@dataclass(frozen=True)
class Case:
    """A federation, the answers that are right for it, and why."""

    name: str
    make: Make
    right: tuple[str, ...]
    why: str
    files: str = ""  # the data set that must be there


ONE = "one concept and few rows a client: pooling brings the most, groups only divide the rows"
CASES = [
    Case("one group, IID", digits(), ("fedavg",), ONE),
    Case("2 groups, opposite labels", rows(opposite, 16), ("groups 2",), "no model can serve both halves"),
    Case(
        "3 groups, Gaussian classes",
        source(
            "gaussians", "data.clients=24", "data.groups=3", "data.shift=source", "data.rows=60", *TABULAR
        ),
        ("groups 3",),
        "every group has class means of its own; 48 rows are few for 60 columns",
    ),
    Case(
        "4 groups, rotations",
        digits(groups=(6, 6, 6, 6)),
        ("groups 4",),
        "four rotations; the known answer of choose-k's page",
    ),
    Case(
        "3 groups, labels permuted",
        digits(groups=(7, 7, 7), shift="labels"),
        ("groups 3",),
        "every group names the classes in another order",
    ),
    Case(
        "3 groups of 12, 6 and 4",
        digits(groups=(12, 6, 4), shift="labels"),
        ("groups 3",),
        "as above, of unequal size",
    ),
    Case(
        "4 groups, label skew too",
        digits(rows=50, groups=(8, 8, 8, 8), alpha=1.0),
        ("groups 4",),
        "rotations; labels are uneven besides (Dirichlet, 1 each)",
    ),
    Case(
        "label skew only",
        digits(alpha=0.3),
        ("fedavg", "fine-tuned"),
        "one concept; own rows have few classes, so that fine-tuning may gain; groups of labels are none",
    ),
    Case(
        "quantity skew only",
        digits(ragged=1.0),
        ("fedavg",),
        "one concept; many clients have few rows",
    ),
    Case(
        "mild feature shift",
        rows(own_gain, 20),
        ("fedavg", "fine-tuned"),
        "one concept, instruments differ a little",
    ),
    Case(
        "3 rows a client",
        digits(rows=3),
        ("unclear",),
        "one validation row a client cannot tell methods apart",
    ),
    Case(
        "many rows, one concept",
        rows(same_line(1500), 10),
        ("local", "fedavg"),
        "1500 rows of eight columns are enough for everybody alone; nobody loses by one model",
    ),
    Case(
        "every client its own concept",
        rows(own_concept, 12),
        ("local", "fine-tuned"),
        "a rule of one's own and 200 rows of eight columns",
    ),
    Case("random labels", rows(noise, 16), ("unclear",), "there is nothing to learn"),
    Case(
        "two clients",
        rows(same_line(160), 2),
        ("local", "fedavg", "unclear"),
        "one concept; two clients prove nothing, so that whatever is said must not be sure",
    ),
    Case(
        "rare class",
        rows(rare, 20),
        ("fedavg", "unclear"),
        "one concept; by accuracy nearly everything is right that says no",
    ),
    Case(
        "regression, 3 groups",
        source(
            "linear",
            "data.clients=24",
            "data.groups=3",
            "data.shift=source",
            "data.rows=40",
            "data.features=20",
            "data.noise=0.5",
            *TABULAR,
            "local.lr=0.02",
        ),
        ("groups 3",),
        "every group has weights of its own; 32 rows are few for 20 columns",
    ),
    Case(
        "regression, one group",
        source(
            "linear",
            "data.clients=20",
            "data.rows=40",
            "data.features=20",
            "data.noise=1.0",
            *TABULAR,
            "local.lr=0.02",
        ),
        ("fedavg",),
        "one set of weights; 32 rows are few for 20 columns",
    ),
]
NATURAL = ("data.partition=natural", "data.clients=24", "model.name=mlp", "model.hidden=[50]")
ONE_TASK = "one task, each in a hand of one's own: published tables have one model, best fine-tuned"
CASES += [
    Case(
        "writers of digits (MNIST)",
        source("mnist", *NATURAL, "data.min_rows=80"),
        ("fedavg", "fine-tuned"),
        ONE_TASK,
        "mnist",
    ),
    Case(
        "writers of characters (FEMNIST)",
        source("femnist", *NATURAL, "data.min_rows=80"),
        ("fedavg", "fine-tuned"),
        ONE_TASK,
        "femnist",
    ),
    Case(
        "users of telephones (WISDM)",
        source("wisdm", *NATURAL, "data.min_rows=60", "data.standardize=global"),
        ("fedavg", "fine-tuned"),
        "one task, each with one's own gait: one model, best fine-tuned",
        "wisdm",
    ),
    Case(
        "4 hospitals (heart disease)",
        source(
            "heart_disease", "data.partition=natural", "data.clients=0", *TABULAR, "data.standardize=global"
        ),
        ("fedavg", "fine-tuned", "unclear"),
        "one disease; four hospitals are few, so that it must not be sure",
        "heart_disease",
    ),
    Case(
        "29 fields (landmines)",
        source("landmine", "data.partition=natural", "data.clients=0", *TABULAR, "data.standardize=global"),
        ("unclear", "fedavg", "groups 2"),
        "six in a hundred rows are mines: by accuracy hardly anything is learned; two kinds of ground",
        "landmine",
    ),
]


def answer(case: Case, seed: int, folder: Path, budget: float) -> dict[str, Any]:
    """What the command says of one federation, and how long it took; its runs are not kept."""
    name = "".join(c if c.isalnum() else "-" for c in case.name)
    file = folder / (f"{name}-{seed}" + (f"-{budget:g}" if budget else "") + ".json")
    if not file.exists():
        spec, federation = case.make(seed)
        began, cpu = time.perf_counter(), time.process_time()
        shutil.rmtree(folder / "now", ignore_errors=True)
        spec = override(spec, ["engine.name=batched"])
        facts = advise(spec, folder / "now", Effort(budget), federation=federation)
        spent = {"wall": time.perf_counter() - began, "cpu": time.process_time() - cpu}
        shutil.rmtree(folder / "now")
        file.write_text(json.dumps({**facts, "took": spent}))
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def said(facts: dict[str, Any]) -> str:
    """The answer in the words of `Case.right`."""
    advice = facts["advice"]
    return f"groups {advice['k']}" if advice["answer"] == "groups" else str(advice["answer"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", default="", help="Federations whose name has this in it.")
    parser.add_argument("--budget", type=float, default=0.0, help="As for the command; 0: as usual.")
    parser.add_argument("--out", type=Path, default=Path("runs/advise"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    here = [c for c in CASES if given.only in c.name and (not c.files or where(c.files))]
    tally: Counter[tuple[str, bool]] = Counter()
    heads = ["federation", "right", *(f"seed {seed}" for seed in given.seeds), "s"]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for case in here:
        cells, seconds = [], []
        for seed in given.seeds:
            facts = answer(case, seed, given.out, given.budget)
            hit, sure = said(facts) in case.right, facts["advice"]["confidence"]
            tally[sure, hit] += 1
            cells.append(f"{said(facts)}, {sure}" if hit else f"**{said(facts)}, {sure}**")
            seconds.append(facts["took"]["cpu"])
        row = [case.name, " or ".join(case.right), *cells, f"{np.mean(seconds):.0f}"]
        print(f"| {' | '.join(row)} |", flush=True)
    for sure in ("high", "medium", "low"):
        print(f"{sure}: {tally[sure, True]} right, {tally[sure, False]} wrong")
    absent = [c.name for c in CASES if c.files and not where(c.files)]
    if absent:
        print(f"not run, no data ({os.environ.get('KINFOLK_DATA', 'KINFOLK_DATA')}): {', '.join(absent)}")


if __name__ == "__main__":
    main()
