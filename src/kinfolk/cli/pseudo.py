"""The command about rows that are made out of models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kinfolk.cli.shared import AsJson, examples, out, print_json

EXAMPLES = examples(
    "kinfolk pseudo runs/mine --out runs/mine-pseudo",
    "kinfolk pseudo runs/mine --sampler back_search --sampler generator --out runs/both",
)


def pseudo(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of mdicfl.")],
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Where to write; left out: RUN/pseudo.")
    ] = None,
    sampler: Annotated[
        list[str] | None,
        typer.Option("--sampler", help="back_search or generator; may be repeated; left out: the run's own."),
    ] = None,
    images: Annotated[int, typer.Option("--images", help="Images to keep of each cluster and class.")] = 3,
    json_: AsJson = False,
) -> None:
    """Make an MD-ICFL run's pseudo rows again: how sure models are of them, and whether they are copies."""
    from kinfolk.experiment.pseudo_rows import pseudo_rows, write_facts
    from kinfolk.report.pseudo_figure import pseudo_figure, pseudo_tables

    facts = pseudo_rows(run, sampler or (), images)
    for warning in facts["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    where = folder or run / "pseudo"
    write_facts(where, facts)
    figure = pseudo_figure(facts, where / "pseudo.png")
    if json_:
        kept = {name: _short(one) for name, one in facts["samplers"].items()}
        told = {"round": facts["round"], "members": facts["members"], "samplers": kept}
        print_json({"folder": str(where), "figure": str(figure), **told})
        return
    console = out()
    tables, notes = pseudo_tables(facts)
    for table in tables:
        console.print(table)
    for note in notes:
        console.print(note, markup=False, highlight=False)
    print(f"folder: {where}\nfigure: {figure}")


def _short(one: dict[str, object]) -> dict[str, object]:
    """Without what is as long as the rows are many; `pseudo.json` has it all."""
    return {key: one[key] for key in ("confidence", "near", "alike")}
