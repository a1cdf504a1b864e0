"""The command `kinfolk infer`: what others can infer about rows from what methods show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import typer

from kinfolk.cli.shared import (
    Algorithms,
    AllowImport,
    AsJson,
    Seeds,
    Sets,
    SpecFile,
    examples,
    out,
    print_json,
    read_seeds,
    read_spec,
    whole_numbers,
)
from kinfolk.errors import KinfolkError

inferring = typer.Typer()

DEFAULT = ("fedavg", "ifca", "fesem", "mdicfl")


@inferring.command(
    epilog=examples(
        "kinfolk infer digits -a fedavg -a ifca,k=4 --out runs/inferred",
        "kinfolk infer digits -a slfed --seeds 1 --no-inversion",
        "kinfolk infer digits --rows 1,8 --steps 1 --json",
    )
)
def infer(
    spec: SpecFile = None,
    algorithm: Algorithms = None,
    seeds: Seeds = "3",
    set_: Sets = None,
    rows: Annotated[str, typer.Option("--rows", help="Rows behind an update that is inverted.")] = "1,8,32",
    steps: Annotated[str, typer.Option("--steps", help="Local steps behind it.")] = "1,10",
    inversion: Annotated[
        bool, typer.Option("--inversion/--no-inversion", help="Make rows again from updates.")
    ] = True,
    folder: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Where to write.")] = None,
    json_: AsJson = False,
    allow_import: AllowImport = None,
) -> None:
    """Attack what methods show: membership inference, and rows made again from updates."""
    from kinfolk.experiment.infer import inversions, study
    from kinfolk.experiment.infer_picture import draw
    from kinfolk.experiment.record import write_json
    from kinfolk.experiment.seeds import seed_numbers
    from kinfolk.experiment.spec import run_id

    experiment = read_spec(spec, set_)
    numbers = seed_numbers(read_seeds(seeds), experiment.run.seed)
    counts, times = whole_numbers("--rows", rows), whole_numbers("--steps", steps)
    where = folder or Path("runs") / f"infer-{run_id(experiment)}"
    if (where / "infer.json").exists():
        remedy = "results are there already; choose another folder"
        raise KinfolkError("folder", str(where), remedy)
    made = inversions(experiment, counts, times, numbers) if inversion else []

    def tell(method: str, seed: int) -> None:
        if not json_:
            print(f"{method}, seed {seed} ...", flush=True)

    told: dict[str, Any] = {"membership": study(experiment, algorithm or DEFAULT, numbers, where, tell)}
    told["inversion"] = [
        {name: value for name, value in vars(one).items() if name not in ("true", "made")} for one in made
    ]
    write_json(where / "infer.json", told)
    picture = draw(made[: len(made) // len(numbers)], where / "reconstructions.png") if made else None
    if json_:
        print_json({"folder": str(where), "figure": picture and str(picture), **told})
        return
    _show(told)
    if experiment.data.test != "local":
        print(
            f"data.test is {experiment.data.test}: members may differ from other rows by their labels alone"
        )
    print(f"folder: {where}")
    if picture:
        print(f"figure: {picture}")


def _show(told: dict[str, Any]) -> None:
    from kinfolk.report.whole import WholeTable

    table = WholeTable(
        title="Who was trained on? By chance AUC is 50 %, TPR at 1 % FPR is 1 %", title_justify="left"
    )
    heads = ("method", "what is seen", "attack", "AUC, %", "TPR, %")
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place > 2 else "left")
    by = ("method", "view", "attack")
    for key, some in _grouped(told["membership"], by):
        table.add_row(*key, *(_spread([100 * one[name] for one in some]) for name in ("auc", "tpr")))
    out().print(table)
    if not told["inversion"]:
        return
    table = WholeTable(title="Rows made again from one update; in brackets a guess", title_justify="left")
    heads = ("attack", "rows", "steps", "PSNR, dB", "rows found, %")
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left")
    for key, some in _grouped(told["inversion"], ("attack", "rows", "steps")):
        cells = [
            f"{mean(factor * one[name] for one in some):.1f} "
            f"({mean(factor * one[f'chance_{name}'] for one in some):.1f})"
            for name, factor in (("psnr", 1), ("found", 100))
        ]
        table.add_row(*map(str, key), *cells)
    out().print(table)


def _grouped(rows: Sequence[Any], by: Sequence[str]) -> Any:
    """(values of `by`, the rows that have them), in the order met."""
    order = {tuple(row[name] for name in by): i for i, row in reversed(list(enumerate(rows)))}
    ranked = sorted(rows, key=lambda row: order[tuple(row[name] for name in by)])
    return [(key, list(some)) for key, some in groupby(ranked, lambda row: tuple(row[name] for name in by))]


def _spread(values: Sequence[float]) -> str:
    from kinfolk.scores import plus_minus

    return plus_minus(f"{mean(values):.1f}", f"{stdev(values) if len(values) > 1 else math.nan:.1f}")
