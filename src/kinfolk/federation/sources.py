"""Data by name: the table of sources, and `build`, which turns a `[data]` table into a federation.

A data set from files is a loader and an entry in `CATALOGUE`; a synthetic one a class and a line in
`SYNTHETIC`; another source a file and a line in `SOURCES`. Sources of labelled rows end in `from_rows`, those
with a pool per group in `from_groups`; those whose rows already belong to clients make their own `Federation`
and `check` it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kinfolk.errors import KinfolkError, near
from kinfolk.federation.assemble import from_rows
from kinfolk.federation.bounds import bounds
from kinfolk.federation.datasets.catalogue import CATALOGUE, data_root, find
from kinfolk.federation.datasets.digits import scikit_digits
from kinfolk.federation.datasets.multi_source import DIGIT_SOURCES, multi_source
from kinfolk.federation.datasets.rows import Rows
from kinfolk.federation.datasets.text import windows
from kinfolk.federation.federation import Federation
from kinfolk.federation.partition.choose_tests import TEST_SPLITS
from kinfolk.federation.partition.partitions import ALPHA_MEANS, PARTITIONS
from kinfolk.federation.scaling import RULES, TARGET_RULES, standardized
from kinfolk.federation.shifts import SHIFTS
from kinfolk.federation.spec import DataSpec
from kinfolk.federation.summary import federation_notes, row_notes
from kinfolk.federation.synthetic import SYNTHETIC, synthetic
from kinfolk.streams import Seed

__all__ = ["SOURCES", "DataSpec", "Source", "build", "check_spec", "explain"]


@dataclass(frozen=True)
class Source:
    """Where rows come from: one line about it, and how to load it as a federation."""

    line: str
    load: Callable[[DataSpec, Seed], Federation]
    files: tuple[str, ...] = ()  # names in the catalogue whose files it reads


def _digits(spec: DataSpec, seed: Seed) -> Federation:
    return from_rows(scikit_digits(), spec, seed)


def _own(spec: DataSpec, seed: Seed) -> Federation:
    if not spec.path:
        remedy = "rows given in Python are not in the file: start from Python again, or set data.path"
        raise KinfolkError("data.name", spec.name, remedy)
    from kinfolk.federation.own_data.load import own_data  # reads tables: pandas takes half a second

    return own_data(spec, seed)[0]


def _found(name: str, spec: DataSpec) -> Rows:
    return windows(find(name, data_root()), spec)


def _from_files(spec: DataSpec, seed: Seed) -> Federation:
    return from_rows(_found(spec.name, spec), spec, seed)


def _multi_source(spec: DataSpec, seed: Seed) -> Federation:
    return multi_source(spec, seed, lambda name: _found(name, spec))


SOURCES: dict[str, Source] = {
    "digits": Source("scikit-learn's 1797 digits of 8 by 8, dealt to invented clients", _digits),
    **{name: Source(entry.line, _from_files, (name,)) for name, entry in CATALOGUE.items()},
    "multi_source": Source(
        "digits of MNIST, USPS, SVHN and SIGN, one of them to each group, 32 by 32",
        _multi_source,
        DIGIT_SOURCES,
    ),
    **{name: Source(task.line, synthetic) for name, task in SYNTHETIC.items()},
    "own": Source("your own rows: a store, folder or table at data.path, or given in Python", _own),
}


def check_spec(spec: DataSpec) -> None:
    """Refuse a table that cannot be built, naming the field, the value and the remedy.

    >>> check_spec(DataSpec(shift="rotations"))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.shift = 'rotations': did you mean 'rotation'?
    """
    tables: dict[str, Iterable[str]] = {
        "name": SOURCES,
        "shift": SHIFTS,
        "partition": PARTITIONS,
        "alpha_means": ALPHA_MEANS,
        "test": TEST_SPLITS,
        "standardize": RULES,
        "standardize_target": TARGET_RULES,
    }
    for field, known in tables.items():
        if getattr(spec, field) not in known:
            raise KinfolkError(f"data.{field}", getattr(spec, field), near(str(getattr(spec, field)), known))
    for field, holds, remedy in bounds(spec):
        if not holds:
            raise KinfolkError(f"data.{field}", getattr(spec, field), remedy)


def build(spec: DataSpec, seed: Seed) -> Federation:
    """The federation a `[data]` table describes; the same spec and seed give the same bits.

    >>> f = build(DataSpec(clients=8, rows=20), Seed(1))
    >>> len(f.clients), f.truth.bincount(), f.shape
    (8, tensor([2, 2, 2, 2]), (1, 8, 8))
    """
    check_spec(spec)
    rows = SOURCES[spec.name].load(spec, _seed(spec, seed))
    return standardized(rows, spec.standardize, spec.standardize_target)


def explain(spec: DataSpec, seed: Seed, federation: Federation | None = None) -> list[str]:
    """What was left out, filled in or never dealt, one line each; builds the federation unless it is given.

    >>> explain(DataSpec(clients=2, rows=20, groups=2, test="global"), Seed(0))
    ['2,674 rows of 3,594 in the pool are unassigned']
    """
    federation = build(spec, seed) if federation is None else federation
    seeded, files = _seed(spec, seed), SOURCES[spec.name].files
    notes = [note for name in files for note in row_notes(_found(name, spec), spec, seeded)]
    if spec.path:
        from kinfolk.federation.own_data.load import own_data

        report = own_data(spec, seeded)[1]
        notes += report.notes
        notes += [f"left out: {number:,} ({why})" for why, number in report.left_out.items()]
    return notes + federation_notes(federation)


def _seed(spec: DataSpec, seed: Seed) -> Seed:
    return seed if spec.seed == -1 else Seed(spec.seed)
