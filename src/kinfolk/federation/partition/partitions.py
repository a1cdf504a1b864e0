"""How a group's training rows are dealt to its clients: the table of partitions.

The Dirichlet recipe follows Zhang et al., Communication-efficient clustered federated learning via
model distance (Machine Learning, 2024): one label distribution per client, rows reused across clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kinfolk.federation.partition.disjoint import (
    deal_dirichlet_split,
    deal_fed_dc,
    deal_quantity,
    deal_shards,
)
from kinfolk.federation.partition.draws import Deal, by_class, dirichlet, label_distribution, take
from kinfolk.federation.partition.holdout import Ints
from kinfolk.federation.partition.slfed_dist import deal_dist
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed
from kinfolk.types import Client

__all__ = ["ALPHA_MEANS", "PARTITIONS", "Partition", "deal_dirichlet", "deal_iid", "dirichlet", "take"]


@dataclass(frozen=True)
class Partition:
    """A way to deal rows, with one line that says what it does."""

    line: str
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


ALPHA_MEANS = ("total", "each")

PARTITIONS: dict[str, Partition] = {
    "iid": Partition("every client draws from all rows of its group", deal_iid),
    "dirichlet": Partition("every client draws its own label distribution", deal_dirichlet, by_alpha=True),
    "dirichlet_split": Partition(
        "every class is split over the clients by a Dirichlet distribution, all rows, none used twice",
        deal_dirichlet_split,
        reuse=False,
        sized=False,
        by_alpha=True,
    ),
    "shards": Partition(
        "rows sorted by label are cut into pieces, a few for every client, none used twice",
        deal_shards,
        reuse=False,
    ),
    "quantity": Partition(
        "equal label distributions, sizes unequal by `ragged`, no row used twice", deal_quantity, reuse=False
    ),
    "natural": Partition("the clients the source names, with their own rows", None, reuse=False, sized=False),
    "fed_dc": Partition(
        "every client draws its own label distribution, no row used twice, empty classes are redrawn",
        deal_fed_dc,
        reuse=False,
        by_alpha=True,
    ),
    "dist0": Partition(
        "SLFed's Dist-0: 11,015 rows, 7 common classes of 10", deal_dist("dist0"), sized=False
    ),
    "dist1": Partition("SLFed's Dist-1: 7,535 rows, 3 common classes of 10", deal_dist("dist1"), sized=False),
    "dist2": Partition(
        "SLFed's Dist-2: 14,015 rows, 7 common classes of 10", deal_dist("dist2"), sized=False
    ),
    "dist3": Partition(
        "SLFed's Dist-3: a mix of the others, even and any counts", deal_dist("dist3"), sized=False
    ),
}
