"""Data by name: the table of sources, and `build`, which turns a `[data]` table into a federation.

A new source is one file and one line in `SOURCES`. Sources with one pool of labelled rows end in
`from_pool`, those with a pool per group in `from_groups`; those whose rows already belong to
clients make their own `Federation` and `check` it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kinfolk.errors import KinfolkError, near
from kinfolk.federation.digits import digits
from kinfolk.federation.federation import Federation
from kinfolk.federation.groups import GROUPS
from kinfolk.federation.laws import TEST_LAWS
from kinfolk.federation.partition import ALPHA_MEANS, PARTITIONS
from kinfolk.federation.recipe import from_pool, group_count
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed

__all__ = ["SOURCES", "DataSpec", "Source", "build", "check_spec"]


@dataclass(frozen=True)
class Source:
    """Where rows come from: one line about it, and how to load it as a federation."""

    line: str
    load: Callable[[DataSpec, Seed], Federation]


def _digits(spec: DataSpec, seed: Seed) -> Federation:
    return from_pool(digits(spec.test_fraction, seed), spec, seed)


def _own(spec: DataSpec, seed: Seed) -> Federation:
    remedy = "these rows were given in Python and are not in the file; start the run from Python again"
    raise KinfolkError("data.name", spec.name, remedy)


SOURCES: dict[str, Source] = {
    "digits": Source("scikit-learn's 1797 digits of 8 by 8, dealt to made-up clients", _digits),
    "own": Source("your own rows, given in Python as one (x, y) per client", _own),
}


def check_spec(spec: DataSpec) -> None:
    """Refuse a table that can not be built, naming the field, the value and the remedy.

    >>> check_spec(DataSpec(shift="rotations"))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.shift = 'rotations': did you mean 'rotation'?
    """
    tables: dict[str, Iterable[str]] = {
        "name": SOURCES,
        "shift": GROUPS,
        "partition": PARTITIONS,
        "alpha_means": ALPHA_MEANS,
        "test": TEST_LAWS,
    }
    for field, known in tables.items():
        if getattr(spec, field) not in known:
            raise KinfolkError(f"data.{field}", getattr(spec, field), near(str(getattr(spec, field)), known))
    most = GROUPS[spec.shift].most or spec.groups
    # Written so that NaN fails every comparison.
    rules = [
        ("clients", spec.clients >= 1, "give at least one client"),
        ("rows", spec.rows >= 1, "give each client at least one row"),
        ("groups", spec.groups >= 1, "give at least one group"),
        ("groups", group_count(spec) <= most, f"shift {spec.shift!r} makes at most {most} groups"),
        ("groups", group_count(spec) <= spec.clients, f"no more groups than the {spec.clients} clients"),
        ("alpha", 0 < spec.alpha < math.inf, "give a positive number"),
        ("valid", 0 <= spec.valid < 1, "give a fraction, 0 or more and below 1"),
        ("test_fraction", 0 < spec.test_fraction < 1, "give a fraction above 0 and below 1"),
        ("ragged", 0 <= spec.ragged <= 3, "give a spread from 0 (all equal) to 3"),
        ("seed", spec.seed >= -1, "give -1 (the seed of the run) or a seed of 0 or more"),
    ]
    for field, holds, remedy in rules:
        if not holds:
            raise KinfolkError(f"data.{field}", getattr(spec, field), remedy)


def build(spec: DataSpec, seed: Seed) -> Federation:
    """The federation a `[data]` table describes; the same spec and seed give the same bits.

    >>> f = build(DataSpec(clients=8, rows=20), Seed(1))
    >>> len(f.clients), f.truth.bincount(), f.shape
    (8, tensor([2, 2, 2, 2]), (1, 8, 8))
    """
    check_spec(spec)
    return SOURCES[spec.name].load(spec, seed if spec.seed == -1 else Seed(spec.seed))
