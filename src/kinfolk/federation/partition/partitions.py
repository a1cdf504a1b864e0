"""How a group's training rows are dealt to its clients: the deals, and the table of partitions.

The Dirichlet recipe follows Zhang et al., Communication-efficient clustered federated learning via
model distance (Machine Learning, 2024): one label distribution per client, rows reused across clients.
Shards follow McMahan et al. (2017), the split of every class by a Dirichlet distribution follows Yurochkin et
al. (2019) and FedMA, and label distributions until a class runs out follow FedDC (Gao et al., 2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import KinfolkError
from kinfolk.federation.partition.draws import Deal, by_class, label_distribution, take
from kinfolk.federation.partition.holdout import Ints, by_owner
from kinfolk.federation.partition.slfed_dist import deal_dist
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed
from kinfolk.types import Client

_TRIES = 100


@dataclass(frozen=True)
class Partition:
    """A way to deal rows."""

    deal: Deal | None  # None: the rows belong to clients already
    reuse: bool = True  # two clients of a group may get the same row
    sized: bool = True  # clients get as many rows as `rows` and `ragged` say
    by_alpha: bool = False  # `alpha` and `alpha_means` matter


def deal_iid(labels: Ints, sizes: Mapping[Client, int], spec: DataSpec, seed: Seed) -> dict[Client, Ints]:
    """Each client draws from all rows.

    >>> deal_iid(np.zeros(3, np.int64), {Client("ann"): 3}, DataSpec(), Seed(0))["ann"].tolist()
    [0, 1, 2]
    """
    everything = np.arange(len(labels))
    return {who: np.sort(take(everything, n, seed.numpy("data", "rows", who))) for who, n in sizes.items()}


def deal_dirichlet(
    labels: Ints, sizes: Mapping[Client, int], spec: DataSpec, seed: Seed
) -> dict[Client, Ints]:
    """Each client draws its label distribution, then labels from it, then rows of each label.

    >>> deal_dirichlet(np.array([0, 1]), {Client("ann"): 5}, DataSpec(), Seed(0))["ann"].shape
    (5,)
    """
    # Classes a group has no rows of cannot be drawn, so it is over those it has.
    classes = by_class(labels)
    dealt = {}
    for who, n in sizes.items():
        # Its own stream: more rows do not change the distribution.
        shares = label_distribution(len(classes), spec, seed.numpy("data", "law", who))
        rng = seed.numpy("data", "rows", who)
        counts = rng.multinomial(n, shares)
        drawn = [take(rows, int(c), rng) for rows, c in zip(classes, counts, strict=True)]
        dealt[who] = np.sort(np.concatenate(drawn))
    return dealt


def _enough(labels: Ints, sizes: Mapping[Client, int], spec: DataSpec) -> None:
    asked = sum(sizes.values())
    if asked > len(labels):
        have = f"{len(sizes)} clients of one group ask for {asked} rows, {len(labels)} are there"
        most = len(labels) // len(sizes)
        ways = f"give at most {most}, or 0 for all" if most else "give 0 for all, and fewer clients"
        raise KinfolkError("data.rows", spec.rows, f"{have} and none is used twice; {ways}")


def deal_quantity(
    labels: Ints, sizes: Mapping[Client, int], spec: DataSpec, seed: Seed
) -> dict[Client, Ints]:
    """Each client gets its number of rows, whatever their labels.

    >>> deal_quantity(np.zeros(3, np.int64), {Client("ann"): 3}, DataSpec(), Seed(0))["ann"].tolist()
    [0, 1, 2]
    """
    _enough(labels, sizes, spec)
    names = sorted(sizes)
    mixed = seed.numpy("data", "quantity").permutation(len(labels))
    ends = np.cumsum([sizes[who] for who in names])
    return {
        who: np.sort(mixed[end - sizes[who] : end]) for who, end in zip(names, ends.tolist(), strict=True)
    }


def deal_shards(labels: Ints, sizes: Mapping[Client, int], spec: DataSpec, seed: Seed) -> dict[Client, Ints]:
    """Rows sorted by label are cut into pieces; each client gets `shards` of them, drawn at random.

    >>> two = {Client("ann"): 2, Client("bob"): 2}
    >>> rows = deal_shards(np.array([1, 0, 1, 0]), two, DataSpec(shards=1), Seed(0))
    >>> sorted(part.tolist() for part in rows.values())
    [[0, 2], [1, 3]]
    """
    _enough(labels, sizes, spec)
    names, rng = sorted(sizes), seed.numpy("data", "shards")
    rows = rng.permutation(len(labels))[: sum(sizes.values())]
    rows = rows[np.argsort(labels[rows], kind="stable")]
    number = np.arange(spec.shards)
    lengths = np.concatenate([(sizes[who] + number) // spec.shards for who in names])
    order = rng.permutation(len(lengths))
    owner = np.repeat(order // spec.shards, lengths[order])
    return {
        who: np.sort(rows[places]) for who, places in zip(names, by_owner(owner, len(names)), strict=True)
    }


def deal_dirichlet_split(
    labels: Ints, sizes: Mapping[Client, int], spec: DataSpec, seed: Seed
) -> dict[Client, Ints]:
    """The rows of each class are split over the clients by a Dirichlet distribution; all rows are dealt.

    Drawn again until everybody has `min_rows` rows.

    >>> two = {Client("ann"): 0, Client("bob"): 0}
    >>> dealt = deal_dirichlet_split(np.array([0, 0, 1, 1]), two, DataSpec(), Seed(0))
    >>> sorted(np.concatenate(list(dealt.values())).tolist())
    [0, 1, 2, 3]
    """
    names = sorted(sizes)
    if len(names) * spec.min_rows > len(labels):
        have = f"{len(names)} clients of one group ask for that many rows each, {len(labels)} are there"
        raise KinfolkError("data.min_rows", spec.min_rows, f"{have} and none is used twice; ask for fewer")
    for attempt in range(_TRIES):
        rng = seed.numpy("data", "split", attempt)
        owner = np.empty(len(labels), np.int64)
        for rows in by_class(labels):
            ends = np.rint(np.cumsum(label_distribution(len(names), spec, rng)) * len(rows)).astype(np.int64)
            ends[-1] = len(rows)  # sums of fractions may end just below 1
            owner[rng.permutation(rows)] = np.repeat(np.arange(len(names)), np.diff(ends, prepend=0))
        parts = by_owner(owner, len(names))
        if min(map(len, parts)) >= spec.min_rows:
            return dict(zip(names, parts, strict=True))
    remedy = (
        f"{_TRIES} draws left somebody with fewer than {spec.min_rows} rows; raise it or have fewer clients"
    )
    raise KinfolkError("data.alpha", spec.alpha, remedy)


def deal_fed_dc(labels: Ints, sizes: Mapping[Client, int], spec: DataSpec, seed: Seed) -> dict[Client, Ints]:
    """Each client draws a label distribution; in mixed order they draw labels and take rows until full.

    A class that has run out is drawn again, so late rows follow it among the classes left.

    >>> deal_fed_dc(np.array([0, 1, 1]), {Client("ann"): 3}, DataSpec(), Seed(0))["ann"].tolist()
    [0, 1, 2]
    """
    _enough(labels, sizes, spec)
    names, rng = sorted(sizes), seed.numpy("data", "fed_dc")
    stacks = [rng.permutation(rows) for rows in by_class(labels)]
    left = np.array([len(stack) for stack in stacks])
    shares = np.stack(
        [label_distribution(len(stacks), spec, seed.numpy("data", "law", who)) for who in names]
    )
    turns = rng.permutation(np.repeat(np.arange(len(names)), [sizes[who] for who in names]))
    drawn: list[list[int]] = [[] for _ in names]
    heights = _heights(shares, left)
    for i, level in zip(turns.tolist(), rng.random(len(turns)).tolist(), strict=True):
        top = heights[i, -1]
        c = int(np.searchsorted(heights[i], min(level * top, np.nextafter(top, 0)), side="right"))
        left[c] -= 1
        drawn[i].append(int(stacks[c][left[c]]))
        if left[c] == 0:
            heights = _heights(shares, left)
    return {who: np.sort(np.array(rows, np.int64)) for who, rows in zip(names, drawn, strict=True)}


def _heights(shares: NDArray[np.float64], left: Ints) -> NDArray[np.float64]:
    """Running sums of each distribution over the classes left; a client without such a class takes any."""
    open_ = (left > 0).astype(np.float64)
    mass = shares * open_
    mass[mass.sum(1) == 0] = open_
    return np.cumsum(mass, axis=1)


ALPHA_MEANS = ("total", "each")

PARTITIONS: dict[str, Partition] = {
    "iid": Partition(deal_iid),
    "dirichlet": Partition(deal_dirichlet, by_alpha=True),
    "dirichlet_split": Partition(deal_dirichlet_split, reuse=False, sized=False, by_alpha=True),
    "shards": Partition(deal_shards, reuse=False),
    "quantity": Partition(deal_quantity, reuse=False),
    "natural": Partition(None, reuse=False, sized=False),
    "fed_dc": Partition(deal_fed_dc, reuse=False, by_alpha=True),
    **{name: Partition(deal_dist(name), sized=False) for name in ("dist0", "dist1", "dist2", "dist3")},
}
