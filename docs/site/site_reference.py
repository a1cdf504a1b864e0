"""The reference pages that are made from the code: public names, algorithms, commands and settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, get_type_hints

import typer

import kinfolk
import kinfolk.papers.commands  # adds its commands
from kinfolk import authoring
from kinfolk.algorithms import ALGORITHMS
from kinfolk.algorithms.options import options_of
from kinfolk.cli.commands import app
from kinfolk.experiment.sections import describe
from site_api import api_page, comments, docstring


def pages() -> dict[str, str]:
    """Every reference page by its file name."""
    return {
        "kinfolk.md": api_page(kinfolk, "What users call. Algorithms as objects are listed last."),
        "authoring.md": api_page(authoring, authoring.__doc__ or ""),
        "algorithms.md": algorithms_page(),
        "command-line.md": commands_page(),
        "settings.md": settings_page(),
    }


def algorithms_page() -> str:
    """Every algorithm with its docstring and a table of its options."""
    intro = "Options are set as `-a fesem,k=4` or `algorithm.k = 4`, and in Python as `kinfolk.FeSEM(k=4)`."
    parts = ["# Algorithms and options", intro]
    for name, kind in ALGORITHMS.items():
        parts += [f"## {name}", docstring(kind), _paper(kind)]
        rows = [f"| `{option}` | `{default}` | {note} |" for option, default, note in _options(kind)]
        if rows:
            parts.append("\n".join(["| option | default | |", "| --- | --- | --- |", *rows]))
    return "\n\n".join(filter(None, parts)) + "\n"


def _paper(kind: type[Any]) -> str:
    """Where the method is from: what its file says first, where that names a year."""
    said = inspect.getdoc(inspect.getmodule(kind)) or ""
    return "\n\n".join(part for part in said.split("\n\n")[1:] if re.search(r"\b(19|20)\d\d\b", part))


def _options(kind: type[Any]) -> Iterator[tuple[str, str, str]]:
    for option, default in options_of(kind).items():
        owner, inner = kind, option
        while "." in inner:  # a group of options
            group, _, inner = inner.partition(".")
            owner = get_type_hints(owner)[group]
        yield option, str(default), comments(owner).get(inner, "").replace("|", "\\|")


def commands_page() -> str:
    """Every command with its arguments and options."""
    group: Any = typer.main.get_command(app)
    parts = ["# Command line", "`kinfolk COMMAND --help` prints the same in a terminal."]
    parts += [_command(name, command) for name, command in leaves(group)]
    return "\n\n".join(parts) + "\n"


def leaves(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The commands of a group and of the groups inside it, by their full names."""
    for name in group.list_commands(None):
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from leaves(command, f"{prefix}{name} ")
        elif not command.hidden:
            yield prefix + name, command


def _command(name: str, command: Any) -> str:
    words = ["kinfolk", name]
    rows = []
    for one in command.params:
        if one.param_type_name == "argument":
            title = (one.metavar or one.name.upper()).strip("[]")
            words.append(title if one.required else f"[{title}]")
        else:
            title = ", ".join([*one.opts, *one.secondary_opts]) + (f" {one.metavar}" if one.metavar else "")
        rows.append(f"| `{title}` | {_cell(one.help or '')} |")
    parts = [f"## {name}", f"```text\n{' '.join(words)} [OPTIONS]\n```", inspect.cleandoc(command.help or "")]
    if rows:
        parts.append("\n".join(["| argument or option | |", "| --- | --- |", *rows]))
    return "\n\n".join(parts)


def settings_page() -> str:
    """Every setting of an experiment file, by table."""
    intro = "Keys of an experiment file (TOML), and of `--set`. `kinfolk list settings` prints the same."
    parts = ["# Settings", intro]
    tables: dict[str, list[str]] = {}
    for name, default, meaning in describe():
        table, _, key = name.rpartition(".")
        tables.setdefault(table, []).append(f"| `{key}` | `{default!r}` | {_cell(meaning)} |")
    for table, rows in tables.items():
        parts.append("\n".join([f"## [{table}]", "", "| key | default | |", "| --- | --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
