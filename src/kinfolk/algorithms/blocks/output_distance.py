"""How far apart models are by what they say: the L1 distance of their outputs on the same rows.

Zhang et al.: Communication-efficient clustered federated learning via model distance. Machine Learning, 2024.
Client i is compared with cluster k on rows of cluster k, class by class:

    d_ikc = mean over rows x of (k, c) of |h(w_i; x) - h(c_k; x)|_1      in [0, 2]
    s_i   = argmin_k sum_c p_ic d_ikc                                    p_i: the label law of client i

Outputs are probabilities, so that half of d is a total variation.
"""

from __future__ import annotations

import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor


def class_distances(clients: Tensor, clusters: Tensor, classes: int) -> Tensor:
    """d [N, K, classes] from clients' outputs [N, K, rows, outputs] and the clusters' own [K, rows, outputs].

    Rows are ordered class after class, equally many of each.

    >>> own = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> class_distances(torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]]), own, 2)
    tensor([[[0., 1.]]])
    """
    apart = (clients - clusters).abs().sum(-1)
    return apart.reshape(*apart.shape[:2], classes, -1).mean(-1)


def nearest_cluster(distances: Tensor, law: Tensor) -> Tensor:
    """argmin_k sum_c p_c d_kc of distances [..., K, C] and label laws [..., C]; ties go to the lowest k.

    A distance that is no number, as of a model that is none, is infinite.

    >>> nearest_cluster(torch.tensor([[0.0, 2.0], [1.0, 0.5]]), torch.tensor([0.9, 0.1]))
    tensor(0)
    >>> nearest_cluster(torch.tensor([[torch.nan, 0.0], [1.0, 0.5]]), torch.tensor([0.9, 0.1]))
    tensor(1)
    """
    # In float64 from float32: server and client come to the same choice out of the same numbers.
    cost = (distances.double() * law.double().unsqueeze(-2)).sum(-1)
    # What is no number is infinitely far; argmin would take it for the nearest.
    return cost.nan_to_num(nan=torch.inf, posinf=torch.inf).argmin(-1)


def confidence(own: Tensor) -> Tensor:
    """How sure models are of rows that were made of them: [K] from what each says of its own [K, rows, C].

    The mean probability of the class a row is meant to be; rows are ordered class after class.

    >>> confidence(torch.tensor([[[0.75, 0.25], [0.5, 0.5]]]))
    tensor([0.6250])
    """
    classes = own.shape[-1]
    meant = own.reshape(len(own), classes, -1, classes).diagonal(dim1=1, dim2=3)
    return meant.flatten(1).mean(1)


def mutual_distances(outputs: Tensor) -> Tensor:
    """How far apart every two models are on the rows that were made of either: [K, K], in [0, 2].

    outputs [K, K, rows, outputs]: what model a (first) says of the rows of model b (second). On rows of third
    models two may differ by chance, whose groups are one.

    >>> mutual_distances(torch.tensor([[[[1.0, 0.0]], [[1.0, 0.0]]], [[[0.5, 0.5]], [[0.0, 1.0]]]]))
    tensor([[0.0000, 1.5000],
            [1.5000, 0.0000]])
    """
    own = outputs.diagonal().movedim(-1, 0)
    there = (outputs - own).abs().sum(-1).mean(-1)
    return (there + there.T) / 2


def joined(apart: Tensor, tolerance: float) -> Tensor:
    """For each model the first of those it is one with: less than `tolerance` apart, also by way of others.

    >>> joined(torch.tensor([[0.0, 0.9, 0.01], [0.9, 0.0, 1.0], [0.01, 1.0, 0.0]]), 0.1)
    tensor([0, 1, 0])
    """
    if not len(apart):
        return torch.zeros(0, dtype=torch.int64)
    near = (apart < tolerance).cpu().numpy()
    _, part = connected_components(near, directed=False)
    return torch.tensor([part.tolist().index(p) for p in part.tolist()])
