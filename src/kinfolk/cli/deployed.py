"""The commands about deployments that go on: who joins and leaves, how runs stand, what sites take home."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from kinfolk.cli.deploy import AdminKit, KitFolder, Seconds, deploy, say, site
from kinfolk.cli.shared import AllowImport, AsJson, examples, out, print_json
from kinfolk.errors import KinfolkError

__all__ = ["deploy", "site"]
# Seconds between two looks.
LOOK = 2.0
RunName = Annotated[str, typer.Argument(metavar="NAME", help="What the run is called.")]


@deploy.command("add-site", epilog=examples("kinfolk deploy add-site west --kits kits"))
def add_site(
    name: Annotated[str, typer.Argument(metavar="SITE", help="Its name.")],
    kits: Annotated[Path, typer.Option("--kits", help="The folder that `kinfolk deploy init` made.")] = Path(
        "kits"
    ),
    owner: Annotated[str, typer.Option("--owner", help="Whose it is, if somebody has several sites.")] = "",
) -> None:
    """Make a kit for one more site, by the same authority; the server knows it at once."""
    from kinfolk.deploy.kits import add_site as add

    print(f"{name}: {add(kits, name, owner)}")


@deploy.command(epilog=examples("kinfolk deploy welcome first --site west --kit kits/lead@hub.org"))
def welcome(
    run: RunName,
    sites: Annotated[list[str], typer.Option("--site", help="Who has come later; may be repeated.")],
    kit: AdminKit = Path("kit"),
    seconds: Seconds = 600.0,
) -> None:
    """Give sites that came later a model of a run, which may go on: that of the group that fits each."""
    from kinfolk.deploy.submit import connected, session, submit
    from kinfolk.types import Client

    who = [Client(name) for name in sites]
    with session(kit) as opened:
        missing = sorted(set(who) - set(connected(opened)))
        if missing:
            raise KinfolkError("--site", missing[0], "is not connected; start it with kinfolk site join")
        print(
            f"job {submit(opened, None, run, who, False, seconds, newcomers=True)} over {len(who)} newcomers"
        )


@deploy.command(epilog=examples("kinfolk deploy resume first --kit kits/lead@hub.org --keep"))
def resume(
    run: RunName,
    kit: AdminKit = Path("kit"),
    keep: Annotated[
        bool, typer.Option("--keep", help="Stay, and submit again what is lost, to the end.")
    ] = False,
    seconds: Seconds = 600.0,
) -> None:
    """Go on with a run from its last checkpoint, by the spec that lies in its folder on the server."""
    from kinfolk.deploy.arrivals import Arrivals
    from kinfolk.deploy.keep import Keeper
    from kinfolk.deploy.submit import connected, session, submit

    with session(kit) as opened:
        sites = sorted(connected(opened))
        if not sites:
            raise KinfolkError("sites", 0, "none is connected; start them with kinfolk site join")
        if not keep:
            print(f"job {submit(opened, None, run, sites, True, seconds)} over {len(sites)} sites")
            return
    late = Arrivals(kit, run, sites, seconds, say)
    Keeper(kit, None, run, sites, seconds, say, late.look).keep(True)


@deploy.command(
    epilog=examples(
        "kinfolk deploy drain first --kit kits/lead@hub.org", "kinfolk deploy drain first --runs runs"
    )
)
def drain(
    run: RunName,
    kit: AdminKit = Path("kit"),
    runs: Annotated[
        Path | None,
        typer.Option("--runs", metavar="FOLDER", help="On the server itself: where run folders are."),
    ] = None,
) -> None:
    """Let a run end after the round it is in, with a checkpoint; `kinfolk deploy resume` goes on."""
    from kinfolk.deploy import control
    from kinfolk.deploy.standing import of_kit

    if runs is not None:
        if not (runs / run / "run.json").exists():
            raise KinfolkError("NAME", run, f"there is no such run in {runs}")
        control.drain(runs / run)
    elif not any(one["draining"] for one in of_kit(kit, "drain", run)["runs"] if one["run"] == run):
        raise KinfolkError("NAME", run, "does not go on at the moment; kinfolk deploy status shows what does")
    print(f"{run} stops after this round; go on with: kinfolk deploy resume {run}")


@deploy.command(
    epilog=examples(
        "kinfolk deploy status --kit kits/lead@hub.org --follow",
        "kinfolk deploy status --server http://127.0.0.1:9100 --json",
    )
)
def status(
    kit: AdminKit = Path("kit"),
    server: Annotated[
        str | None, typer.Option("--server", metavar="URL", help="Read what a server shows by --status-port.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Again and again, until no run goes on.")] = False,
    json_: AsJson = False,
) -> None:
    """Show which sites are connected and how runs stand: rounds, bytes, seconds, who was late or has left."""
    from kinfolk.deploy.standing import of_kit, of_server, shown

    def look(again: bool = True) -> dict[str, Any]:
        try:
            return of_server(server) if server else of_kit(kit)
        except KinfolkError:
            if server and again:  # it shows a run as long as it goes on
                return {"runs": []}
            raise

    told, console = look(again=False), out()
    if follow and not json_ and console.is_terminal:
        with Live(shown(told), console=console, auto_refresh=False) as live:
            while told["runs"]:
                time.sleep(LOOK)
                told = look()
                live.update(shown(told), refresh=True)
        return
    while True:
        if json_:
            print_json(told)
        else:
            console.print(shown(told))
        if not (follow and told["runs"]):
            return
        time.sleep(LOOK)
        told = look()


@site.command(epilog=examples("kinfolk site leave kits/north"))
def leave(
    kit: KitFolder,
    seconds: Annotated[float, typer.Option("--patience", help="Seconds to wait until it has ended.")] = 120.0,
) -> None:
    """Let the site that runs here say goodbye and end: nobody waits for it, and it may come back."""
    from kinfolk.deploy.supervise import leave as say_goodbye

    say_goodbye(kit, seconds)
    print("it has left; kinfolk site join brings it back")


@site.command(epilog=examples("kinfolk site export kits/north --run first --out model"))
def export(
    kit: KitFolder,
    folder: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to; new or empty.")],
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="NAME", help="Of which run; the last that ended if left out."),
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="centre, personal or fine-tuned.")] = None,
    format_: Annotated[
        str, typer.Option("--format", metavar="NAME,...", help="safetensors, torch (.pt2), onnx.")
    ] = "safetensors",
    licence: Annotated[str, typer.Option("--licence", help="What the model card says of the licence.")] = "",
    allow_import: AllowImport = None,
    json_: AsJson = False,
) -> None:
    """Write this site's own model of a run as files with a model card, as `kinfolk export` does."""
    from kinfolk.deploy.kits import Kit
    from kinfolk.deploy.own_model import export_own

    own, formats = Kit.open(kit), [word.strip() for word in format_.split(",") if word.strip()]
    files = export_own(own.folder / "memory", own.site, run, folder, kind, formats, licence)
    if json_:
        print_json({"folder": str(folder), "files": [str(path) for path in files]})
        return
    for path in files:
        print(path)
