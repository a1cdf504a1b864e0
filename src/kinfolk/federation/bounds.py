"""What the values of a `[data]` table must satisfy, each with what to do if one does not."""

from __future__ import annotations

import math

from kinfolk.federation.assemble import group_count
from kinfolk.federation.datasets.multi_source import DIGIT_SOURCES
from kinfolk.federation.partition.partitions import PARTITIONS
from kinfolk.federation.shifts import SHIFTS
from kinfolk.federation.spec import DataSpec
from kinfolk.federation.synthetic import SYNTHETIC

# (field, whether its value will do, what to do otherwise)
Bound = tuple[str, bool, str]

_OF_COLUMNS = ("columns", "categorical", "dates", "fill", "resize")
# Names and places of more would take the memory of most machines before the first row is made.
MOST_CLIENTS, MOST_ROWS = 10_000_000, 1_000_000_000
_POSITIVE = "give a positive number"
_VARIANCE = "give a variance, 0 or more"


def bounds(spec: DataSpec) -> list[Bound]:
    """All bounds of a table whose names are known; written so that NaN fails every comparison.

    >>> [field for field, holds, _ in bounds(DataSpec(rows=0)) if not holds]
    ['rows']
    """
    return [*_counts(spec), *_groups(spec), *_numbers(spec), *_text(spec), *_synthetic(spec), *_own(spec)]


def _counts(spec: DataSpec) -> list[Bound]:
    partition = PARTITIONS[spec.partition]
    natural = partition.deal is None
    fewest = 1 if spec.name in SYNTHETIC or (partition.reuse and partition.sized) else 0
    shard = spec.partition != "shards" or spec.rows == 0 or spec.shards <= spec.rows
    return [
        ("clients", spec.clients >= (not natural), "give at least one client"),
        ("clients", spec.clients <= MOST_CLIENTS, f"give at most {MOST_CLIENTS:,} clients"),
        ("rows", spec.rows >= fewest, "give each client at least one row"),
        ("rows", spec.rows <= MOST_ROWS, f"give each client at most {MOST_ROWS:,} rows"),
        ("shards", spec.shards >= 1, "give each client at least one piece"),
        ("shards", shard, f"no more pieces than the {spec.rows} rows of a client"),
        ("min_rows", spec.min_rows >= 1, "give at least one row"),
        ("test_rows", spec.test_rows >= 0, "give 0 (in proportion to the training rows) or more"),
        ("seed", spec.seed >= -1, "give -1 (the seed of the run) or a seed of 0 or more"),
    ]


def _groups(spec: DataSpec) -> list[Bound]:
    own = spec.name in (*SYNTHETIC, "multi_source", "manuals")
    most = len(DIGIT_SOURCES) if spec.name == "multi_source" else SHIFTS[spec.shift].most or spec.groups
    allowed = ("source",) if spec.name == "multi_source" else ("source", "none")
    named = group_count(spec) <= spec.clients or (
        PARTITIONS[spec.partition].deal is None and spec.clients == 0
    )
    alone = spec.name in SYNTHETIC and not SYNTHETIC[spec.name].grouped
    return [
        ("groups", spec.groups >= 1, "give at least one group"),
        ("shift", spec.shift == "none" or not alone, f"{spec.name!r} has no groups; use 'none'"),
        ("shift", spec.shift in allowed or not own, f"{spec.name!r} makes its groups itself; use 'source'"),
        ("shift", own or spec.shift != "source", f"{spec.name!r} is one source; use 'multi_source' as name"),
        ("groups", group_count(spec) <= most, f"shift {spec.shift!r} makes at most {most} groups"),
        ("groups", named, f"no more groups than the {spec.clients} clients"),
        ("noise", spec.noise > 0 or spec.shift != "noise", "give more than 0, or the groups do not differ"),
        ("channels", spec.channels in (1, 3), "give 1, grey, or 3, coloured"),
        ("contrast", 0 < spec.contrast < 1, "give a number above 0 and below 1"),
    ]


def _numbers(spec: DataSpec) -> list[Bound]:
    return [
        ("alpha", 0 < spec.alpha < math.inf, _POSITIVE),
        ("valid", 0 <= spec.valid < 1, "give a fraction, 0 or more and below 1"),
        ("test_fraction", 0 < spec.test_fraction < 1, "give a fraction above 0 and below 1"),
        ("ragged", 0 <= spec.ragged <= 3, "give a spread from 0 (all equal) to 3"),
        ("scale_rows", 0 < spec.scale_rows < math.inf, _POSITIVE),
        ("noise", 0 <= spec.noise < math.inf, "give 0 or more"),
    ]


def _text(spec: DataSpec) -> list[Bound]:
    return [
        ("window", spec.window >= 1, "give at least one character"),
        ("stride", spec.stride >= 0, "give 0 (rows do not overlap) or more"),
        ("targets", spec.targets in ("next", "every"), "give 'next' or 'every'"),
    ]


def _synthetic(spec: DataSpec) -> list[Bound]:
    made, plain = spec.name in SYNTHETIC, spec.partition in ("iid", "dirichlet")
    shared = not made or SYNTHETIC[spec.name].grouped or spec.test == "local"
    return [
        ("partition", plain or not made, f"{spec.name!r} has no rows to deal; use 'iid' or 'dirichlet'"),
        ("test", shared, f"{spec.name!r} has no groups; use 'local'"),
        ("features", spec.features >= 1, "give at least one feature"),
        ("classes", spec.classes >= 2, "give at least two classes"),
        ("separation", 0 < spec.separation < math.inf, _POSITIVE),
        ("leaf_alpha", 0 <= spec.leaf_alpha < math.inf, _VARIANCE),
        ("leaf_beta", 0 <= spec.leaf_beta < math.inf, _VARIANCE),
    ]


def _own(spec: DataSpec) -> list[Bound]:
    return [
        (field, spec.name == "own" or not getattr(spec, field), 'only "own" rows have it; leave it out')
        for field in ("path", "client_column", "label_column", *_OF_COLUMNS)
    ]
