"""Which part of `slfed_similar` does what: images, comparison, ranking and rounds alone, each by itself.

python benchmarks/lists.py [--data digits ...] [--seeds 0 1 2] [--rows published ...] [--out FOLDER]
python benchmarks/lists.py --table FOLDER

Federations with known groups. For each row: how many of a list are of the own group (at the end, and by
chance), how long lists are, and the accuracy of the PAM and of what is trained on top of it. The second form
only prints what the first has left in a folder. `--split valid` is for choices: it scores validation rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kinfolk.experiment.compare import parse_algorithm
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import Experiment, load, override
from kinfolk.papers.trust_record import KINDS, trace_trust

SMALL = ("digits", "engine.name=batched", "engine.chunk=24", "run.rounds=20")
FEDERATIONS: dict[str, tuple[str, ...]] = {
    "digits": SMALL,
    "pendigits": (*SMALL, "data.name=pendigits", "data.shift=label_swap"),
    "wisdm": (*SMALL, "data.name=wisdm", "data.shift=label_permutation"),
    "cifar10": ("slfed/groups-cifar10", "engine.precision=tf32"),  # wants a GPU
}
TABLES = ["digits", "pendigits", "wisdm"]
# As published, with a smaller GAN and fewer images, as elsewhere on the page.
PUBLISHED = "slfed,shares.scheme=plain,images.count=200,gan.width=0.125,gan.steps=150"
SIMILAR = "slfed_similar,shares.scheme=plain,gan.width=0.125,gan.steps=150"
ROWS = {
    "Local": "local",
    "FedAvg": "fedavg",
    "published": PUBLISHED,
    "published, images alone": PUBLISHED + ",images.kind=back_search",
    "published, comparison alone": PUBLISHED + ",compare=images",
    "published, ranking alone": PUBLISHED + ",trust.rank=similarity",
    "published, rounds alone": PUBLISHED + ",local_rounds=12",
    "similar": SIMILAR,
    "similar without images": SIMILAR + ",images.kind=gan",
    "similar without comparison": SIMILAR + ",compare=counts",
    "similar without ranking": SIMILAR + ",trust.rank=uncertainty",
    "similar without rounds": SIMILAR + ",local_rounds=0",
}
ABLATION = list(ROWS)
# The same without the cost of a GAN; and choices that are made by validation rows.
NOISE = "slfed,shares.scheme=plain,images.count=200,images.kind=noise"
ROWS |= {
    "noise": NOISE,
    "noise, comparison alone": NOISE + ",compare=images",
    "noise, ranking alone": NOISE + ",trust.rank=similarity",
    "noise, rounds alone": NOISE + ",local_rounds=12",
    "similar, noise": SIMILAR + ",images.kind=noise",
    "similar, means of 8": SIMILAR + ",images.kind=means",
    "similar, means of 3": SIMILAR + ",images.kind=means,images.means_of=3",
    **{f"similar, {n} rounds alone": f"{SIMILAR},local_rounds={n}" for n in (4, 8, 16)},
    "similar, 1000 images": SIMILAR + ",images.count=1000",
}


def spec_of(data: str, row: str, seed: int, split: str, more: list[str]) -> Experiment:
    """One run, scored once at its end."""
    config, *sets = FEDERATIONS[data]
    sets += [f"run.seed={seed}", f"run.split={split}", *(["data.valid=0.2"] if split == "valid" else [])]
    spec = override(load(config), [*sets, *more])
    last = replace(spec.run, evaluate_every=spec.run.rounds, checkpoint_every=spec.run.rounds)
    return replace(spec, run=last, algorithm=parse_algorithm(ROWS[row], spec))


def measure(spec: Experiment, folder: Path) -> dict[str, Any]:
    """Accuracy in %, and of SLFed's lists at the end the share of the own group, its chance, the length."""
    scores: dict[str, Any] = {}

    def watch(event: str, told: dict[str, Any]) -> None:
        if event == "round":
            scores.update(told["summary"])

    if spec.algorithm.name in KINDS:
        last = trace_trust(spec, folder, watch=watch)["rounds"][-1]
        found = {key: last[key] for key in ("listed_same", "chance_same", "listed", "sent")}
    else:
        run(spec, folder, watch=watch)
        found = {}
    return found | {kind: 100 * one["accuracy"]["macro"] for kind, one in scores.items()}


def shown(values: Iterable[float | None], digits: int = 1) -> str:
    """mean ± sample standard deviation; a dash where there is nothing to tell."""
    there = [one for one in values if one is not None]
    if not there:
        return "-"
    spread = statistics.stdev(there) if len(there) > 1 else 0.0
    return f"{statistics.mean(there):.{digits}f} ± {spread:.{digits}f}"


def print_tables(lines: list[dict[str, Any]]) -> None:
    """A table for each federation and split, a line for each row, over its seeds."""
    for data, split in sorted({(one["data"], one["split"]) for one in lines}):
        here = [one for one in lines if (one["data"], one["split"]) == (data, split)]
        seeds = sorted({one["seed"] for one in here})
        table = Table(title=f"{data}, {split} rows, seeds {seeds}", title_justify="left", box=None)
        for head in ("", "own group on lists, %", "chance, %", "length", "lists sent, %", "PAM", "trained"):
            table.add_column(head, justify="right" if head else "left", no_wrap=True)
        for row in ROWS:
            mine = [one for one in here if one["row"] == row]
            if not mine:
                continue
            percent = [[v and 100 * v for v in (one.get(key) for one in mine)]
                       for key in ("listed_same", "chance_same", "sent")]  # fmt: skip
            centre = [one.get("centre") for one in mine]
            trained = [one.get("personal") for one in mine]
            length = shown(one.get("listed") for one in mine)
            cells = shown(percent[0]), shown(percent[1], 0), length, shown(percent[2], 0)
            table.add_row(row, *cells, shown(centre), shown(trained))
        Console(width=140).print(table)


def main() -> None:
    """Measure and print, or only print."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--data", nargs="*", choices=FEDERATIONS, default=TABLES)
    given.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    given.add_argument("--rows", nargs="*", choices=ROWS, default=ABLATION)
    given.add_argument("--split", choices=("test", "valid"), default="test")
    given.add_argument("--set", nargs="*", default=[], metavar="a.b=c")
    given.add_argument("--out", type=Path, help="a folder for one JSON file a run")
    given.add_argument("--table", type=Path, help="print what is in this folder, run nothing")
    asked = given.parse_args()
    lines = []
    if asked.table:
        lines = [json.loads(path.read_text()) for path in sorted(asked.table.glob("*.json"))]
    else:
        for data in asked.data:
            for seed in asked.seeds:
                for row in asked.rows:
                    spec = spec_of(data, row, seed, asked.split, asked.set)
                    with tempfile.TemporaryDirectory() as folder:
                        found = measure(spec, Path(folder) / "run")
                    lines.append({"data": data, "seed": seed, "row": row, "split": asked.split, **found})
                    if asked.out:
                        asked.out.mkdir(parents=True, exist_ok=True)
                        name = f"{data}-{asked.split}-{seed}-{row}".replace(" ", "_").replace(",", "")
                        (asked.out / f"{name}.json").write_text(json.dumps(lines[-1]))
    print_tables(lines)


if __name__ == "__main__":
    main()
