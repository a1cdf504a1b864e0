"""Whether a clustering is more than its seed: how far the answers of several seeds agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.clustering.agreement import agreement
from kinfolk.errors import KinfolkError


@dataclass(frozen=True)
class Stability:
    """Adjusted Rand indices between runs: 1 if all say the same, about 0 if they agree by chance."""

    mean: float  # over pairs of runs
    worst: float
    pairs: Tensor  # [runs, runs], 1 on the diagonal


def stability(runs: Sequence[Tensor]) -> Stability:
    """Agreement of several assignments of the same clients; the names of groups do not matter.

    >>> stability([torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 0, 0])]).mean
    1.0
    """
    if len(runs) < 2:
        raise KinfolkError("runs", len(runs), "give the labels of two runs or more")
    pairs = torch.eye(len(runs), dtype=torch.float64)
    for i, one in enumerate(runs):
        for j in range(i):
            pairs[i, j] = pairs[j, i] = agreement(one, runs[j])["ari"]
    upper = pairs[tuple(torch.triu_indices(len(runs), len(runs), 1))]
    return Stability(float(upper.mean()), float(upper.min()), pairs)
