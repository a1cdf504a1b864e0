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


def label_distribution(classes: int, spec: DataSpec, rng: np.random.Generator) -> NDArray[np.float64]:
    """One distribution over `classes`. Papers mean two things by alpha, so `alpha_means` says which.

    "total" is shared out, alpha / classes to each class: 3 leaves about four of ten classes. "each" is
    the concentration of every single class: 3 is nearly balanced.

    >>> label_distribution(2, DataSpec(alpha=1e12), np.random.default_rng(0)).round(3)
    array([0.5, 0.5])
    """
    each = spec.alpha / classes if spec.alpha_means == "total" else spec.alpha
    # Beyond 1e12 the distribution is uniform to the last digit, and sums of gammas would overflow.
    return rng.dirichlet(np.full(classes, min(each, 1e12)))


def take(rows: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Draw `count` of `rows` without replacement; where too few, all as often as one another or once more.

    >>> sorted(take(np.array([7, 8]), 4, np.random.default_rng(0)).tolist())
    [7, 7, 8, 8]
    """
    again, rest = divmod(count, len(rows))
    return np.concatenate([np.tile(rows, again), rng.choice(rows, rest, replace=False)])


def row_counts(names: Sequence[Client], total: int, spec: DataSpec, seed: Seed) -> dict[Client, int]:
    """How many rows each client gets: log-normal with mean `rows`, at least one.

    With `rows` = 0 all `total` rows are shared out, unequally if `ragged`.

    >>> row_counts([Client("ann"), Client("bob")], 5, DataSpec(rows=0), Seed(0))
    {'ann': 3, 'bob': 2}
    """
    z = np.array([seed.numpy("data", "size", who).standard_normal() for who in names])
    if spec.rows:
        factors = [float(np.exp(spec.ragged * own - spec.ragged**2 / 2)) for own in z.tolist()]
        return {who: max(1, round(spec.rows * factor)) for who, factor in zip(names, factors, strict=True)}
    if total < len(names):
        remedy = f"{len(names)} of them share {total} training rows; give fewer clients or more groups"
        raise KinfolkError("data.clients", spec.clients, remedy)
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
