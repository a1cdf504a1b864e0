"""Probe rows of tokens: ours, since a GAN makes numbers and a token is none.

"text" is what the client's own model writes, token by token, from noise on: a network that gives the next
token is a distribution of text. "back_search" looks for mixtures of tokens that the own model takes for each
class, and shows the likeliest token at each place. "noise" is tokens that are all equally likely.

Text of a model may repeat what it was trained on, word for word, and partners see it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.learning.learner import Learner
from kinfolk.learning.noise import normal, uniform
from kinfolk.learning.tokens import mixing, moved_on, vocabulary, written
from kinfolk.task import Batch, Carry, Plan, Scan
from kinfolk.types import plain_rows

TEXT, STEP = "work.text", "work.step"
_NOISE, _LUCK, _SEARCH = 20, 21, 22


def is_tokens(batch: Batch) -> bool:
    """Whether the rows of a batch are tokens: whole numbers.

    >>> is_tokens(Batch(torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2), torch.arange(2), None))
    True
    """
    return not plain_rows(batch.x).is_floating_point()


@dataclass(frozen=True)
class ProbeText:
    """How a client makes so many rows of tokens; they are kept like images, under the same name."""

    learner: Learner
    count: int

    @property
    def tokens(self) -> int:
        """How many there are."""
        return vocabulary(self.learner.module)

    def stored(self, x: Tensor) -> Tensor:
        """Tokens as they travel: bytes where these are enough."""
        return x.to(torch.uint8 if self.tokens <= 256 else torch.int32)

    def noise(self, carry: Carry, batch: Batch, key: Tensor) -> Carry:
        """Tokens that are all equally likely."""
        drawn = uniform(key, (self.count, *plain_rows(batch.x).shape[1:]), _NOISE)
        text = (drawn * self.tokens).long().clamp(max=self.tokens - 1)
        return {**carry, TEXT: text, STEP: torch.zeros_like(key), "images": self.stored(text)}

    def write(self, steps: int, key: str) -> tuple[Scan, Scan]:
        """Passes: noise, and so many tokens after it."""

        def begin(carry: Carry, batch: Batch) -> Carry:
            return self.noise(carry, batch, carry[key])

        def step(carry: Carry, batch: Batch) -> Carry:
            luck = uniform(carry[key], (self.count,), _LUCK, carry[STEP])
            shares = self.learner.apply(carry["model"], carry[TEXT]).softmax(-1)
            text = moved_on(carry[TEXT], written(shares, luck))
            return {**carry, TEXT: text, STEP: carry[STEP] + 1, "images": self.stored(text)}

        once, plan = Plan(1, steps=1, shuffle=False), Plan(1, steps=steps, shuffle=False)
        return Scan(begin, once), Scan(step, plan)

    def somewhere(self, batch: Batch, key: Tensor) -> Tensor:
        """Mixtures to begin a search with: logits [count, length, tokens]."""
        shape = (self.count, *plain_rows(batch.x).shape[1:], self.tokens)
        return normal(key, shape, _SEARCH).float()

    def reader(self) -> Learner:
        """Who takes mixtures."""
        return mixing(self.learner)
