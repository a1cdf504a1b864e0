"""How often `kinfolk choose-k` is right, and how often it is sure and wrong, where groups are planted.

    python benchmarks/choose_k.py --groups 1 2 3 4 5 6 7 8 --seeds 0 1 --out runs/choose-k

Digits, each group with its own order of the class labels: 40 clients of 60 rows, an MLP. Sizes of groups are
equal or fall as 1, 1/2, 1/3, ... (three clients at least); labels are even (alpha = 100) or skewed
(alpha = 3, three to five classes a client). One group has no shift. Tried are K = 1 to 6, or to 10 from five
groups on. What is in the folder already is not run again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kinfolk.experiment.choose_k import Trial, choose_k
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import load, override
from kinfolk.federation.federation import Federation, Split
from kinfolk.federation.sources import build
from kinfolk.streams import Seed

CLIENTS, FEWEST = 40, 3


def planted(groups: int, sizes: str, alpha: float, seed: int) -> tuple[Experiment, Federation]:
    """An experiment and its federation; `truth` has the planted groups."""
    many = CLIENTS if sizes == "equal" else 2 * CLIENTS  # of which most are left out again
    shift = "label_permutation" if groups > 1 else "none"
    sets = [f"data.groups={groups}", f"data.shift={shift}", f"data.alpha={alpha}", f"data.clients={many}"]
    spec = override(load("digits"), [*sets, "data.valid=0.2", f"data.seed={seed}", f"run.seed={seed}"])
    made = build(spec.data, Seed(seed))
    if sizes == "equal":
        return spec, made
    truth = made.truth.tolist()
    shares = [1 / (1 + g) for g in range(groups)]
    wanted = [max(FEWEST, round(CLIENTS * share / sum(shares))) for share in shares]
    kept = sorted(i for g in range(groups) for i in [i for i, t in enumerate(truth) if t == g][: wanted[g]])
    place = torch.tensor(kept)
    return spec, replace(
        made,
        clients=tuple(made.clients[i] for i in kept),
        splits={name: Split(s.start, s.row, s.of[place]) for name, s in made.splits.items()},
        truth=made.truth[place],
    )


def tried(case: tuple[int, str, float, int], algorithm: str, folder: Path, rounds: int) -> dict[str, Any]:
    """What the command says of one federation; the short runs themselves are not kept."""
    groups, sizes, alpha, seed = case
    file = folder / f"{algorithm}-{groups}-{sizes}-{alpha:g}-{seed}.json"
    if not file.exists():
        spec, federation = planted(*case)
        spec = override(spec, [f"algorithm.name={algorithm}", "engine.name=batched"])
        ks = tuple(range(1, 7 if groups < 5 else 11))
        facts = choose_k(spec, folder / "now", Trial(ks, rounds=rounds), federation=federation)
        shutil.rmtree(folder / "now")
        file.write_text(json.dumps({name: value for name, value in facts.items() if name != "groups"}))
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, nargs="+", default=list(range(1, 9)))
    parser.add_argument("--sizes", nargs="+", default=["equal", "unequal"])
    parser.add_argument("--alphas", type=float, nargs="+", default=[100.0, 3.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--algorithm", default="fesem")
    parser.add_argument("--out", type=Path, default=Path("runs/choose-k"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(given.out / "now", ignore_errors=True)  # of a federation that was interrupted
    right: Counter[tuple[float, str]] = Counter()
    seen: Counter[tuple[float, str]] = Counter()
    for case in itertools.product(given.groups, given.sizes, given.alphas, given.seeds):
        if case[:2] == (1, "unequal"):
            continue
        facts = tried(case, given.algorithm, given.out, given.rounds)
        groups, sizes, alpha, seed = case
        hit = facts["recommended"] == groups
        seen[alpha, facts["confidence"]] += 1
        right[alpha, facts["confidence"]] += hit
        named = " ".join(f"{name} {k}" for name, k in facts["named"].items())
        verdict = f"{facts['recommended']} {'yes' if hit else 'NO '} {facts['confidence']:6}"
        print(f"{groups} {sizes:8} alpha {alpha:<4g} seed {seed}: {verdict} {named}", flush=True)
    for alpha in given.alphas:
        parts = [f"{sure} {right[alpha, sure]} of {seen[alpha, sure]}" for sure in ("high", "medium", "low")]
        hits, cases = (sum(n for (a, _), n in kind.items() if a == alpha) for kind in (right, seen))
        print(f"alpha {alpha:g}: {hits} of {cases} right; by confidence: {', '.join(parts)}")


if __name__ == "__main__":
    main()
