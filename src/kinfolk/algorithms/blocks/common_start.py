"""A common start: all clients share one model until their updates have left the plateau of the loss.

Before a network looks at its rows it learns how frequent labels are, and its loss stays for a while at what a
constant answer costs. What clients do to such a model is about their labels, whatever their rows look like:
they are not to be split by it. With every update of the common model a client therefore tells one number,

    blind_i = F_i(w_i) / F_i(w_i's own mean answer on the client's rows, given to every row),

of the model w_i that it sends, on its training rows: 1 for a model that ignores rows, whatever labels a
client has and however large losses are, and less once it does not. A round whose median is at most `plateau`
counts; the start ends after a few rounds that count, or after a stated number of rounds of any kind. It is
not asked of the common model itself, which where groups contradict each other never learns anything.

The number is sent rather than the loss: the loss of a constant answer q is -sum_c p_ic log q_c, by which any
server learns a client's label distribution, one equation with each q; the ratio is 1 then. It does tell how
well the trained model fits the client's rows. A server that sends models made for the purpose may learn about
labels from it, as it may from the trained model that comes with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from kinfolk.fold import Fold
from kinfolk.learning.learner import Learner
from kinfolk.task import Batch, Carry, ClientInfo, FloatSpec, Plan, Scan, Task
from kinfolk.types import Message, Stack, plain_rows

R = TypeVar("R")

# `blind` of a model that ignores its rows, and of one that nobody told anything about.
IGNORES = 1.0
# The largest that is told: who has no loss at all (a model that is no number) must not count as missing.
WORST = 100.0


def telling(learner: Learner, update: Task) -> Task:
    """The local update of a model, whose reply also has `blind` of the trained model."""

    def start(message: Message, memory: Message, facts: ClientInfo) -> Carry:
        none = facts.rows * 0.0  # zeros of the client's own
        carry = {"said": none + torch.zeros(learner.outputs, device=none.device), "rows": facts.rows}
        return {**update.start(message, memory, facts), **carry, "seeing": none, "blind": none}

    def hear(carry: Carry, batch: Batch) -> Carry:
        return {**carry, "said": carry["said"] + batch.sum(_answers(learner, carry, batch))}

    def compare(carry: Carry, batch: Batch) -> Carry:
        said, mean = _answers(learner, carry, batch), carry["said"] / carry["rows"].clamp(min=1)
        seeing, blind = (
            batch.sum(_loss(learner, s, plain_rows(batch.y))) for s in (said, mean.expand_as(said))
        )
        return {**carry, "seeing": carry["seeing"] + seeing, "blind": carry["blind"] + blind}

    def finish(carry: Carry) -> tuple[Message, Message | None]:
        reply, memory = update.finish(carry)
        # Without rows, or where a constant answer is right already, there is nothing to see.
        ratio = torch.where(carry["blind"] > 0, carry["seeing"] / carry["blind"].clamp(min=1e-12), IGNORES)
        return {**reply, "blind": ratio.nan_to_num(nan=WORST).clamp(max=WORST)}, memory

    once = Plan(learner.score_batch, shuffle=False)
    passes = (*update.passes, Scan(hear, once), Scan(compare, once))
    return replace(
        update,
        start=start,
        finish=finish,
        passes=passes,
        reply={**update.reply, "blind": FloatSpec((), 0, WORST)},
    )


def _answers(learner: Learner, carry: Carry, batch: Batch) -> Tensor:
    """What the model says of every row: probabilities, or numbers in a regression."""
    out = learner.apply(carry["model"], batch)
    out = out.reshape(len(out), -1)
    return out.softmax(1) if learner.loss.classification else out


def _loss(learner: Learner, said: Tensor, y: Tensor) -> Tensor:
    """The loss of answers, row by row."""
    return learner.loss.row_loss(said.clamp(min=1e-30).log() if learner.loss.classification else said, y)


@dataclass(frozen=True)
class WithBlind(Generic[R]):
    """A fold: what another makes of the replies, and the median of `blind`; IGNORES if nobody replied.

    The median, since a few who lie about theirs are not to decide when the start ends.

    >>> from kinfolk.fold import Mean
    >>> from kinfolk.types import Client
    >>> reply = lambda v, b: {"model": {"w": torch.tensor([v])}, "blind": torch.tensor(b)}
    >>> chunk = Stack.of({Client("a"): (1, reply(0.0, 0.5)), Client("b"): (3, reply(4.0, 0.75))})
    >>> fold = WithBlind(Mean("model", {"w": torch.zeros(1)}))
    >>> fold.end(fold.add(fold.begin(), chunk))
    ({'w': tensor([3.])}, 0.625)
    """

    by: Fold[R]

    def begin(self) -> tuple[Any, list[float]]:
        """Nothing heard yet."""
        return self.by.begin(), []

    def add(self, total: tuple[Any, list[float]], chunk: Stack) -> tuple[Any, list[float]]:
        """Add a chunk."""
        inner, told = total
        return self.by.add(inner, chunk), told + chunk.tensor("blind").double().tolist()

    def end(self, total: tuple[Any, list[float]]) -> tuple[R, float]:
        """(what the other fold has made, the median)."""
        inner, told = total
        return self.by.end(inner), median(told) if told else IGNORES
