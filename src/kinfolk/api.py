"""The library in a few calls, on your own network and clients.

`advise` on a method, `run` one algorithm, `compare` several, `tune` their settings, `choose_k` for the number
of groups, `assign` newcomers to them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text
from torch import nn

from kinfolk.advice import advise as advising
from kinfolk.advice.plan import Effort
from kinfolk.algorithms.options import flat_options
from kinfolk.by_path import path_of
from kinfolk.errors import KinfolkError
from kinfolk.experiment import assign as assigning
from kinfolk.experiment import choose_k as choosing
from kinfolk.experiment import compare as comparing
from kinfolk.experiment import tune as tuning
from kinfolk.experiment.build import Network
from kinfolk.experiment.callbacks import Callback
from kinfolk.experiment.loggers import Log
from kinfolk.experiment.method import parse_method
from kinfolk.experiment.newcomers import in_terms_of, open_run, read_newcomers
from kinfolk.experiment.record import plain
from kinfolk.experiment.run import Result
from kinfolk.experiment.run import run as run_spec
from kinfolk.experiment.sections import Experiment, ModelSpec
from kinfolk.experiment.seeds import Seeds, seed_numbers
from kinfolk.experiment.spec import load, override
from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.arrays import Given, from_arrays
from kinfolk.federation.scaling import standardized
from kinfolk.federation.sources import build
from kinfolk.federation.spec import DataSpec
from kinfolk.learning.row_metrics import Metric
from kinfolk.markup import as_html
from kinfolk.methods import Method, written
from kinfolk.streams import Seed
from kinfolk.watching import watched

if TYPE_CHECKING:
    import pandas as pd

DEFAULT = ("local", "fedavg", "fedavg_tuned", "fedprox")


# An algorithm by name, `name,option=value`; as `FedProx(mu=0.5)`; or a class of your own, or one made of it.
Algorithm = str | Method | type[Any] | Any


# A loss or a metric by name or import path, or the user's function itself.
Loss = str | Callable[..., Any]
Score = str | Callable[..., Any]


class _Shown:
    """Something that is a table and notes: text when printed, HTML in a notebook."""

    def _parts(self) -> tuple[Any, Sequence[str]]:
        raise NotImplementedError

    def __str__(self) -> str:
        return _printed(*self._parts())

    def _repr_html_(self) -> str:
        table, notes = self._parts()
        return as_html(table, *map(Text, notes))


@dataclass(frozen=True)
class Comparison(_Shown):
    """The runs of a comparison; printing it shows the table."""

    folder: Path
    results: list[Result]

    @property
    def frame(self) -> pd.DataFrame:
        """One row per algorithm and scored model, as a pandas frame."""
        from kinfolk.report.read import load_runs
        from kinfolk.report.tables import comparison_frame

        return comparison_frame(load_runs(self.folder))

    def figure(self, path: str | Path) -> Path:
        """Draw accuracy over rounds and per client."""
        from kinfolk.report.figures import comparison_figure
        from kinfolk.report.read import load_runs

        return comparison_figure(load_runs(self.folder), Path(path))

    def report(self, path: str | Path | None = None) -> Path:
        """Write one HTML page with a verdict, charts and tables; by default into the folder."""
        from kinfolk.report.page.write import write_report

        return write_report([self.folder], path)

    def __repr__(self) -> str:
        titles = list(dict.fromkeys(result.title for result in self.results))
        return f"<Comparison: {len(self.results)} runs of {', '.join(titles)}, folder {str(self.folder)!r}>"

    def _parts(self) -> tuple[Any, Sequence[str]]:
        from kinfolk.report.read import load_runs
        from kinfolk.report.tables import comparison_table

        return comparison_table(load_runs(self.folder))


@dataclass(frozen=True)
class KChoice(_Shown):
    """How many groups to use; printing it shows the table and the reason."""

    folder: Path
    facts: dict[str, Any] = field(repr=False)  # all that `choose-k.json` holds

    @property
    def k(self) -> int:
        """The recommended number of groups; 1 means that there are none."""
        return int(self.facts["recommended"])

    @property
    def confidence(self) -> str:
        """`"high"`, `"medium"` or `"low"`: how far criteria and seeds agree on it."""
        return str(self.facts["confidence"])

    @property
    def reason(self) -> str:
        """Why, in a sentence."""
        return str(self.facts["reason"])

    def figure(self, path: str | Path) -> Path:
        """Draw what was measured for every K."""
        from kinfolk.report.choose_k import choice_figure

        return choice_figure(self.facts, path)

    def __repr__(self) -> str:
        return f"<KChoice: k = {self.k}, folder {str(self.folder)!r}>"

    def _parts(self) -> tuple[Any, Sequence[str]]:
        from kinfolk.report.choose_k import choice_table

        return choice_table(self.facts)


@dataclass(frozen=True)
class Placed(_Shown):
    """Where newcomers belong; printing it shows the table."""

    facts: dict[str, Any] = field(repr=False)

    @property
    def groups(self) -> dict[str, int]:
        """The group of each newcomer."""
        return {row["newcomer"]: row["group"] for row in self.facts["newcomers"]}

    @property
    def frame(self) -> pd.DataFrame:
        """One row per newcomer: its group, its scores before and after."""
        from kinfolk.report.newcomers import newcomers_frame

        return newcomers_frame(self.facts)

    def __repr__(self) -> str:
        return f"<Placed: {len(self.groups)} newcomers in {len(set(self.groups.values()))} groups>"

    def _parts(self) -> tuple[Any, Sequence[str]]:
        from kinfolk.report.newcomers import newcomers_table

        return newcomers_table(self.facts)


@dataclass(frozen=True, repr=False)
class Tuned(_Shown):
    """The settings that a search has found for each method; printing it shows the table."""

    folder: Path
    facts: dict[str, Any] = field(repr=False)  # all that `tune.json` holds

    @property
    def best(self) -> dict[str, dict[str, Any]]:
        """The chosen settings of each method, by its title."""
        return {one["algorithm"]: dict(one["settings"]) for one in self.facts["methods"]}

    @property
    def lines(self) -> list[str]:
        """The methods at their chosen settings, as `compare` takes them."""
        return [one["chosen"] for one in self.facts["methods"]]

    @property
    def frame(self) -> pd.DataFrame:
        """One row per method: what was tried, what it cost, what was chosen."""
        from kinfolk.report.tune import tune_frame

        return tune_frame(self.facts)

    def __repr__(self) -> str:
        return f"<Tuned: {', '.join(self.lines)}>"

    def _parts(self) -> tuple[Any, Sequence[str]]:
        from kinfolk.report.tune import tune_table

        return tune_table(self.facts)


@dataclass(frozen=True)
class Advice(_Shown):
    """What to use for a federation; printing it shows the advice and its evidence."""

    folder: Path
    facts: dict[str, Any] = field(repr=False)  # all that `advice.json` holds

    @property
    def answer(self) -> str:
        """`"local"`, `"fedavg"`, `"fine-tuned"`, `"groups"`, or `"unclear"`: nothing can be said."""
        return str(self.facts["advice"]["answer"])

    @property
    def k(self) -> int:
        """The number of groups; 1 where groups are not advised."""
        return int(self.facts["advice"]["k"] or 1)

    @property
    def confidence(self) -> str:
        """`"high"`, `"medium"` or `"low"`: whether anything speaks against it."""
        return str(self.facts["advice"]["confidence"])

    @property
    def reason(self) -> str:
        """Why, in a sentence."""
        return str(self.facts["advice"]["reason"])

    def __repr__(self) -> str:
        return f"<Advice: {self.answer}, confidence {self.confidence}, folder {str(self.folder)!r}>"

    def _parts(self) -> tuple[Any, Sequence[str]]:
        from kinfolk.report.advice import advice_table, headline

        table, notes = advice_table(self.facts)
        line = Text(headline(self.facts))
        return line if table is None else Group(line, table), notes


def _printed(table: Any, notes: Sequence[str]) -> str:
    """A table and its notes as text of at most 100 columns."""
    from rich.console import Console

    console = Console(width=100)
    with console.capture() as captured:
        console.print(table)
        for note in notes:
            console.print(note, markup=False)
    return captured.get().rstrip()


def _spec(network: Network, rounds: int, settings: Mapping[str, Any]) -> Experiment:
    source = type(network) if isinstance(network, nn.Module) else network
    named = Experiment(
        data=DataSpec(name="own", test_fraction=0.2),
        model=ModelSpec(f"{source.__module__}:{getattr(source, '__qualname__', type(source).__name__)}"),
    )
    named = replace(named, run=replace(named.run, rounds=rounds))
    return override(named, {name: _path(value) for name, value in flat_options(settings).items()})


def _path(value: Any) -> Any:
    """A setting as a spec holds it: functions, classes and metrics by their import paths."""
    if isinstance(value, list | tuple):
        return [_path(one) for one in value]
    if isinstance(value, Metric):
        return path_of(value, value.name, of=value.function)
    return path_of(value) if callable(value) or hasattr(value, "update") else value


def with_settings(settings: Mapping[str, Any] | None, loss: Any, metrics: Sequence[Any]) -> dict[str, Any]:
    """Settings with a loss and metrics among them."""
    given = {"local.loss": loss} if loss is not None else {}
    return {**(settings or {}), **given, **({"run.metrics": list(metrics)} if metrics else {})}


def compare(
    network: Network,
    clients: Given | Federation,
    algorithms: Sequence[Algorithm] = DEFAULT,
    *,
    test: Given | None = None,
    rounds: int = 20,
    seeds: Seeds = 3,
    folder: str | Path | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    loss: Loss | None = None,
    metrics: Sequence[Score] = (),
    progress: bool | None = None,
    on_round: Callback | None = None,
    on_evaluate: Callback | None = None,
    on_checkpoint: Callback | None = None,
    log: str | Log | None = None,
) -> Comparison:
    """Compare algorithms on your own network and clients; print the result to see the table.

    Args:
        network: an `nn.Module` class (or anything that makes one: called once per seed), or a module
            whose weights are then the start of every run.
        clients: one `(x, y)` or `Dataset` per client, in a list or by name; or a `Federation`.
        algorithms: names, as `"fedprox,mu=0.5"`; methods, as `FedProx(mu=0.5)`; or classes of your own.
            Settings of one method alone come after `;`: `"fedavg;local.lr=0.05;local.clip=1"`.
        test: test rows of each client; without them a fifth of each client's rows is held out.
        rounds: rounds of every run.
        seeds: how many seeds, or which, as `[0, 1]`; three or more give error bars.
        folder: where the runs are kept; a temporary folder if not given.
        resume: go on with the runs of the folder.
        settings: anything a spec file can say, as `{"local.lr": 0.05}`, with functions for import paths.
        loss: a name, an import path or a function of outputs and targets that gives one value per row.
        metrics: names, import paths, or functions of a client's outputs and targets that give a number.
        progress: None shows it on a terminal and in notebooks; True everywhere, False nowhere.
        on_round, on_evaluate, on_checkpoint: functions that are told of each; see `run`.
        log: where scores go besides; see `run`.

    >>> import torch
    >>> from torch import nn
    >>> rows = [(torch.randn(30, 4), torch.arange(30) % 3) for _ in range(4)]
    >>> table = compare(lambda: nn.Linear(4, 3), rows, ["local", "fedavg"], rounds=2, seeds=2)
    >>> sorted(table.frame["algorithm"])
    ['fedavg', 'local']
    """
    spec = _spec(network, rounds, with_settings(settings, loss, metrics))
    where = Path(folder) if folder else Path(tempfile.mkdtemp(prefix="kinfolk-"))
    names, numbers = [written(one) for one in algorithms], seed_numbers(seeds, spec.run.seed)
    total = rounds * len(names) * len(numbers)
    runs = comparing.planned(spec, names, numbers)
    with watched(spec, total, progress, log, on_round, on_evaluate, on_checkpoint, runs) as watch:
        results = comparing.compare(
            spec,
            names,
            numbers,
            where,
            federation=lambda seed: _federation(clients, test, spec, seed),
            network=network,
            resume=resume,
            watch=lambda name, k: watch(f"{name} seed {k}", 0),
        )
    return Comparison(where, results)


def tune(
    network: Network,
    clients: Given | Federation,
    algorithms: Sequence[Algorithm] = DEFAULT,
    *,
    test: Given | None = None,
    rounds: int = 20,
    budget: float = 0,
    seeds: int = 1,
    space: Mapping[str, Sequence[Any]] | None = None,
    backend: str = "halving",
    folder: str | Path | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    loss: Loss | None = None,
    metrics: Sequence[Score] = (),
) -> Tuned:
    """Search settings for each method on validation rows, with the same budget for all.

    Args:
        network: as for `compare`.
        clients: as for `compare`.
        algorithms: as for `compare`; what a line sets itself is not searched.
        test: test rows of each client, which are left alone; without them a fifth is set aside.
        rounds: rounds of a whole run.
        budget: rounds' worth of training that each method may spend; 0: six whole runs for each seed.
        seeds: seeds of every trial.
        space: values by setting, as `{"local.lr": [0.01, 0.1]}`, in place of the usual ones.
        backend: `"halving"` or `"optuna"`.
        folder: where trials, `tune.json` and the chosen specs are kept; a temporary folder if not given.
        resume: go on with a search in that folder; finished trials are not repeated.
        settings: anything a spec file can say, as `{"local.batch": 10}`.
        loss, metrics: as for `compare`; `run.monitor` names the score that is searched by.

    >>> import torch
    >>> from torch import nn
    >>> rows = [(torch.linspace(-1, 1, 40)[:, None], torch.arange(40) // 20) for _ in range(3)]
    >>> found = tune(lambda: nn.Linear(1, 2), rows, ["fedavg"], rounds=2, space={"local.lr": [0.001, 0.5]})
    >>> found.frame["tried"].tolist()
    [3]
    """
    spec = _spec(network, rounds, with_settings(settings, loss, metrics))
    where = Path(folder) if folder else Path(tempfile.mkdtemp(prefix="kinfolk-"))
    how = tuning.Search(budget, seeds, dict(space or {}), backend)
    given: dict[str, Any] = {"network": network, "resume": resume}
    given |= {"federation": lambda seed: _federation(clients, test, spec, seed)}
    return Tuned(where, tuning.tune(spec, [*map(written, algorithms)], where, how, **given))


def run(
    network: Network,
    clients: Given | Federation,
    algorithm: Algorithm = "fedavg",
    *,
    test: Given | None = None,
    rounds: int = 20,
    seed: int = 0,
    folder: str | Path | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    loss: Loss | None = None,
    metrics: Sequence[Score] = (),
    progress: bool | None = None,
    on_round: Callback | None = None,
    on_evaluate: Callback | None = None,
    on_checkpoint: Callback | None = None,
    log: str | Log | None = None,
) -> Result:
    """Run one algorithm on your own network and clients.

    Args:
        network: as for `compare`.
        clients: as for `compare`.
        algorithm: a name, as `"fedprox,mu=0.5"`; a method, as `FedProx(mu=0.5)`; or a class of your own.
        test: as for `compare`.
        rounds: how many rounds.
        seed: the seed of everything that is drawn.
        folder: where the run is kept; a temporary folder if not given.
        resume: go on from the last checkpoint of the folder.
        settings: anything a spec file can say, as `{"local.lr": 0.05}`, with functions for import paths.
        loss, metrics: as for `compare`.
        progress: None shows it on a terminal and in notebooks; True everywhere, False nowhere.
        on_round: a function that is told the facts of each round; it may return `"stop"` to end the run.
        on_evaluate: the same for each evaluation, of which the first is before training.
        on_checkpoint: the same for each checkpoint.
        log: `"tensorboard"`, `"mlflow"` or `"wandb"`, or a function of the round and a dict of scores.

    >>> import torch
    >>> from torch import nn
    >>> rows = [(torch.randn(30, 4), torch.arange(30) % 3) for _ in range(4)]
    >>> run(nn.Linear(4, 3), rows, "fedprox,mu=0.5", rounds=2).reason
    '2 rounds done'
    """
    spec = _spec(network, rounds, {**with_settings(settings, loss, metrics), "run.seed": seed})
    chosen = parse_method(written(algorithm), spec)
    where = Path(folder) if folder else Path(tempfile.mkdtemp(prefix="kinfolk-")) / "run"
    rows = _federation(clients, test, spec, Seed(seed))
    with watched(chosen.spec, rounds, progress, log, on_round, on_evaluate, on_checkpoint) as watch:
        given: dict[str, Any] = {"federation": rows, "network": network, "resume": resume}
        return run_spec(chosen.spec, where, own=chosen.own, watch=watch(chosen.title, 0), **given)


def choose_k(
    network: Network,
    clients: Given | Federation,
    algorithm: Algorithm = "fesem",
    *,
    ks: Sequence[int] = (1, 2, 3, 4, 5, 6),
    sample: int = 100,
    rounds: int = 3,
    seeds: Seeds = 3,
    criterion: str = "agreement",
    test: Given | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> KChoice:
    """Say how many groups there are among your own clients; test rows play no part in it.

    Args:
        network: as for `compare`.
        clients: as for `compare`.
        algorithm: one with an option `k`, as `"fesem"`, `"ifca,restarts=3"` or `IFCA(restarts=3)`.
        ks: the numbers of groups to try; 1 is always tried.
        sample: how many clients are drawn for it.
        rounds: rounds of every run.
        seeds: how many seeds, or which; two or more tell how stable the groups are.
        criterion: `"agreement"` of all of them, or one: `"accuracy"` (on validation rows),
            `"intra_distance"` or `"silhouette"`.
        test: test rows of each client, which are left alone; without them a fifth is set aside.
        folder: where the runs and `choose-k.json` are kept; a temporary folder if not given.
        resume: go on with the runs of the folder.
        settings: anything a spec file can say, as `{"local.lr": 0.05}`.
        progress: as for `compare`.

    >>> import torch
    >>> from torch import nn
    >>> rows = [(torch.linspace(-1, 1, 20)[:, None], torch.arange(20) // 10) for _ in range(4)]
    >>> choose_k(lambda: nn.Linear(1, 2), rows, ks=[1, 2], rounds=1, seeds=2).k
    1
    """
    spec = _spec(network, rounds, settings or {})
    spec = replace(spec, algorithm=comparing.parse_algorithm(written(algorithm), spec))
    trial = choosing.Trial(tuple(ks), sample, rounds, seeds, criterion)
    where = Path(folder) if folder else Path(tempfile.mkdtemp(prefix="kinfolk-"))
    rows = _federation(clients, test, spec, Seed(spec.run.seed))
    each = rounds + choosing.common_rounds(spec)
    total = each * len(trial.numbers) * len(seed_numbers(seeds))
    with watched(spec, total, progress) as watch:
        told = lambda k, number: watch(f"K = {k} seed {number}", each)  # noqa: E731
        given: dict[str, Any] = {"federation": rows, "network": network, "resume": resume, "watch": told}
        return KChoice(where, choosing.choose_k(spec, where, trial, **given))


def advise(
    network: Network,
    clients: Given | Federation,
    *,
    budget: float = 0,
    minutes: float = 0,
    sample: int = 100,
    test: Given | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    loss: Loss | None = None,
    metrics: Sequence[Score] = (),
    progress: bool | None = None,
) -> Advice:
    """Advise on a method, groups and settings for your own clients; test rows play no part in it.

    Args:
        network: as for `compare`.
        clients: as for `compare`.
        budget: rounds' worth of training in all trials together; 0: as usual.
        minutes: spend about so long instead of a budget.
        sample: how many clients are drawn for the trials.
        test: test rows of each client, which are left alone; without them a fifth is set aside.
        folder: where the trials and `advice.json` are kept; a temporary folder if not given.
        resume: go on with the trials of the folder.
        settings: anything a spec file can say, as `{"local.batch": 10}`.
        loss, metrics: as for `compare`; `run.monitor` names the score that decides.
        progress: as for `compare`.

    >>> import torch
    >>> from torch import nn
    >>> rows = [(torch.linspace(-1, 1, 9)[:, None], torch.arange(9) // 5) for _ in range(4)]
    >>> advise(lambda: nn.Linear(1, 2), rows).reason.partition(":")[0]
    'Cannot say'
    """
    spec = _spec(network, Experiment().run.rounds, with_settings(settings, loss, metrics))
    where = Path(folder) if folder else Path(tempfile.mkdtemp(prefix="kinfolk-"))
    rows = _federation(clients, test, spec, Seed(spec.run.seed))
    given: dict[str, Any] = {"federation": rows, "network": network, "resume": resume}
    advisor = advising.prepare(spec, where, Effort(budget, minutes, sample), **given)
    with watched(spec, advisor.plan.cost, progress) as watch:
        return Advice(where, advisor.go(watch))


def assign(
    folder: str | Path,
    newcomers: Given | Federation | str | Path,
    *,
    network: Network | None = None,
    by: str | None = None,
    test: Given | None = None,
) -> Placed:
    """Put clients who were not in training into the groups of a run, and say what they gain.

    Args:
        folder: the run folder of an algorithm with a model for each group.
        newcomers: as the clients of `compare`; or the path of a store, a folder of clients or a table.
        network: the network of the run, if it was one of yours that cannot be imported by name.
        by: `"loss"` or `"distance"`; what the algorithm uses if not given.
        test: test rows of each newcomer; without them a fifth of each newcomer's rows is held out.

    >>> import torch
    >>> from torch import nn
    >>> def client(sign):
    ...     x = torch.linspace(-1, 1, 40)[:, None]
    ...     return x, (sign * x[:, 0] > 0).long()
    >>> rows = [client(1), client(-1)] * 3
    >>> done = run(lambda: nn.Linear(1, 2), rows, "fesem,k=2", rounds=8)
    >>> found = assign(done.folder, {"ann": client(1), "bob": client(-1)}, network=lambda: nn.Linear(1, 2))
    >>> found.groups["ann"] != found.groups["bob"]
    True
    """
    trained = open_run(folder)
    if isinstance(newcomers, str | Path):
        rows = read_newcomers(newcomers, trained)
    else:
        # Whose rows are for tests is drawn by the newcomer's name and the seed of the run.
        given = _rows(newcomers, test, trained.spec, Seed(trained.spec.run.seed))
        rows = in_terms_of(given, given.class_names, trained)
    return Placed(plain(assigning.assign(trained, rows, by=by, network=network)))


def build_federation(spec: str | Path, seed: int | None = None) -> Federation:
    """The clients that an experiment file describes; the file's own seed if none is given.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "mine.toml").write_text("[data]\\nclients = 6")
    ...     len(build_federation(Path(folder) / "mine.toml").clients)
    6
    """
    found = load(Path(spec))
    return build(found.data, Seed(found.run.seed if seed is None else seed))


def _federation(clients: Given | Federation, test: Given | None, spec: Experiment, seed: Seed) -> Federation:
    rows = _rows(clients, test, spec, seed)
    return standardized(rows, spec.data.standardize, spec.data.standardize_target)


def _rows(clients: Given | Federation, test: Given | None, spec: Experiment, seed: Seed) -> Federation:
    if isinstance(clients, Federation):
        return clients
    data = spec.data
    for name in ("columns", "categorical", "dates"):
        if value := getattr(data, name):
            remedy = "arrays have no names; use kinfolk.read_frame(..., columns=kinfolk.Columns(...))"
            raise KinfolkError(f"data.{name}", value, remedy)
    held: Any = {"valid": data.valid, "test_fraction": data.test_fraction, "fill": data.fill}
    held["resize"] = data.resize
    return from_arrays(clients, test=test, seed=seed, **held)
