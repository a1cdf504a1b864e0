"""The commands under `kinfolk data`: what there is, fetching it, looking at it, bringing one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from kinfolk.cli.shared import AsJson, Sets, SpecFile, examples, out, print_json, read_spec

data = typer.Typer(help="Data sets: list, fetch, show, import, check.", no_args_is_help=True)


@data.command("list", epilog=examples("kinfolk data list"))
def list_(json_: AsJson = False) -> None:
    """List every source, and where its files are."""
    from kinfolk.federation.datasets.catalogue import CATALOGUE, data_root, where
    from kinfolk.federation.sources import SOURCES

    def place(name: str) -> str:
        needed = [one for one in (SOURCES[name].files or (name,)) if one in CATALOGUE]
        found = [where(one) for one in needed]
        return ", ".join(map(str, found)) if all(found) else "not here"

    rows = [{"name": name, "line": source.line, "where": place(name)} for name, source in SOURCES.items()]
    if json_:
        print_json({"root": str(data_root()), "data": rows})
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("name", "what it is", "here"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["line"], "no" if row["where"] == "not here" else "yes")
    out().print(table)
    print(f"data folder, which KINFOLK_DATA changes:\n{data_root()}")


@data.command(epilog=examples("kinfolk data fetch mnist"))
def fetch(name: Annotated[str, typer.Argument(help="A name from `kinfolk data list`.")]) -> None:
    """Fetch a data set from its official place and check it."""
    from kinfolk.federation.datasets.fetch import fetch as fetch_files

    for path in fetch_files(name):
        print(path)


@data.command(epilog=examples("kinfolk data show digits --figure digits.png"))
def show(
    spec: SpecFile = None,
    set_: Sets = None,
    figure: Annotated[Path | None, typer.Option("--figure", help="Draw it into this image file.")] = None,
    json_: AsJson = False,
) -> None:
    """Show the federation that a spec describes: clients, rows, label skew, groups."""
    from kinfolk.federation.sources import build, explain
    from kinfolk.federation.summary import summarize
    from kinfolk.report.data_figure import data_figure
    from kinfolk.streams import Seed

    experiment = read_spec(spec, set_)
    seed = Seed(experiment.run.seed)
    federation = build(experiment.data, seed)
    seen = summarize(federation)
    notes = explain(experiment.data, seed, federation)
    if figure is not None:
        data_figure(seen, figure)
    if json_:
        print_json({**seen.facts, "notes": notes, "figure": str(figure) if figure else None})
        return
    print(federation.name)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for key, value in seen.facts.items():
        table.add_row(key, str(value))
    out().print(table)
    for note in notes:
        print("note: " + note)
    if figure is not None:
        print(f"figure: {figure}")


@data.command(
    "import",
    epilog=examples(
        "kinfolk data import hospitals/ --out store",
        "kinfolk data import all.csv --client hospital --label outcome --out store",
        "kinfolk data import sites/ --columns age,sex,seen --categorical sex --date seen --out store",
    ),
)
def import_(
    path: Annotated[Path, typer.Argument(help="A folder with a file or subfolder per client, or one table.")],
    out_: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to write the store.")],
    client: Annotated[str | None, typer.Option(help="The client column of a table.")] = None,
    label: Annotated[str | None, typer.Option(help="The label column, or several: time,event.")] = None,
    missing: Annotated[str, typer.Option(help="Missing values: refuse, drop or median.")] = "refuse",
    columns: Annotated[
        str, typer.Option(metavar="A,B,...", help="Which columns are features, in this order.")
    ] = "",
    categorical: Annotated[
        str, typer.Option(metavar="A,B,...", help="Columns of categories, which become one-hot.")
    ] = "",
    date: Annotated[
        str, typer.Option(metavar="A,B,...", help="Columns of dates: days; A:month:weekday has these too.")
    ] = "",
    fill: Annotated[
        str, typer.Option(metavar="mean|median|VALUE", help="What stands for missing values.")
    ] = "",
    resize: Annotated[str, typer.Option(metavar="HxW", help="Bring all images to this size.")] = "",
    json_: AsJson = False,
) -> None:
    """Check your own data, report what they hold, and write the fast internal form."""
    from kinfolk.federation.own_data.columns import Columns
    from kinfolk.federation.own_data.load import load_own
    from kinfolk.federation.own_data.report import report_table
    from kinfolk.federation.own_data.store import write_store

    wanted = Columns.parse(columns, categorical, date, fill, resize)
    federation, report = load_own(
        path, client=client, label=label, missing=missing, verify=True, columns=wanted
    )
    written: Any = write_store(federation, out_, report)
    if json_:
        print_json({"store": str(written), "report": report.as_dict()})
        return
    out().print(report_table(report))
    print(f"store: {written}\nnext:  kinfolk compare {written}")


@data.command(epilog=examples("kinfolk data check store"))
def check(
    store: Annotated[Path, typer.Argument(help="A folder that `kinfolk data import` has written.")],
    json_: AsJson = False,
) -> None:
    """Compare every file of a store with its checksum, and see that its rows are sound."""
    from kinfolk.federation.own_data.store import read_manifest, read_store

    federation, manifest = read_store(store, verify=True), read_manifest(store)
    size = sum(facts["bytes"] for facts in manifest["files"].values())
    facts = {"clients": len(federation.clients), "rows": federation.rows, "bytes": size}
    if json_:
        print_json({"store": str(store), **facts, "files": len(manifest["files"])})
        return
    counted = ", ".join(f"{count:,} {name}" for name, count in facts.items())
    print(f"{store}: {counted}; all {len(manifest['files'])} files are as they were written")
