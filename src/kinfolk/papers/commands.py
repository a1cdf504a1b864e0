"""The commands that only papers need: `kinfolk reproduce`, `pseudo` and `trust`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kinfolk.cli.commands import app
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
from kinfolk.configs import find_paper
from kinfolk.errors import KinfolkError

REPRODUCE_EXAMPLES = examples(
    "kinfolk reproduce fesem --small",
    "kinfolk reproduce fesem --table femnist --seeds 3",
    "kinfolk reproduce mdicfl --table rotated-mnist --row Global --row IFCA",
)


@app.command(epilog=REPRODUCE_EXAMPLES)
def reproduce(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="fesem, mdicfl, slfed, or a TOML file.")],
    table: Annotated[list[str] | None, typer.Option("--table", help="Only this table; repeatable.")] = None,
    row: Annotated[list[str] | None, typer.Option("--row", help="Only this row; repeatable.")] = None,
    small: Annotated[bool, typer.Option("--small", help="The reduced twins, for two cores.")] = False,
    seeds: Seeds = "3",
    set_: Sets = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder; what is there goes on.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Run nothing; show what is in the folder.")] = False,
    allow_import: AllowImport = None,
    json_: AsJson = False,
) -> None:
    """Run a paper's comparison again and print what it reported next to what was obtained."""
    from kinfolk.papers.paper import load_paper
    from kinfolk.papers.reproduce import reproduce as run_all
    from kinfolk.papers.reproduce import rounds_of
    from kinfolk.progress import telling

    path = find_paper(paper)
    wanted = load_paper(path).only(table or [])
    where = folder or Path("runs") / f"reproduce-{path.parent.name}{'-small' if small else ''}"
    numbers = read_seeds(seeds)
    total = rounds_of(wanted, numbers, path.parent, small, set_ or [], row or [])
    if not show:
        with telling(total, quiet=json_) as teller:
            run_all(
                wanted, where, path.parent, seeds=numbers, small=small, changes=set_ or [], only=row or [],
                watch=lambda name, k: teller.watch(name),
            )  # fmt: skip
    _show(where, [table.name for table in wanted.tables], [one.name for one in wanted.trust], json_)


def _show(folder: Path, names: list[str], trusts: list[str], json_: bool) -> None:
    from kinfolk.experiment.record import write_text
    from kinfolk.papers.pseudo_figure import pseudo_figure
    from kinfolk.papers.reproduction import cells, load_tables, markdown, notes, table_figure, terminal_table
    from kinfolk.papers.trust_figure import read_trust, trust_figure, trust_heading, trust_table
    from kinfolk.report.read import read_facts

    tables = [table for table in load_tables(folder) if table.folder.name in names] if names else []
    traces = {name: read_trust(folder / name) for name in trusts if any((folder / name).glob("*/trust.json"))}
    for table in tables:
        write_text(table.folder / "table.md", markdown(table))
        table_figure(table, table.folder / "figure.png")
        if (table.folder / "pseudo" / "pseudo.json").is_file():
            pseudo_figure(read_facts(table.folder / "pseudo", "pseudo"), table.folder / "pseudo.png")
    if json_:
        print_json({**{table.folder.name: cells(table) for table in tables}, **traces})
        return
    for table in tables:
        out().print(terminal_table(table))
        for note in notes(table, cells(table)):
            out().print(f"- {note}", markup=False, highlight=False)
        print(f"table:  {table.folder / 'table.md'}")
        drawn = [table.folder / name for name in ("figure.png", "pseudo.png")]
        print("\n".join(f"figure: {path}" for path in drawn if path.is_file()), end="\n\n")
    for name, found in traces.items():
        figure = trust_figure(found, folder / name / "figure.png")
        out().print(trust_heading(folder / name), trust_table(found), sep="\n")
        print(f"figure: {figure}\n")


PSEUDO_EXAMPLES = examples(
    "kinfolk pseudo runs/mine --out runs/mine-pseudo",
    "kinfolk pseudo runs/mine --sampler back_search --sampler generator --out runs/both",
)


@app.command(epilog=PSEUDO_EXAMPLES)
def pseudo(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of mdicfl.")],
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Where to write; default: RUN/pseudo.")
    ] = None,
    sampler: Annotated[
        list[str] | None,
        typer.Option("--sampler", help="back_search or generator; may be repeated; default: the run's own."),
    ] = None,
    images: Annotated[int, typer.Option("--images", help="Images to keep of each cluster and class.")] = 3,
    allow_import: AllowImport = None,
    json_: AsJson = False,
) -> None:
    """Make an MD-ICFL run's pseudo rows again: how sure models are of them, and whether they are copies."""
    from kinfolk.papers.pseudo_figure import pseudo_figure, pseudo_tables
    from kinfolk.papers.pseudo_rows import pseudo_rows, write_facts

    facts = pseudo_rows(run, sampler or (), images)
    for warning in facts["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    where = folder or run / "pseudo"
    write_facts(where, facts)
    figure = pseudo_figure(facts, where / "pseudo.png")
    if json_:
        # Without what is as long as the rows are many; `pseudo.json` has it all.
        short = ("confidence", "near", "alike")
        kept = {name: {key: one[key] for key in short} for name, one in facts["samplers"].items()}
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


TRUST_EXAMPLES = examples(
    "kinfolk trust digits --out runs/trust",
    "kinfolk trust digits --direct 2 --set algorithm.name=slfed_similar",
)


@app.command(epilog=TRUST_EXAMPLES)
def trust(
    spec: SpecFile = None,
    direct: Annotated[
        list[int] | None, typer.Option("--direct", help="Direct partners; repeatable; default: 1 and 2.")
    ] = None,
    set_: Sets = None,
    folder: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Where to write.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it was stopped.")] = False,
    allow_import: AllowImport = None,
    json_: AsJson = False,
) -> None:
    """Trace the opinions of SLFed's clients: a table, and a figure of uncertainty, lists and trust."""
    from kinfolk.experiment.spec import run_id
    from kinfolk.papers.trust_figure import trust_figure, trust_table
    from kinfolk.papers.trust_record import trace_trust, with_direct
    from kinfolk.progress import telling

    numbers = sorted(direct or (1, 2))
    if len(set(numbers)) < len(numbers):
        raise KinfolkError("--direct", numbers, "give each number once")
    experiment = read_spec(spec, set_)
    where = folder or Path("runs") / f"trust-{run_id(experiment)}"
    traces = []
    with telling(experiment.run.rounds * len(numbers), quiet=json_) as teller:
        for number in numbers:
            told = teller.watch(f"DS = {number}")
            here = where / f"direct{number}"
            traces.append(trace_trust(with_direct(experiment, number), here, resume=resume, watch=told))
    figure = trust_figure(traces, where / "trust.png")
    if json_:
        print_json({"folder": str(where), "figure": str(figure), "traces": traces})
        return
    out().print(trust_table(traces))
    print(f"folder: {where}\nfigure: {figure}")
