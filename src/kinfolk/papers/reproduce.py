"""A paper's tables run again: every row with every seed, each run in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kinfolk.errors import BrokeDown, KinfolkError
from kinfolk.experiment.build import build_parts, title
from kinfolk.experiment.compare import parse_algorithm
from kinfolk.experiment.method import file_name
from kinfolk.experiment.record import write_json
from kinfolk.experiment.run import Result, Watch, run
from kinfolk.experiment.score_again import only_tests_differ, read_run, score_again
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.seeds import Seeds, seed_numbers
from kinfolk.experiment.spec import dump, load, override
from kinfolk.federation.datasets.catalogue import CATALOGUE, find, where
from kinfolk.federation.federation import Federation
from kinfolk.federation.sources import build
from kinfolk.papers.local_models import picture
from kinfolk.papers.paper import Paper, PaperTable, Row, Trust
from kinfolk.papers.pseudo_rows import PUBLISHED, look_at, write_facts
from kinfolk.papers.trust_record import trace_trust, with_direct
from kinfolk.streams import Seed

# What is told of a run, by its title and seed.
Watching = Callable[[str, int], Watch]


def row_spec(
    table: PaperTable | Trust, row: Row, configs: Path, small: bool, changes: Sequence[str]
) -> Experiment:
    """The experiment behind one row."""
    for change in changes:
        if change.strip().startswith("algorithm."):
            remedy = "a row names its own algorithm; write another row into reproduce.toml"
            raise KinfolkError("--set", change, remedy)
    path = configs / table.spec
    twin = path.with_name(f"{path.stem}-small.toml")
    path = twin if small and twin.is_file() else path  # what is small already has no twin
    spec = override(load(path), [*table.set, *(() if small else table.set_full), *row.set, *changes])
    return replace(spec, algorithm=parse_algorithm(row.run, spec))


def rounds_of(
    paper: Paper, seeds: Seeds, configs: Path, small: bool, changes: Sequence[str], only: Sequence[str] = ()
) -> int:
    """How many rounds a reproduction takes in all; every spec is checked on the way."""
    wanted = paper.rows(only)
    # Rows that show two models of one run have it once, and so have tables that score it again.
    rounds: dict[tuple[str, str], int] = {}
    for table in paper.tables:
        base = paper.trained(table)
        _specs(paper, table, configs, small, changes)
        mine = {row.label for row in table.rows if row.label in wanted}
        for row, spec in _specs(paper, base, configs, small, changes):
            if row.label in mine:
                rounds[base.name, folder_name(spec, row.set, 0)] = spec.run.rounds
    total = len(seed_numbers(seeds)) * sum(rounds.values())
    for trust in paper.trust if not only else ():
        total += sum(spec.run.rounds for spec in trust_specs(trust, configs, small, changes).values())
    return total


def _specs(
    paper: Paper, table: PaperTable, configs: Path, small: bool, changes: Sequence[str]
) -> list[tuple[Row, Experiment]]:
    """The rows of a table and their experiments; those that score runs again must be of the same training."""
    made = [(row, row_spec(table, row, configs, small, changes)) for row in table.rows]
    if table.again:
        base = paper.trained(table)
        there = {row.label: row_spec(base, row, configs, small, changes) for row in base.rows}
        for row, spec in made:
            only_tests_differ(there[row.label], spec)
    return made


def trust_specs(trust: Trust, configs: Path, small: bool, changes: Sequence[str]) -> dict[int, Experiment]:
    """The runs behind a figure of opinions, by the number of direct partners."""
    spec = row_spec(trust, Row(trust.name, trust.run), configs, small, changes)
    return {number: with_direct(spec, number) for number in trust.direct}


def reproduce(
    paper: Paper,
    folder: Path,
    configs: Path,
    *,
    seeds: Seeds = 3,
    small: bool = False,
    changes: Sequence[str] = (),
    only: Sequence[str] = (),
    watch: Watching = lambda title, seed: lambda event, facts: None,
) -> None:
    """Run all tables of a paper into a folder; what is finished there already is left as it is.

    `only`: the labels of rows to run; the others stay empty, or as they were, and no opinions are traced.
    They are traced with the first seed alone.
    """
    wanted = paper.rows(only)
    # What is scored again is trained first.
    tables = [*paper.behind, *sorted(paper.tables, key=lambda table: bool(table.again))]
    specs = {table.name: _specs(paper, table, configs, small, changes) for table in tables}
    _find_files(spec for made in specs.values() for _, spec in made)
    for table in tables:
        numbers = seed_numbers(seeds, specs[table.name][0][1].run.seed)
        if table in paper.tables:
            _note(paper, table, specs[table.name], folder, numbers, small)
        rows = [(row, spec) for row, spec in specs[table.name] if row.label in wanted]
        for seed in numbers:
            if table.again:
                _score_rows(table, rows, specs[table.again], folder, seed, watch)
            else:
                _run_rows(table, rows, folder / table.name, seed, seed == numbers[0], watch)
    for trust in paper.trust if not only else ():
        _trace(trust, folder / trust.name, trust_specs(trust, configs, small, changes), small, watch)


def _trace(trust: Trust, folder: Path, specs: Mapping[int, Experiment], small: bool, watch: Watching) -> None:
    """The opinions behind one figure, for each number of direct partners."""
    write_json(folder / "figure.json", {**asdict(trust), "small": small})
    for number, spec in specs.items():
        told = watch(f"{trust.name} DS = {number}", spec.run.seed)
        trace_trust(spec, folder / f"direct{number}", resume=True, watch=told)


def _find_files(specs: Iterable[Experiment]) -> None:
    """Complain of files that are not here: better now than after hours of other tables."""
    for name in sorted({spec.data.name for spec in specs} & set(CATALOGUE)):
        if where(name) is None:
            find(name)


def _run_rows(
    table: PaperTable,
    rows: Sequence[tuple[Row, Experiment]],
    folder: Path,
    seed: int,
    drawn: bool,
    watch: Watching,
) -> None:
    """The runs of a table with one seed; rows that show two models of one run have it once."""
    built: dict[str, Federation] = {}
    ran: set[Path] = set()
    for row, spec in rows:
        place = folder / folder_name(spec, row.set, seed)
        if place in ran and row.label not in (table.picture, table.pseudo):
            continue
        ran.add(place)
        here = replace(spec, run=replace(spec.run, seed=seed))
        mine = _built(built, here)
        told = watch(f"{title(here)} seed {seed}", seed)
        try:
            result = run(here, place, federation=mine, resume=True, watch=told)
        except BrokeDown:  # its records say so, and the table does
            continue
        if drawn:
            _draw(table, row.label, folder, here, mine, result)


def _built(built: dict[str, Federation], spec: Experiment) -> Federation:
    """The federation of a spec, made once."""
    key = repr((spec.data, spec.run.seed))
    if key not in built:
        built[key] = build(spec.data, Seed(spec.run.seed))
    return built[key]


def _score_rows(
    table: PaperTable,
    rows: Sequence[tuple[Row, Experiment]],
    trained: Sequence[tuple[Row, Experiment]],
    folder: Path,
    seed: int,
    watch: Watching,
) -> None:
    """The runs of another table with one seed, scored again on this table's rows."""
    base, built = {row.label: (row, spec) for row, spec in trained}, dict[str, Federation]()
    for row, spec in rows:
        old, before = base[row.label]
        source = folder / table.again / folder_name(before, old.set, seed)
        place = folder / table.name / folder_name(spec, row.set, seed)
        here, there = (replace(one, run=replace(one.run, seed=seed)) for one in (spec, before))
        told = watch(f"{title(here)} seed {seed}, scored again", seed)
        held = read_run(place) if (place / "run.json").is_file() else {"again": ""}
        facts = read_run(source)
        if "again" not in held:  # an earlier version has trained it here
            _run_rows(table, [(row, spec)], folder / table.name, seed, False, watch)
        elif facts["status"] in ("stopped", "diverged"):  # the table says that it broke down
            write_json(place / "run.json", {**facts, "again": source.name})
        elif not _is_scored(place, held, facts, here):
            mine, its = _built(built, here), _built(built, there)
            score_again(source, here, place, federation=mine, trained=its, watch=told)


