"""Your own network and clients as one object, for several calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from kinfolk import api
from kinfolk.experiment.build import Network
from kinfolk.experiment.run import Result
from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.arrays import Given


@dataclass(frozen=True)
class Experiment:
    """A network, clients and settings; `advise`, `run`, `compare`, `choose_k` and `tune` are about them.

    The methods take what the functions of the same names take besides.

    Args:
        network: an `nn.Module` class (or anything that makes one), or a module, as for `kinfolk.compare`.
        clients: one `(x, y)` or `Dataset` per client, in a list or by name; or a `Federation`.
        test: test rows of each client; without them a fifth of each client's rows is held out.
        rounds: rounds of every run.
        settings: anything a spec file can say, as `{"local.lr": 0.05}`.
        loss, metrics: as for `kinfolk.compare`.

    >>> import torch
    >>> from torch import nn
    >>> rows = [(torch.randn(30, 4), torch.arange(30) % 3) for _ in range(4)]
    >>> ours = Experiment(lambda: nn.Linear(4, 3), rows, rounds=2)
    >>> ours
    <Experiment: 4 clients, 2 rounds>
    >>> ours.run("fedprox,mu=0.5").reason
    '2 rounds done'
    >>> sorted(ours.compare(["local", "fedavg"], seeds=[0, 4]).frame["algorithm"])
    ['fedavg', 'local']
    """

    network: Network
    clients: Given | Federation
    _: KW_ONLY
    test: Given | None = None
    rounds: int = 20
    settings: Mapping[str, Any] | None = None
    loss: api.Loss | None = None
    metrics: Sequence[api.Score] = ()

    def __repr__(self) -> str:
        held = self.clients.clients if isinstance(self.clients, Federation) else self.clients
        changed = "".join(f", {name}={value!r}" for name, value in (self.settings or {}).items())
        return f"<Experiment: {len(held)} clients, {self.rounds} rounds{changed}>"

    def advise(self, **options: Any) -> api.Advice:
        """Advise on a method, groups and settings: `kinfolk.advise`, which plans rounds of its own."""
        return api.advise(self.network, self.clients, **self._given(), **options)

    def run(self, algorithm: api.Algorithm = "fedavg", **options: Any) -> Result:
        """Run one algorithm: `kinfolk.run`."""
        return api.run(self.network, self.clients, algorithm, rounds=self.rounds, **self._given(), **options)

    def compare(self, algorithms: Sequence[api.Algorithm] = api.DEFAULT, **options: Any) -> api.Comparison:
        """Compare algorithms: `kinfolk.compare`."""
        given = {"rounds": self.rounds, **self._given()}
        return api.compare(self.network, self.clients, algorithms, **given, **options)

    def choose_k(self, algorithm: api.Algorithm = "fesem", **options: Any) -> api.KChoice:
        """Say how many groups there are, by short runs: `kinfolk.choose_k`."""
        return api.choose_k(self.network, self.clients, algorithm, **self._given(), **options)

    def tune(self, algorithms: Sequence[api.Algorithm] = api.DEFAULT, **options: Any) -> api.Tuned:
        """Find the settings that suit each algorithm best: `kinfolk.tune`."""
        return api.tune(
            self.network, self.clients, algorithms, rounds=self.rounds, **self._given(), **options
        )

    def _given(self) -> dict[str, Any]:
        return {"test": self.test, "settings": api.with_settings(self.settings, self.loss, self.metrics)}
