"""How clearly a client belongs to its group."""

from __future__ import annotations

import torch
from torch import Tensor


def margins(cost: Tensor, group: Tensor) -> Tensor:
    """(b - a) / max(a, b) of a, the cost of the own group, and b, the lowest of the others: [clients].

    `cost` [clients, K] is what groups are chosen by: a distance, not its square. 1: only the own group is
    near; 0: another one is as near; below 0: another one is nearer. NaN where there is no other group, or
    where both costs are 0.

    >>> margins(torch.tensor([[1.0, 4.0], [3.0, 3.0], [2.0, 1.0]]), torch.tensor([0, 0, 0]))
    tensor([ 0.7500,  0.0000, -0.5000])
    """
    if cost.shape[1] < 2:
        return torch.full((len(cost),), torch.nan)
    cost, group = cost.double().nan_to_num(nan=torch.inf), group.to(cost.device)[:, None]
    own = cost.gather(1, group)[:, 0]
    other = cost.scatter(1, group, torch.inf).amin(1)
    # A group that is infinitely far is no rival; a client that is infinitely far from all has no margin.
    found = torch.where(other.isinf() & own.isfinite(), 1.0, (other - own) / torch.maximum(own, other))
    return found.float().cpu()
