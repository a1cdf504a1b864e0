"""A finished run opened again, and newcomers' rows brought into its terms: the same classes and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kinfolk.algorithms.blocks.many_models import in_use
from kinfolk.engines.spec import EngineSpec
from kinfolk.errors import KinfolkError
from kinfolk.experiment.checkpoint import load_latest
from kinfolk.experiment.left_out import left_out
from kinfolk.experiment.outline import FILE as OUTLINE
from kinfolk.experiment.outline import read_outline
from kinfolk.experiment.score_again import read_run
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import dump, load
from kinfolk.federation.federation import Federation, labels_of
from kinfolk.federation.own_data.columns import Recipe, Source
from kinfolk.federation.own_data.load import load_own, own_data
from kinfolk.federation.own_data.report import Report
from kinfolk.federation.own_data.store import is_store
from kinfolk.federation.scaling import Scaling, with_scaling
from kinfolk.streams import Seed
from kinfolk.types import Tree, plain_rows


@dataclass(frozen=True)
class Trained:
    """What a run has left: the models of its groups, and what its labels mean."""

    folder: Path
    spec: Experiment
    round: int
    centres: Tree  # every leaf [K, ...]: of the groups that have members
    groups: tuple[int, ...]  # [K]: the numbers that the run gave them
    clients: tuple[str, ...]
    classes: int
    class_names: tuple[str, ...]  # what its own data called the classes; empty where nobody knows
    feature_names: tuple[str, ...]
    warnings: tuple[str, ...]
    scaling: Scaling | None = None  # how its rows were standardised
    recipe: Recipe | None = None  # how they came out of raw columns

    @property
    def k(self) -> int:
        """How many models there are."""
        return len(next(iter(self.centres.values())))


def open_run(folder: str | Path) -> Trained:
    """The newest checkpoint of a run with groups; whatever will not do is one line.

    >>> open_run("nowhere")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run = 'nowhere': is no run folder; name one that `kinfolk run` has written
    """
    folder = Path(folder)
    facts = read_run(folder)
    spec = load(folder / "spec.toml")
    loaded, complaints = load_latest(folder / "checkpoints", dump(spec))
    if loaded is None:
        raise KinfolkError("run", str(folder), "has no checkpoint yet; let it finish a round first")
    if facts["status"] != "finished":
        complaints.append(f"the run is not finished; its models of round {loaded.number} are used")
    centres, groups = in_use(loaded.tensors["state"])
    if not groups:
        remedy = f"{facts['title']} has no groups: there is nothing to choose; name a run with several"
        raise KinfolkError("run", str(folder), remedy)
    report = _own_report(spec)
    outline = read_outline(folder) if (folder / OUTLINE).exists() else None  # an older version wrote none
    return Trained(
        folder,
        # Whatever machinery the run had: a few questions need no more than this machine's best.
        replace(spec, engine=EngineSpec(precision=spec.engine.precision)),
        loaded.number,
        centres,
        groups,
        tuple(loaded.facts["state"].get("clients", ())),
        int(facts["federation"]["classes"]),
        outline.class_names if outline and spec.data.name == "own" else report.class_names if report else (),
        report.feature_names if report else (),
        tuple(complaints),
        outline.scaling if outline else None,
        outline.recipe if outline else None,
    )


def _own_report(spec: Experiment) -> Report | None:
    """What the run's own data were called, if they are still where they were."""
    if spec.data.name != "own" or not spec.data.path or not Path(spec.data.path).exists():
        return None
    return own_data(spec.data, Seed(spec.run.seed))[1]


def read_newcomers(
    path: str | Path,
    trained: Trained,
    *,
    client: str | None = None,
    label: str | None = None,
    missing: str | None = None,
) -> Federation:
    """Newcomers' rows from a store, a folder of clients or a table, with the classes of the run.

    Columns are named as the run named its own, unless said otherwise; features are made of them as they were
    for the run, and others are left alone.
    """
    said, given = trained.spec.data, {"label": label, "missing": missing}
    if said.name == "own" and not is_store(path):
        given = {"label": label or said.label_column or None, "missing": missing or said.missing}
        client = client or (said.client_column if not Path(path).is_dir() else "") or None
    options: Any = {name: value for name, value in given.items() if value is not None}
    options |= {} if is_store(path) else {"columns": _recipe(trained)}
    federation, report = load_own(path, client=client, seed=Seed(trained.spec.run.seed), **options)
    _same_columns(report.feature_names, trained.feature_names)
    return in_terms_of(federation, report.class_names, trained)


def _recipe(trained: Trained) -> Recipe:
    """How the run made its rows, columns that are features as they are included."""
    recipe = trained.recipe or Recipe()
    if recipe.sources or not trained.feature_names:
        return recipe
    return replace(recipe, sources=tuple(map(Source, trained.feature_names)))


def _same_columns(mine: Sequence[str], theirs: Sequence[str]) -> None:
    """Refuse columns that are not the run's, in its order; rows without named columns are let through."""
    if mine and theirs and mine != theirs:
        at = next((pair for pair in zip(mine, theirs, strict=False) if pair[0] != pair[1]), None)
        told = f"{at[0]!r} stands where the run has {at[1]!r}" if at else f"the run has {len(theirs)}"
        raise KinfolkError("newcomers", list(mine), f"give the columns of the run in its order; {told}")


def in_terms_of(federation: Federation, names: Sequence[str], trained: Trained) -> Federation:
    """The federation with its labels numbered as in the run, and standardised by the statistics of the run.

    `names` are what it calls its own classes. Names decide, not numbers: newcomers may lack classes, and then
    count the others differently. Where each client of the run has statistics of its own, newcomers do too.
    """
    if federation.scaling is not None:
        remedy = "these rows are standardised by statistics of their own; give them as they came"
        raise KinfolkError("newcomers", federation.name, remedy)
    if all(name.isdecimal() for name in names):  # of words the numbers are not yet those of the run
        federation, _ = left_out(federation, trained.spec.local.loss_options)
    numbered = _numbered(federation, names, trained)
    scaling = trained.scaling
    if scaling is not None and scaling.by == "client":
        scaling = replace(scaling, rows={})
    return numbered if scaling is None else with_scaling(numbered, scaling)


def _numbered(federation: Federation, names: Sequence[str], trained: Trained) -> Federation:
    if bool(federation.classes) != bool(trained.classes):
        mine, theirs = (_kind(classes) for classes in (federation.classes, trained.classes))
        raise KinfolkError("newcomers", mine, f"the run has {theirs}; give labels of that kind")
    if not trained.classes:
        return federation
    names = names or tuple(map(str, range(federation.classes)))
    known = trained.class_names or tuple(map(str, range(trained.classes)))
    number = {name: i for i, name in enumerate(known)}
    every = torch.arange(federation.rows)
    used = (
        torch.unique(labels_of(federation, every)).tolist()
        if federation.maker is None
        else range(federation.classes)
    )
    for old in used:
        if names[old] not in number:
            told = f"{', '.join(known[:6])}{', ...' if len(known) > 6 else ''}"
            raise KinfolkError("label", names[old], f"the run knows no such class; it has {told}")
    table = torch.tensor([number.get(name, -1) for name in names], dtype=torch.int64)
    y = plain_rows(federation.y).cpu()
    # What is left out of the loss is no class, and stays what it is.
    return replace(federation, y=torch.where(y >= 0, table[y.clamp(min=0)], y), classes=trained.classes)


def _kind(classes: int) -> str:
    return f"{classes} classes" if classes else "numbers to predict"
