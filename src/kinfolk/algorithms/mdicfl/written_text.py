"""Text that a model writes, for networks whose outputs are the next token: ours, for rows of tokens.

The paper searches for rows because a classifier does not say what rows look like. A network that gives the
next token does: it is a distribution of text. Rows of model k are written token by token,

    x_1 ... x_T -> x_2 ... x_T, t      t drawn from h(model; x)

and rows of class c are drawn among them with probabilities in proportion to h_c(model; x): by Bayes' rule
these are rows of the model that c follows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.algorithms.mdicfl.pseudo import PseudoRows
from kinfolk.errors import at_least
from kinfolk.learning.inputs import probabilities
from kinfolk.learning.learner import Learner
from kinfolk.learning.tokens import moved_on, written
from kinfolk.streams import RoundContext
from kinfolk.types import Tree

# Where no row of a class is likely, any will do.
_ANY = 1e-12


@dataclass(frozen=True)
class WrittenText:
    """Rows that models write."""

    lengths: int = 2  # tokens written before rows are used, in lengths of a row: the first were noise
    warm_tokens: int = 5  # texts go on from the round before with so many tokens; 0: fresh ones

    def __post_init__(self) -> None:
        at_least("algorithm.text.lengths", self.lengths, 1)
        at_least("algorithm.text.warm_tokens", self.warm_tokens, 0)

    def draw(
        self,
        wanted: PseudoRows,
        learner: Learner,
        models: Tree,
        shape: tuple[int, ...],
        context: RoundContext,
        kept: Tree,
    ) -> tuple[Tensor, Tree]:
        """Rows [K, classes * samples, length] of K models (every leaf [K, ...]), class after class."""
        like = next(iter(models.values()))
        count = learner.outputs * wanted.samples
        texts, rows = [], []
        for k in range(len(like)):
            luck = context.seed.torch("pseudo", context.round, k)
            model = {n: t[k : k + 1] for n, t in models.items()}
            x, tokens = (
                torch.randint(learner.outputs, (count, *shape), generator=luck),
                self.lengths * shape[0],
            )
            if self.warm_tokens and "x" in kept:
                x, tokens = kept["x"][k], self.warm_tokens
            x = x.to(like.device)
            for _ in range(tokens):
                shares = probabilities(learner, model, x)[0]
                x = moved_on(x, written(shares, torch.rand(count, generator=luck).to(like.device)))
            texts.append(x)
            rows.append(
                x[_of_classes(probabilities(learner, model, x)[0], wanted.samples, luck).to(like.device)]
            )
        return torch.stack(rows), {"x": torch.stack(texts)} if self.warm_tokens else {}


def _of_classes(shares: Tensor, samples: int, luck: torch.Generator) -> Tensor:
    """Places of rows, so many of each class, drawn in proportion to its share [rows, classes]."""
    weight = shares.cpu().double().nan_to_num(nan=0.0).T + _ANY
    return torch.multinomial(weight, samples, replacement=True, generator=luck).flatten()
