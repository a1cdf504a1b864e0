"""The commands: each parses, calls the library and prints."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from kinfolk.cli.advise import advising
from kinfolk.cli.attack import attacking
from kinfolk.cli.data import data
from kinfolk.cli.deployed import deploy, site
from kinfolk.cli.groups import groups
from kinfolk.cli.infer import inferring
from kinfolk.cli.models import models
from kinfolk.cli.order import InOrder
from kinfolk.cli.report import reports
from kinfolk.cli.shared import (
    Algorithms,
    AllowImport,
    AsJson,
    Log,
    Seeds,
    Sets,
    SpecFile,
    examples,
    out,
    print_json,
    read_seeds,
    read_spec,
)
from kinfolk.cli.tune import Backend, BudgetRounds, Spaces, search, show_search, tuning
from kinfolk.errors import KinfolkError, near, visible

app = typer.Typer(
    cls=InOrder,
    help="Federated learning for heterogeneous (non-IID) clients.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(data, name="data")
app.add_typer(deploy, name="deploy")
app.add_typer(site, name="site")
app.add_typer(advising)
app.add_typer(groups)
app.add_typer(attacking)
app.add_typer(models)
app.add_typer(tuning)
app.add_typer(reports)
app.add_typer(inferring)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"kinfolk {version('kinfolk')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Federated learning for heterogeneous (non-IID) clients."""


Out = Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Where to write.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")]


@app.command(
    epilog=examples(
        "kinfolk run",
        "kinfolk run digits --set local.lr=0.05 --out runs/a",
        "kinfolk run digits --set local.lr=0.05 --out runs/a --resume",
        "torchrun --nproc-per-node 2 -m kinfolk run --set engine.name=distributed --out runs/b",
    )
)
def run(
    spec: SpecFile = None,
    set_: Sets = None,
    out: Out = None,
    resume: Resume = False,
    log: Log = None,
    allow_import: AllowImport = None,
    json_: AsJson = False,
) -> None:
    """Run one experiment into a run folder."""
    from kinfolk.engines.link import follows
    from kinfolk.experiment.build import title
    from kinfolk.experiment.callbacks import all_of
    from kinfolk.experiment.loggers import logged
    from kinfolk.experiment.run import run as run_experiment
    from kinfolk.progress import telling

    experiment = read_spec(spec, set_)
    serves = follows(experiment.engine.name)
    with telling(experiment.run.rounds, quiet=json_ or serves) as teller, logged(log) as logger:
        watch = all_of(teller.watch(title(experiment)), logger())
        result = run_experiment(experiment, out, resume=resume, watch=watch)
    if serves:
        return
    if json_:
        told = {"folder": str(result.folder), "rounds": result.rounds, "diverged": result.diverged}
        print_json({**told, "summary": result.summary})
    else:
        _show(result.folder)
    if result.stopped:
        raise typer.Exit(2)


@app.command(
    epilog=examples(
        "kinfolk compare",
        "kinfolk compare digits -a local -a fedprox,mu=0.5 --seeds 5 --out runs/mine",
        'kinfolk compare digits -a fedavg -a "fedavg;local.lr=0.05;local.clip=1"',
        "kinfolk compare digits --tune -a fedavg -a fesem,k=4",
    )
)
def compare(
    spec: SpecFile = None,
    algorithm: Algorithms = None,
    seeds: Seeds = "3",
    set_: Sets = None,
    out: Out = None,
    resume: Resume = False,
    log: Log = None,
    tune: Annotated[bool, typer.Option("--tune", help="Search each method's settings first.")] = False,
    budget: BudgetRounds = 0,
    space: Spaces = None,
    backend: Backend = "halving",
    allow_import: AllowImport = None,
    json_: AsJson = False,
) -> None:
    """Compare algorithms over several seeds: one table, mean ± sample std, and one figure."""
    from kinfolk.engines.link import follows
    from kinfolk.experiment.callbacks import all_of
    from kinfolk.experiment.compare import DEFAULT, planned
    from kinfolk.experiment.compare import compare as compare_all
    from kinfolk.experiment.loggers import logged
    from kinfolk.experiment.seeds import seed_numbers
    from kinfolk.experiment.spec import run_id
    from kinfolk.progress import telling

    experiment = read_spec(spec, set_)
    names, numbers = algorithm or DEFAULT, seed_numbers(read_seeds(seeds), experiment.run.seed)
    folder = out or Path("runs") / f"compare-{run_id(experiment)}"
    serves = follows(experiment.engine.name)
    if not tune and (budget or space or backend != "halving"):
        raise KinfolkError("--budget, --space, --backend", None, "are about a search; add --tune")
    if tune:
        first = search(
            experiment, names, folder / "tune", budget, 1, space, backend, resume=resume, quiet=json_
        )
        names = [one["chosen"] for one in first["methods"]]
        if not json_:
            show_search(first)
    total = experiment.run.rounds * len(names) * len(numbers)
    runs = planned(experiment, names, numbers)
    with telling(total, quiet=json_ or serves, runs=runs) as teller, logged(log) as logger:
        results = compare_all(
            experiment,
            names,
            numbers,
            folder,
            resume=resume,
            watch=lambda name, k: all_of(teller.watch(f"{name} seed {k}"), logger()),
        )
    if not serves:
        _show(folder, json_, judge=True)
    if len(results) < len(names) * len(numbers):  # what broke down, and why, stands below the table
        raise typer.Exit(2)


