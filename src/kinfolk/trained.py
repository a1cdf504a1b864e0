"""A run that can be used: its models, their predictions, and what is written to take them elsewhere.

Opening one needs no torch; it is imported when a model is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import KinfolkError
from kinfolk.report.read import Run, load_run

if TYPE_CHECKING:
    from torch import nn

    from kinfolk.experiment.build import Network
    from kinfolk.experiment.kept_models import KeptModels
    from kinfolk.experiment.outline import Outline
    from kinfolk.federation.federation import Federation
    from kinfolk.federation.own_data.arrays import Given

Kind = Literal["personal", "centre", "fine-tuned"]


class TrainedRun(Run):
    """One run folder with its models. All that `Run` tells of records is here too."""

    _network: Any = None
    _clients: Any = None
    _test: Any = None

    @cached_property
    def _kept(self) -> KeptModels:
        from kinfolk.experiment.kept_models import KeptModels

        federation = None if self._clients is None else self._federation()
        return KeptModels(self.path, self._network, federation)

    def _federation(self) -> Federation:
        from kinfolk.experiment.spec import load as load_spec
        from kinfolk.federation.federation import Federation
        from kinfolk.federation.own_data.arrays import from_arrays
        from kinfolk.streams import Seed

        if isinstance(self._clients, Federation):
            return self._clients
        spec = load_spec(self.path / "spec.toml")
        data, seed = spec.data, Seed(spec.run.seed)
        held = data.valid, data.test_fraction
        return from_arrays(self._clients, test=self._test, valid=held[0], test_fraction=held[1], seed=seed)

    @property
    def kept_rounds(self) -> tuple[int, ...]:
        """The rounds whose models are kept; `run.keep` decides which."""
        return self._kept.rounds

    def model(
        self,
        client: str | None = None,
        group: int | None = None,
        *,
        kind: Kind | None = None,
        round: str | int = "last",
    ) -> nn.Module:
        """A model as a plain network in `eval` mode; it shares nothing with the run.

        Args:
            client: whose model; may be left out where there is one for everyone.
            group: or the model of which group.
            kind: `"personal"`, `"centre"` or `"fine-tuned"`; the method's main one if not given.
            round: `"last"`, `"best"` (on validation rows) or a number; `kept_rounds` tells which there are.
        """
        return self.models_of([client], group, kind=kind, round=round)[client]

    def models_of(
        self,
        clients: Sequence[str | None],
        group: int | None = None,
        *,
        kind: Kind | None = None,
        round: str | int = "last",
    ) -> dict[str | None, nn.Module]:
        """The models of several clients, by name: cheaper than one by one where they are trained again."""
        kept = self._kept
        which, number = kept.kind(kind), kept.round(round)
        who = {name: self._whose(name, group, which, number) for name in clients}
        trees = kept.trees(sorted(set(who.values())), which, number)
        return {name: kept.network(which, trees[one]) for name, one in who.items()}

    def _whose(self, client: str | None, group: int | None, kind: str, round: int) -> Any:
        kept = self._kept
        if client is not None and group is not None:
            raise KinfolkError("group", group, f"belongs to no single client; leave out it or {client!r}")
        if client is not None:
            return kept.client(client)
        return kept.anybody(kind, round) if group is None else kept.member(group, kind, round)

    def predict(
        self,
        x: Any,
        client: str | None = None,
        group: int | None = None,
        *,
        kind: Kind | None = None,
        round: str | int = "last",
        proba: bool = False,
    ) -> NDArray[Any]:
        """What a model says of rows: labels as the data name them, or the number to predict.

        Args:
            x: rows as an array, a tensor or a data frame, in which columns are found by name; of several
                inputs a dict or a tuple of them, of sequences a list.
            client: whose model, as in `model`.
            group: or the model of which group.
            kind: which kind of model.
            round: of which round.
            proba: give the probability of every class instead, [rows, classes].
        """
        from kinfolk.experiment.predict import outputs, rows_for, said

        outline = self._kept.outline
        rows = rows_for(x, outline)
        model = self.model(client, group, kind=kind, round=round)
        out = outputs(model, rows, outline, self._kept.spec.model.output)
        return said(out, outline, proba)

    @property
    def outline(self) -> Outline:
        """What is known of the rows: clients, shape, classes, columns."""
        return self._kept.outline

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the classes are called, in the order of `predict(..., proba=True)`; none for numbers."""
        outline = self._kept.outline
        return outline.class_names or tuple(map(str, np.arange(outline.classes)))

    def export(
        self,
        folder: str | Path,
        client: str | None = None,
        group: int | None = None,
        *,
        kind: Kind | None = None,
        round: str | int = "last",
        formats: Sequence[str] = ("safetensors",),
        licence: str = "",
    ) -> list[Path]:
        """Write a model and its card into a folder: safetensors, and `"torch"` (.pt2) or `"onnx"` if wanted.

        Args:
            folder: where to; it must be new or empty.
            client: whose model, as in `model`.
            group: or the model of which group.
            kind: which kind of model.
            round: of which round.
            formats: some of `"safetensors"`, `"torch"`, `"onnx"`.
            licence: what the card says of it; a note that nothing was said if not given.
        """
        from kinfolk.experiment.card import Wanted
        from kinfolk.experiment.export import check_formats, export

        check_formats(formats)
        kept = self._kept
        which, number = kept.kind(kind), kept.round(round)
        network = self.model(client, group, kind=kind, round=round)
        return export(network, kept, Wanted(which, number, client, group, licence), Path(folder), formats)

    def export_all(
        self,
        folder: str | Path,
        *,
        kind: Kind | None = None,
        round: str | int = "last",
        formats: Sequence[str] = ("safetensors",),
        licence: str = "",
    ) -> list[Path]:
        """Write every model there is, each into a folder of its own: of groups, of clients, or the one.

        The arguments are those of `export`.
        """
        from kinfolk.experiment.export import export_all

        kept = self._kept
        return export_all(kept, kept.kind(kind), kept.round(round), Path(folder), formats, licence)


def load(
    folder: str | Path,
    *,
    network: Network | None = None,
    clients: Given | Federation | None = None,
    test: Given | None = None,
) -> TrainedRun:
    """Open a run: its records as with `load_run`, and its models.

    Args:
        folder: a run folder.
        network: the network of the run, if it was one of yours that cannot be imported by name.
        clients: the rows that the run began with, if they were given in Python; only for models that are
            trained again (fine-tuned ones).
        test: the test rows that were given with them.

    >>> import tempfile, torch, kinfolk
    >>> from torch import nn
    >>> rows = {who: (torch.eye(4), torch.arange(4)) for who in ("ann", "bob")}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = kinfolk.run(nn.Linear(4, 4), rows, "fedavg", rounds=30, folder=folder + "/run")
    ...     run = load(folder + "/run", network=nn.Linear(4, 4))
    ...     run.model(), run.predict(torch.eye(4), client="ann").shape
    (Linear(in_features=4, out_features=4, bias=True), (4,))
    """
    found = load_run(folder)
    run = TrainedRun(found.path, found.facts)
    run.__dict__.update(_network=network, _clients=clients, _test=test)
    return run
