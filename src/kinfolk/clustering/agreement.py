"""How well found groups agree with true ones, and how much they move from round to round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.types import Client


def _labels(labels: Sequence[int] | Tensor) -> NDArray[Any]:
    """Labels renumbered from 0, which keeps scikit-learn from guessing what kind of target they are."""
    plain = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    return np.unique(plain, return_inverse=True)[1].reshape(-1)


def agreement(found: Sequence[int] | Tensor, truth: Sequence[int] | Tensor) -> dict[str, float]:
    """Adjusted Rand index, normalised mutual information and purity of `found` against `truth`.

    The names of the groups do not matter. The Rand index is 1 for two equal trivial partitions and 0
    for a single found group; the information is divided by the mean of the two entropies (Hubert and
    Arabie, 1985; Vinh, Epps and Bailey, 2010). Purity is the share of clients that belong to the
    most frequent true group of their found group: it can only grow with the number of groups.

    >>> {k: round(v, 3) for k, v in agreement([5, 5, 2, 2], [0, 0, 0, 1]).items()}
    {'ari': 0.0, 'nmi': 0.344, 'purity': 0.75}
    """
    ours, theirs = _labels(found), _labels(truth)
    if len(ours) != len(theirs) or not len(ours):
        raise KinfolkError(
            "groups", (len(ours), len(theirs)), "give one found and one true group per client, and a client"
        )
    return {
        "ari": float(adjusted_rand_score(theirs, ours)),
        "nmi": float(normalized_mutual_info_score(theirs, ours, average_method="arithmetic")),
        "purity": float(contingency_matrix(theirs, ours).max(axis=0).sum() / len(ours)),
    }


def stability(runs: Sequence[Tensor]) -> float:
    """How far assignments of the same clients agree: the mean Rand index over pairs of two runs or more.

    1 if all say the same, about 0 if they agree by chance: whether a clustering is more than its seed.

    >>> stability([torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 0, 0])])
    1.0
    """
    pairs = [agreement(one, two)["ari"] for one, two in combinations(runs, 2)]
    return float(torch.tensor(pairs, dtype=torch.float64).mean())


def sizes(found: Sequence[int] | Tensor) -> dict[int, int]:
    """How many clients each group has, by group number.

    >>> sizes([2, 0, 2])
    {0: 1, 2: 2}
    """
    plain = found.detach().cpu().numpy() if isinstance(found, Tensor) else np.asarray(found, dtype=np.int64)
    groups, numbers = np.unique(plain, return_counts=True)
    return dict(zip(groups.tolist(), numbers.tolist(), strict=True))


def switch_fraction(
    before: Mapping[Client, int], after: Mapping[Client, int], among: Sequence[Client]
) -> float:
    """The share of `among` whose group changed; a client that has a group only once counts as changed.

    >>> a, b = Client("a"), Client("b")
    >>> switch_fraction({a: 0, b: 0}, {a: 1, b: 0}, [a, b])
    0.5
    """
    if not among:
        return 0.0
    return sum(before.get(c) != after.get(c) for c in among) / len(among)
