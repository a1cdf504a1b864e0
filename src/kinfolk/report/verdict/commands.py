"""Commands that go on from runs: written from what their folders say, so that they can be pasted."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kinfolk.report.read import Run
from kinfolk.report.verdict.folder import together


def line_of(run: Run, **changes: Any) -> str | None:
    """A run's method as `-a` takes it, with other settings of its own; None where its folder does not say.

    >>> run = Run.of({"title": "fesem k=4", "seed": 0, "own": {"local.lr": 0.3}}, {"value": []})
    >>> run.__dict__["spec"] = {"algorithm": {"name": "fesem", "k": 4, "start": {"name": "none"}}}
    >>> line_of(run)
    'fesem,k=4,start.name=none;local.lr=0.3'
    >>> line_of(run, **{"local.lr": 0.1})
    'fesem,k=4,start.name=none;local.lr=0.1'
    """
    options = dict(run.spec.get("algorithm") or {})
    name = options.pop("name", None)
    if not isinstance(name, str):
        return None
    flat = {key: _text(value) for key, value in _flat(options)}
    own = {**(run.facts.get("own") or {}), **changes}
    settings = {key: _text(value) for key, value in own.items() if not key.startswith("algorithm.")}
    # Commas stand between options, so a list must come after them.
    settings |= {f"algorithm.{key}": flat.pop(key) for key in list(flat) if "," in flat[key]}
    head = ",".join([name, *(f"{key}={value}" for key, value in flat.items())])
    return ";".join([head, *(f"{key}={value}" for key, value in settings.items())])


def _flat(options: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")


def spec_file(runs: Sequence[Run]) -> Path | None:
    """A spec file that all of these runs can be started from again; None if there is none.

    Data and networks that were given in Python are in no file, and a method's own settings must not become
    everybody's.
    """
    return next((run.path / "spec.toml" for run in runs if _is_whole(run) and not run.facts.get("own")), None)


def _is_whole(run: Run) -> bool:
    data, model = run.spec.get("data") or {}, run.spec.get("model") or {}
    in_python = (data.get("name") == "own" and not data.get("path")) or "__main__" in str(model.get("name"))
    return bool(data) and not in_python


def compare(
    runs: Sequence[Run],
    more: Sequence[str] = (),
    seeds: int = 0,
    sets: Sequence[str] = (),
    fresh: bool = False,
) -> str | None:
    """The comparison of these runs again, with more methods, more seeds or other settings.

    It goes on in its folder and keeps what is done, unless what is set would make all of it another one
    (`fresh`). None where no command can repeat the runs.
    """
    spec, folder = spec_file(runs), together(runs)
    lines = list(dict.fromkeys(line_of(run) for run in runs))
    if spec is None or None in lines:
        return None
    numbers = sorted({run.seed for run in runs})
    numbers += range(numbers[-1] + 1, numbers[-1] + 1 + max(0, seeds - len(numbers)))
    words = ["kinfolk", "compare", str(spec)]
    words += [word for line in [*lines, *more] for word in ("-a", str(line))]
    words += ["--seeds", ",".join(map(str, numbers)) if numbers[1:] else "1"]  # one: that of the spec
    words += [word for one in sets for word in ("--set", one)]
    words += ["--out", str(folder), "--resume"] if folder and not fresh else []
    return shlex.join(words)


def resume(run: Run, sets: Sequence[str] = ()) -> str | None:
    """A run continued in its folder."""
    if not _is_whole(run):
        return None
    words = ["kinfolk", "run", str(run.path / "spec.toml"), "--out", str(run.path), "--resume"]
    return shlex.join([*words, *(word for one in sets for word in ("--set", one))])


def choose_k(runs: Sequence[Run]) -> str | None:
    """A search for the number of groups in the same federation, with FeSEM."""
    spec = spec_file(runs)
    return shlex.join(["kinfolk", "choose-k", str(spec), "--set", "algorithm.name=fesem"]) if spec else None


def tune(runs: Sequence[Run]) -> str | None:
    """A search for the settings of each method."""
    spec, lines = spec_file(runs), list(dict.fromkeys(line_of(run) for run in runs))
    if spec is None or None in lines:
        return None
    return shlex.join(["kinfolk", "tune", str(spec), *(word for line in lines for word in ("-a", str(line)))])


def export(run: Run, model: str, one: bool) -> str:
    """The models of a run as files."""
    words = ["kinfolk", "export", str(run.path), "--kind", model, *([] if one else ["--all"])]
    return shlex.join([*words, "--out", "model" if one else "models"])
