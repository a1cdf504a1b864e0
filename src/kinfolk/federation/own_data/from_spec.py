"""Own data that an experiment file names by its path."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.load import load_own
from kinfolk.federation.own_data.report import Report
from kinfolk.federation.own_data.store import is_store
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed

# What a `[data]` table may say of rows that already belong to clients.
_SAYS = ("name", "path", "client_column", "label_column", "missing", "valid", "test_fraction", "seed")


def own_data(spec: DataSpec, seed: Seed) -> tuple[Federation, Report]:
    """The federation at `spec.path`, and the report on it.

    >>> own_data(DataSpec("own", path="hospitals", partition="iid"), Seed(0))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.partition = 'iid': own rows are whose they are; leave it out
    """
    usual = {field.name: field.default for field in fields(DataSpec)}
    for name, value in usual.items():
        if name not in _SAYS and getattr(spec, name) != value:
            raise KinfolkError(
                f"data.{name}", getattr(spec, name), "own rows are whose they are; leave it out"
            )
    options: dict[str, Any] = {"valid": spec.valid, "test_fraction": spec.test_fraction}
    if is_store(spec.path):  # it was split when it was written, and refuses what was asked for all the same
        options = {name: value for name, value in options.items() if value != usual[name]}
    return load_own(
        Path(spec.path),
        client=spec.client_column or None,
        label=spec.label_column or None,
        missing=spec.missing,
        seed=seed,
        **options,
    )


def own_notes(report: Report) -> list[str]:
    """What was decided and left out when own data were read, one line each.

    >>> from kinfolk.federation.own_data.report import inspect
    >>> from kinfolk.federation.own_data.loaded import LoadedClients
    >>> import numpy as np
    >>> rows = np.zeros((5, 2)), np.array([0, 1, 0, 1, 0])
    >>> own_notes(inspect(LoadedClients({"ann": rows}, ("a", "b"), left_out={"a torn line": 2})))
    ['left out: 2 (a torn line)']
    """
    return [*report.notes, *(f"left out: {number:,} ({why})" for why, number in report.left_out.items())]
