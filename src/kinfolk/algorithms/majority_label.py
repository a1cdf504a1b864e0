"""Majority label: no model at all; each client always answers with its most frequent training labels.

What a method scores beyond this it has learnt from the rows and not from how often labels occur.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kinfolk.errors import KinfolkError
from kinfolk.learning.learner import Learner
from kinfolk.script import Script, ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Batch, Carry, ClientInfo, Plan, Scan, Table, Task
from kinfolk.types import Client, Message, PerClient, Tree, plain_rows


@dataclass(frozen=True)
class State:
    """The server holds nothing."""


class Always(nn.Module):
    """A network that gives every row the same logits.

    >>> Always(2)(torch.ones(3, 5)).shape
    torch.Size([3, 2])
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("logits", torch.zeros(classes))
        self.logits: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """The logits, once for each row."""
        return self.logits.expand(x.shape[0], -1)


@dataclass(frozen=True)
class MajorityLabel:
    """No training: every row gets the client's own training labels, the most frequent first."""

    learner: Learner

    def __post_init__(self) -> None:
        if not self.learner.loss.classification:
            raise KinfolkError(
                "algorithm.name",
                "majority_label",
                "counts one class a row, of networks with an output for each; use 'local'",
            )

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """Nothing to hold."""
        return State()

    def init_client(self, who: Client) -> Message:
        """No label was counted yet."""
        return {"counts": torch.zeros(self.learner.outputs, dtype=torch.int64)}

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """Clients count their labels; nothing is sent."""
        yield from ask("count", cohort)
        return state, {}

    def tasks(self) -> Table:
        """Count the labels of all training rows."""
        counted = Scan(self.count, Plan(self.learner.score_batch, shuffle=False))
        return {"count": Task(self.start, lambda carry: ({}, {"counts": carry["counts"]}), (counted,))}

    def start(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        """Begin at 0: rows are counted again each time."""
        return {"counts": memory["counts"] * 0}

    def count(self, carry: Carry, batch: Batch) -> Carry:
        """Add the labels of a batch."""
        label = torch.arange(self.learner.outputs, device=plain_rows(batch.y).device)
        return {"counts": carry["counts"] + batch.sum((plain_rows(batch.y)[:, None] == label).long())}

    def eval_inputs(self, state: State, who: Sequence[Client]) -> tuple[Message, PerClient | None]:
        """Clients need nothing."""
        return {}, None

    def eval_tasks(self) -> Mapping[str, Task]:
        """The counts as a model: logits in their order, and probabilities that sum to 1."""
        mine = self.learner
        judge = Learner(
            Always(mine.outputs), mine.loss, mine.outputs,
            score_split=mine.score_split, score_batch=mine.score_batch,
        )  # fmt: skip
        return {"personal": judge.score(start=self.answer)}

    def answer(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        """log((n_c + 1) / (n + C)): one more of each class, so that no test label is impossible."""
        seen = memory["counts"].float() + 1
        return {"model": {"logits": (seen / seen.sum()).log()}}
