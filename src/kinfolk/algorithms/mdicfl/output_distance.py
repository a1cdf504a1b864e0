"""The distance of models by their outputs: L1, on the same rows.

Zhang et al.: Communication-efficient clustered federated learning via model distance. Machine Learning, 2024.
Client i is compared with cluster k on pseudo rows of cluster k, class by class:

    d_ikc = mean over rows x of (k, c) of |h(w_i; x) - h(c_k; x)|_1      in [0, 2]
    s_i   = argmin_k sum_c p_ic d_ikc                                    p_i: label distribution of client i

Outputs are probabilities, so that half of d is a total variation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.learning.inputs import probabilities
from kinfolk.learning.learner import Learner
from kinfolk.types import Tree

# The L1 distance of outputs that share nothing.
FARTHEST = 2.0


@dataclass(frozen=True)
class Probe:
    """Pseudo rows, and the outputs of each cluster's own model on its own."""

    x: Tensor  # [K, C * M, ...]
    own: Tensor  # [K, C * M, C]
    reader: Learner | None = None  # who takes the rows, where they are not of the clients' kind

    @staticmethod
    def of(learner: Learner, models: Tree, x: Tensor) -> Probe:
        """With what each of K models says of its own rows x [K, rows, ...]."""
        alone = [{n: t[k : k + 1] for n, t in models.items()} for k in range(len(x))]
        return Probe(x, torch.stack([probabilities(learner, m, x[k])[0] for k, m in enumerate(alone)]))

    def distances(self, learner: Learner, models: Tree) -> Tensor:
        """d [clients, K, C] of clients' models."""
        said = self.ask(learner, models, self.x)
        return class_distances(
            said.reshape(len(said), len(self.x), -1, said.shape[-1]), self.own, learner.outputs
        )

    def ask(self, learner: Learner, models: Tree, x: Tensor) -> Tensor:
        """The outputs of n models on pseudo rows x [K, rows, ...], one after another: [n, K * rows, C]."""
        return probabilities(self.reader or learner, models, x.flatten(0, 1))

    def least_confidence(self, member: Tensor) -> float:
        """The lowest confidence among the models of clusters with members; one that is NaN is left out.

        >>> own = torch.tensor([[[0.75, 0.25], [0.5, 0.5]], [[torch.nan, 1.0], [0.0, 1.0]]])
        >>> probe = Probe(torch.zeros(2, 2), own)
        >>> probe.least_confidence(torch.tensor([0, 1])), probe.least_confidence(torch.tensor([1]))
        (0.625, nan)
        """
        held = confidence(self.own).cpu()[torch.unique(member.cpu())]
        known = held[~held.isnan()]
        return float(known.min()) if len(known) else math.nan


def class_distances(clients: Tensor, clusters: Tensor, classes: int) -> Tensor:
    """d [N, K, classes] from clients' outputs [N, K, rows, outputs] and the clusters' own [K, rows, outputs].

    Rows are ordered class after class, equally many of each.

    >>> own = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> class_distances(torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]]), own, 2)
    tensor([[[0., 1.]]])
    """
    apart = (clients - clusters).abs().sum(-1)
    return apart.reshape(*apart.shape[:2], classes, -1).mean(-1)


def told(distances: Tensor) -> Tensor:
    """Distances [..., K, C] as clients are sent them: a cluster whose model is no number is as far as can be.

    >>> told(torch.tensor([[0.5, torch.nan], [0.25, 0.5]]))
    tensor([[2.0000, 2.0000],
            [0.2500, 0.5000]])
    """
    return torch.where(distances.isnan().any(-1, keepdim=True), FARTHEST, distances)


def cluster_cost(distances: Tensor, labels: Tensor) -> Tensor:
    """sum_c p_c d_kc [..., K] of distances [..., K, C] and label distributions [..., C]; NaN is infinite."""
    # In float64 from float32: server and client make the same choice from the same numbers.
    cost = (distances.double() * labels.double().unsqueeze(-2)).sum(-1)
    # argmin would take NaN for the nearest.
    return cost.nan_to_num(nan=torch.inf, posinf=torch.inf)


def nearest_cluster(distances: Tensor, labels: Tensor) -> Tensor:
    """argmin_k sum_c p_c d_kc of distances [..., K, C] and label distributions [..., C]; ties to the lowest.

    A distance that is NaN, as of a model that is, counts as infinite.

    >>> nearest_cluster(torch.tensor([[0.0, 2.0], [1.0, 0.5]]), torch.tensor([0.9, 0.1]))
    tensor(0)
    >>> nearest_cluster(torch.tensor([[torch.nan, 0.0], [1.0, 0.5]]), torch.tensor([0.9, 0.1]))
    tensor(1)
    """
    return cluster_cost(distances, labels).argmin(-1)


def confidences(said: Tensor, y: Tensor) -> Tensor:
    """[J, K, C]: the mean probability for the class that was asked for, by model, cluster of the rows, class.

    `said` [J, K, rows, C] are model j's probabilities on the rows of cluster k; `y` [rows] what these are to
    be, class after class, equally many of each.

    >>> said = torch.tensor([[0.75, 0.25], [0.5, 0.5]])[None, None]
    >>> confidences(said, torch.tensor([0, 1]))
    tensor([[[0.7500, 0.5000]]])
    """
    meant = said.gather(-1, y.expand(said.shape[:-1])[..., None])[..., 0]
    return meant.reshape(*meant.shape[:-1], said.shape[-1], -1).mean(-1)


def confidence(own: Tensor) -> Tensor:
    """How confident models are of rows made of them: [K] from the outputs of each on its own [K, rows, C].

    The mean probability of the class that a row was made for; rows are ordered class after class.

    >>> confidence(torch.tensor([[[0.75, 0.25], [0.5, 0.5]]]))
    tensor([0.6250])
    """
    classes = own.shape[-1]
    meant = own.reshape(len(own), classes, -1, classes).diagonal(dim1=1, dim2=3)
    return meant.flatten(1).mean(1)
