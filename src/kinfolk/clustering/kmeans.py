"""k-means by Lloyd's steps, all restarts in one batch of matrix products.

Lloyd: Least Squares Quantization in PCM. IEEE Trans. Inf. Theory 28(2), 1982. With `trim` > 0 centres
are trimmed means: Ghosh, Hong, Yin, Ramchandran: Robust Federated Learning in a Heterogeneous
Environment. arXiv:1906.06629, 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.clustering.distances import apart
from kinfolk.clustering.trimmed import trimmed_means
from kinfolk.errors import KinfolkError, at_least, near
from kinfolk.streams import Seed

STARTS = ("random", "plusplus")
# Numbers in one block of rows x restarts x clusters; about three such blocks are alive at once.
BLOCK = 1 << 23
# Restarts count as equally good if their inertias differ by this part, and the first is taken: many end in
# the same groups under other numbers, and a rounding error must not choose among those.
AS_GOOD = 1e-5


@dataclass(frozen=True)
class Clustering:
    """Groups of points. Every label is that of the nearest centre, ties to the lowest."""

    labels: Tensor  # [N], every one of 0..K-1 occurs
    centres: Tensor  # [K, D]
    inertia: float  # mean squared distance of a point to the centre of its group
    iterations: int  # of the best restart
    settled: bool  # the best restart stopped by itself
    inertias: Tensor  # [restarts], float64


def kmeans(
    points: Tensor,
    k: int,
    seed: Seed,
    restarts: int = 20,
    iterations: int = 50,
    tolerance: float = 1e-6,
    start: str | Tensor = "random",
    trim: float = 0.0,
) -> Clustering:
    """The best of several runs of Lloyd on `points` [N, D]: the one of lowest mean squared distance.

    A run starts from `k` distinct points drawn evenly (`"random"`), from k-means++ (`"plusplus"`), or from
    centres that are given: [K, D] or [restarts, K, D]. It stops when no label changes or when the inertia
    changes by less than `tolerance` of itself. A cluster left without points is put on the point farthest
    from its own centre, never taking the last point of another. Computes in the type of `points`, after
    moving them to their mean.

    >>> found = kmeans(torch.tensor([[0.0], [0.2], [9.0], [9.2]]), 2, Seed(0))
    >>> found.labels[0] == found.labels[1], found.labels[0] == found.labels[2], round(found.inertia, 3)
    (tensor(True), tensor(False), 0.01)
    """
    _check(points, k, restarts, iterations, start, trim)
    middle = points.mean(0)
    here = points - middle
    if isinstance(start, Tensor):
        centres = start.to(points).reshape(-1, k, points.shape[1]) - middle
    else:
        draw = _plusplus if start == "plusplus" else _distinct
        centres = here[draw(here, k, seed, restarts).to(points.device)]
    centres, labels, inertias, taken, settled = _lloyd(here, centres, iterations, tolerance, trim)
    best = int((inertias <= inertias.min() * (1 + AS_GOOD)).cpu().int().argmax())
    return Clustering(
        labels[best],
        centres[best] + middle,
        float(inertias[best]),
        int(taken[best]),
        bool(settled[best]),
        inertias,
    )


def nearest(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """For each point the nearest of `centres` [..., K, D], ties to the lowest, and its squared distance.

    >>> nearest(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[0.0], [2.0]]))
    (tensor([0, 0, 1]), tensor([0., 1., 0.]))
    """
    middle = points.mean(0)
    there = (centres.to(points) - middle).reshape(-1, *centres.shape[-2:])
    labels, own = _assign(points - middle, there)
    shape = (*centres.shape[:-2], len(points))
    return labels.reshape(shape), own.reshape(shape)


def group_means(points: Tensor, labels: Tensor, keep: Tensor, trim: float = 0.0) -> Tensor:
    """The mean of every group [K, D]; a group without members keeps its row of `keep` [K, D].

    >>> group_means(torch.tensor([[1.0], [3.0]]), torch.tensor([1, 1]), torch.zeros(3, 1)).T
    tensor([[0., 2., 0.]])
    """
    return _centres(points, labels[None], keep.to(points)[None], trim)[0]


def _lloyd(
    points: Tensor, centres: Tensor, iterations: int, tolerance: float, trim: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Centres, labels, inertias, steps taken and whether it stopped by itself, of every restart."""
    restarts = len(centres)
    labels = torch.full((restarts, len(points)), -1, device=points.device)
    inertias = torch.full((restarts,), torch.inf, dtype=torch.float64, device=points.device)
    taken = torch.zeros(restarts, dtype=torch.int64)
    settled = torch.zeros(restarts, dtype=torch.bool)
    centres = centres.clone()
    going = torch.arange(restarts, device=points.device)
    for step in range(iterations + 1):
        found, own = _assign(points, centres[going])
        found, own, centres[going], moved = _fill(points, centres[going], found, own)
        now, before = own.mean(1, dtype=torch.float64), inertias[going]
        same = (found == labels[going]).all(1)
        # The first `before` is infinite, and inf <= tolerance * inf.
        close = torch.isfinite(before) & ((before - now).abs() <= tolerance * before)
        stop = (same | close) & ~moved
        labels[going], inertias[going] = found, now
        taken[going.cpu()], settled[going.cpu()] = step, stop.cpu()
        going = going[~stop]
        if not len(going) or step == iterations:
            break
        centres[going] = _centres(points, labels[going], centres[going], trim)
    return centres, labels, inertias, taken, settled


