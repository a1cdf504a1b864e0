"""Successive halving: many points for a few rounds, a third of them for three times as many, and so on.

Jamieson, Talwalkar: Non-stochastic Best Arm Identification and Hyperparameter Optimization. AISTATS 2016.
The settings that a method has anyway are no candidate that can be dropped: they are run to the end, so that
what the search gains is known. With the backend "optuna" the points are proposed by what came before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kinfolk.errors import KinfolkError

# Of so many, one goes on.
PART = 3

# The score of a point after so many rounds, larger is better; minus infinity for one that failed.
Measure = Callable[[Mapping[str, Any], int], float]
Point = Mapping[str, Any]


def rungs(rounds: int, least: int = 1) -> list[int]:
    """After how many rounds points are dropped; the last is the whole run.

    >>> rungs(60), rungs(20, least=6), rungs(2)
    ([6, 20, 60], [6, 20], [2])
    """
    found = [rounds]
    while len(found) < 3 and found[0] // PART >= max(least, 1):
        found.insert(0, found[0] // PART)
    return found


def survivors(many: int, steps: Sequence[int]) -> list[int]:
    """How many points are run on each rung.

    >>> survivors(9, [6, 20, 60])
    [9, 3, 1]
    """
    return [max(1, many // PART**i) if many else 0 for i in range(len(steps))]


def cost(many: int, steps: Sequence[int]) -> int:
    """Rounds that a search of so many points takes, without the settings that the method has anyway.

    >>> cost(9, [6, 20, 60])
    136
    """
    before = [0, *steps[:-1]]
    return sum(n * (to - at) for n, at, to in zip(survivors(many, steps), before, steps, strict=True))


def affordable(budget: float, steps: Sequence[int], most: int) -> int:
    """How many points, of `most` that there are, fit into a budget beside one whole run.

    >>> affordable(200, [6, 20, 60], most=50)
    9
    """
    many = 0
    while many < most and cost(many + 1, steps) <= budget - steps[-1]:
        many += 1
    return many


def halve(points: Sequence[Point], steps: Sequence[int], measure: Measure) -> None:
    """Run the points rung by rung; of equal scores the earlier point goes on."""
    left = list(points)
    for many, rounds in zip(survivors(len(left), steps), steps, strict=True):
        scores = [measure(point, rounds) for point in left[:many]]
        order = sorted(range(len(scores)), key=lambda i: -scores[i])
        left = [left[i] for i in order]


def ask_optuna(
    space: Mapping[str, Sequence[Any]],
    seed: int,
    steps: Sequence[int],
    measure: Measure,
    affords: Callable[[Point, int], bool],
) -> None:
    """Let Optuna propose points until the next does not fit; its own successive halving drops them early."""
    try:
        import optuna
    except ImportError as error:
        raise KinfolkError("--backend", "optuna", "is not installed; pip install 'kinfolk[tune]'") from error
    if not space:
        return
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kinds = {name: optuna.distributions.CategoricalDistribution(list(space[name])) for name in space}
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=steps[0], reduction_factor=PART),
    )
    for _ in range(10 * sum(map(len, space.values()))):  # it may propose the same again, which costs nothing
        trial = study.ask(kinds)
        if not affords(trial.params, steps[0]):
            return
        pruned, score = False, 0.0
        for rounds in steps:
            if not affords(trial.params, rounds):
                pruned = True
                break
            score = max(measure(trial.params, rounds), -1e300)  # Optuna takes no infinity
            trial.report(score, rounds)
            if rounds != steps[-1] and trial.should_prune():
                pruned = True
                break
        if pruned:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, score)
