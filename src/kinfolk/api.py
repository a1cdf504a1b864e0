"""The library in a few calls, on your own network and clients.

`run` one algorithm, `compare` several, `choose_k` for the number of groups, `assign` newcomers to them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from kinfolk.algorithms.options import flat_options
from kinfolk.experiment import assign as assigning
from kinfolk.experiment import choose_k as choosing
from kinfolk.experiment import compare as comparing
from kinfolk.experiment.build import Network
from kinfolk.experiment.newcomers import in_terms_of, open_run, read_newcomers
from kinfolk.experiment.record import plain
from kinfolk.experiment.run import Result
from kinfolk.experiment.run import run as run_spec
from kinfolk.experiment.sections import AlgorithmSpec, Experiment, ModelSpec
from kinfolk.experiment.spec import load, override
from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.arrays import Given, from_arrays
from kinfolk.federation.sources import build
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed

if TYPE_CHECKING:
    import pandas as pd

DEFAULT = ("local", "fedavg", "fedavg_tuned", "fedprox")


@dataclass(frozen=True)
class Comparison:
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

    def __str__(self) -> str:
        from kinfolk.report.read import load_runs
        from kinfolk.report.tables import comparison_table

        return _printed(*comparison_table(load_runs(self.folder)))


@dataclass(frozen=True)
class KChoice:
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

    def __str__(self) -> str:
        from kinfolk.report.choose_k import choice_table

        return _printed(*choice_table(self.facts))


@dataclass(frozen=True)
class Placed:
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

    def __str__(self) -> str:
        from kinfolk.report.newcomers import newcomers_table

        return _printed(*newcomers_table(self.facts))


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
    return override(named, flat_options(settings))


def compare(
    network: Network,
    clients: Given | Federation,
    algorithms: Sequence[str] = DEFAULT,
    *,
    test: Given | None = None,
    rounds: int = 20,
    seeds: int = 3,
    folder: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Comparison:
    """Compare algorithms on your own network and clients; print the result to see the table.

    Args:
        network: an `nn.Module` class (or anything that makes one: called once per seed), or a module
            whose weights are then the start of every run.
        clients: one `(x, y)` or `Dataset` per client, in a list or by name; or a `Federation`.
        algorithms: names, or `name,option=value`; `kinfolk list` shows them.
        test: test rows of each client; without them a fifth of each client's rows is held out.
        rounds: rounds of every run.
        seeds: how many seeds; three or more give error bars.
        folder: where the runs are kept; a temporary folder if not given.
        settings: anything a spec file can say, as `{"local.lr": 0.05}`.

    >>> import torch
    >>> from torch import nn
    >>> rows = [(torch.randn(30, 4), torch.arange(30) % 3) for _ in range(4)]
    >>> table = compare(lambda: nn.Linear(4, 3), rows, ["local", "fedavg"], rounds=2, seeds=2)
    >>> sorted(table.frame["algorithm"])
    ['fedavg', 'local']
    """
    spec = _spec(network, rounds, settings or {})
    where = Path(folder) if folder else Path(tempfile.mkdtemp(prefix="kinfolk-"))
    results = comparing.compare(
        spec,
        algorithms,
        seeds,
        where,
        federation=lambda seed: _federation(clients, test, spec, seed),
        network=network,
    )
    return Comparison(where, results)


def run(
    network: Network,
    clients: Given | Federation,
    algorithm: str = "fedavg",
    *,
    test: Given | None = None,
    rounds: int = 20,
    seed: int = 0,
    folder: str | Path | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Result:
    """Run one algorithm on your own network and clients.

    >>> import torch
    >>> from torch import nn
    >>> rows = [(torch.randn(30, 4), torch.arange(30) % 3) for _ in range(4)]
    >>> run(nn.Linear(4, 3), rows, "fedprox,mu=0.5", rounds=2).reason
    '2 rounds done'
    """
    spec = _spec(network, rounds, {**(settings or {}), "run.seed": seed})
    chosen: AlgorithmSpec = comparing.parse_algorithm(algorithm, spec)
    where = Path(folder) if folder else Path(tempfile.mkdtemp(prefix="kinfolk-")) / "run"
    rows = _federation(clients, test, spec, Seed(seed))
    return run_spec(replace(spec, algorithm=chosen), where, federation=rows, network=network, resume=resume)


def choose_k(
    network: Network,
    clients: Given | Federation,
    algorithm: str = "fesem",
    *,
    ks: Sequence[int] = (1, 2, 3, 4, 5, 6),
    sample: int = 100,
    rounds: int = 3,
    seeds: int = 3,
    criterion: str = "agreement",
    test: Given | None = None,
    folder: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> KChoice:
    """Say how many groups there are among your own clients; test rows play no part in it.

    Args:
        network: as for `compare`.
        clients: as for `compare`.
        algorithm: one with an option `k`, or `name,option=value`.
        ks: the numbers of groups to try; 1 is always tried.
        sample: how many clients are drawn for it.
        rounds: rounds of every run.
        seeds: how many seeds; two or more tell how stable the groups are.
        criterion: `"agreement"` of all of them, or one: `"accuracy"` (on validation rows),
            `"intra_distance"` or `"silhouette"`.
        test: test rows of each client, which are left alone; without them a fifth is set aside.
        folder: where the runs and `choose-k.json` are kept; a temporary folder if not given.
        settings: anything a spec file can say, as `{"local.lr": 0.05}`.

    >>> import torch
    >>> from torch import nn
    >>> rows = [(torch.linspace(-1, 1, 20)[:, None], torch.arange(20) // 10) for _ in range(4)]
    >>> choose_k(lambda: nn.Linear(1, 2), rows, ks=[1, 2], rounds=1, seeds=2).k
    1
    """
    spec = _spec(network, rounds, settings or {})
    spec = replace(spec, algorithm=comparing.parse_algorithm(algorithm, spec))
    trial = choosing.Trial(tuple(ks), sample, rounds, seeds, criterion)
    where = Path(folder) if folder else Path(tempfile.mkdtemp(prefix="kinfolk-"))
    rows = _federation(clients, test, spec, Seed(spec.run.seed))
    return KChoice(where, choosing.choose_k(spec, where, trial, federation=rows, network=network))


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
        rows = in_terms_of(
            _federation(newcomers, test, trained.spec, Seed(trained.spec.run.seed)), (), trained
        )
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
    if isinstance(clients, Federation):
        return clients
    data = spec.data
    return from_arrays(clients, test=test, valid=data.valid, test_fraction=data.test_fraction, seed=seed)
