"""FEMNIST's writers by several methods at equal epochs, starts counted; do groups follow how people write?

python benchmarks/writers.py --runs "fedavg_tuned; fesem,k=3; fesem_shared,k=3" --seeds 0,1,2 [--split test]
    [--rounds 60] [--model femnist_cnn_small] [--set local.lr=0.1] [--more "local.clip=2; ..."] [--out FILE]
    a run of the CNN wants a GPU (about two minutes); with --model mlp one takes minutes of a core

Every run of every seed once for each of `--more`, which are further settings. With `--split valid` a fifth of
the training rows is held out and scored, which is how settings are chosen; with `--split test` all of them
train. What a method trains before its first round is taken off its rounds, as in every run.

Of the groups that are left in the end: how much of the variance between writers of mean ink, of stroke width,
of the number of rows and of the share of digits lies between the groups, beside what groups drawn at random
have (mean and 95th percentile of 1,000 permutations). Ink and stroke width are those of a row less the mean
of its class: an i has less ink than a W whoever writes it. Stroke width is four times the mean distance of
ink to paper.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt

from kinfolk.experiment.build import build_parts
from kinfolk.experiment.record import read_rounds
from kinfolk.experiment.run import run
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import load, override
from kinfolk.federation.federation import Federation

CONFIG = "fesem/femnist"
Floats = NDArray[np.float64]
PERMUTATIONS, DIGITS = 1000, 10


def looks(federation: Federation) -> dict[str, Floats]:
    """What tells of each writer's hand, over its training rows."""
    split, x = federation.splits["train"], federation.x[:, 0]
    dark = (x.max() - x) / (x.max() - x.min())  # paper is white
    ink = dark.mean((1, 2)).double().numpy()
    width = np.array([_width(row) for row in (dark > 0.5).numpy()])
    y = federation.y.numpy()
    rows = [split.rows(i).numpy() for i in range(len(federation.clients))]
    used = np.concatenate(rows)
    found = {"rows": np.array([float(len(r)) for r in rows])}
    found["digits"] = np.array([float((y[r] < DIGITS).mean()) for r in rows])
    for name, values in (("ink", ink), ("stroke width", width)):
        usual = np.zeros(int(y.max()) + 1)
        for c in np.unique(y[used]):
            usual[c] = values[used][y[used] == c].mean()
        found[name] = np.array([float((values[r] - usual[y[r]]).mean()) for r in rows])
    return found


def _width(ink: NDArray[np.bool_]) -> float:
    return 4 * float(distance_transform_edt(ink)[ink].mean()) if ink.any() else 0.0


def share(values: Floats, groups: NDArray[np.int64]) -> float:
    """The part of the variance of `values` that lies between groups."""
    within = sum(((values[groups == g] - values[groups == g].mean()) ** 2).sum() for g in np.unique(groups))
    return 1 - float(within / ((values - values.mean()) ** 2).sum())


def explained(hands: Mapping[str, Floats], groups: NDArray[np.int64]) -> dict[str, Any]:
    """Of every look: means by group, the share between groups, and that of permuted groups."""
    draw, found = np.random.Generator(np.random.PCG64(0)), dict[str, Any]()
    for name, values in hands.items():
        chance = [share(values, draw.permutation(groups)) for _ in range(PERMUTATIONS)]
        found[name] = {
            "by group": [round(float(values[groups == g].mean()), 4) for g in np.unique(groups)],
            "share": round(share(values, groups), 3),
            "chance": [round(float(v), 3) for v in (np.mean(chance), np.quantile(chance, 0.95))],
        }
    return found


def one(spec: Experiment, hands: dict[str, Floats]) -> dict[str, Any]:
    """Scores in %, and what the groups are about."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = run(spec, Path(folder) / "run")
        rounds = read_rounds(result.folder)
    told: dict[str, Any] = {
        mean: {kind: round(100 * v["accuracy"][mean], 2) for kind, v in result.summary.items()}
        for mean in ("micro", "macro")
    }
    told |= {"rounds": result.rounds, "seconds": round(time.perf_counter() - began, 1)}
    told["blind"] = [round(r["info"]["blind"], 3) for r in rounds if "blind" in r.get("info", {})]
    member = getattr(result.state, "member", None)
    if member is not None:
        groups = member.cpu().numpy()
        told |= {"sizes": np.bincount(groups).tolist(), "looks": explained(hands, groups)}
    return told


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, value in (("runs", "fedavg_tuned; fesem_shared,k=3"), ("more", ""), ("seeds", "0"),
                        ("split", "test"), ("model", "femnist_cnn_small"), ("out", "")):  # fmt: skip
        given.add_argument(f"--{name}", default=value)
    given.add_argument("--rounds", type=int, default=60)
    given.add_argument("--set", action="append", default=[])
    args = given.parse_args()
    changes = [f"model.name={args.model}", "data.min_rows=100", f"run.rounds={args.rounds}", *args.set]
    changes += [f"run.evaluate_every={args.rounds}", f"run.checkpoint_every={args.rounds}"]
    changes += ["data.valid=0.2", "run.split=valid"] if args.split == "valid" else []
    base, hands = override(load(CONFIG), changes), dict[str, dict[str, Floats]]()
    for seed in args.seeds.split(","):
        for text in args.runs.split(";"):
            name, *options = text.strip().split(",")
            for more in args.more.split(";"):
                mine = [f"run.seed={seed}", f"algorithm.name={name}", *(f"algorithm.{o}" for o in options)]
                spec = override(base, [*mine, *more.split()])
                if seed not in hands:
                    hands[seed] = looks(build_parts(spec).federation)
                told = {"run": text.strip(), "more": more.strip(), "seed": int(seed), "split": args.split,
                        "model": args.model} | one(spec, hands[seed])  # fmt: skip
                line = json.dumps(told)
                print(line, flush=True)
                if args.out:
                    with Path(args.out).open("a") as file:
                        file.write(line + "\n")


if __name__ == "__main__":
    main()
