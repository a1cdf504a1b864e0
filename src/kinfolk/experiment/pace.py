"""When the next checkpoint is written: every so many rounds, or as often as their cost allows."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from kinfolk.experiment.sections import RunSpec

# Of a run's time, what checkpoints may take where nobody says how often they are wanted.
SHARE = 0.05
# Seconds that they may take besides, so that a short run has one of every round.
ALLOWANCE = 5.0


@dataclass
class Pace:
    """What checkpoints have cost since the run began or was resumed, and whether another may be written.

    A kill loses at most the rounds since the last one: what took 1 / SHARE times as long as it did, and the
    round that was being played.

    >>> pace = Pace(0, now=100.0)
    >>> pace.note(6.0)
    >>> [pace.is_due(7, now=100.0 + after) for after in (0.0, 139.0, 141.0)]
    [False, False, True]
    """

    every: int  # rounds; 0: by cost
    now: float = field(default_factory=time.perf_counter)  # when the run began
    spent: float = 0.0
    last: float = 0.0

    @staticmethod
    def of(spec: RunSpec) -> Pace:
        """That of a run, which by cost leaves none out that it keeps.

        >>> Pace.of(RunSpec(keep="all")).every, Pace.of(RunSpec(checkpoint_every=3)).every
        (1, 3)
        """
        return Pace(rounds_between(spec) if spec.keep == "all" else spec.checkpoint_every)

    def is_due(self, done: int, now: float | None = None) -> bool:
        """Whether to write one after so many rounds, which may well cost what the last one did."""
        if self.every:
            return done % self.every == 0
        passed = (time.perf_counter() if now is None else now) - self.now
        return self.spent + self.last <= ALLOWANCE + SHARE * passed

    def note(self, seconds: float) -> None:
        """One was written, which took so long."""
        self.spent, self.last = self.spent + seconds, seconds


def rounds_between(spec: RunSpec) -> int:
    """Rounds between two checkpoints as they were asked for, or one, the least that there can be.

    >>> rounds_between(RunSpec()), rounds_between(RunSpec(checkpoint_every=3))
    (1, 3)
    """
    return spec.checkpoint_every or 1