@app.command(
    epilog=examples(
        "kinfolk show runs/demo",
        "kinfolk show runs/demo --follow",
        "kinfolk show runs/demo --score macro_f1 --format md",
    )
)
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder or a comparison folder.")],
    score: Annotated[str | None, typer.Option("--score", help="Which score to compare by.")] = None,
    format_: Annotated[str, typer.Option("--format", help="table, md, latex, csv or json.")] = "table",
    follow: Annotated[
        bool, typer.Option("--follow", help="Show how it goes on until it has ended; write nothing.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Show a run or a comparison again, from its records alone."""
    from kinfolk.report.formats import FORMATS, written

    if format_ not in ("table", "json", *FORMATS):
        raise KinfolkError("--format", format_, near(format_, ("table", "json", *FORMATS)))
    if follow:
        from kinfolk.cli.follow import follow as follow_until_the_end

        try:
            follow_until_the_end(run, quiet=json_ or format_ != "table")
        except KeyboardInterrupt:  # whoever watched has seen enough
            raise typer.Exit(128 + signal.SIGINT) from None
    if format_ in FORMATS and not json_:
        print(written(run, format_, score))
        return
    _show(run, json_ or format_ == "json", score, figure=not follow, judge=True)


@app.command(
    epilog=examples(
        "kinfolk score runs/mine --set data.test=global",
        "kinfolk score runs/mine --set data.test=local --set data.test_rows=50 --out runs/mine-local",
    )
)
def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder; the run must have finished.")],
    set_: Sets = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Where to write; default: inside RUN.")
    ] = None,
    allow_import: AllowImport = None,
    json_: AsJson = False,
) -> None:
    """Score a finished run's models on other test rows, without training again."""
    from kinfolk.engines.link import follows
    from kinfolk.experiment.score_again import score_again, spec_of
    from kinfolk.experiment.spec import override, run_id
    from kinfolk.progress import telling

    experiment = override(spec_of(run), set_ or [])
    folder = out or run / f"again-{run_id(experiment)}"
    serves = follows(experiment.engine.name)
    with telling(1, quiet=json_ or serves) as teller:
        score_again(run, experiment, folder, watch=teller.watch(f"scoring {run.name}"))
    if not serves:
        _show(folder, json_)


def _show(
    folder: Path, json_: bool = False, score: str | None = None, figure: bool = True, judge: bool = False
) -> None:
    from kinfolk.experiment.record import disk_errors
    from kinfolk.report.figures import comparison_figure
    from kinfolk.report.read import compared, load_runs
    from kinfolk.report.status import missing_note
    from kinfolk.report.tables import comparison_rows, comparison_table, run_table

    runs = load_runs(folder)
    single = (folder / "run.json").exists()
    told = {"folder": str(folder)}
    if single and runs[0].spec.get("run", {}).get("reveal") == "none":
        line = f"{len(runs[0].rounds) - 1} rounds; clients tell no scores (run.reveal = none)"
        print_json({**told, "rows": []}) if json_ else print(visible(f"{line}\nrun folder: {folder}"))
        return
    if figure:
        with disk_errors("figure", folder):
            told["figure"] = str(comparison_figure(runs, folder / "figure.png", score))
    if json_:
        print_json({**told, "rows": comparison_rows(runs, score)})
        return
    console = out()
    if single:
        console.print(run_table(runs[0]))
    else:
        table, notes = comparison_table(runs, score)
        console.print(table)
        named = compared(folder) if (folder / "compare.json").is_file() else []
        for note in filter(None, [*notes, missing_note(folder, named)]):
            console.print(note, markup=False)
    print(visible(f"run folder: {folder}"))
    if figure:
        print(visible(f"figure:     {told['figure']}"))
    if judge:
        from kinfolk.report.verdict import verdict

        words = verdict(runs, score).headline
        print(textwrap.fill(words, 80, initial_indent="verdict:    ", subsequent_indent=" " * 12))


