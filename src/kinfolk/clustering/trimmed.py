"""Centres that a few bad members cannot move far: coordinate-wise trimmed mean and median.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning. ICML 2018.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError

# Numbers in one block of columns of `trimmed_means`: a few blocks of this size are alive at once.
BLOCK = 1 << 23


def trimmed_mean(points: Tensor, trim: float, weights: Tensor | None = None) -> Tensor:
    """The mean over members [members, ...] without the floor(trim * members) smallest and largest.

    Each coordinate drops members of its own. With `weights` [members], members are dropped by number as
    before and the rest are averaged with their weights; where these are all 0, evenly.

    >>> trimmed_mean(torch.tensor([[0.0], [1.0], [3.0], [99.0]]), 0.25)
    tensor([2.])
    """
    _check(points, trim)
    number = int(trim * len(points))
    order = points.argsort(dim=0, stable=True)[number : len(points) - number]
    kept = points.gather(0, order)
    if weights is None:
        return kept.mean(0)
    shares = weights.to(points)[order]
    total = shares.sum(0)
    mean = (kept * shares).sum(0) / torch.where(total > 0, total, torch.ones_like(total))
    return torch.where(total > 0, mean, kept.mean(0))


def median(points: Tensor, weights: Tensor | None = None) -> Tensor:
    """The coordinate-wise median over members; of an even number, the mean of the two in the middle.

    With `weights` [members]: the smallest value at which half the weight is reached; where it is met
    exactly, the mean of this value and the next that has weight.

    >>> median(torch.tensor([[1.0], [2.0], [4.0], [100.0]]))
    tensor([3.])
    """
    _check(points, 0.0)
    if weights is None:
        ranked = points.sort(dim=0).values
        return (ranked[(len(points) - 1) // 2] + ranked[len(points) // 2]) / 2
    ranked, order = points.sort(dim=0, stable=True)
    # Half-way is compared in float64 after scaling to sum 1: weights of a half each must meet it.
    shares = weights.double().to(points.device)
    if not bool(shares.sum() > 0) or bool((shares < 0).any()):
        raise KinfolkError("weights", weights.tolist(), "give weights of 0 or more, not all 0")
    # On the CPU, where a cumulative sum is the same every time.
    reached = (shares / shares.sum())[order].cpu().cumsum(0).to(points.device)
    low = (reached >= 0.5 - 1e-12).int().argmax(0, keepdim=True)
    high = (reached > 0.5 + 1e-12).int().argmax(0, keepdim=True)
    return ((ranked.gather(0, low) + ranked.gather(0, high)) / 2).squeeze(0)


def trimmed_means(points: Tensor, labels: Tensor, k: int, trim: float) -> Tensor:
    """The trimmed mean of every group: [R, K, D] of `points` [N, D] under `labels` [R, N].

    All groups of all restarts at once: rows are sorted by value, then stably by group, so that the rows
    of a group lie together in the order of their values; what is kept is then a matrix product. A group
    without members gives zeros.

    >>> trimmed_means(torch.tensor([[0.0], [1.0], [9.0], [5.0]]), torch.tensor([[0, 0, 0, 1]]), 2, 0.34)
    tensor([[[1.],
             [5.]]])
    """
    _check(points, trim)
    restarts, number = labels.shape
    shares = _kept(labels, k, trim, points.dtype)
    columns = max(1, BLOCK // (restarts * number))
    parts = []
    for block in torch.split(points, columns, dim=1):
        by_value = block.argsort(dim=0, stable=True).expand(restarts, -1, -1)
        wide = labels[:, :, None].expand(-1, -1, block.shape[1])
        by_group = wide.gather(1, by_value).argsort(dim=1, stable=True)
        rows = by_value.gather(1, by_group)
        parts.append(shares @ block.expand(restarts, -1, -1).gather(1, rows))
    return torch.cat(parts, dim=2)


def _kept(labels: Tensor, k: int, trim: float, dtype: torch.dtype) -> Tensor:
    """[R, K, N]: the share of each row in the mean of each group, once rows are sorted by group and value."""
    groups = torch.arange(k, device=labels.device)[None, :, None]
    sizes = (labels[:, None, :] == groups).sum(2, keepdim=True)
    starts = sizes.cumsum(1) - sizes  # of integers: exact on every device
    cut = (sizes * trim).floor().long()
    place = torch.arange(labels.shape[1], device=labels.device)[None, None, :]
    inside = (place >= starts + cut) & (place < starts + sizes - cut)
    return inside.to(dtype) / (sizes - 2 * cut).clamp(min=1)


def _check(points: Tensor, trim: float) -> None:
    if not 0 <= trim < 0.5:
        raise KinfolkError("trim", trim, "give 0 or more and less than 0.5, the share cut off each side")
    if not len(points):
        raise KinfolkError("points", tuple(points.shape), "give at least one member")
