"""Back-searching, MD-ICFL-1: inputs that a model takes for members of a class, found by gradient descent.

Zhang et al.: Communication-efficient clustered federated learning via model distance. Machine Learning, 2024.
For each class c, rows x from N(0, I) are moved by Adam down

    CE(h(model; x), c) + (prior_weight / 2) |x - prior_mean|
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.algorithms.mdicfl.pseudo import PseudoRows
from kinfolk.errors import at_least
from kinfolk.learning.inputs import descend_rows
from kinfolk.learning.learner import Learner
from kinfolk.streams import RoundContext
from kinfolk.types import Tree

# The range that rows are clipped to: pixels as the papers normalise them.
RANGE = (-1.0, 1.0)


@dataclass(frozen=True)
class BackSearch:
    """Rows searched for one by one, each a problem of its own."""

    iterations: int = 100
    lr: float = 0.1
    clip_to_range: bool = False  # to [-1, 1] after every step
    warm_steps: int = 5  # rows go on from the round before with so many steps; 0: fresh ones, the paper's

    def __post_init__(self) -> None:
        for name in ("iterations", "lr", "warm_steps"):
            at_least(f"algorithm.search.{name}", getattr(self, name), 0)

    def draw(
        self,
        wanted: PseudoRows,
        learner: Learner,
        models: Tree,
        shape: tuple[int, ...],
        context: RoundContext,
        kept: Tree,
    ) -> tuple[Tensor, Tree]:
        """Rows [K, classes * samples, *shape] of K models (every leaf [K, ...]), class after class.

        Fresh ones, or those of `kept` moved on for the models as they are now; and what to keep of them.
        """
        y, like = wanted.labels(learner.outputs), next(iter(models.values()))
        streams = [context.seed.torch("pseudo", context.round, k) for k in range(len(like))]
        x = torch.stack([torch.randn((len(y), *shape), generator=g) for g in streams]).to(like.device)
        steps = self.iterations
        if self.warm_steps and "x" in kept:
            # Rows that a model with NaN has spoilt start again.
            sound = kept["x"].flatten(1).isfinite().all(1)
            x = torch.where(sound.reshape(-1, *[1] * (x.dim() - 1)), kept["x"], x)
            steps = self.warm_steps
        cost, bounds = wanted.cost(learner), RANGE if self.clip_to_range else None
        x = descend_rows(learner, models, x, y.to(like.device), cost, self.lr, steps, bounds)
        return x, {"x": x} if self.warm_steps else {}
