"""What randomised answers cost: MD-ICFL with strong privacy on rotated digits, by epsilon.

python benchmarks/randomised_answers.py [--rounds 15] [--seeds 3] [--search 20]    a few minutes on one core

A client answers the truth with probability e^epsilon / (e^epsilon + K - 1), else one of the other clusters.
The budget is spent anew in every round: `all rounds` is what a client has told in the end, as records say.
Clusters do not wait for confident models (`start.confidence = 0`): everyone is asked in every later round.
Who is put into a wrong cluster trains its model from there on, so that errors of one round outlast it: `ARI`
after the first answers and after the last.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kinfolk.experiment.record import read_rounds
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import Experiment, load, override

CONFIG = "digits"
EPSILONS = (0.0, 0.5, 1.0, 2.0, 4.0)
GROUPS = 4


def truthful(epsilon: float) -> float:
    """How often an answer is the true one; 0 stands for no noise."""
    return math.exp(epsilon) / (math.exp(epsilon) + GROUPS - 1) if epsilon else 1.0


def measure(spec: Experiment, seeds: int, folder: Path) -> list[list[float]]:
    """By seed: accuracy in %, agreement with the known groups at first and in the end, epsilon in all."""
    found = []
    for seed in range(seeds):
        result = run(override(spec, [f"run.seed={seed}"]), folder / str(seed))
        accuracy = 100 * result.summary["centre"]["accuracy"]["macro"]
        asked = [r for r in read_rounds(result.folder) if "confidence" in r.get("info", {})]
        ari = [r["groups"]["ari"] for r in asked]
        spent = max((r["info"].get("epsilon", 0.0) for r in asked), default=0.0)
        found.append([accuracy, *((ari[0], ari[-1], spent) if ari else ())])
    return [list(column) for column in zip(*found, strict=True)]


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and sample standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    return f"{statistics.mean(values):.{digits}f} ± {deviation:.{digits}f}"


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    given.add_argument("--rounds", type=int, default=15)
    given.add_argument("--seeds", type=int, default=3)
    given.add_argument("--search", type=int, default=20, help="steps of back-searching")
    asked = given.parse_args()
    sets = [f"run.{key}={asked.rounds}" for key in ("rounds", "evaluate_every", "checkpoint_every")]
    sets += ["algorithm.name=mdicfl", "algorithm.privacy=strong", f"algorithm.k={GROUPS}"]
    sets += ["algorithm.start.confidence=0.0"]
    sets += [f"algorithm.search.iterations={asked.search}", "engine.name=batched", "engine.device=cpu"]
    spec = override(load(CONFIG), sets)
    title = f"{asked.rounds} rounds, {asked.seeds} seeds, mean ± sample std"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="")
    for name in ("epsilon", "all rounds", "true answers, %", "accuracy, %", "first ARI", "last ARI"):
        table.add_column(name, justify="right", no_wrap=True)
    with tempfile.TemporaryDirectory() as folder:
        one = override(load(CONFIG), sets[:3])
        table.add_row("one model", "-", "-", spread(measure(one, asked.seeds, Path(folder) / "fedavg")[0], 1))
        for epsilon in EPSILONS:
            noisy = override(spec, [f"algorithm.epsilon={epsilon}"])
            accuracy, *ari, spent = measure(noisy, asked.seeds, Path(folder) / str(epsilon))
            total = f"{max(spent):g}" if epsilon else "-"
            cells = [f"{100 * truthful(epsilon):.0f}", spread(accuracy, 1), *(spread(a, 2) for a in ari)]
            table.add_row(f"{epsilon:g}" if epsilon else "off", total, *cells)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
