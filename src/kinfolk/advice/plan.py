"""What advice costs: from a budget to the length of the trials, before anything is trained.

Costs are rounds' worth of training, as in `kinfolk tune`: starts count, and so do trials of fine-tuning.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from kinfolk.errors import KinfolkError, at_least
from kinfolk.experiment.tune import RUNS

# Rounds of a trial where nobody says how much may be spent: small networks have settled by then.
ROUNDS = 60
# Shorter trials say more of a method's start than of the method.
FEWEST_ROUNDS = 12
MOST_ROUNDS = 400
# Seeds of every trial; each holds other rows out for validation. With three, intervals over seeds are twice
# as wide.
SEEDS = 5
# Numbers of groups that are tried, rounds of each such run and its seeds, as `kinfolk choose-k` has them.
MOST_GROUPS = 6
COUNT_ROUNDS = 3
COUNT_SEEDS = 3
# Methods whose settings are searched: what is found for FedAvg is used for groups too.
SEARCHED = ("local", "fedavg_tuned")
# Methods that are trained at most: those two, and two with groups.
TRIALS = 4
# Rounds that a search may have: two, then times three, as successive halving has its rungs.
SEARCH_ROUNDS = (6, 18, 54)
# Rounds are a multiple of it: all trials are scored after every quarter, so that curves can be judged.
QUARTERS = 4


@dataclass(frozen=True)
class Effort:
    """How much may be spent: rounds' worth of training in all trials together, or minutes; 0: as usual.

    >>> Effort(budget=-1)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: budget = -1: give 0 or more
    """

    budget: float = 0.0
    minutes: float = 0.0
    sample: int = 100  # clients that take part in the trials

    def __post_init__(self) -> None:
        at_least("budget", self.budget, 0)
        at_least("minutes", self.minutes, 0)
        at_least("sample", self.sample, 2)
        if self.budget and self.minutes:
            raise KinfolkError("minutes", self.minutes, "give a budget or minutes, not both")


@dataclass(frozen=True)
class Pace:
    """How fast runs are here: seconds to begin and end one, seconds of a round's training."""

    run: float
    round: float


@dataclass(frozen=True)
class Plan:
    """How long trials are, and what they cost at most.

    >>> Plan(rounds=60, most_groups=6, start=5).cost
    1560
    """

    rounds: int  # of every trial
    most_groups: int  # 1: groups are not looked for
    start: int  # rounds' worth that splitting the clients costs
    seeds: int = SEEDS

    @property
    def search_rounds(self) -> int:
        """Rounds of a trial of settings: at most three eighths of the trials' own.

        Where rungs are multiples of two, nobody is dropped after a single round, which favours large rates.
        """
        return max(n for n in SEARCH_ROUNDS if n == SEARCH_ROUNDS[0] or 8 * n <= 3 * self.rounds)

    @property
    def search(self) -> int:
        """The budget of the search for settings, all methods together."""
        return len(SEARCHED) * RUNS * self.search_rounds

    @property
    def count(self) -> int:
        """The rounds of the runs that count groups."""
        return COUNT_SEEDS * self.most_groups * (COUNT_ROUNDS + self.start) if self.most_groups > 1 else 0

    @property
    def trials(self) -> int:
        """The rounds of the trials of methods, at most."""
        return self.seeds * self.rounds * (TRIALS if self.most_groups > 1 else len(SEARCHED))

    @property
    def cost(self) -> int:
        """Rounds' worth of training in all, at most."""
        return self.search + self.count + self.trials

    def seconds(self, pace: Pace) -> float:
        """About how long that takes."""
        searched = len(SEARCHED) * 12  # a search has about so many runs
        counted = COUNT_SEEDS * self.most_groups if self.count else 0
        runs = searched + counted + self.trials / max(self.rounds, 1)
        return runs * pace.run + self.cost * pace.round

    def described(self) -> dict[str, Any]:
        """The plan in JSON's own types."""
        parts = {"search": self.search, "count": self.count, "trials": self.trials, "cost": self.cost}
        return asdict(self) | {"search_rounds": self.search_rounds} | parts

    @staticmethod
    def of(effort: Effort, clients: int, start: int, pace: Pace) -> Plan:
        """The longest trials that fit; too small a budget is an error that says how much is needed.

        >>> Plan.of(Effort(budget=900), 20, 5, Pace(0.1, 0.01)).rounds
        32
        >>> Plan.of(Effort(budget=100), 20, 5, Pace(0.1, 0.01))
        Traceback (most recent call last):
        kinfolk.errors.KinfolkError: budget = 100: trials of 16 rounds need 536 or more
        """
        most = min(MOST_GROUPS, clients // 2)
        # Groups are split after some common rounds and a start: as many again must be left for them.
        least = 2 * (COUNT_ROUNDS + start) if most > 1 else 0
        fewest = max(FEWEST_ROUNDS, QUARTERS * math.ceil(least / QUARTERS))
        fitting = [Plan(n, most, start) for n in range(fewest, max(MOST_ROUNDS, fewest) + 1, QUARTERS)]
        if not effort.budget and not effort.minutes:
            return Plan(max(ROUNDS, fewest), most, start)
        if effort.budget:
            within = [plan for plan in fitting if plan.cost <= effort.budget]
            if not within:
                raise _too_small("budget", effort.budget, fitting[0], f"{fitting[0].cost}")
        else:
            within = [plan for plan in fitting if plan.seconds(pace) <= 60 * effort.minutes]
            if not within:
                need = f"{math.ceil(fitting[0].seconds(pace) / 6) / 10:g}"
                raise _too_small("minutes", effort.minutes, fitting[0], f"about {need}")
        return within[-1]


def _too_small(field: str, value: float, least: Plan, need: str) -> KinfolkError:
    return KinfolkError(field, value, f"trials of {least.rounds} rounds need {need} or more")
