"""The command that attacks a federation and says who is hurt by how much."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated

import typer

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
)
from kinfolk.errors import KinfolkError

attacking = typer.Typer()


@attacking.command(
    "attack",
    epilog=examples(
        "kinfolk attack digits --out runs/attacked",
        "kinfolk attack digits -a fedavg -a ifca,k=4 --attacks backdoor,sybil --attackers 0,0.2",
        "kinfolk attack digits --attacks absurd,many_rows --defences mean,unguarded --attackers 0.05",
    ),
)
def attack(
    spec: SpecFile = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm",
            "-a",
            metavar="NAME[,OPTION=VALUE][;SETTING=VALUE]",
            help="May be repeated. Default: fedavg, ifca, fesem.",
        ),
    ] = None,
    attacks: Annotated[
        str, typer.Option("--attacks", metavar="NAME,NAME,...", help="What attackers do: see run.attack.")
    ] = "sign_flip,scaled,noise,label_flip,backdoor",
    defences: Annotated[
        str,
        typer.Option(
            "--defences",
            metavar="NAME,NAME,...",
            help="mean, trimmed, median, geometric, krum, clipped; or unguarded: the mean, and no limits.",
        ),
    ] = "mean,median",
    attackers: Annotated[
        str, typer.Option("--attackers", metavar="SHARE,SHARE,...", help="Shares of clients that attack.")
    ] = "0,0.1,0.2,0.3,0.4,0.5",
    seeds: Seeds = "3",
    set_: Sets = None,
    folder: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Where to write.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it was stopped.")] = False,
    json_: AsJson = False,
    allow_import: AllowImport = None,
) -> None:
    """Attack a federation: who is hurt by how much, by method, defence and number of attackers."""
    from kinfolk.experiment.attack_lab import METHODS, Asked, attack_lab, planned
    from kinfolk.experiment.seeds import seed_numbers
    from kinfolk.experiment.spec import run_id
    from kinfolk.federation.sources import build
    from kinfolk.progress import telling
    from kinfolk.report.attacks import attack_figure, attack_rows, attack_table
    from kinfolk.streams import Seed

    experiment = read_spec(spec, set_)
    asked = Asked(algorithm or METHODS, attacks.split(","), defences.split(","), _shares(attackers))
    where = folder or Path("runs") / f"attack-{run_id(experiment)}"
    numbers = seed_numbers(read_seeds(seeds), experiment.run.seed)
    _, runs = planned(experiment, asked, numbers, build(experiment.data, Seed(numbers[0])))
    with telling(experiment.run.rounds * len(runs), quiet=json_) as teller:
        watch = lambda name, seed: teller.watch(f"{name} seed {seed}")  # noqa: E731
        attack_lab(experiment, asked, numbers, where, resume=resume, watch=watch)
    rows = attack_rows(where)
    figure = attack_figure(rows, where / "attack.png")
    if json_:
        print_json({"folder": str(where), "figure": str(figure), "rows": rows})
        return
    table, notes = attack_table(rows)
    out().print(table)
    for note in notes:
        print(textwrap.fill(note, 80))
    print(f"folder: {where}\nfigure: {figure}")


def _shares(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError as error:
        raise KinfolkError(
            "--attackers", text, "give shares with commas between them, as 0,0.1,0.2"
        ) from error
