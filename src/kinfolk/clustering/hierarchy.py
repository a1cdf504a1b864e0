"""Groups out of a matrix of distances: merging step by step, density, and how far groups stand apart.

`bipartition` is the split of Sattler, Müller, Samek: Clustered Federated Learning. IEEE TNNLS 32(8), 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster
from scipy.cluster.hierarchy import linkage as tree
from scipy.spatial.distance import squareform
from sklearn.cluster import HDBSCAN, AgglomerativeClustering
from sklearn.metrics import silhouette_score
from torch import Tensor

from kinfolk.errors import KinfolkError


@dataclass(frozen=True)
class Split:
    """Two groups of positions, each in rising order; the first holds position 0."""

    first: Tensor
    second: Tensor
    cross: float  # the largest similarity between a member of one and a member of the other


def bipartition(similarity: Tensor) -> Split:
    """Split by complete linkage on 1 - `similarity` [n, n], which keeps the largest cross similarity low.

    Positions are rows of the matrix: whoever splits a sub-group must look up who stands there.

    >>> split = bipartition(torch.tensor([[1.0, -0.5, 0.9], [-0.5, 1.0, -0.4], [0.9, -0.4, 1.0]]))
    >>> split.first.tolist(), split.second.tolist(), round(split.cross, 3)
    ([0, 2], [1], -0.4)
    """
    model = AgglomerativeClustering(2, metric="precomputed", linkage="complete")
    labels = _numbered(model.fit_predict(_matrix(1 - similarity))).to(similarity.device)
    first, second = (labels == 0).nonzero()[:, 0], (labels == 1).nonzero()[:, 0]
    return Split(first, second, float(similarity[first][:, second].max()))


Linkage = Literal["average", "complete", "single", "ward"]


def agglomerate(distances: Tensor, linkage: Linkage, threshold: float = 0.0, k: int = 1) -> Tensor:
    """Labels [n] of the groups that are left when no two lie within `threshold`; if that is 0, of k groups.

    How far two groups lie apart is what the linkage says of the distances between their members; `"ward"` is
    for Euclidean ones. Groups are numbered by first member.

    >>> points = torch.tensor([0.0, 1.0, 1.5, 9.0])
    >>> apart = (points[:, None] - points).abs()
    >>> agglomerate(apart, "complete", 1.2).tolist(), agglomerate(apart, "single", k=2).tolist()
    ([0, 1, 1, 2], [0, 0, 0, 1])
    """
    plain = _matrix(distances)
    if len(plain) == 1:
        return torch.zeros(1, dtype=torch.int64, device=distances.device)
    merges = tree(squareform(plain, checks=False), linkage)
    cut, rule = (threshold, "distance") if threshold else (k, "maxclust")
    return _numbered(fcluster(merges, cut, rule)).to(distances.device)


def hdbscan(
    distances: Tensor,
    min_size: int = 2,
    min_samples: int = 1,
    noise: Literal["single", "nearest"] = "single",
) -> Tensor:
    """Labels [n] of HDBSCAN (Campello, Moulavi, Sander, 2013) on a matrix of distances, in float64.

    A point of no group becomes a group of its own (`"single"`) or joins the group of the nearest point
    that has one (`"nearest"`; if nobody has, all are one group). Groups are numbered by first member.

    >>> points = torch.tensor([0.0, 0.1, 0.2, 5.0, 5.1, 5.2, 99.0])
    >>> hdbscan((points[:, None] - points).abs(), min_size=3)
    tensor([0, 0, 0, 1, 1, 1, 2])
    """
    plain = _matrix(distances)
    if len(plain) <= max(min_size, min_samples):  # too few for two groups, and more than scikit-learn takes
        found = np.full(len(plain), -1)
    else:
        model = HDBSCAN(min_cluster_size=min_size, min_samples=min_samples, metric="precomputed", copy=True)
        found = model.fit_predict(plain)
    found = attach_nearest(plain, found) if noise == "nearest" else _alone(found)
    return _numbered(found).to(distances.device)


def attach_nearest(distances: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """Give each point labelled -1 the label of the nearest point that has one; all 0 if nobody has.

    >>> attach_nearest(np.array([[0, 1, 5], [1, 0, 2], [5, 2, 0]]), np.array([3, -1, 4])).tolist()
    [3, 3, 4]
    """
    placed = np.flatnonzero(labels >= 0)
    if not len(placed):
        return np.zeros_like(labels)
    closest = placed[distances[:, placed].argmin(1)]
    return np.where(labels >= 0, labels, labels[closest])


def silhouette(distances: Tensor, labels: Tensor) -> float:
    """The mean silhouette (Rousseeuw, 1987) of groups by a matrix of distances [N, N].

    0 where it is not defined: for one group, and for as many groups as points.

    >>> points = torch.tensor([0.0, 1.0, 9.0, 10.0])
    >>> round(silhouette((points[:, None] - points).abs(), torch.tensor([0, 0, 1, 1])), 3)
    0.889
    """
    groups = len(set(labels.tolist()))
    if groups < 2 or groups >= len(labels):
        return 0.0
    return float(silhouette_score(_matrix(distances), labels.cpu().numpy(), metric="precomputed"))


def _matrix(distances: Tensor) -> NDArray[Any]:
    """Distances as float64, with a zero diagonal and both halves equal; an error if they are no distances."""
    if distances.dim() != 2 or distances.shape[0] != distances.shape[1] or not len(distances):
        raise KinfolkError("distances", tuple(distances.shape), "give a square matrix, one row per point")
    plain = distances.detach().double().cpu().numpy()
    if not np.isfinite(plain).all() or not np.allclose(plain, plain.T, rtol=1e-4, atol=1e-5):
        raise KinfolkError("distances", None, "give finite numbers, the same from i to j as from j to i")
    # Rounding can put a distance a hair below 0, which scikit-learn refuses.
    even: NDArray[Any] = np.clip((plain + plain.T) / 2, 0, None)
    np.fill_diagonal(even, 0)
    return even


def _alone(labels: NDArray[Any]) -> NDArray[Any]:
    """Each point labelled -1 gets a label of its own."""
    labels = labels.copy()
    lost = np.flatnonzero(labels < 0)
    labels[lost] = labels.max(initial=-1) + 1 + np.arange(len(lost))
    return labels


def _numbered(labels: NDArray[Any]) -> Tensor:
    """Labels renumbered from 0 by first appearance, so that equal partitions have equal labels."""
    _, first, place = np.unique(labels, return_index=True, return_inverse=True)
    return torch.from_numpy(first.argsort().argsort()[place.reshape(-1)])
