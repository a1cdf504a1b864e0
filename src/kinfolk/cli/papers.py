"""`kinfolk reproduce`: a paper's tables again, reported next to obtained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kinfolk.cli.shared import AsJson, Seeds, Sets, examples, out, print_json
from kinfolk.errors import KinfolkError

EXAMPLES = examples(
    "kinfolk reproduce fesem --small",
    "kinfolk reproduce fesem --table femnist --seeds 3",
    "kinfolk reproduce mdicfl --table rotated-mnist --row Global --row IFCA",
)


def reproduce(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="fesem, mdicfl, slfed, or a TOML file.")],
    table: Annotated[list[str] | None, typer.Option("--table", help="Only this table; repeatable.")] = None,
    row: Annotated[list[str] | None, typer.Option("--row", help="Only this row; repeatable.")] = None,
    small: Annotated[bool, typer.Option("--small", help="The reduced twins, for two cores.")] = False,
    seeds: Seeds = 3,
    set_: Sets = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder; what is there goes on.")] = None,
    configs: Annotated[Path, typer.Option("--configs", help="Where the papers' files lie.")] = Path(
        "configs"
    ),
    show: Annotated[bool, typer.Option("--show", help="Run nothing; show what is in the folder.")] = False,
    json_: AsJson = False,
) -> None:
    """Run a paper's comparison again and print what it reported next to what was obtained."""
    from kinfolk.cli.progress import telling
    from kinfolk.experiment.paper import load_paper
    from kinfolk.experiment.reproduce import reproduce as run_all
    from kinfolk.experiment.reproduce import rounds_of

    path = Path(paper) if paper.endswith(".toml") else configs / paper / "reproduce.toml"
    if not path.is_file():
        known = sorted(p.parent.name for p in configs.glob("*/reproduce.toml"))
        remedy = f"known here: {', '.join(known)}" if known else "run it in a clone, or give --configs"
        raise KinfolkError("paper", paper, f"there is no {path}; {remedy}")
    wanted = load_paper(path).only(table or [])
    where = folder or Path("runs") / f"reproduce-{path.parent.name}{'-small' if small else ''}"
    total = rounds_of(wanted, seeds, path.parent, small, set_ or [], row or [])
    if not show:
        with telling(total, quiet=json_) as teller:
            run_all(
                wanted, where, path.parent, seeds=seeds, small=small, changes=set_ or [], only=row or [],
                watch=lambda name, k: teller.watch(name),
            )  # fmt: skip
    _show(where, [sheet.name for sheet in wanted.sheets], [one.name for one in wanted.trust], json_)


def _show(folder: Path, names: list[str], trusts: list[str], json_: bool) -> None:
    from kinfolk.experiment.record import write_text
    from kinfolk.report.pseudo_figure import pseudo_figure
    from kinfolk.report.read import read_facts
    from kinfolk.report.reproduction import cells, load_sheets, markdown, notes, sheet_figure, sheet_table
    from kinfolk.report.trust_figure import read_trust, trust_figure, trust_heading, trust_table

    sheets = [sheet for sheet in load_sheets(folder) if sheet.folder.name in names] if names else []
    traces = {name: read_trust(folder / name) for name in trusts if any((folder / name).glob("*/trust.json"))}
    for sheet in sheets:
        write_text(sheet.folder / "table.md", markdown(sheet))
        sheet_figure(sheet, sheet.folder / "figure.png")
        if (sheet.folder / "pseudo" / "pseudo.json").is_file():
            pseudo_figure(read_facts(sheet.folder / "pseudo", "pseudo"), sheet.folder / "pseudo.png")
    if json_:
        print_json({**{sheet.folder.name: cells(sheet) for sheet in sheets}, **traces})
        return
    for sheet in sheets:
        out().print(sheet_table(sheet))
        for note in notes(sheet, cells(sheet)):
            out().print(f"- {note}", markup=False, highlight=False)
        print(f"table:  {sheet.folder / 'table.md'}")
        drawn = [sheet.folder / name for name in ("figure.png", "pseudo.png")]
        print("\n".join(f"figure: {path}" for path in drawn if path.is_file()), end="\n\n")
    for name, found in traces.items():
        figure = trust_figure(found, folder / name / "figure.png")
        out().print(trust_heading(folder / name), trust_table(found), sep="\n")
        print(f"figure: {figure}\n")
