"""How often the verdict sees something where there is nothing: equal methods, groups without meaning.

python benchmarks/verdict_noise.py [--draws 200] [--seed 0] [--part noise found pairs]

prints, for each kind of noise, the share of draws in which the verdict names a best method, calls any two
different, names another method for the worst client, says that there are groups, that groups are stable, or
names a client that is worse off than elsewhere, or behind the rest. Then how often a method that is better is
named; and how often the test of `kinfolk compare` alone calls two equal methods different, by number of
seeds. Half an hour on one core.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from kinfolk.report.read import Run
from kinfolk.report.statistics import all_pairs
from kinfolk.report.verdict import verdict

METHODS = (
    "fedavg",
    "local",
    "fesem k=3",
    "ifca k=3",
    "fedprox",
    "fedavg mine",
    "fesem k=2",
    "scaffold",
    "robust",
    "ditto",
)
RULES = {
    "best": ("best",),
    "any": ("below",),
    "worst": ("worst-other",),
    "groups": ("groups-help",),
    "stable": ("groups-stable",),
    "worse": ("worse-off", "worse-than-alone", "loses-by-it"),
    "behind": ("behind",),
}


@dataclass(frozen=True)
class Noise:
    """Equal methods: clients differ by `skill`, a seed moves all clients of a method by `shift`."""

    methods: int
    clients: int = 24
    seeds: int = 3
    rows: int = 100  # test rows of a client
    shift: float = 0.0
    skill: float = 0.08
    score: str = "accuracy"
    lead: float = 0.0  # by which the first method is better after all
    kinds: int = 1  # of models that a method with groups has: equal too, each with noise of its own


CASES = [
    Noise(2), Noise(5), Noise(10), Noise(2, seeds=5), Noise(5, seeds=5),
    Noise(2, shift=0.01), Noise(5, shift=0.01),
    Noise(2, shift=0.04), Noise(5, shift=0.04), Noise(10, shift=0.04), Noise(5, seeds=5, shift=0.04),
    Noise(5, shift=0.04, kinds=3),
    Noise(5, clients=8, shift=0.01), Noise(5, clients=100, shift=0.01), Noise(5, rows=20, shift=0.01),
    Noise(5, score="mse", shift=0.01), Noise(5, score="mse", shift=0.04),
]  # fmt: skip


# What is there must be seen as well: one method of three is better.
FOUND = [Noise(3, lead=lead, shift=shift) for shift in (0.0, 0.01, 0.04) for lead in (0.02, 0.05, 0.1)]


def draw(noise: Noise, rng: np.random.Generator) -> list[Run]:
    """The runs of one comparison; curves are flat, so that nothing is said to rise."""
    level = (0.8 + noise.skill * rng.normal(size=noise.clients)).clip(0.05, 0.95)
    names = [f"c{i:03d}" for i in range(noise.clients)]
    runs = []
    for title in METHODS[: noise.methods]:
        grouped = title.startswith(("fesem", "ifca", "robust"))
        for seed in range(noise.seeds):
            kinds = ("centre", "personal", "fine-tuned")[: noise.kinds] if grouped else ("centre",)
            groups = rng.integers(0, 3, noise.clients) if grouped else [None] * noise.clients
            mine = level + noise.lead * (title == METHODS[0])
            parts = [_scored(noise, mine, names, rng) | {"group": np.tile(groups, 2)} for _ in kinds]
            for part, kind in zip(parts, kinds, strict=True):
                part["model"] = "personal" if title == "local" else kind
            columns = pd.concat(map(pd.DataFrame, parts), ignore_index=True)
            runs.append(Run.of({"title": title, "seed": seed, "federation": {"fingerprint": "one"}}, columns))
    return runs


def _scored(noise: Noise, level: np.ndarray, names: list[str], rng: np.random.Generator) -> dict[str, Any]:
    share = (level + noise.shift * rng.normal()).clip(0, 1)
    value = rng.binomial(noise.rows, share) / noise.rows
    if noise.score == "mse":
        value = 1.2 - share + 0.04 * rng.normal(size=noise.clients)
    columns = {"round": np.repeat([3, 4], noise.clients), "client": names * 2, "value": np.tile(value, 2)}
    return {**columns, "rows": noise.rows, "score": noise.score}


def rates(noise: Noise, draws: int, rng: np.random.Generator) -> dict[str, float]:
    """The share of draws in which each claim is made."""
    found: Counter[str] = Counter()
    for _ in range(draws):
        said = {one.rule for one in verdict(draw(noise, rng)).sentences}
        found.update(claim for claim, rules in RULES.items() if said & set(rules))
    return {claim: found[claim] / draws for claim in RULES}


def pair_rate(seeds: int, shift: float, draws: int, rng: np.random.Generator, methods: int = 2) -> float:
    """How often the table's test calls any two of so many equal methods different."""
    found = 0
    for _ in range(draws):
        skill = rng.normal(size=(24, 1))
        scores = [
            skill + shift * rng.normal(size=seeds) + rng.normal(size=(24, seeds)) for _ in range(methods)
        ]
        found += any(one.apart for one in all_pairs([pd.DataFrame(one) for one in scores]).values())
    return found / draws


def print_rates(cases: list[Noise], draws: int, rng: np.random.Generator) -> None:
    print(f"{draws} draws each; claims where there is nothing, in %")
    heads = ("methods", "clients", "seeds", "rows", "shift", "kinds", "score")
    print(" ".join(f"{head:>8}" for head in (*heads, *RULES)))
    for noise in cases:
        cells = [str(getattr(noise, head)) for head in heads]
        cells += [f"{100 * rate:.1f}" for rate in rates(noise, draws, rng).values()]
        print(" ".join(f"{cell:>8}" for cell in cells), flush=True)


def print_found(draws: int, rng: np.random.Generator) -> None:
    print("the best of three methods is named, in % (24 clients, three seeds, 100 test rows each)")
    for noise in FOUND:
        rate = 100 * rates(noise, draws, rng)["best"]
        print(f"a lead of {100 * noise.lead:.0f} points, shift {noise.shift}: {rate:.0f}", flush=True)


def print_pairs(draws: int, rng: np.random.Generator) -> None:
    print("equal methods called different by the table's test, in % (24 clients differ by 1, scores by 1)")
    for shift in (0.0, 0.5, 2.0):
        told = [f"{s} seeds {100 * pair_rate(s, shift, 5 * draws, rng):.1f}" for s in (2, 3, 5)]
        five = 100 * pair_rate(3, shift, draws, rng, methods=5)
        print(f"shift {shift}: {', '.join(told)}; any two of five, 3 seeds: {five:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", nargs="*", default=["noise", "found", "pairs"])
    given = parser.parse_args()
    parts = {
        "noise": lambda rng: print_rates(CASES, given.draws, rng),
        "found": lambda rng: print_found(given.draws, rng),
        "pairs": lambda rng: print_pairs(given.draws, rng),
    }
    for part in given.part:
        parts[part](np.random.Generator(np.random.PCG64(given.seed)))


if __name__ == "__main__":
    main()
