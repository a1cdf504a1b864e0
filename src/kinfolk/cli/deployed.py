"""The commands about deployments that go on: who joins and leaves, how runs stand, what sites take home."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kinfolk.cli.deploy import KitFolder, deploy, site
from kinfolk.cli.shared import AllowImport, AsJson, examples, print_json

__all__ = ["deploy", "site"]


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
