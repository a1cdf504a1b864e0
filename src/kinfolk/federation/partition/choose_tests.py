"""Which rows a client is tested on: by its own label distribution, its group's rows, or everybody's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kinfolk.federation.partition.holdout import Ints, by_owner
from kinfolk.federation.pool import Pool
from kinfolk.streams import Seed
from kinfolk.types import Client


@dataclass(frozen=True)
class Dealt:
    """What the dealing of training rows left: enough to choose each client's test rows."""

    groups: Sequence[Pool]  # the pool as each group sees it
    offset: Sequence[int]  # where each group's rows begin in the pool of all groups
    group: Mapping[Client, int]  # by client, in order of name
    labels: Mapping[Client, Ints]  # each client's labels, validation rows included
    test_fraction: float
    seed: Seed
    # What every client should have under "local" (0: in proportion to its training rows), or has at most
    # under "group" (0: all).
    test_rows: int = 0


def balanced(labels: Ints, rows: Ints, most: int = 0) -> Ints:
    """As many of `rows` of every class as the rarest class has; classes that are missing stay missing.

    Where `most` is given, no more than that in all, and one of each class at least.

    >>> balanced(np.array([0, 0, 1, 0, 1]), np.arange(1, 5)).tolist()
    [1, 2, 3, 4]
    >>> balanced(np.array([0, 0, 1, 0, 1]), np.arange(1, 5), most=3).tolist()
    [1, 2]
    """
    by_class = [rows[labels[rows] == c] for c in np.unique(labels[rows])]
    fewest = min((len(r) for r in by_class), default=0)
    if most and by_class:
        fewest = min(fewest, max(1, most // len(by_class)))
    return np.sort(np.concatenate([r[:fewest] for r in by_class])) if by_class else rows


def shares(counts: Ints, total: int) -> Ints:
    """Share `total` out in proportion to `counts` by largest remainder; ties go to the lower class.

    >>> shares(np.array([2, 0, 1]), 4).tolist()
    [3, 0, 1]
    """
    whole, rest = np.divmod(counts * total, counts.sum())
    whole[np.argsort(-rest, kind="stable")[: total - whole.sum()]] += 1
    return whole


def shares_within(counts: Ints, total: int, room: Ints) -> Ints:
    """`shares` of the largest total, up to `total`, that asks no class for more than its room.

    >>> shares_within(np.array([2, 2]), 8, np.array([9, 3])).tolist()
    [4, 3]
    """
    asked = counts > 0
    # A share is never a whole row below its quota, which bounds the totals worth trying.
    bound = ((room[asked] + 1) * counts.sum() // counts[asked]).min()
    for n in range(min(total, int(bound)), 0, -1):
        given = shares(counts, n)
        if (given <= room).all():
            return given
    return np.zeros_like(counts)


def _local(dealt: Dealt) -> tuple[list[Ints], list[int]]:
    """Test rows in the proportions of the client's own labels, out of its group's test rows.

    Where rows belong to clients by nature, a client is tested on its own: on all, or on `test_rows` of them.
    """
    own_tests = [None if p.owner is None else by_owner(p.owner[p.test], len(p.names)) for p in dealt.groups]
    sets = []
    for i, (who, g) in enumerate(dealt.group.items()):
        pool, mine = dealt.groups[g], own_tests[g]
        rng = dealt.seed.numpy("data", "test", who)
        if mine is None:
            wanted = dealt.test_rows or max(1, round(dealt.test_fraction * len(dealt.labels[who])))
            rows = _same_proportions(pool, dealt.labels[who], wanted, rng)
        else:
            rows = pool.test[mine[i]]
            if 0 < dealt.test_rows < len(rows):
                rows = np.sort(rng.choice(rows, dealt.test_rows, replace=False))
        sets.append(rows + dealt.offset[g])
    return sets, list(range(len(sets)))


def _same_proportions(pool: Pool, own: Ints, wanted: int, rng: np.random.Generator) -> Ints:
    """Test rows with the label proportions of `own`, as many as wanted or as can be."""
    labels = pool.labels[pool.test]
    room = np.bincount(labels, minlength=pool.classes)
    # A class without test rows cannot be tested; the proportions are those among the others.
    counts = np.bincount(own, minlength=pool.classes) * (room > 0)
    given = shares_within(counts, wanted, room) if counts.any() else counts
    drawn = [rng.choice(pool.test[labels == c], n, replace=False) for c, n in enumerate(given) if n]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *drawn]))


def _group(dealt: Dealt) -> tuple[list[Ints], list[int]]:
    """The test rows of the client's group, as many of each class; stored once per group."""
    return _of_groups(dealt, dealt.test_rows), list(dealt.group.values())


def _of_groups(dealt: Dealt, most: int) -> list[Ints]:
    pools = zip(dealt.groups, dealt.offset, strict=True)
    return [balanced(p.labels, p.test, most) + start for p, start in pools]


def _everybody(dealt: Dealt) -> tuple[list[Ints], list[int]]:
    """The test rows of all groups together, whatever `test_rows` says; stored once."""
    return [np.concatenate(_of_groups(dealt, 0))], [0] * len(dealt.group)


# Each gives row sets and, client by client, the set it owns.
TEST_SPLITS: dict[str, Callable[[Dealt], tuple[list[Ints], list[int]]]] = {
    "local": _local,
    "group": _group,
    "global": _everybody,
}