def _is_scored(place: Path, held: dict[str, Any], source: dict[str, Any], spec: Experiment) -> bool:
    """Whether the end of a run, and not an earlier one, was scored under this spec already."""
    same = (held.get("status"), held.get("rounds")) == ("finished", source["rounds"])
    return same and (place / "spec.toml").read_text(encoding="utf-8") == dump(spec)


def _draw(
    table: PaperTable, label: str, folder: Path, spec: Experiment, rows: Federation, result: Result
) -> None:
    """What is to be pictured of a finished run, if anything."""
    if label == table.picture:
        write_json(folder / "picture.json", picture(build_parts(spec, rows), result, table.pictured))
    # A run too short for clusters has no pseudo rows.
    if label == table.pseudo and result.state.begun:
        found = look_at(build_parts(spec, rows), result.state, result.rounds, PUBLISHED)
        write_facts(folder / "pseudo", found)


def folder_name(spec: Experiment, changed: Sequence[str], seed: int) -> str:
    """Where the run of a row and a seed lies, inside its table's folder.

    >>> folder_name(Experiment(), ["local.lr=0.3"], 3)
    'fedavg-local.lr=0.3-seed3'
    """
    return file_name("-".join([title(spec).replace(" ", "-"), *changed, f"seed{seed}"]))


def _note(
    paper: Paper,
    table: PaperTable,
    specs: Sequence[tuple[Row, Experiment]],
    folder: Path,
    seeds: Sequence[int],
    small: bool,
) -> None:
    """What the report needs to know, written before the first run."""
    rows: list[dict[str, Any]] = [
        {**asdict(row), "runs": [folder_name(spec, row.set, k) for k in seeds]} for row, spec in specs
    ]
    facts = {**asdict(table), "rows": rows, "paper": paper.title, "small": small}
    write_json(folder / table.name / "reproduction.json", facts)
