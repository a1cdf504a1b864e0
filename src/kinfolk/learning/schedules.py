"""Schedules: what the learning rate is multiplied by, over the rounds of a run or the steps of a round.

A schedule is a frozen dataclass whose fields are its options; called with `(at, of)`, the number of the round
or step from 0 and how many there are, it gives a factor. It is added to SCHEDULES and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kinfolk.by_path import made_by_name, one_line
from kinfolk.errors import KinfolkError
from kinfolk.task import Schedule


@dataclass(frozen=True)
class Constant:
    """The whole rate; with `warmup`, after so many rounds or steps in which it grows in equal parts.

    >>> [Constant(warmup=4)(at, 6) for at in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """

    warmup: int = 0

    def __post_init__(self) -> None:
        for name in ("warmup", "end", "factor"):
            value = getattr(self, name, 0)
            if not 0 <= value < math.inf:
                raise KinfolkError(name, value, "give 0 or more")

    def __call__(self, at: int, of: int) -> float:
        """The factor of round or step number `at` among `of`."""
        if at < self.warmup:
            return (at + 1) / self.warmup
        last = max(of - 1, self.warmup)  # beyond the end, the rate of the end
        return self.after(min(at, last) - self.warmup, of - self.warmup)

    def after(self, at: int, of: int) -> float:
        """The factor once the warm-up is over."""
        return 1.0


@dataclass(frozen=True)
class Cosine(Constant):
    """Half a cosine from the whole rate towards `end` times it, as `CosineAnnealingLR`.

    >>> [round(Cosine()(at, 4), 3) for at in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """

    end: float = 0.0

    def after(self, at: int, of: int) -> float:
        """From 1 at 0 to `end` at `of`."""
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * at / max(of, 1))) / 2


@dataclass(frozen=True)
class Linear(Constant):
    """A straight line from the whole rate towards `end` times it.

    >>> [Linear()(at, 4) for at in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """

    end: float = 0.0

    def after(self, at: int, of: int) -> float:
        """From 1 at 0 to `end` at `of`."""
        return 1 + (self.end - 1) * at / max(of, 1)


@dataclass(frozen=True)
class Staircase(Constant):
    """Multiplied by `factor` after every `every` rounds or steps, as `StepLR`.

    >>> [Staircase(every=2, factor=0.5)(at, 5) for at in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    every: int = 10
    factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1:
            raise KinfolkError("every", self.every, "give 1 or more")

    def after(self, at: int, of: int) -> float:
        """A power of the factor."""
        return float(self.factor ** (at // self.every))


# By the names that `local.schedule` and `local.step_schedule` give.
SCHEDULES: dict[str, type[Any]] = {
    "constant": Constant,
    "cosine": Cosine,
    "linear": Linear,
    "step": Staircase,
}


def find_schedule(field: str, name: str, options: Mapping[str, Any]) -> Schedule | None:
    """The schedule of this name or import path; None where the rate stays as it is.

    >>> find_schedule("local.schedule", "cosine", {"end": 0.1})
    Cosine(warmup=0, end=0.1)
    >>> find_schedule("local.schedule", "constant", {}) is None
    True
    """
    if name == "constant" and not options:
        return None
    found: Schedule = made_by_name(field, name, SCHEDULES, options)
    return found


def factor(field: str, schedule: Schedule, at: int, of: int) -> float:
    """What a schedule gives, which may be a user's: a finite number of 0 or more, or an error that names it.

    >>> factor("local.schedule", lambda at, of: -1.0, 3, 10)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: local.schedule = -1.0: the factor of 3 among 10 must be a number of 0 or more
    """
    try:
        value = schedule(at, of)
        fits = math.isfinite(float(value)) and float(value) >= 0
    except Exception as error:  # whatever a user's function raises
        raise KinfolkError(field, None, f"failed at {at} of {of}: {one_line(error)}") from error
    if not fits:
        raise KinfolkError(field, value, f"the factor of {at} among {of} must be a number of 0 or more")
    return float(value)
