"""`kinfolk tune`: each method's settings, searched on validation rows; `compare --tune` does it first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kinfolk.cli.shared import (
    Algorithms,
    AllowImport,
    AsJson,
    Sets,
    SpecFile,
    examples,
    out,
    print_json,
    read_spec,
)

tuning = typer.Typer()

BudgetRounds = Annotated[
    float,
    typer.Option("--budget", metavar="N", help="Rounds of training a method may spend; 0: six whole runs."),
]
Spaces = Annotated[
    list[str] | None,
    typer.Option(
        "--space",
        metavar="a.b=c,d",
        help="Search this setting with these values, in place of the usual ones; may be repeated.",
    ),
]
Backend = Annotated[
    str, typer.Option("--backend", help="halving, or optuna (needs pip install 'kinfolk\\[tune]').")
]


@tuning.command(
    epilog=examples(
        "kinfolk tune digits -a fedavg -a fesem,k=4 --out runs/tuned",
        'kinfolk tune -a fedavg --space "local.lr=0.01,0.03,0.1" --budget 60',
        "kinfolk run runs/tuned/fedavg.toml",
    )
)
def tune(
    spec: SpecFile = None,
    algorithm: Algorithms = None,
    budget: BudgetRounds = 0,
    seeds: Annotated[int, typer.Option("--seeds", help="Seeds of every trial; they share the budget.")] = 1,
    space: Spaces = None,
    backend: Backend = "halving",
    set_: Sets = None,
    folder: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Where to write.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on; finished trials are not repeated.")
    ] = False,
    allow_import: AllowImport = None,
    json_: AsJson = False,
) -> None:
    """Search settings for each method on validation rows, with the same budget for all."""
    from kinfolk.experiment.spec import run_id

    experiment = read_spec(spec, set_)
    where = folder or Path("runs") / f"tune-{run_id(experiment)}"
    facts = search(experiment, algorithm, where, budget, seeds, space, backend, resume=resume, quiet=json_)
    if json_:
        print_json({"folder": str(where), **facts})
        return
    show_search(facts)
    print(f"folder: {where}")


def search(
    experiment: Any,
    algorithms: Sequence[str] | None,
    folder: Path,
    budget: float,
    seeds: int,
    space: Sequence[str] | None,
    backend: str,
    *,
    resume: bool,
    quiet: bool,
) -> dict[str, Any]:
    """Run a search and tell how it goes on."""
    from kinfolk.experiment.compare import DEFAULT
    from kinfolk.experiment.space import parse_space
    from kinfolk.experiment.tune import RUNS, Search
    from kinfolk.experiment.tune import tune as tune_all
    from kinfolk.progress import telling

    how = Search(budget, seeds, parse_space(space or ()), backend)
    names = algorithms or DEFAULT
    each = int(budget or RUNS * experiment.run.rounds * seeds)
    with telling(each * len(names), quiet=quiet) as teller:
        listeners: dict[str, Any] = {}

        def tell(title: str, spent: float) -> None:
            listen = listeners.setdefault(title, teller.watch(f"tuning {title}", each))
            listen("round", {"round": int(spent), "rounds": each})

        return tune_all(experiment, names, folder, how, resume=resume, tell=tell)


def show_search(facts: dict[str, Any]) -> None:
    """Print what a search has found."""
    from kinfolk.report.tune import tune_table

    table, notes = tune_table(facts)
    console = out()
    console.print(table)
    for note in notes:
        console.print(note, markup=False, highlight=False)
