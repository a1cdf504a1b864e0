"""How many groups there are, with the answer "one" where there are none.

`elbow` reads the drop of the inertia. `how_many` is a gap statistic (Tibshirani, Walther, Hastie, 2001)
whose reference has the spectrum of the data: long axes alone do not make groups. For Gaussian rows with
any covariance the left singular vectors are uniform over all rotations and independent of the singular
values, so a reference that keeps the singular values and draws new vectors is exact, however many
coordinates there are (a rotation test: Langsrud, 2005; the idea of the null is SigClust's: Liu, Hayes,
Nobel, Marron, 2008).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

from kinfolk.clustering.kmeans import kmeans
from kinfolk.errors import KinfolkError
from kinfolk.streams import Seed


def elbow(inertias: Mapping[int, float]) -> int:
    """The k whose inertia falls most, as a share, from that of the next smaller k.

    The smallest k has nothing to fall from and is never the answer, unless it is the only one.

    >>> elbow({1: 100.0, 2: 90.0, 3: 30.0, 4: 25.0})
    3
    """
    if not inertias:
        raise KinfolkError("inertias", None, "give the inertia of at least one k")
    ks = sorted(inertias)
    best, answer = -1.0, ks[0]
    for before, k in pairwise(ks):
        drop = 1 - inertias[k] / inertias[before] if inertias[before] > 0 else 0.0
        if drop > best:
            best, answer = drop, k
    return answer


def how_many(
    points: Tensor, most: int, seed: Seed, references: int = 20, needed: float = 6.0, restarts: int = 10
) -> int:
    """The number of groups among `points` [N, D], 1 to `most`, for N up to some hundred and any D.

    The answer is the smallest k whose gap is within one standard deviation of the largest, if its score, the
    gap in standard deviations of the references, reaches `needed`; else 1. Measured with N = 100, D = 1000
    and 8 draws of each kind: rows without groups score at most 5 (Gaussian, even or with long axes, and
    Student's t with 2 degrees of freedom), groups score 8 and more. Rows whose lengths spread by lognormal
    factors along a few long axes are still taken for groups in 2 of 8 draws. Weak groups may be counted one
    too many; a lone row is no group.

    >>> draw = Seed(0).torch("doc")
    >>> blob = torch.randn(45, 30, generator=draw)
    >>> groups = blob + 5 * torch.randn(3, 30, generator=draw)[torch.arange(45) % 3]
    >>> how_many(blob, 4, Seed(0), 8), how_many(groups, 4, Seed(0), 8)
    (1, 3)
    """
    if not 1 <= most <= len(points):
        raise KinfolkError("most", most, f"give 1 to {len(points)}, the number of points")
    values, vectors = _parts(points.detach().double().cpu())
    if not len(values):  # all points are the same
        return 1
    values, vectors = _parts(_tamed(vectors * values, seed))
    draw = seed.torch("how many")
    mine = _course(vectors * values, most, seed, restarts)
    theirs = torch.stack(
        [_course(_rotated(len(points), values, draw), most, seed, restarts) for _ in range(references)]
    )
    gap = theirs.mean(0) - mine
    spread = theirs.std(0) * (1 + 1 / references) ** 0.5
    score = torch.where(spread > 1e-9, gap / spread.clamp(min=1e-9), torch.zeros_like(gap))
    top = int(gap.argmax())
    k = int((gap >= gap[top] - spread[top]).int().argmax())
    return k + 1 if score[k] >= needed else 1


def _course(points: Tensor, most: int, seed: Seed, restarts: int) -> Tensor:
    """The log inertia for k = 1..most; a floor stands in for the log of 0."""
    runs = [kmeans(points, k, seed, restarts, start="plusplus").inertia for k in range(1, most + 1)]
    inertias = torch.tensor(runs, dtype=torch.float64)
    return inertias.clamp(min=1e-12 * float(inertias[0])).log()


def _parts(points: Tensor) -> tuple[Tensor, Tensor]:
    """The singular values of centred points that are not 0, and their left vectors [N, values]."""
    # D may be millions: the N x N matrix of inner products has the same vectors.
    centred = points - points.mean(0)
    squares, vectors = torch.linalg.eigh(centred @ centred.T)
    kept = squares > squares[-1].clamp(min=0) * 1e-10
    return squares[kept].sqrt(), vectors[:, kept]


def _rotated(number: int, values: Tensor, draw: torch.Generator) -> Tensor:
    """Points without groups that have these singular values: the vectors are uniform among all centred."""
    normal = torch.randn(number, len(values), dtype=torch.float64, generator=draw)
    vectors, upper = torch.linalg.qr(normal - normal.mean(0))
    made: Tensor = vectors * upper.diagonal().sign() * values
    return made


def _tamed(points: Tensor, seed: Seed) -> Tensor:
    """Points whose lengths spread no more than those of Gaussian points with this spectrum.

    Rank by rank, a length is compared with what references have, both as multiples of the median; what is
    too long is shortened, what is too short is lengthened. Heavy-tailed rows become Gaussian in length.
    Groups spread less than Gaussian rows do, so nothing happens to them.
    """
    draw = seed.torch("how many", "lengths")
    for _ in range(3):
        values, vectors = _parts(points)
        points = vectors * values
        lengths, order = torch.linalg.vector_norm(points, dim=1).sort()
        drawn = [_rotated(len(points), values, draw) for _ in range(8)]
        usual = torch.stack([torch.linalg.vector_norm(d, dim=1).sort().values for d in drawn]).mean(0)
        middle = lengths.median()
        excess = (lengths / middle.clamp(min=1e-300)) / (usual / usual.median())
        factor = torch.where(lengths < middle, excess.clamp(1e-3, 1), excess.clamp(min=1))
        points[order] = points[order] / factor[:, None]
    return points
