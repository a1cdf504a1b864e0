"""A paper's tables run again: every row with every seed, each run in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kinfolk.errors import BrokeDown, KinfolkError
from kinfolk.experiment.build import build_parts, title
from kinfolk.experiment.compare import parse_algorithm
from kinfolk.experiment.local_models import picture
from kinfolk.experiment.paper import Paper, Row, Sheet, Trust
from kinfolk.experiment.pseudo_rows import SAMPLERS, look_at, write_facts
from kinfolk.experiment.record import write_json
from kinfolk.experiment.run import Result, Watch, run
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import load, override
from kinfolk.experiment.trust_record import trace_trust, with_direct
from kinfolk.federation.data.catalogue import CATALOGUE, find, where
from kinfolk.federation.federation import Federation
from kinfolk.federation.sources import build
from kinfolk.streams import Seed


def row_spec(
    sheet: Sheet | Trust, row: Row, configs: Path, small: bool, changes: Sequence[str]
) -> Experiment:
    """The experiment behind one row."""
    for change in changes:
        if change.strip().startswith("algorithm."):
            remedy = "a row names its own algorithm; write another row into reproduce.toml"
            raise KinfolkError("--set", change, remedy)
    path = configs / sheet.spec
    twin = path.with_name(f"{path.stem}-small.toml")
    path = twin if small and twin.is_file() else path  # what is small already has no twin
    spec = override(load(path), [*sheet.set, *(() if small else sheet.set_full), *row.set, *changes])
    return replace(spec, algorithm=parse_algorithm(row.run, spec))


def rounds_of(
    paper: Paper, seeds: int, configs: Path, small: bool, changes: Sequence[str], only: Sequence[str] = ()
) -> int:
    """How many rounds a reproduction takes in all; every spec is checked on the way."""
    total, wanted = 0, paper.rows(only)
    for sheet in paper.sheets:
        specs = {row.label: row_spec(sheet, row, configs, small, changes) for row in sheet.rows}
        # Rows that show two models of one run have it once.
        runs = {folder_name(specs[row.label], row.set, 0): row.label for row in sheet.rows
                if row.label in wanted}  # fmt: skip
        total += seeds * sum(specs[label].run.rounds for label in runs.values())
    for trust in paper.trust if not only else ():
        total += sum(spec.run.rounds for spec in trust_specs(trust, configs, small, changes).values())
    return total


def trust_specs(trust: Trust, configs: Path, small: bool, changes: Sequence[str]) -> dict[int, Experiment]:
    """The runs behind a figure of opinions, by the number of direct partners."""
    spec = row_spec(trust, Row(trust.name, trust.run), configs, small, changes)
    return {number: with_direct(spec, number) for number in trust.direct}


def reproduce(
    paper: Paper,
    folder: Path,
    configs: Path,
    *,
    seeds: int = 3,
    small: bool = False,
    changes: Sequence[str] = (),
    only: Sequence[str] = (),
    watch: Callable[[str, int], Watch] = lambda title, seed: lambda event, facts: None,
) -> None:
    """Run all tables of a paper into a folder; what is finished there already is left as it is.

    `only`: the labels of rows to run; the others stay empty, or as they were, and no opinions are traced.
    They are traced with the first seed alone.
    """
    wanted = paper.rows(only)
    if seeds < 1:
        raise KinfolkError("--seeds", seeds, "give 1 or more (3 or more for error bars)")
    every = [row_spec(sheet, row, configs, small, changes) for sheet in paper.sheets for row in sheet.rows]
    for name in sorted({spec.data.name for spec in every} & set(CATALOGUE)):
        if where(name) is None:  # better now than after hours of other tables
            find(name)
    for sheet in paper.sheets:
        specs = {row.label: row_spec(sheet, row, configs, small, changes) for row in sheet.rows}
        first = next(iter(specs.values())).run.seed
        _note(paper, sheet, specs, folder, range(first, first + seeds), small)
        rows = [(row, specs[row.label]) for row in sheet.rows if row.label in wanted]
        for seed in range(first, first + seeds):
            _run_rows(sheet, rows, folder / sheet.name, seed, seed == first, watch)
    for trust in paper.trust if not only else ():
        write_json(folder / trust.name / "figure.json", {**asdict(trust), "small": small})
        for number, spec in trust_specs(trust, configs, small, changes).items():
            told = watch(f"{trust.name} DS = {number}", spec.run.seed)
            trace_trust(spec, folder / trust.name / f"direct{number}", resume=True, watch=told)


def _run_rows(
    sheet: Sheet,
    rows: Sequence[tuple[Row, Experiment]],
    folder: Path,
    seed: int,
    drawn: bool,
    watch: Callable[[str, int], Watch],
) -> None:
    """The runs of a table with one seed; rows that show two models of one run have it once."""
    data: dict[str, Federation] = {}
    ran: set[Path] = set()
    for row, spec in rows:
        place = folder / folder_name(spec, row.set, seed)
        if place in ran and row.label not in (sheet.picture, sheet.pseudo):
            continue
        ran.add(place)
        here = replace(spec, run=replace(spec.run, seed=seed))
        if repr(here.data) not in data:
            data[repr(here.data)] = build(here.data, Seed(seed))
        mine = data[repr(here.data)]
        told = watch(f"{title(here)} seed {seed}", seed)
        try:
            result = run(here, place, federation=mine, resume=True, watch=told)
        except BrokeDown:  # its records say so, and the table does
            continue
        if drawn:
            _draw(sheet, row.label, folder, here, mine, result)


def _draw(sheet: Sheet, label: str, folder: Path, spec: Experiment, rows: Federation, result: Result) -> None:
    """What is to be pictured of a finished run, if anything."""
    if label == sheet.picture:
        write_json(folder / "picture.json", picture(build_parts(spec, rows), result, sheet.pictured))
    # A run too short for clusters has no pseudo rows.
    if label == sheet.pseudo and result.state.begun:
        found = look_at(build_parts(spec, rows), result.state, result.rounds, SAMPLERS)
        write_facts(folder / "pseudo", found)


def folder_name(spec: Experiment, changed: Sequence[str], seed: int) -> str:
    """Where the run of a row and a seed lies, inside its table's folder.

    >>> folder_name(Experiment(), ["local.lr=0.3"], 3)
    'fedavg-local.lr=0.3-seed3'
    """
    return "-".join([title(spec).replace(" ", "-"), *changed, f"seed{seed}"])


def _note(
    paper: Paper, sheet: Sheet, specs: dict[str, Experiment], folder: Path, seeds: range, small: bool
) -> None:
    """What the report needs to know, written before the first run."""
    rows: list[dict[str, Any]] = [
        {**asdict(row), "runs": [folder_name(specs[row.label], row.set, k) for k in seeds]}
        for row in sheet.rows
    ]
    facts = {**asdict(sheet), "rows": rows, "paper": paper.title, "small": small}
    write_json(folder / sheet.name / "reproduction.json", facts)
