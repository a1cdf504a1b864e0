"""The commands about groups: how many there are, and where newcomers belong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kinfolk.cli.shared import (
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

groups = typer.Typer()


@groups.command(
    "choose-k",
    epilog=examples(
        "kinfolk choose-k digits --out runs/how-many",
        "kinfolk choose-k digits --k 2,3,4 --criterion silhouette --set algorithm.name=ifca",
    ),
)
def choose_k(
    spec: SpecFile = None,
    k: Annotated[
        str, typer.Option("--k", metavar="K,K,...", help="Numbers of groups to try.")
    ] = "1,2,3,4,5,6",
    clients: Annotated[int, typer.Option("--clients", help="Clients in the sample.")] = 100,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds of each run.")] = 3,
    seeds: Seeds = "3",
    criterion: Annotated[
        str, typer.Option("--criterion", help="agreement of all, accuracy, intra_distance or silhouette.")
    ] = "agreement",
    set_: Sets = None,
    folder: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Where to write.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it was stopped.")] = False,
    allow_import: AllowImport = None,
    json_: AsJson = False,
) -> None:
    """Say how many groups a federation has, by short runs on a sample of its clients."""
    from kinfolk.experiment.choose_k import Trial, common_rounds, or_fesem
    from kinfolk.experiment.choose_k import choose_k as choose
    from kinfolk.experiment.seeds import seed_numbers
    from kinfolk.experiment.spec import run_id
    from kinfolk.progress import telling
    from kinfolk.report.choose_k import choice_figure, choice_table

    experiment = read_spec(spec, set_)
    if not any(one.strip().startswith("algorithm.name") for one in set_ or []):
        experiment = or_fesem(experiment)
    trial = Trial(whole_numbers("--k", k), clients, rounds, read_seeds(seeds), criterion)
    where = folder or Path("runs") / f"choose-k-{run_id(experiment)}"
    each = rounds + common_rounds(experiment)
    total = each * len(trial.numbers) * len(seed_numbers(trial.seeds))
    with telling(total, quiet=json_) as teller:
        told = lambda k, seed: teller.watch(f"K = {k} seed {seed}", each)  # noqa: E731
        facts = choose(experiment, where, trial, resume=resume, watch=told)
    figure = choice_figure(facts, where / "choose-k.png")
    if json_:
        print_json({"folder": str(where), "figure": str(figure), **facts})
        return
    _print(*choice_table(facts))
    print(f"folder: {where}\nfigure: {figure}")


@groups.command(
    "groups",
    epilog=examples("kinfolk groups runs/mine", "kinfolk groups runs/mine --clients --score macro_f1"),
)
def show_groups(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder or a comparison folder.")],
    clients: Annotated[bool, typer.Option("--clients", help="List every client too.")] = False,
    score: Annotated[str | None, typer.Option("--score", help="Which score to show.")] = None,
    json_: AsJson = False,
) -> None:
    """Say who belongs to whom: groups, what members share, who switched, whether seeds agree."""
    from kinfolk.report.groups_table import groups_json, groups_table, seeds_agree
    from kinfolk.report.read import load_runs

    runs = load_runs(run)
    grouped = [one for one in runs if one.has_groups]
    if not grouped:
        names = ", ".join(dict.fromkeys(one.title for one in runs))
        raise KinfolkError("run", str(run), f"{names} has no groups; try fesem_shared, ifca or mdicfl")
    if json_:
        print_json([groups_json(one, score) for one in grouped])
        return
    console = out()
    for one in grouped:
        console.print(groups_table(one, score, clients))
    for line in seeds_agree(grouped):
        console.print(line, markup=False, highlight=False)


def _print(table: Table, notes: list[str]) -> None:
    console = out()
    console.print(table)
    for note in notes:
        console.print(note, markup=False, highlight=False)


@groups.command(
    epilog=examples(
        "kinfolk assign runs/mine --data newcomers/",
        "kinfolk assign runs/mine --data all.csv --client hospital --by loss --out placed.csv",
    )
)
def assign(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder with a model for each group.")],
    data: Annotated[Path, typer.Option("--data", help="A store, a folder of clients, or one table.")],
    by: Annotated[
        str | None, typer.Option("--by", help="loss or distance; default: what the algorithm uses.")
    ] = None,
    client: Annotated[str | None, typer.Option(help="The client column of a table.")] = None,
    label: Annotated[str | None, typer.Option(help="The label column.")] = None,
    missing: Annotated[str | None, typer.Option(help="Missing values: refuse, drop or median.")] = None,
    file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write it as .csv or .parquet.")
    ] = None,
    allow_import: AllowImport = None,
    json_: AsJson = False,
) -> None:
    """Put clients who were not in training into the groups of a run, and say what they gain."""
    from kinfolk.experiment.assign import assign as place
    from kinfolk.experiment.newcomers import open_run, read_newcomers
    from kinfolk.experiment.record import plain
    from kinfolk.report.newcomers import newcomers_table, write_newcomers

    trained = open_run(run)
    federation = read_newcomers(data, trained, client=client, label=label, missing=missing)
    facts = plain(place(trained, federation, by=by))
    for warning in facts["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    if file is not None:
        write_newcomers(facts, file)
    if json_:
        print_json(facts)
        return
    _print(*newcomers_table(facts))
    if file is not None:
        print(f"file: {file}")
