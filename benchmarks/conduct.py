"""Whom the report on conduct names: honest clients of heterogeneous federations, and attackers.

python benchmarks/conduct.py [--rounds 10] [--seeds 3] [--attacks none sign_flip ...] [--methods fedavg ...]

prints how many honest clients and attackers were named, by federation, method and attack; it takes minutes on
one core. A row is: federation, method, attack, honest clients named of all, attackers named of all.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from kinfolk.experiment.method import parse_algorithm
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import Experiment, load, override
from kinfolk.report.conduct import conduct
from kinfolk.report.read import load_run

RIDERS = ("unchanged", "free_noise", "replay")
ATTACKS = ("none", "sign_flip", "scaled", "noise", "label_flip", "backdoor", "sybil", *RIDERS)
METHODS = ("fedavg", "fedprox", "ifca,k=4", "fesem,k=4", "clustered_fl", "mdicfl")
SHARE = 0.1
# Groups by rotation, unequal clients with few classes each, and every client with a model of its own.
FEDERATIONS = {
    "digits": ("digits",),
    "digits-skewed": ("digits-skewed",),
    "digits, 2 classes": ("digits", "data.partition=shards", "data.alpha=1"),
    "leaf_synthetic": ("digits", "data.name=leaf_synthetic", "data.shift=none", "data.test=local"),
}


def named(spec: Experiment) -> tuple[int, int, int, int]:
    """(honest clients named, all honest, attackers named, all attackers) of one run."""
    with tempfile.TemporaryDirectory() as folder:
        run(spec, Path(folder) / "run")
        done = load_run(Path(folder) / "run")
        attackers = set(done.facts.get("attackers") or ())
        everyone, found = int(done.facts["federation"]["clients"]), set(conduct(done)["client"])
    honest = everyone - len(attackers)
    return len(found - attackers), honest, len(found & attackers), len(attackers)


def main() -> None:
    """Run everything and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--attacks", nargs="+", default=ATTACKS)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--federations", nargs="+", default=list(FEDERATIONS))
    options = parser.parse_args()
    total = [0, 0, 0, 0]
    for federation in options.federations:
        base, *changes = FEDERATIONS[federation]
        for method in options.methods:
            for attack in options.attacks:
                sums = [0, 0, 0, 0]
                for seed in range(options.seeds):
                    sets = [*changes, f"run.rounds={options.rounds}", f"run.seed={seed}"]
                    sets += [f"run.evaluate_every={options.rounds}", "run.pictures=none"]
                    if attack != "none":
                        sets += [f"run.attack={attack}", f"run.attackers={SHARE}"]
                    spec = override(load(Path(base)), sets)
                    spec = replace(spec, algorithm=parse_algorithm(method, spec))
                    sums = [a + b for a, b in zip(sums, named(spec), strict=True)]
                total = [a + b for a, b in zip(total, sums, strict=True)]
                counts = f"{sums[0]:3} of {sums[1]:3} {sums[2]:3} of {sums[3]}"
                print(f"{federation:18} {method:12} {attack:10} {counts}", flush=True)
    print(f"all: honest clients named {total[0]} of {total[1]}, attackers {total[2]} of {total[3]}")


if __name__ == "__main__":
    main()
