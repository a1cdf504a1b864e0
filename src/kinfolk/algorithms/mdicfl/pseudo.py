"""What pseudo rows are to be, whichever sampler makes them: how many, of which classes, near which mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError, at_least
from kinfolk.learning.inputs import RowCost
from kinfolk.learning.learner import Learner
from kinfolk.learning.tokens import mixing, runs, takes_tokens, vocabulary, writes

# Under the root of a norm, whose slope at zero is not a number.
TINY = 1e-12


@dataclass(frozen=True)
class PseudoRows:
    """Rows made out of a model alone. The defaults of the prior are the paper's.

    >>> PseudoRows(samples=2).labels(3), PseudoRows(prior_mean=1.0, prior_weight=2.0).pull(torch.eye(2) * 5)
    (tensor([0, 0, 1, 1, 2, 2]), tensor([4.1231, 4.1231]))
    """

    # MD-ICFL-1, MD-ICFL-2; "text" is ours: what a network writes that gives the next token.
    sampler: Literal["back_search", "generator", "text"] = "back_search"
    samples: int = 10  # M: rows for each cluster and class; the paper has 30
    prior_mean: float = 0.0  # mu; the paper's 0.5 for pixels is 0 once they are normalised
    prior_weight: float = 0.1  # lambda
    norm: Literal["l2", "squared"] = "l2"  # of the pull towards mu

    def __post_init__(self) -> None:
        at_least("algorithm.pseudo.samples", self.samples, 1)
        at_least("algorithm.pseudo.prior_weight", self.prior_weight, 0)

    def labels(self, classes: int) -> Tensor:
        """The labels of one model's rows, class after class."""
        return torch.arange(classes).repeat_interleave(self.samples)

    def pull(self, x: Tensor) -> Tensor:
        """(lambda / 2) |x - mu| or its square for each row of x [rows, ...]."""
        squares = (x - self.prior_mean).flatten(1).square().sum(1)
        return self.prior_weight / 2 * (squares if self.norm == "squared" else (squares + TINY).sqrt())

    def reader(self, learner: Learner, shape: tuple[int, ...]) -> tuple[Learner, tuple[int, ...]]:
        """Who takes pseudo rows where clients have rows of this shape, and the shape of pseudo rows.

        Where rows are tokens, pseudo rows are mixtures of tokens, unless the network writes text.
        """
        option = "algorithm.pseudo.sampler"
        if not takes_tokens(learner, shape):
            if self.sampler == "text":
                raise KinfolkError(option, "text", "rows are no tokens; use 'back_search' or 'generator'")
            return learner, shape
        if self.sampler == "text":
            writes(learner, option, "text")
            return learner, shape
        soft, mixed = mixing(learner), (*shape, vocabulary(learner.module))
        if not runs(soft, torch.zeros(2, *mixed)):
            raise KinfolkError(option, self.sampler, "the network takes no mixtures of tokens; use 'text'")
        return soft, mixed

    def cost(self, learner: Learner) -> RowCost:
        """CE(h(model; x), y) + the pull, for each row."""
        return lambda outputs, x, y: learner.loss.row_loss(outputs, y) + self.pull(x)
