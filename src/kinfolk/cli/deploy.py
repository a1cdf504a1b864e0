"""The commands under `kinfolk deploy` and `kinfolk site`: between organisations, by NVFlare or Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from kinfolk.cli.shared import AllowImport, AsJson, Sets, SpecFile, examples, out, print_json, read_spec
from kinfolk.errors import KinfolkError

deploy = typer.Typer(help="Between organisations: make kits, serve, submit, look.", no_args_is_help=True)
site = typer.Typer(help="At a site: check its rows, take part.", no_args_is_help=True)

KitFolder = Annotated[Path, typer.Argument(metavar="KIT", help="A folder that `kinfolk deploy init` made.")]
AdminKit = Annotated[Path, typer.Option("--kit", help="The kit of the person who submits or looks.")]
Label = Annotated[str | None, typer.Option("--label", help="The label column or array.")]
Fraction = Annotated[float, typer.Option("--test-fraction", help="Share of the rows that are held out.")]
LogJson = Annotated[
    Path | None,
    typer.Option("--log-json", metavar="FILE", help="Add a line of JSON for each event; nothing private."),
]
Seconds = Annotated[float, typer.Option("--deadline", help="Seconds that one request to the sites may take.")]


@deploy.command(epilog=examples("kinfolk deploy init lungs.toml --out kits"))
def init(
    project: Annotated[Path, typer.Argument(help="TOML with name, host, port, sites, admins, engine.")],
    folder: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the kits go; a new folder.")],
) -> None:
    """Make a kit for the server, every site and every person of a federation."""
    from kinfolk.deploy.kits import Project, provision

    for name, kit in provision(Project.read(project), folder).items():
        print(f"{name}: {kit}")
    print(f"{folder / 'authority'}: holds the keys that vouch for all others; keep it where it is")


@deploy.command(epilog=examples("kinfolk deploy kits kits/"))
def kits(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where `kinfolk deploy init` made kits.")],
    json_: AsJson = False,
) -> None:
    """Show for how long the certificates of kits are good."""
    from kinfolk.deploy.certificates import days_left

    found = sorted(kit.parent for kit in folder.glob("*/startup"))
    if not found:
        raise KinfolkError("kits", str(folder), "holds no kits; name the folder that deploy init made")
    left: dict[str, Any] = {}
    for kit in found:
        try:
            left[kit.name] = days_left(kit)
        except KinfolkError as error:
            left[kit.name] = error.remedy
    if json_:
        print_json({"days": left})
        return
    _table("kit", "days left", [(name, str(days)) for name, days in left.items()])


@deploy.command(epilog=examples("kinfolk deploy serve kits/localhost --runs runs"))
def serve(
    kit: KitFolder,
    runs: Annotated[Path, typer.Option("--runs", metavar="FOLDER", help="Where run folders go.")] = Path(
        "runs"
    ),
    port: Annotated[
        int,
        typer.Option("--status-port", help="/health, /status, /metrics of the run, on this machine alone."),
    ] = 0,
    health: Annotated[
        int,
        typer.Option("--health-port", help="/health while the engine is up, on this machine alone."),
    ] = 0,
    log_json: LogJson = None,
) -> None:
    """Run the server until it is stopped."""
    from kinfolk.deploy.supervise import serve as keep_serving
    from kinfolk.deploy.supervise import until_told

    keep_serving(kit, runs, until_told(), say, port, log_json, health)


@deploy.command(epilog=examples("kinfolk deploy submit fesem.toml --kit kits/lead@hub.org --name first"))
def submit(
    spec: SpecFile = None,
    kit: AdminKit = Path("kit"),
    name: Annotated[str, typer.Option("--name", help="What the run is called, and its folder.")] = "run",
    resume: Annotated[bool, typer.Option("--resume", help="Go on from its last checkpoint.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Stay, and submit again what is lost, to the end.")
    ] = False,
    seconds: Seconds = 600.0,
    set_: Sets = None,
    allow_import: AllowImport = None,
) -> None:
    """Submit a run over all sites that are connected."""
    from kinfolk.deploy.arrivals import Arrivals
    from kinfolk.deploy.keep import Keeper
    from kinfolk.deploy.submit import connected, session
    from kinfolk.deploy.submit import submit as send

    experiment = read_spec(spec, set_)
    with session(kit) as opened:
        sites = sorted(connected(opened))
        if not sites:
            raise KinfolkError("sites", 0, "none is connected; start them with kinfolk site join")
        if not keep:
            print(f"job {send(opened, experiment, name, sites, resume, seconds)} over {len(sites)} sites")
            return
    late = Arrivals(kit, name, sites, seconds, say)
    Keeper(kit, experiment, name, sites, seconds, say, late.look).keep(resume)


@deploy.command(epilog=examples("kinfolk deploy local --sites 8 --out trial"))
def local(
    spec: SpecFile = None,
    sites: Annotated[int, typer.Option("--sites", help="How many sites.")] = 8,
    folder: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Kits, logs and the run.")] = Path(
        "trial"
    ),
    engine: Annotated[str, typer.Option("--engine", help="nvflare or flower.")] = "nvflare",
    seconds: Seconds = 600.0,
    set_: Sets = None,
    allow_import: AllowImport = None,
) -> None:
    """All of it on this machine: kits, a server, sites, one run, with real certificates and processes."""
    from kinfolk.deploy.local import local as rehearse

    experiment = read_spec(spec, [*(set_ or []), f"data.clients={sites}"])
    found = rehearse(experiment, folder, seconds, say, engine)
    print(f"run folder: {found}")


@site.command(epilog=examples("kinfolk site check --data patients/ --kit kits/north"))
def check(
    data: Annotated[Path, typer.Option("--data", help="The site's own rows.")],
    kit: Annotated[
        Path | None, typer.Option("--kit", metavar="KIT", help="Its kit: is it whole, and good for how long.")
    ] = None,
    label: Label = None,
    test_fraction: Fraction = 0.2,
    json_: AsJson = False,
) -> None:
    """Show what would be used of the rows here. Nothing leaves the site."""
    from kinfolk.deploy.agreement import Introduction
    from kinfolk.deploy.own_rows import own_rows
    from kinfolk.types import Client

    told = Introduction.of(
        Client("site"), own_rows(data, Client("site"), label=label, test_fraction=test_fraction), ""
    )
    outline = told.outline
    facts: dict[str, Any] = {
        "rows": dict(told.rows),
        "shape": outline.row_text or " x ".join(map(str, outline.shape)),
        "columns": list(outline.feature_names),
        "classes": list(outline.class_names) or outline.classes,
    }
    if kit is not None:
        from kinfolk.deploy.certificates import days_left
        from kinfolk.deploy.kits import Kit

        own = Kit.open(kit)
        facts["kit"] = f"{own.site} of {own.trust.name}, good for {days_left(kit, own.site)} days"
    if json_:
        print_json(facts)
        return
    _table("would be used", "", [(key, str(value)) for key, value in facts.items()])
    print("others are told: the numbers of rows, columns and classes; never a row")


@site.command(epilog=examples("kinfolk site join kits/north --data patients/"))
def join(
    kit: KitFolder,
    data: Annotated[Path | None, typer.Option("--data", help="The site's own rows.")] = None,
    simulated: Annotated[
        Path | None, typer.Option("--simulated", metavar="SPEC", help="For trials: its rows in this spec.")
    ] = None,
    label: Label = None,
    test_fraction: Fraction = 0.2,
    farewell: Annotated[
        float, typer.Option("--farewell", help="Seconds to wait, when stopped, for the lead to hear of it.")
    ] = 30.0,
    log_json: LogJson = None,
    allow_import: AllowImport = None,
) -> None:
    """Take part with the rows here until stopped; the process may be killed and started again."""
    from kinfolk.deploy.kits import Kit
    from kinfolk.deploy.logs import log_to
    from kinfolk.deploy.own_rows import own_rows, simulated_rows
    from kinfolk.deploy.supervise import join as take_part
    from kinfolk.deploy.supervise import until_told

    if (data is None) == (simulated is None):
        raise KinfolkError("--data", str(data), "name the site's rows, or a spec by --simulated")
    own = Kit.open(kit)
    if data is not None:
        rows = own_rows(data, own.site, label=label, test_fraction=test_fraction)
    else:
        rows = simulated_rows(read_spec(simulated, None), own.site)
    take_part(own, rows, until_told(), say, farewell, log_to(log_json))


def say(text: str) -> None:
    """One line now, also into a pipe."""
    print(text, flush=True)


def _table(first: str, second: str, rows: list[tuple[str, str]]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold")
    table.add_column(second, overflow="fold")
    for row in rows:
        table.add_row(*row)
    out().print(table)
