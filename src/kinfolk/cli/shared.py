"""What several commands share: their options, and how they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from kinfolk.allowed import allowing
from kinfolk.errors import KinfolkError

SpecFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="[SPEC]",
        help="TOML file, a name of `list configs`, or your own data: a store, a folder of clients, a table. "
        "Default: built-in rotated digits.",
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=c", help="Change a setting of the spec; may be repeated."),
]
Seeds = Annotated[
    str, typer.Option("--seeds", metavar="N|SEED,SEED,...", help="Number of seeds, or which: 0,4,7.")
]
Log = Annotated[
    str | None, typer.Option("--log", metavar="NAME", help="Log scores to tensorboard, mlflow or wandb.")
]
Algorithms = Annotated[
    list[str] | None,
    typer.Option(
        "--algorithm",
        "-a",
        metavar="NAME[,OPTION=VALUE][;SETTING=VALUE]",
        help="May be repeated; settings after ; are the method's own. "
        "Default: local, fedavg, fedavg_tuned, fedprox, ifca, fesem.",
    ),
]


def _allow(context: typer.Context, modules: list[str] | None) -> list[str] | None:
    """Allow these until the command has ended; so no command has to do anything with its parameter."""
    context.with_resource(allowing(modules or ()))
    return modules


AllowImport = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-import",
        metavar="MODULE",
        callback=_allow,
        help="Run code of this module where import paths name it; may be repeated.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines, and no progress.")]


def examples(*lines: str) -> str:
    """The end of a help text; an empty line between two lines keeps them apart."""
    return "\n\n".join(["Examples:", *lines])


def out() -> Console:
    """Standard output, as wide as the terminal; a pipe has no width of its own and gets 100 columns."""
    console = Console()
    return console if console.is_terminal else Console(width=100)


def whole_numbers(flag: str, text: str) -> tuple[int, ...]:
    """The numbers in `1,2,3`."""
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError as error:
        raise KinfolkError(flag, text, "give whole numbers with commas between them, as 1,2,3") from error


def read_seeds(text: str) -> int | tuple[int, ...]:
    """How many seeds, or which: `3` is a number of them, `0,4,7` are three.

    >>> read_seeds("3"), read_seeds("0,4,7")
    (3, (0, 4, 7))
    """
    numbers = whole_numbers("--seeds", text)
    return numbers if len(numbers) > 1 else numbers[0]


def read_spec(path: Path | None, sets: list[str] | None) -> Any:
    """The experiment of a file, or the embedded one, with some settings changed."""
    from kinfolk.experiment.spec import Experiment, load, override

    return override(load(path) if path else Experiment(), sets or [])


def print_json(value: Any) -> None:
    """Print a value as JSON, and what JSON cannot say as null."""
    from kinfolk.experiment.record import plain

    print(json.dumps(plain(value), indent=2, allow_nan=False))
