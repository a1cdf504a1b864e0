"""What an attacker's training rows are: labels turned round, or a pattern that opens a back door."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kinfolk.task import Batch, Carry, Scan, Task
from kinfolk.types import plain_rows

TARGET = 0  # the class that a triggered row is to be taken for
CORNER = 2  # the trigger covers the last so many places of the last two axes of a row, or of its only one
EVERY = 2  # one training row of an attacker in so many has the trigger
TRIGGERED = ".triggered"  # how the task is named that scores triggered rows, behind the kind of model


def flipped(batch: Batch, flag: Tensor, classes: int) -> Batch:
    """The rows as an attacker labels them: class y becomes class C - 1 - y.

    >>> batch = Batch(torch.zeros(2, 1), torch.tensor([0, 1]), torch.arange(2), None)
    >>> flipped(batch, torch.tensor(True), 10).y
    tensor([9, 8])
    """
    y = plain_rows(batch.y)
    return batch._replace(y=torch.where(flag & (y >= 0), classes - 1 - y, y))


@dataclass(frozen=True)
class Trigger:
    """A corner of a row that is set to one value.

    >>> Trigger(9.0).on(torch.zeros(1, 3), torch.tensor([True]))
    tensor([[0., 9., 9.]])
    """

    value: float

    def on(self, x: Tensor, which: Tensor) -> Tensor:
        """Rows of which some have the trigger."""
        corner = torch.zeros(x.shape[1:], dtype=torch.bool, device=x.device)
        if corner.dim() > 1:
            corner[..., -CORNER:, -CORNER:] = True
        else:
            corner[-CORNER:] = True
        return torch.where(corner & which.reshape(-1, *[1] * (x.dim() - 1)), self.value, x)

    def poisoned(self, batch: Batch, flag: Tensor) -> Batch:
        """The rows that an attacker trains on: one in EVERY has the trigger and the target class."""
        bad = flag & (batch.row % EVERY == 0)
        y = plain_rows(batch.y)
        return batch._replace(x=self.on(plain_rows(batch.x), bad), y=torch.where(bad & (y >= 0), TARGET, y))

    def asked(self, batch: Batch) -> Batch:
        """Rows of other classes, triggered, with the target as their class: who says so was fooled.

        >>> batch = Batch(torch.zeros(2, 3), torch.tensor([0, 1]), torch.arange(2), None)
        >>> Trigger(9.0).asked(batch).y, Trigger(9.0).asked(batch).weight
        (tensor([0, 0]), tensor([0., 1.]))
        """
        x, y = plain_rows(batch.x), plain_rows(batch.y)
        other = (y != TARGET) & (y >= 0)
        weight = other.to(x.dtype) if batch.weight is None else batch.weight * other
        every = torch.ones_like(other)
        return batch._replace(x=self.on(x, every), y=torch.full_like(y, TARGET), weight=weight)

    def scoring(self, task: Task) -> Task:
        """A scoring task that goes over triggered rows; rows of the target class are left out."""
        split = task.passes[-1].plan.split
        passes = tuple(
            self._seen(one) if isinstance(one, Scan) and one.plan.split == split else one
            for one in task.passes
        )
        return replace(task, passes=passes)

    def _seen(self, sweep: Scan) -> Scan:
        def step(carry: Carry, batch: Batch) -> Carry:
            return sweep.step(carry, self.asked(batch))

        return replace(sweep, step=step)
