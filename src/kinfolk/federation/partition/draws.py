"""What partitions draw with: label distributions, rows without repeats, sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import KinfolkError
from kinfolk.federation.partition.holdout import Ints
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed
from kinfolk.types import Client

# (labels of the group's training rows, rows wanted by each client, spec, seed) -> positions among
# those rows, by client. One call per group, so that a partition may also deal without reuse.
Deal = Callable[[Ints, Mapping[Client, int], DataSpec, Seed], dict[Client, Ints]]


def dirichlet(
    classes: int,
    rng: np.random.Generator,
    *,
    alpha_total: float | None = None,
    alpha_each: float | None = None,
) -> NDArray[np.float64]:
    """One label distribution [classes]. Papers mean two things by alpha, so say which.

    `alpha_total` is shared out, alpha / classes to each class: 3 leaves about four of ten classes.
    `alpha_each` is the concentration of every single class: 3 is nearly balanced.

    >>> shares = dirichlet(10, np.random.default_rng(0), alpha_total=3.0)
    >>> shares.shape, round(float(shares.sum()), 6)
    ((10,), 1.0)
    """
    if (alpha_total is None) == (alpha_each is None):
        raise KinfolkError("data.alpha", None, "give either alpha_total or alpha_each")
    each = alpha_each if alpha_each is not None else (alpha_total or 0.0) / classes
    if not 0 < each < np.inf:
        raise KinfolkError(
            "data.alpha", alpha_total if alpha_each is None else alpha_each, "give a positive number"
        )
    # Beyond 1e12 the distribution is uniform to the last digit, and sums of gammas would overflow.
    return rng.dirichlet(np.full(classes, min(each, 1e12)))


def label_distribution(classes: int, spec: DataSpec, rng: np.random.Generator) -> NDArray[np.float64]:
    """One distribution over `classes` as `alpha` and `alpha_means` of a spec say.

    >>> label_distribution(2, DataSpec(alpha=1e12), np.random.default_rng(0)).round(3)
    array([0.5, 0.5])
    """
    if spec.alpha_means == "total":
        return dirichlet(classes, rng, alpha_total=spec.alpha)
    return dirichlet(classes, rng, alpha_each=spec.alpha)


def take(rows: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Draw `count` of `rows` without replacement; where too few, all as often as one another or once more.

    >>> sorted(take(np.array([7, 8]), 4, np.random.default_rng(0)).tolist())
    [7, 7, 8, 8]
    """
    again, rest = divmod(count, len(rows))
    return np.concatenate([np.tile(rows, again), rng.choice(rows, rest, replace=False)])


def row_count(rows: int, ragged: float, who: Client, seed: Seed) -> int:
    """How many rows a client gets: log-normal with mean `rows`, at least one.

    >>> row_count(60, 0.0, Client("ann"), Seed(0))
    60
    """
    z = seed.numpy("data", "size", who).standard_normal()
    return max(1, round(rows * float(np.exp(ragged * z - ragged**2 / 2))))


def row_counts(names: Sequence[Client], total: int, spec: DataSpec, seed: Seed) -> dict[Client, int]:
    """How many rows each client gets; with `rows` = 0 all `total` rows are shared out, unequally if `ragged`.

    >>> row_counts([Client("ann"), Client("bob")], 5, DataSpec(rows=0), Seed(0))
    {'ann': 3, 'bob': 2}
    """
    if spec.rows:
        return {who: row_count(spec.rows, spec.ragged, who, seed) for who in names}
    if total < len(names):
        remedy = f"{len(names)} of them share {total} training rows; give fewer clients or more groups"
        raise KinfolkError("data.clients", spec.clients, remedy)
    z = np.array([seed.numpy("data", "size", who).standard_normal() for who in names])
    weight = np.exp(spec.ragged * z)
    # One for everybody first, so that nobody goes empty.
    quota = weight / weight.sum() * (total - len(names))
    counts = 1 + np.floor(quota).astype(np.int64)
    counts[np.argsort(np.floor(quota) - quota, kind="stable")[: total - counts.sum()]] += 1
    return dict(zip(names, counts.tolist(), strict=True))


def by_class(labels: Ints) -> list[Ints]:
    """The places of each label that occurs, in order of label.

    >>> [places.tolist() for places in by_class(np.array([4, 2, 4]))]
    [[1], [0, 2]]
    """
    return [np.flatnonzero(labels == c) for c in np.unique(labels)]
