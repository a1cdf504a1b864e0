"""How far clients' models are from those of clusters, by what they say of rows made out of the clusters'."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.algorithms.blocks.output_distance import class_distances, confidence
from kinfolk.algorithms.mdicfl.back_search import probabilities
from kinfolk.learning.learner import Learner
from kinfolk.types import Tree


@dataclass(frozen=True)
class Probe:
    """Pseudo rows, and what each cluster's own model says of its own."""

    x: Tensor  # [K, C * M, ...]
    own: Tensor  # [K, C * M, C]

    def distances(self, learner: Learner, models: Tree) -> Tensor:
        """d [clients, K, C] of clients' models."""
        said = probabilities(learner, models, self.x.flatten(0, 1))
        return class_distances(
            said.reshape(len(said), len(self.x), -1, said.shape[-1]), self.own, learner.outputs
        )

    def least_sure(self, member: Tensor) -> float:
        """The confidence of the least sure model among clusters with members; one of no numbers is left out.

        >>> own = torch.tensor([[[0.75, 0.25], [0.5, 0.5]], [[torch.nan, 1.0], [0.0, 1.0]]])
        >>> probe = Probe(torch.zeros(2, 2), own)
        >>> probe.least_sure(torch.tensor([0, 1])), probe.least_sure(torch.tensor([1]))
        (0.625, nan)
        """
        sure = confidence(self.own).cpu()[torch.unique(member.cpu())]
        known = sure[~sure.isnan()]
        return float(known.min()) if len(known) else math.nan


def answers(learner: Learner, models: Tree, x: Tensor) -> Tensor:
    """What each of K models says of its own rows x [K, rows, ...]: [K, rows, C]."""
    alone = [{n: t[k : k + 1] for n, t in models.items()} for k in range(len(x))]
    return torch.stack([probabilities(learner, model, x[k])[0] for k, model in enumerate(alone)])
