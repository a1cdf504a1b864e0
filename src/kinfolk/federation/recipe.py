"""From pools to a federation: groups, sizes, training rows, validation rows, test rows, in this order.

Every draw about a client comes from a stream named after that client.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kinfolk.federation.federation import Federation, client_names, pack
from kinfolk.federation.groups import shifted
from kinfolk.federation.holdout import Ints, hold_out
from kinfolk.federation.laws import TEST_LAWS, Dealt
from kinfolk.federation.partition import PARTITIONS
from kinfolk.federation.pool import Pool
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


def assign_groups(names: Sequence[Client], count: int, seed: Seed) -> dict[Client, int]:
    """A group for every client, by name; sizes differ by one at most and names do not tell the group.

    >>> sorted(assign_groups(client_names(5), 2, Seed(0)).values())
    [0, 0, 0, 1, 1]
    """
    groups = seed.numpy("data", "group").permutation(np.arange(len(names)) % count)
    return dict(zip(sorted(names), groups.tolist(), strict=True))


def row_count(rows: int, ragged: float, who: Client, seed: Seed) -> int:
    """How many rows a client gets: log-normal with mean `rows`, at least one.

    >>> row_count(60, 0.0, Client("ann"), Seed(0))
    60
    """
    z = seed.numpy("data", "size", who).standard_normal()
    return max(1, round(rows * float(np.exp(ragged * z - ragged**2 / 2))))


def _training(
    groups: Sequence[Pool], group: dict[Client, int], spec: DataSpec, seed: Seed
) -> dict[Client, Ints]:
    """Each client's rows among those its group trains on, in order of name."""
    rows: dict[Client, Ints] = {}
    for g, pool in enumerate(groups):
        sizes = {who: row_count(spec.rows, spec.ragged, who, seed) for who in group if group[who] == g}
        dealt = PARTITIONS[spec.partition].deal(pool.labels[pool.train], sizes, spec, seed)
        rows |= {who: pool.train[place] for who, place in dealt.items()}
    return {who: rows[who] for who in group}


def from_groups(groups: Sequence[Pool], spec: DataSpec, seed: Seed) -> Federation:
    """Deal pools, one per group, to the clients of `spec`.

    >>> from kinfolk.federation.digits import digits
    >>> pool = digits()
    >>> from_groups([pool, pool], DataSpec(clients=4, rows=10), Seed(0)).splits["train"].counts()
    tensor([10, 10, 10, 10])
    """
    group = assign_groups(client_names(spec.clients), len(groups), seed)
    rows = _training(groups, group, spec, seed)
    offset = np.cumsum([0, *(len(pool.x) for pool in groups)]).tolist()[:-1]
    labels = {who: groups[group[who]].labels[own] for who, own in rows.items()}
    tests, of = TEST_LAWS[spec.test].draw(Dealt(groups, offset, group, labels, spec.test_fraction, seed))
    parts = [
        hold_out(own + offset[group[who]], spec.valid, seed.numpy("data", "valid", who))
        for who, own in rows.items()
    ]
    return check(
        Federation(
            clients=tuple(group),
            x=torch.cat([pool.x for pool in groups]),
            y=torch.cat([pool.y for pool in groups]),
            splits={
                "train": pack([torch.from_numpy(kept) for kept, _ in parts]),
                "valid": pack([torch.from_numpy(held) for _, held in parts]),
                "test": pack([torch.from_numpy(rows) for rows in tests], of),
            },
            classes=groups[0].classes,
            truth=torch.tensor(list(group.values()), dtype=torch.int64),
            name=describe(spec),
        )
    )


def from_pool(pool: Pool, spec: DataSpec, seed: Seed) -> Federation:
    """Make groups out of one pool by the shift of `spec`, then deal.

    >>> from kinfolk.federation.digits import digits
    >>> from_pool(digits(), DataSpec(clients=4, groups=2), Seed(0)).truth.sum()
    tensor(2)
    """
    return from_groups(shifted(pool, spec.shift, group_count(spec)), spec, seed)


def describe(spec: DataSpec) -> str:
    """A federation in one short line.

    >>> describe(DataSpec())
    'digits, 4 groups by rotation, dirichlet (alpha_total = 100), group test'
    """
    groups = f"{spec.groups} groups by {spec.shift}" if spec.shift != "none" else "one group"
    law = f"{spec.partition} (alpha_{spec.alpha_means} = {spec.alpha:g})"
    dealt = law if spec.partition == "dirichlet" else spec.partition
    return f"{spec.name}, {groups}, {dealt}, {spec.test} test"
