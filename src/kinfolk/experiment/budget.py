"""What a run may spend: `run.rounds` rounds' worth of training, whether rounds or a start take it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from kinfolk.engines.work import Work, trained_by
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import Parts
from kinfolk.experiment.cohort import cohort_size
from kinfolk.learning.plan import row_visits
from kinfolk.task import Task


class Spent(Exception):
    """What a round asks for does not fit into what is left; the text says what and by how much."""


@dataclass
class Budget:
    """Rounds that may be played, less what was trained beyond them.

    >>> budget = Budget(rounds=30, usual=100, extra=250)
    >>> budget.worth(), budget.left(0), budget.left(27)
    (Fraction(5, 2), 27, 0)
    """

    rounds: int
    usual: Fraction | int  # row visits of a round's own local updates, a mean over cohorts
    cohort: int = 1
    extra: int = 0  # row visits beyond those of the rounds so far
    warn: Callable[[str], None] = lambda text: None
    warned: bool = False

    @staticmethod
    def of(parts: Parts, warn: Callable[[str], None] = lambda text: None) -> Budget:
        """The budget of a run that has not begun."""
        counts = parts.federation.splits["train"].counts()
        everyone = sum(row_visits(parts.learner.plan, n) for n in counts.tolist())
        cohort = cohort_size(len(counts), parts.spec.run.participation)
        usual = Fraction(max(everyone, 1) * cohort, len(counts))
        return Budget(parts.spec.run.rounds, usual, cohort, warn=warn)

    def worth(self, more: int = 0) -> Fraction:
        """How many rounds could have been played for what went beyond them, and for so much more."""
        return Fraction(self.extra + more) / self.usual

    def left(self, done: int) -> int:
        """How many rounds can be played after so many."""
        return max(math.floor(self.rounds - done - self.worth()), 0)

    def told(self, done: int) -> str:
        """What was spent after so many rounds, in words.

        >>> Budget(30, 100, extra=250).told(27), Budget(3, 100).told(3)
        ("27 rounds done, and 2.5 rounds' worth of extra training", '3 rounds done')
        """
        more = f", and {float(self.worth()):.3g} rounds' worth of extra training" if self.extra else ""
        return f"{done} rounds done{more}"

    def take(self, done: int, work: Work) -> None:
        """Count what the round after `done` others is about to train; `Spent` if that would be too much."""
        if not work.extra:
            return
        worth = self.worth(work.extra)
        told = f"'{work.task}' takes {float(worth):.3g} of the {self.rounds} rounds: {self._why(work)}"
        if done + 1 + worth > self.rounds:
            raise Spent(told)
        if 2 * worth > self.rounds and not self.warned:
            self.warned = True
            self.warn(told)
        self.extra += work.extra

    def _why(self, work: Work) -> str:
        return (
            f"{work.clients} clients go {work.visits / max(work.rows, 1):.3g} times over their rows, "
            f"a round is {float(self.usual):.6g} row visits by {self.cohort}"
        )


def too_short(budget: Budget, spent: Spent) -> KinfolkError:
    """The error for a run in which not even one round fits.

    >>> str(too_short(Budget(3, 100), Spent("'warm' takes 5 of the 3 rounds")))
    "run.rounds = 3: 'warm' takes 5 of the 3 rounds; no round is left: give more, or a shorter start"
    """
    return KinfolkError(
        "run.rounds", budget.rounds, f"{spent}; no round is left: give more, or a shorter start"
    )


def head_start(parts: Parts) -> int:
    """Rounds worth as much as what an algorithm trains beyond them, were everyone asked for all of it.

    >>> from kinfolk.experiment.build import build_parts
    >>> from kinfolk.experiment.sections import AlgorithmSpec, Experiment
    >>> [head_start(build_parts(Experiment(algorithm=AlgorithmSpec(name)))) for name in ("fedavg", "fesem")]
    [0, 5]
    """
    tasks = {n: task for n, task in parts.algorithm.tasks().items() if isinstance(task, Task)}
    clients, federation = parts.federation.clients, parts.federation
    extra = sum(t.extra * trained_by(name, t, clients, (), federation).extra for name, t in tasks.items())
    return math.ceil(Budget.of(parts).worth(extra))
