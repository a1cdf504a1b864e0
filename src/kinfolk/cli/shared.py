"""What several commands share: their options, and how they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

SpecFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="[SPEC]", help="TOML file, or a name of `list configs`; default: built-in rotated digits."
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=c", help="Change a setting of the spec; may be repeated."),
]
Seeds = Annotated[int, typer.Option("--seeds", help="Number of seeds.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines, and no progress.")]


def examples(*lines: str) -> str:
    """The end of a help text; an empty line between two lines keeps them apart."""
    return "\n\n".join(["Examples:", *lines])


def out() -> Console:
    """Standard output: 80 columns, or 100 where names are long; a pipe has no width of its own."""
    console = Console()
    return console if console.is_terminal and console.width < 100 else Console(width=100)


def read_spec(path: Path | None, sets: list[str] | None) -> Any:
    """The experiment of a file, or the embedded one, with some settings changed."""
    from kinfolk.experiment.spec import Experiment, load, override

    return override(load(path) if path else Experiment(), sets or [])


def print_json(value: Any) -> None:
    """Print a value as JSON, and what JSON cannot say as null."""
    from kinfolk.experiment.record import plain

    print(json.dumps(plain(value), indent=2, allow_nan=False))
