"""The commands: each parses, calls the library and prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from kinfolk.cli.data import data
from kinfolk.cli.groups import groups
from kinfolk.cli.shared import AsJson, Seeds, Sets, SpecFile, examples, out, print_json, read_spec
from kinfolk.errors import KinfolkError

app = typer.Typer(
    help="Federated learning for heterogeneous (non-IID) clients.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(data, name="data")
app.add_typer(groups)


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
Algorithms = Annotated[
    list[str] | None,
    typer.Option(
        "--algorithm",
        "-a",
        metavar="NAME[,OPTION=VALUE]",
        help="May be repeated; default: local, fedavg, fedavg_tuned, fedprox, ifca, fesem.",
    ),
]


@app.command(
    epilog=examples(
        "kinfolk run",
        "kinfolk run digits --set local.lr=0.05 --out runs/a",
        "kinfolk run digits --set local.lr=0.05 --out runs/a --resume",
        "torchrun --nproc-per-node 2 -m kinfolk run --set engine.name=distributed --out runs/b",
    )
)
def run(
    spec: SpecFile = None, set_: Sets = None, out: Out = None, resume: Resume = False, json_: AsJson = False
) -> None:
    """Run one experiment into a run folder."""
    from kinfolk.cli.progress import telling
    from kinfolk.engines.link import follows
    from kinfolk.experiment.build import title
    from kinfolk.experiment.run import run as run_experiment

    experiment = read_spec(spec, set_)
    serves = follows(experiment.engine.name)
    with telling(experiment.run.rounds, quiet=json_ or serves) as teller:
        result = run_experiment(experiment, out, resume=resume, watch=teller.watch(title(experiment)))
    if serves:
        return
    if json_:
        print_json({"folder": str(result.folder), "rounds": result.rounds, "summary": result.summary})
        return
    _show(result.folder)


@app.command(
    epilog=examples(
        "kinfolk compare",
        "kinfolk compare digits -a local -a fedprox,mu=0.5 --seeds 5 --out runs/mine",
    )
)
def compare(
    spec: SpecFile = None,
    algorithm: Algorithms = None,
    seeds: Seeds = 3,
    set_: Sets = None,
    out: Out = None,
    resume: Resume = False,
    json_: AsJson = False,
) -> None:
    """Compare algorithms over several seeds: one table, mean ± sample std, and one figure."""
    from kinfolk.cli.progress import telling
    from kinfolk.engines.link import follows
    from kinfolk.experiment.compare import DEFAULT
    from kinfolk.experiment.compare import compare as compare_all
    from kinfolk.experiment.spec import run_id

    experiment = read_spec(spec, set_)
    names = algorithm or DEFAULT
    folder = out or Path("runs") / f"compare-{run_id(experiment)}"
    serves = follows(experiment.engine.name)
    with telling(experiment.run.rounds * len(names) * max(seeds, 1), quiet=json_ or serves) as teller:
        results = compare_all(
            experiment,
            names,
            seeds,
            folder,
            resume=resume,
            watch=lambda name, k: teller.watch(f"{name} seed {k}"),
        )
    if not serves:
        _show(folder, json_)
    if len(results) < len(names) * seeds:  # what broke down, and why, stands below the table
        raise typer.Exit(2)


@app.command(epilog=examples("kinfolk show runs/demo", "kinfolk show runs/demo --score macro_f1"))
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder or a comparison folder.")],
    score: Annotated[str | None, typer.Option("--score", help="Which score to compare by.")] = None,
    json_: AsJson = False,
) -> None:
    """Show a run or a comparison again, from its records alone."""
    _show(run, json_, score)


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
    json_: AsJson = False,
) -> None:
    """Score a finished run's models on other test rows, without training again."""
    from kinfolk.cli.progress import telling
    from kinfolk.engines.link import follows
    from kinfolk.experiment.score_again import score_again, spec_of
    from kinfolk.experiment.spec import override, run_id

    experiment = override(spec_of(run), set_ or [])
    folder = out or run / f"again-{run_id(experiment)}"
    serves = follows(experiment.engine.name)
    with telling(1, quiet=json_ or serves) as teller:
        score_again(run, experiment, folder, watch=teller.watch(f"scoring {run.name}"))
    if not serves:
        _show(folder, json_)


def _show(folder: Path, json_: bool = False, score: str | None = None) -> None:
    from kinfolk.experiment.record import disk_errors
    from kinfolk.report.figures import comparison_figure
    from kinfolk.report.read import load_runs
    from kinfolk.report.tables import comparison_rows, comparison_table, run_table

    runs = load_runs(folder)
    single = (folder / "run.json").exists()
    with disk_errors("figure", folder):
        figure = comparison_figure(runs, folder / "figure.png", score)
    if json_:
        print_json({"folder": str(folder), "figure": str(figure), "rows": comparison_rows(runs, score)})
        return
    console = out()
    if single:
        console.print(run_table(runs[0]))
    else:
        table, notes = comparison_table(runs, score)
        console.print(table)
        for note in notes:
            console.print(note, markup=False)
    print(f"run folder: {folder}\nfigure:     {figure}")


# Lists that are pages of their own.
LONG = ("configs", "settings")


@app.command("list", epilog=examples("kinfolk list", "kinfolk list configs", "kinfolk list settings"))
def list_(
    what: Annotated[str, typer.Argument(help="algorithms, data, models, configs, settings, or all.")] = "all",
    json_: AsJson = False,
) -> None:
    """List algorithms, data, models, packaged configurations and settings, one line each."""
    from kinfolk.errors import near

    rows = _listed()
    if what not in rows and what != "all":
        raise KinfolkError("list", what, near(what, [*rows, "all"]))
    chosen = {k: v for k, v in rows.items() if k == what or (what == "all" and k not in LONG)}
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


@app.command(epilog=examples("kinfolk check fedavg", "kinfolk check mypackage.mine:MyAlgorithm --set k=3"))
def check(
    algorithm: Annotated[str, typer.Argument(metavar="ALGORITHM", help="A name, or package.module:Class.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="option=value", help="An option of it.")
    ] = None,
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
