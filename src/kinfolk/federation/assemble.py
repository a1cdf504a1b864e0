"""From pools to a federation: groups, sizes, training rows, validation rows, test rows, in this order.

Every draw about a client comes from a stream named after that client.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.rows import Rows
from kinfolk.federation.federation import Federation, Split, client_names, pack
from kinfolk.federation.partition.choose_tests import TEST_SPLITS, Dealt
from kinfolk.federation.partition.draws import row_counts
from kinfolk.federation.partition.holdout import Ints, by_owner
from kinfolk.federation.partition.partitions import PARTITIONS
from kinfolk.federation.pool import Pool, pool_of
from kinfolk.federation.shifts import How, end_to_end, shifted
from kinfolk.federation.soundness import check
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed
from kinfolk.types import Client


def group_count(spec: DataSpec) -> int:
    """How many groups there are: without a shift one, whatever `groups` says.

    >>> group_count(DataSpec(groups=3)), group_count(DataSpec(groups=3, shift="none"))
    (3, 1)
    """
    return 1 if spec.shift == "none" else spec.groups


def _training(
    groups: Sequence[Pool], group: dict[Client, int], spec: DataSpec, seed: Seed
) -> dict[Client, Ints]:
    """Each client's rows among those its group trains on, in order of name."""
    partition = PARTITIONS[spec.partition]
    if partition.deal is None:  # the same rows whatever the group: it only sees them differently
        pool = groups[0]
        assert pool.owner is not None
        own = by_owner(pool.owner[pool.train], len(pool.names))
        return {who: pool.train[place] for who, place in zip(pool.names, own, strict=True)}
    rows: dict[Client, Ints] = {}
    for g, pool in enumerate(groups):
        names = [who for who in group if group[who] == g]
        sizes = dict.fromkeys(names, 0)
        if partition.sized:
            sizes = row_counts(names, len(pool.train), spec, seed)
        dealt = partition.deal(pool.labels[pool.train], sizes, spec, seed)
        rows |= {who: pool.train[place] for who, place in dealt.items()}
    return {who: rows[who] for who in group}


def _splits(dealt: Dealt, rows: dict[Client, Ints], spec: DataSpec, seed: Seed) -> dict[str, Split]:
    """Who learns from what, validates on what and is tested on what, as rows of all groups together."""
    sets: dict[str, list[Tensor]] = {"train": [], "valid": []}
    for who, own in rows.items():
        g = dealt.group[who]
        parts = dealt.groups[g].part(own, spec.valid, seed.numpy("data", "valid", who))
        for name, part in zip(sets, parts, strict=True):
            sets[name].append(torch.from_numpy(part + dealt.offset[g]))
    tests, of = TEST_SPLITS[spec.test](dealt)
    packed = {name: pack(parts) for name, parts in sets.items()}
    return {**packed, "test": pack([torch.from_numpy(test) for test in tests], of)}


def from_groups(groups: Sequence[Pool], spec: DataSpec, seed: Seed) -> Federation:
    """Deal pools, one per group and all of one scale, to the clients of `spec`.

    >>> rows = Rows(np.zeros((40, 2), np.float32), np.arange(40) % 4, 4, (1.0, 0.0))
    >>> pool = pool_of(rows, DataSpec(), Seed(0))
    >>> from_groups([pool, pool], DataSpec(clients=4, rows=10), Seed(0)).splits["train"].counts()
    tensor([10, 10, 10, 10])
    """
    assert len({pool.scale for pool in groups}) == 1, "pools of one federation share their scale"
    names = groups[0].names or client_names(spec.clients)
    if len(names) < len(groups):
        raise KinfolkError("data.groups", spec.groups, f"no more groups than the {len(names)} clients")
    # Sizes differ by one at most, and names do not tell the group.
    drawn = seed.numpy("data", "group").permutation(np.arange(len(names)) % len(groups))
    group = dict(zip(sorted(names), drawn.tolist(), strict=True))
    known = groups[0].group if spec.shift == "source" else None
    rows = _training(groups, group, spec, seed)
    offset = np.cumsum([0, *(len(pool.x) for pool in groups)]).tolist()[:-1]
    labels = {who: groups[group[who]].labels[own] for who, own in rows.items()}
    dealt = Dealt(groups, offset, group, labels, spec.test_fraction, seed, spec.test_rows)
    return check(
        Federation(
            clients=tuple(group),
            x=end_to_end([pool.x for pool in groups]),
            y=torch.cat([pool.y for pool in groups]),
            splits=_splits(dealt, rows, spec, seed),
            classes=groups[0].classes,
            truth=torch.tensor(list(group.values()) if known is None else known, dtype=torch.int64),
            name=describe(spec, groups[0].note),
            scale=groups[0].scale,
            class_names=groups[0].class_names,
        )
    )


def from_rows(rows: Rows, spec: DataSpec, seed: Seed) -> Federation:
    """Set test rows apart, make groups and deal: what a loader gave, as a federation.

    >>> rows = Rows(np.zeros((40, 1, 4, 4), np.uint8), np.arange(40) % 4, 4, (1 / 255, 0.0))
    >>> from_rows(rows, DataSpec(clients=4, rows=5), Seed(0)).x.dtype
    torch.uint8
    """
    pool = pool_of(rows, spec, seed)
    if spec.shift == "source":  # clients of known groups: nobody sees anything otherwise than it is
        _check_groups(pool, spec)
        return from_groups([pool], spec, seed)
    how = How(pool.classes, seed, spec.noise, spec.contrast)
    return from_groups(shifted(pool, spec.shift, group_count(spec), how), spec, seed)


def _check_groups(pool: Pool, spec: DataSpec) -> None:
    found = 0 if pool.group is None else len(np.unique(pool.group))
    if found != spec.groups:
        remedy = f"the clients are of {found} known groups; give that number, or shift = 'none' for one group"
        raise KinfolkError("data.groups", spec.groups, remedy)


def describe(spec: DataSpec, note: str = "") -> str:
    """A federation in one short line; `note` tells more of how rows were dealt.

    >>> describe(DataSpec())
    'digits, 4 groups by rotation, dirichlet (alpha_total = 100), group test'
    """
    groups = f"{spec.groups} groups by {spec.shift}" if spec.shift != "none" else "one group"
    if PARTITIONS[spec.partition].by_alpha:
        note = f" (alpha_{spec.alpha_means} = {spec.alpha:g})"
    elif spec.partition == "shards":
        note = f" ({spec.shards} each)"
    elif spec.partition.startswith("dist"):
        note = f" (counts x {spec.scale_rows:g})"
    return f"{spec.name}, {groups}, {spec.partition}{note}, {spec.test} test"
