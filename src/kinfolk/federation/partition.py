"""How a group's training rows are dealt to its clients.

The Dirichlet recipe follows Zhang et al., Communication-efficient clustered federated learning via
model distance (Machine Learning, 2024): one label law per client, rows reused across clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import KinfolkError
from kinfolk.federation.holdout import Ints
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed
from kinfolk.types import Client

# (labels of the group's training rows, rows wanted by each client, spec, seed) -> positions among
# those rows, by client. One call per group, so that a partition may also deal without reuse.
Deal = Callable[[Ints, Mapping[Client, int], DataSpec, Seed], dict[Client, Ints]]


@dataclass(frozen=True)
class Partition:
    """A way to deal rows, with one line that says what it does."""

    line: str
    deal: Deal


def dirichlet(
    classes: int,
    rng: np.random.Generator,
    *,
    alpha_total: float | None = None,
    alpha_each: float | None = None,
) -> NDArray[np.float64]:
    """One label law [classes]. Papers mean two things by alpha, so say which.

    `alpha_total` is shared out, alpha / classes to each class: 3 leaves about four of ten classes.
    `alpha_each` is the concentration of every single class: 3 is nearly balanced.

    >>> law = dirichlet(10, np.random.default_rng(0), alpha_total=3.0)
    >>> law.shape, round(float(law.sum()), 6)
    ((10,), 1.0)
    """
    if (alpha_total is None) == (alpha_each is None):
        raise KinfolkError("data.alpha", None, "give either alpha_total or alpha_each")
    each = alpha_each if alpha_each is not None else (alpha_total or 0.0) / classes
    if not 0 < each < np.inf:
        raise KinfolkError(
            "data.alpha", alpha_total if alpha_each is None else alpha_each, "give a positive number"
        )
    # Beyond 1e12 the law is uniform to the last digit, and sums of gammas would overflow.
    return rng.dirichlet(np.full(classes, min(each, 1e12)))


def take(rows: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Draw `count` of `rows` without replacement; where too few, all as often as one another or once more.

    >>> sorted(take(np.array([7, 8]), 4, np.random.default_rng(0)).tolist())
    [7, 7, 8, 8]
    """
    again, rest = divmod(count, len(rows))
    return np.concatenate([np.tile(rows, again), rng.choice(rows, rest, replace=False)])


def deal_iid(labels: Ints, sizes: Mapping[Client, int], spec: DataSpec, seed: Seed) -> dict[Client, Ints]:
    """Each client draws from all rows alike.

    >>> deal_iid(np.zeros(3, np.int64), {Client("ann"): 3}, DataSpec(), Seed(0))["ann"].tolist()
    [0, 1, 2]
    """
    everything = np.arange(len(labels))
    return {who: np.sort(take(everything, n, seed.numpy("data", "rows", who))) for who, n in sizes.items()}


def deal_dirichlet(
    labels: Ints, sizes: Mapping[Client, int], spec: DataSpec, seed: Seed
) -> dict[Client, Ints]:
    """Each client draws its label law, then labels from the law, then rows of each label.

    >>> deal_dirichlet(np.array([0, 1]), {Client("ann"): 5}, DataSpec(), Seed(0))["ann"].shape
    (5,)
    """
    # Classes a group has no rows of can not be drawn, so the law is over those it has.
    by_class = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    dealt = {}
    for who, n in sizes.items():
        stream = seed.numpy("data", "law", who)  # its own stream: more rows do not change the law
        if spec.alpha_means == "total":
            law = dirichlet(len(by_class), stream, alpha_total=spec.alpha)
        else:
            law = dirichlet(len(by_class), stream, alpha_each=spec.alpha)
        rng = seed.numpy("data", "rows", who)
        counts = rng.multinomial(n, law)
        drawn = [take(rows, int(c), rng) for rows, c in zip(by_class, counts, strict=True)]
        dealt[who] = np.sort(np.concatenate(drawn))
    return dealt


ALPHA_MEANS = ("total", "each")

PARTITIONS: dict[str, Partition] = {
    "iid": Partition("every client draws from all rows of its group alike", deal_iid),
    "dirichlet": Partition("every client draws its own label law", deal_dirichlet),
}
