"""From a budget to a plan."""

from __future__ import annotations

import pytest

from kinfolk.advice.plan import FEWEST_ROUNDS, MOST_ROUNDS, ROUNDS, Effort, Pace, Plan
from kinfolk.errors import KinfolkError

PACE = Pace(run=0.5, round=0.1)


def test_a_plan_costs_what_its_parts_cost():
    plan = Plan(rounds=40, most_groups=4, start=5, seeds=5)
    assert plan.search == 2 * 6 * 6  # two methods, six runs of six rounds each
    assert plan.count == 3 * 4 * (3 + 5)  # seeds, numbers of groups, rounds and a start
    assert plan.trials == 5 * 4 * 40  # seeds, methods, rounds
    assert plan.cost == plan.search + plan.count + plan.trials
    assert plan.seconds(PACE) == pytest.approx(0.1 * plan.cost + 0.5 * (24 + 12 + 20))
    alone = Plan(rounds=40, most_groups=1, start=5, seeds=5)
    assert (alone.count, alone.trials) == (0, 5 * 2 * 40)


@pytest.mark.parametrize(
    ("rounds", "searched"), [(12, 6), (44, 6), (48, 18), (140, 18), (144, 54), (400, 54)]
)
def test_a_search_has_rungs_of_two_rounds_or_more(rounds, searched):
    assert Plan(rounds, 6, 5).search_rounds == searched


def test_the_usual_plan_and_one_for_a_slow_start():
    assert Plan.of(Effort(), 20, 5, PACE).rounds == ROUNDS
    slow = Plan.of(Effort(), 20, 50, PACE)
    assert slow.rounds == 2 * (50 + 3) + 2, "groups have as many rounds left as they took to find, in fours"


def test_the_longest_trials_that_fit_are_planned():
    for budget in (600, 1000, 2000):
        plan = Plan.of(Effort(budget=budget), 20, 5, PACE)
        assert plan.cost <= budget < Plan(plan.rounds + 4, plan.most_groups, plan.start).cost
        assert plan.rounds % 4 == 0
    assert Plan.of(Effort(budget=10**9), 20, 5, PACE).rounds == MOST_ROUNDS


def test_minutes_are_what_the_pace_makes_of_them():
    plan = Plan.of(Effort(minutes=3), 20, 5, PACE)
    assert plan.seconds(PACE) <= 180 < Plan(plan.rounds + 4, plan.most_groups, plan.start).seconds(PACE)
    faster = Plan.of(Effort(minutes=3), 20, 5, Pace(0.25, 0.05))
    assert faster.rounds > plan.rounds


@pytest.mark.parametrize(("clients", "most"), [(2, 1), (3, 1), (4, 2), (11, 5), (12, 6), (100, 6)])
def test_two_clients_a_group_at_least(clients, most):
    assert Plan.of(Effort(), clients, 5, PACE).most_groups == most


def test_too_small_a_budget_says_how_much_is_needed():
    with pytest.raises(KinfolkError, match="budget = 100: trials of 16 rounds need 536 or more"):
        Plan.of(Effort(budget=100), 20, 5, PACE)
    assert Plan.of(Effort(budget=536), 20, 5, PACE).rounds == 16
    with pytest.raises(KinfolkError, match="budget = 535: "):
        Plan.of(Effort(budget=535), 20, 5, PACE)
    with pytest.raises(KinfolkError, match=r"minutes = 0\.1: trials of 16 rounds need about 1\.5 or more"):
        Plan.of(Effort(minutes=0.1), 20, 5, PACE)
    assert Plan.of(Effort(minutes=1.5), 20, 5, PACE).rounds == 16
    assert Plan.of(Effort(budget=192), 2, 5, PACE).rounds == FEWEST_ROUNDS


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ({"budget": -1}, "budget = -1"),
        ({"minutes": -1}, "minutes = -1"),
        ({"sample": 1}, "sample = 1: give 2 or more"),
        ({"budget": 9, "minutes": 9}, "not both"),
    ],
)
def test_what_cannot_be_spent_is_refused(how, line):
    with pytest.raises(KinfolkError, match=line):
        Effort(**how)
