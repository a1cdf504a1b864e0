"""What attackers do to the honest: accuracy on rotated digits, by attack, share of attackers and mean.

python benchmarks/attackers.py [--rounds 10] [--seeds 3] [--attacks noise ...] [--methods robust,k=4 ...]

prints two tables; several minutes on one core
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kinfolk.experiment.attack import attackers
from kinfolk.experiment.compare import parse_algorithm
from kinfolk.experiment.record import read_rounds
from kinfolk.experiment.run import Result, run
from kinfolk.experiment.spec import Experiment, load, override
from kinfolk.federation.sources import build
from kinfolk.streams import Seed

CONFIG = "digits"
ATTACKS = ("sign_flip", "scaled", "noise", "label_flip")
SHARES = (0.1, 0.2)
# A group has 6 members: a share below 1 in 6 would cut nobody.
MEANS = {
    "mean": "",
    "trimmed": ",aggregate.name=trimmed,aggregate.trim=0.2",
    "median": ",aggregate.name=median",
}
CLUSTERED = ("fesem,k=4", "ifca,k=4")


@dataclass(frozen=True)
class Seen:
    """What one run tells."""

    accuracy: float  # of the honest, in %
    alone: float  # share of the attackers whose group has no honest member
    agreement: float  # adjusted Rand index of the honest clients' groups with the known ones


def look(spec: Experiment, result: Result) -> Seen:
    """The end of a run; without groups there is nothing to say of them."""
    accuracy = 100 * result.summary["centre"]["accuracy"]["macro"]
    if not hasattr(result.state, "member"):
        return Seen(accuracy, 0.0, 0.0)
    bad = set(attackers(result.state.clients, spec.run.attackers, Seed(spec.run.seed)))
    bad = bad if spec.run.attack != "none" else set()
    group = dict(zip(result.state.clients, result.state.member.tolist(), strict=True))
    honest = {g for c, g in group.items() if c not in bad}
    alone = sum(group[c] not in honest for c in bad) / max(len(bad), 1)
    return Seen(accuracy, alone, read_rounds(result.folder)[-1]["groups"]["ari"])


def measure(spec: Experiment, algorithm: str, seeds: int, folder: Path) -> list[Seen]:
    """One cell: the same algorithm and attack under every seed."""
    found = []
    for seed in range(seeds):
        one = override(spec, [f"run.seed={seed}"])
        one = replace(one, algorithm=parse_algorithm(algorithm, one))
        name = f"{algorithm}-{one.run.attack}-{one.run.attackers}-{seed}"
        found.append(look(one, run(one, folder / name, federation=build(one.data, Seed(seed)))))
    return found


def spread(values: Sequence[float]) -> str:
    """Mean and sample standard deviation."""
    return f"{statistics.mean(values):.1f}±{statistics.stdev(values) if len(values) > 1 else 0:.1f}"


def table(title: str, columns: Sequence[str]) -> Table:
    out = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), header_style="")
    for name in ("attack", *columns):
        out.add_column(
            name.replace(",", "\n").replace(" ", "\n"),
            justify="left" if name == "attack" else "right",
            no_wrap=True,
        )
    return out


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--rounds", type=int, default=10)
    given.add_argument("--seeds", type=int, default=3)
    given.add_argument("--attacks", nargs="*", choices=("none", *ATTACKS), default=["none", *ATTACKS])
    given.add_argument("--methods", nargs="*", default=[], help="these in place of the usual, beside FedAvg")
    asked = given.parse_args()
    few = [f"run.{key}={asked.rounds}" for key in ("rounds", "evaluate_every", "checkpoint_every")]
    spec = override(load(CONFIG), [*few, "engine.name=batched", "engine.chunk=24", "engine.device=cpu"])
    methods = {"fedavg mean": "fedavg"}
    methods |= {f"{m} {mean}": m + more for m in CLUSTERED for mean, more in MEANS.items()}
    methods["fesem,k=5 mean"] = "fesem,k=5"  # room for a group of attackers
    # Attackers far away have no say in where the centres begin.
    methods["fesem,k=4 aside median"] = "fesem,k=4,start.set_aside=2,aggregate.name=median"
    if asked.methods:
        methods = {"fedavg mean": "fedavg", **{name: name for name in asked.methods}}
    accuracy = table("Accuracy of honest clients in %", list(methods))
    groups = table("Attackers in a group of their own in %, agreement of the honest", list(methods)[1:])
    console = Console(width=100)
    with tempfile.TemporaryDirectory() as folder, console.status("...") as status:
        for attack, share in [(a, s) for a in asked.attacks for s in (SHARES if a != "none" else (0.0,))]:
            here = override(spec, [f"run.attack={attack}", f"run.attackers={share}"])
            cells = {}
            for name, algorithm in methods.items():
                status.update(f"{attack} {share:.0%} {name}")
                cells[name] = measure(here, algorithm, asked.seeds, Path(folder))
            label = f"{attack} {share:.0%}" if share else attack
            accuracy.add_row(label, *(spread([s.accuracy for s in seen]) for seen in cells.values()))
            told = [
                f"{100 * statistics.mean(s.alone for s in seen):.0f}  "
                f"{statistics.mean(s.agreement for s in seen):.2f}"
                for seen in list(cells.values())[1:]
            ]
            groups.add_row(label, *told)
    console.print(accuracy)
    console.print()
    console.print(groups)


if __name__ == "__main__":
    main()
