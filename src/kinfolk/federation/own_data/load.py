"""Own data in one call, whatever it is: a store, a folder of clients, a table with a client column."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.files import short
from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.columns import Columns, Recipe
from kinfolk.federation.own_data.folder import read_folder
from kinfolk.federation.own_data.loaded import federate
from kinfolk.federation.own_data.missing import check_missing
from kinfolk.federation.own_data.report import Report, inspect
from kinfolk.federation.own_data.store import is_store, read_store, store_report
from kinfolk.federation.own_data.tables import TABLES, read_table
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed

# What a `[data]` table may say of rows that already belong to clients.
_SAYS = (
    *("name", "path", "client_column", "label_column", "missing", "valid", "test_fraction", "seed"),
    *("columns", "categorical", "dates", "fill", "resize", "standardize", "standardize_target"),
)


def load_own(
    path: str | Path,
    *,
    client: str | None = None,
    label: str | None = None,
    test_fraction: float = 0.2,
    valid: float = 0.0,
    missing: str = "refuse",
    verify: bool = False,
    columns: Columns | Recipe = Columns(),  # noqa: B008 - never changes
    seed: Seed = Seed(0),  # noqa: B008 - a Seed never changes
) -> tuple[Federation, Report]:
    """The federation at `path` and a report on it. Rows are not standardised: that is for a run to do.

    `client` names the client column of a table and has no place elsewhere. `columns` says which
    columns are features, and which of them are categories or dates. A store keeps the splits and
    columns it was written with, so it takes none of the options; the seed does not change it. `verify`
    compares the checksums of a store's large files too, which reads all of it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = "".join(f"{who},{i},{i % 2}\\n" for who in ("ann", "bob") for i in range(5))
    ...     _ = (Path(folder) / "all.csv").write_text("who,age,y\\n" + rows)
    ...     federation, report = load_own(Path(folder) / "all.csv", client="who")
    >>> federation.clients, federation.splits["test"].counts(), report.balance
    (('ann', 'bob'), tensor([1, 1]), {'0': 6, '1': 4})
    """
    path = Path(path)
    check_missing(missing)
    if not path.exists():
        raise KinfolkError("data.path", short(path), "there is no such file or folder")
    if path.is_dir() and client is not None:
        raise KinfolkError("client", client, "a folder names its clients itself; leave client out")
    if is_store(path):
        given = columns if columns != Columns() and isinstance(columns, Columns) else None
        _usual(label=label, test_fraction=test_fraction, valid=valid, missing=missing, columns=given)
        return read_store(path, verify=verify), store_report(path)
    if path.is_dir():
        found = read_folder(path, label, missing=missing, columns=columns)
    else:
        found = read_table(path, _client(path, client), label, missing=missing, columns=columns)
    return federate(found, test_fraction=test_fraction, valid=valid, seed=seed), inspect(found)


def _usual(**given: object) -> None:
    usual = {"label": None, "test_fraction": 0.2, "valid": 0.0, "missing": "refuse", "columns": None}
    for name, value in given.items():
        if value != usual[name]:
            raise KinfolkError(name, value, "a store is settled; leave it out, or import the data again")


def _client(path: Path, client: str | None) -> str:
    if path.suffix.lower() not in TABLES:
        remedy = f"give a folder with one file per client, a store, or a table ({', '.join(TABLES)})"
        raise KinfolkError("data.path", short(path), remedy)
    if client is None:
        raise KinfolkError("client", None, f"name the column of {path.name} that says whose each row is")
    return client


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
    path = Path(spec.path)
    if path.is_file() and path.suffix.lower() in TABLES and not spec.client_column:
        remedy = f"name the column of {path.name} that says whose each row is"
        raise KinfolkError("data.client_column", None, remedy)
    options: dict[str, Any] = {"valid": spec.valid, "test_fraction": spec.test_fraction}
    if is_store(spec.path):  # it was split when it was written, and refuses what was asked for all the same
        options = {name: value for name, value in options.items() if value != usual[name]}
    return load_own(
        path,
        client=spec.client_column or None,
        label=spec.label_column or None,
        missing=spec.missing,
        columns=Columns.parse(spec.columns, spec.categorical, spec.dates, spec.fill, spec.resize),
        seed=seed,
        **options,
    )
