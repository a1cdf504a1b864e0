"""Points that lie far from all others: no groups should be sought around them."""

from __future__ import annotations

import torch
from torch import Tensor

from kinfolk.clustering.distances import squared

# The neighbour that a point is measured by. Not the nearest: two that conspire would vouch for each other.
NEIGHBOUR = 2


def outlying(points: Tensor, times: float) -> Tensor:
    """Which of `points` [N, D] are more than `times` as far from their second nearest other as most are.

    That is, as the median of all that have no two twins; 0 asks nobody.

    >>> outlying(torch.tensor([[0.0], [1.0], [2.0], [90.0], [3.0]]), 3.0)
    tensor([False, False, False,  True, False])
    """
    if not times or len(points) <= NEIGHBOUR:
        return torch.zeros(len(points), dtype=torch.bool, device=points.device)
    # The nearest of all is the point itself.
    lonely = squared(points).sort(1).values[:, NEIGHBOUR].sqrt()
    if not bool(lonely.any()):
        return lonely > 0
    # Clients that did not train are all alike, and must not make strangers of those who did.
    return lonely > times * lonely[lonely > 0].quantile(0.5)
