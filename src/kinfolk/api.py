"""The library in two calls: `run` one algorithm, or `compare` several, on your own network and clients."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from kinfolk.experiment import compare as comparing
from kinfolk.experiment.build import Network
from kinfolk.experiment.run import Result
from kinfolk.experiment.run import run as run_spec
from kinfolk.experiment.sections import AlgorithmSpec, Experiment, ModelSpec
from kinfolk.experiment.spec import override
from kinfolk.federation.federation import Federation
from kinfolk.federation.own import Given, from_arrays
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
        from rich.console import Console

        from kinfolk.report.read import load_runs
        from kinfolk.report.tables import comparison_table

        table, notes = comparison_table(load_runs(self.folder))
        console = Console(width=100)
        with console.capture() as captured:
            console.print(table)
            for note in notes:
                console.print(note)
        return captured.get().rstrip()


def _spec(network: Network, rounds: int, settings: Mapping[str, Any]) -> Experiment:
    source = type(network) if isinstance(network, nn.Module) else network
    named = Experiment(
        data=DataSpec(name="own", test_fraction=0.2),
        model=ModelSpec(f"{source.__module__}:{getattr(source, '__qualname__', type(source).__name__)}"),
    )
    named = replace(named, run=replace(named.run, rounds=rounds))
    return override(named, [f"{key}={_toml(value)}" for key, value in settings.items()])


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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


def _federation(clients: Given | Federation, test: Given | None, spec: Experiment, seed: Seed) -> Federation:
    if isinstance(clients, Federation):
        return clients
    data = spec.data
    return from_arrays(clients, test=test, valid=data.valid, test_fraction=data.test_fraction, seed=seed)
