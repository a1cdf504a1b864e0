"""Centres that a few bad members cannot move far, by whole vectors: as shares of the members.

Each is a sum of the members with some weights, so all that is needed to find it is how far the members are
from one another, or from where they began: vectors are never there all at once.

Geometric median: Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning. IEEE TSP 70, 2022;
by the iteration of Weiszfeld (1937). Krum: Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with
Adversaries: Byzantine Tolerant Gradient Descent. NIPS 2017.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError

# The iteration ends when shares move by less than this, or after so many steps.
STILL, STEPS = 1e-10, 1000
# A member this close to the centre, in median distances, counts as this close: its share would be infinite.
CLOSE = 1e-6


def geometric_median(apart: Tensor, weights: Tensor | None = None) -> Tensor:
    """The shares [n] of members of squared distances [n, n] in the point y of least sum_i a_i |x_i - y|.

    y <- sum_i a_i x_i / |x_i - y| / sum_i a_i / |x_i - y|, from the mean; distances from y follow from those
    among the members.

    >>> x = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    >>> (geometric_median(torch.cdist(x, x) ** 2) @ x).round(decimals=4)
    tensor([1., 1.], dtype=torch.float64)
    """
    own = torch.ones(len(apart), dtype=torch.float64) if weights is None else weights.double().cpu()
    apart, own = apart.double().cpu(), own / own.sum()
    least = CLOSE * float(apart.sqrt().median())
    shares = own
    for _ in range(STEPS):
        from_centre = (apart @ shares - shares @ apart @ shares / 2).clamp(min=0).sqrt()
        new = own / from_centre.clamp(min=max(least, 1e-300))
        new = new / new.sum()
        moved, shares = float((new - shares).abs().max()), new
        if moved < STILL:
            break
    return shares


def krum(apart: Tensor, attackers: int, chosen: int = 1, weights: Tensor | None = None) -> Tensor:
    """The shares [n] of members of squared distances [n, n] in the mean of the best, all others 0.

    Best are the `chosen` members with the least sum of squared distances to their n - f - 2 nearest; ties
    go to the first. Krum is one; several are multi-Krum. It needs n >= 2 f + 3 and n >= chosen + f + 2.

    >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0], [99.0]])
    >>> krum(torch.cdist(x, x) ** 2, 1, chosen=2)
    tensor([0.0000, 0.5000, 0.5000, 0.0000, 0.0000], dtype=torch.float64)
    >>> krum(torch.zeros(4, 4), 1)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: members = 4: Krum needs 5 of them against 1 attackers
    """
    n, least = len(apart), krum_needs(attackers, chosen)
    if n < least:
        raise KinfolkError("members", n, f"Krum needs {least} of them against {attackers} attackers")
    nearest = apart.double().cpu().sort(dim=1).values[:, 1 : n - attackers - 1]  # without oneself
    best = nearest.sum(1).argsort(stable=True)[:chosen]
    own = torch.ones(n, dtype=torch.float64) if weights is None else weights.double().cpu()
    shares = torch.zeros(n, dtype=torch.float64)
    shares[best] = own[best] if bool(own[best].any()) else 1.0
    return shares / shares.sum()


def krum_needs(attackers: int, chosen: int) -> int:
    """How many members there must be.

    >>> krum_needs(2, 1), krum_needs(2, 5)
    (7, 9)
    """
    return max(2 * attackers + 3, chosen + attackers + 2)


def clipped(lengths: Tensor, times: float, weights: Tensor | None = None) -> Tensor:
    """The shares [n] of updates of these lengths in their mean, each cut to `times` their median length.

    What the shares lack to 1 belongs to where the updates began.

    >>> clipped(torch.tensor([1.0, 1.0, 100.0]), 1.0)
    tensor([0.3333, 0.3333, 0.0033], dtype=torch.float64)
    """
    long = lengths.double().cpu()
    own = torch.ones(len(long), dtype=torch.float64) if weights is None else weights.double().cpu()
    ranked = long.sort().values
    median = (ranked[(len(long) - 1) // 2] + ranked[len(long) // 2]) / 2
    factor = torch.where(long > times * median, times * median / long.clamp(min=1e-300), 1.0)
    return own / own.sum() * factor