def _assign(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Labels and squared distances [R, N] to the nearest of `centres` [R, K, D], in blocks of rows."""
    restarts, k, _ = centres.shape
    labels, own = [], []
    for block in torch.split(points, max(1, BLOCK // (restarts * k))):
        least, where = apart(block, centres).min(2)
        labels.append(where)
        own.append(least)
    return torch.cat(labels, 1), torch.cat(own, 1)


def _fill(
    points: Tensor, centres: Tensor, labels: Tensor, own: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Put every cluster without points on the farthest point of one that has several; who was changed."""
    counts = _counts(labels, centres.shape[1])
    moved = (counts == 0).any(1)
    if not bool(moved.any()):
        return labels, own, centres, moved
    labels, own, centres = labels.clone(), own.clone(), centres.clone()
    while len(needy := (counts == 0).any(1).nonzero()[:, 0]):  # fills one cluster of each in every pass
        target = (counts[needy] == 0).int().argmax(1)
        spare = counts[needy].gather(1, labels[needy]) > 1
        far = torch.where(spare, own[needy], -1.0).argmax(1)
        counts[needy, labels[needy, far]] -= 1
        counts[needy, target] += 1
        labels[needy, far], own[needy, far], centres[needy, target] = target, 0.0, points[far]
    return labels, own, centres, moved


def _counts(labels: Tensor, k: int) -> Tensor:
    """[R, K]: how many points each cluster has."""
    groups = torch.arange(k, device=labels.device)
    blocks = torch.split(labels, max(1, BLOCK // (len(labels) * k)), dim=1)
    return torch.stack([(part[:, :, None] == groups).sum(1) for part in blocks]).sum(0)


def _centres(points: Tensor, labels: Tensor, keep: Tensor, trim: float) -> Tensor:
    """[R, K, D]: the (trimmed) mean of every group; without members, what `keep` says."""
    k = keep.shape[1]
    counts = _counts(labels, k)[:, :, None]
    if trim > 0:
        means = trimmed_means(points, labels, k, trim)
    else:
        means = _sums(points, labels, k) / counts.clamp(min=1)
    return torch.where(counts > 0, means.to(keep.dtype), keep)


def _sums(points: Tensor, labels: Tensor, k: int) -> Tensor:
    """[R, K, D] in float64: sums by group as products with 0/1 matrices, the same bits every time.

    A scatter would be quicker on a CPU, but on a GPU it adds in any order.
    """
    groups = torch.arange(k, device=labels.device)
    size = max(1, BLOCK // (len(labels) * k))
    total = torch.zeros(len(labels), k, points.shape[1], dtype=torch.float64, device=points.device)
    for rows, part in zip(torch.split(points, size), torch.split(labels, size, dim=1), strict=True):
        member = (part[:, None, :] == groups[:, None]).to(points.dtype)
        total += (member.flatten(0, 1) @ rows).reshape(total.shape)
    return total


def _distinct(points: Tensor, k: int, seed: Seed, restarts: int) -> Tensor:
    """[R, K]: positions of k different points for every restart."""
    draws = [seed.numpy("k-means", r).choice(len(points), k, replace=False) for r in range(restarts)]
    return torch.stack([torch.from_numpy(draw) for draw in draws])


def _plusplus(points: Tensor, k: int, seed: Seed, restarts: int) -> Tensor:
    """[R, K]: k-means++ (Arthur and Vassilvitskii, 2007): the next point by its squared distance so far."""
    chance = torch.from_numpy(seed.numpy("k-means++").random((restarts, k)))
    chosen = [(chance[:, 0] * len(points)).long().clamp(max=len(points) - 1)]
    least = torch.full((restarts, len(points)), torch.inf, dtype=torch.float64)
    for i in range(1, k):
        latest = points[chosen[-1].to(points.device)][:, None]
        # Summed on the CPU in float64: a GPU's cumulative sum is not the same every time.
        least = torch.minimum(least, _assign(points, latest)[1].double().cpu())
        least.scatter_(1, torch.stack(chosen, 1), 0.0)
        reached = least.cumsum(1)
        point = torch.searchsorted(reached, chance[:, i : i + 1] * reached[:, -1:], right=True)[:, 0]
        # Fewer different points than k: every distance is 0, take a position that is still free.
        free = torch.ones(restarts, len(points), dtype=torch.bool).scatter_(1, torch.stack(chosen, 1), False)
        stuck = reached[:, -1] <= 0
        chosen.append(torch.where(stuck, free.int().argmax(1), point.clamp(max=len(points) - 1)))
    return torch.stack(chosen, 1)


def _check(points: Tensor, k: int, restarts: int, iterations: int, start: str | Tensor, trim: float) -> None:
    if points.dim() != 2 or not points.is_floating_point():
        raise KinfolkError("points", tuple(points.shape), "give floating-point rows, [N, D]")
    if not bool(torch.isfinite(points).all()):
        raise KinfolkError("points", None, "they hold NaN or infinity; leave those rows out")
    if not 1 <= k <= len(points):
        raise KinfolkError("k", k, f"give 1 to {len(points)}, the number of points")
    at_least("restarts", restarts, 1)
    at_least("iterations", iterations, 1)
    if not 0 <= trim < 0.5:
        raise KinfolkError("trim", trim, "give 0 or more and less than 0.5, the share cut off each side")
    if isinstance(start, str) and start not in STARTS:
        raise KinfolkError("start", start, near(start, STARTS))
    if isinstance(start, Tensor) and start.shape[-2:] != (k, points.shape[1]):
        raise KinfolkError("start", tuple(start.shape), f"give centres [..., {k}, {points.shape[1]}]")
