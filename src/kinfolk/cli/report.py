"""The command `kinfolk report`: runs as one page to look at, and as figures for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kinfolk.cli.shared import AsJson, examples, print_json
from kinfolk.errors import visible

reports = typer.Typer()


@reports.command(
    epilog=examples(
        "kinfolk report runs/demo",
        "kinfolk report runs/demo runs/how-many --out demo.html",
        "kinfolk report runs/demo --score macro_f1 --figures figures --format svg,pdf",
    )
)
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders, comparison folders, folders of `choose-k`."),
    ],
    file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Default: report.html in the first RUN.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", metavar="FOLDER", help="Write every chart there as well.")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="Of the figures: svg, png, pdf.")] = "svg,png,pdf",
    score: Annotated[str | None, typer.Option("--score", help="Which score to judge by.")] = None,
    json_: AsJson = False,
) -> None:
    """Write one HTML page about runs, from their records alone: a verdict, charts, tables."""
    from kinfolk.report.page.export import check_formats, converter
    from kinfolk.report.page.write import Report

    formats = check_formats(format_)
    if figures is not None:
        converter()  # say at once that it is missing
    made = Report.of(runs, score)
    drawn = made.write_figures(figures, formats) if figures is not None else []
    page = made.write(file)
    if json_:
        print_json({"report": str(page), "figures": list(map(str, drawn))})
        return
    print(visible(f"report:  {page}"))
    if figures is not None:
        print(f"figures: {len(drawn)} files in {figures}")