# Lists that are pages of their own.
LONG = ("configs", "settings")


@app.command("list", epilog=examples("kinfolk list", "kinfolk list configs", "kinfolk list settings"))
def list_(
    what: Annotated[
        str | None, typer.Argument(help="algorithms, data, models, configs, settings or all.")
    ] = None,
    json_: AsJson = False,
) -> None:
    """List algorithms, data, models, packaged configurations and settings, one line each."""
    rows = _listed()
    if what is not None and what not in (*rows, "all"):
        raise KinfolkError("list", what, near(what, [*rows, "all"]))
    # Configurations and settings are pages of their own: they come when they are asked for.
    chosen = {k: v for k, v in rows.items() if what in (k, "all") or (what is None and k not in LONG)}
    if json_:
        names = ("name", "line", "options")
        print_json({k: [dict(zip(names, row, strict=True)) for row in v] for k, v in chosen.items()})
        return
    for kind, lines in chosen.items():
        table = Table(title=kind, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for column in ("name", "what it is", "default" if kind == "settings" else "options"):
            table.add_column(column, overflow="fold")
        for row in lines:
            table.add_row(*row)
        out().print(table, "")
    if what is None:
        print("settings of an experiment, for --set and spec files: kinfolk list settings")


def _listed() -> dict[str, list[tuple[str, str, str]]]:
    """(name, what it is, options or default) of everything there is, by kind."""
    from kinfolk.algorithms import ALGORITHMS, options_of, summary_line
    from kinfolk.configs import config_lines
    from kinfolk.experiment.spec import describe
    from kinfolk.federation.sources import SOURCES
    from kinfolk.learning.models import MODELS

    def options(values: Any) -> str:
        return ", ".join(f"{k}={v}" for k, v in values.items())

    return {
        "algorithms": [(n, summary_line(k), options(options_of(k))) for n, k in ALGORITHMS.items()],
        "data": [(n, s.line, "") for n, s in SOURCES.items()],
        "models": [(n, m.line, options(m.options)) for n, m in MODELS.items()],
        "configs": [(n, line, "") for n, line in config_lines()],
        "settings": [(n, meaning, str(default)) for n, default, meaning in describe()],
    }


@app.command(
    epilog=examples(
        "kinfolk check fedavg", "kinfolk check mypackage.mine:MyAlgorithm --allow-import mypackage"
    )
)
def check(
    algorithm: Annotated[str, typer.Argument(metavar="ALGORITHM", help="A name, or package.module:Class.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="option=value", help="An option of it.")
    ] = None,
    allow_import: AllowImport = None,
    json_: AsJson = False,
) -> None:
    """Run the conformance suite on an algorithm, built in or your own."""
    from kinfolk.algorithms import find_algorithm
    from kinfolk.contract.suite import run_suite
    from kinfolk.experiment.spec import Experiment, override

    kind = find_algorithm(algorithm)
    options = override(Experiment(), [f"algorithm.{one}" for one in set_ or []]).algorithm.options
    rows: list[dict[str, str]] = []

    def report(name: str, verdict: str, detail: str) -> None:
        rows.append({"check": name, "verdict": verdict, "detail": detail})
        if not json_:
            print(f"{verdict:8} {name}" + (f": {detail}" if detail else ""), flush=True)

    fine = run_suite(kind, options, report)
    if json_:
        print_json({"algorithm": algorithm, "passed": fine, "checks": rows})
    if not fine:
        raise typer.Exit(1)
