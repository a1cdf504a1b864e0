"""Which runs a comparison folder names, and which of them have not begun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kinfolk.errors import KinfolkError


def compared(folder: Path) -> list[str]:
    """The names of the runs of a comparison.

    >>> compared(Path("nowhere"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run = 'nowhere/compare.json': cannot be read (...)
    """
    names = read_json(folder / "compare.json").get("runs")
    if not isinstance(names, list) or not all(is_name(name) for name in names):
        raise KinfolkError("runs", str(folder / "compare.json"), "must list the names of run folders")
    return names


def missing_note(folder: str | Path) -> str:
    """A note on the runs of a comparison that have not begun; empty if there are none.

    >>> missing_note("nowhere")
    ''
    """
    folder = Path(folder)
    names = compared(folder) if (folder / "compare.json").is_file() else []
    lacking = [name for name in names if not (folder / name / "run.json").is_file()]
    told = ", ".join(lacking[:3]) + ", ..." * (len(lacking) > 3)
    return f"{len(lacking)} of {len(names)} runs have not begun: {told}" if lacking else ""


def is_name(name: object) -> bool:
    """Whether this names something directly inside a folder, and not a way out of it.

    >>> [is_name(name) for name in ("fedavg-seed0", "../other", "", None)]
    [True, False, False, False]
    """
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    >>> read_json(Path("nowhere.json"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run = 'nowhere.json': cannot be read (...)
    """
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise KinfolkError("run", str(path), f"cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise KinfolkError("run", str(path), "must hold a JSON object")
    return value
