"""The watch on training, rule by rule, on both sides of every limit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kinfolk.experiment.health import (
    ABSURD,
    CLEAR_LEAD,
    EVERYONE,
    LEAD,
    LEFT,
    OUTLIER,
    RISEN,
    STUCK,
    Evaluation,
    Trace,
    brief,
    look,
    message,
    odd_starts,
    outliers,
)

CHANCE = math.log(10)
WHO = ("ann", "bob", "cleo", "dan")
EVEN = np.full((4, 10), 5)  # fifty rows of each client, five of each class: chance is 10 %


def seen(
    loss: float | list[float], accuracy: float | None = 0.1, one: float = 0.0, missing: tuple[str, ...] = ()
) -> Evaluation:
    """An evaluation of four clients; a part `one` of all predictions says class 0, the rest are even."""
    said = np.full((4, 10), 50 * (1 - one) / 10)
    said[:, 0] += 50 * one
    losses = np.array([loss] * 4 if isinstance(loss, float) else loss)
    if accuracy is None:
        return Evaluation(WHO, losses, missing=missing)
    return Evaluation(WHO, losses, np.full(4, accuracy), said, EVEN, missing)


def told(*evaluations: Evaluation, constant: float = CHANCE, classes: int = 10) -> list[dict[str, Any]]:
    """What stands against the models after each evaluation; the first is before training."""
    start = dict(zip(evaluations[0].clients, evaluations[0].loss.tolist(), strict=True))
    trace, out = Trace(), []
    for round, now in enumerate(evaluations):
        look(trace, round, now, start, constant, classes)
        out.append(dict(trace.diverged))
    return out


def kinds(*evaluations: Evaluation, **more: Any) -> list[str]:
    return [facts.get("kind", "") for facts in told(*evaluations, **more)]


START = seen(2.3)


def test_a_run_that_learns_is_left_alone():
    assert kinds(START, seen(1.9, 0.3), seen(1.2, 0.6), seen(1.4, 0.5), seen(0.9, 0.7)) == [""] * 5


@pytest.mark.parametrize("accuracy", [0.1, None])
def test_a_loss_that_is_not_finite_is_named_with_its_clients(accuracy):
    found = told(seen(2.3, accuracy), seen([1.0, math.inf, 1.0, math.inf], accuracy))[1]
    assert (found["kind"], found["clients"], found["round"]) == ("not finite", ["bob", "dan"], 1)


def test_scores_that_the_guard_rejected_count_as_not_finite():
    assert told(START, seen(1.0, missing=("eve",)))[1]["clients"] == ["eve"]


def test_clients_without_rows_are_no_sign():
    assert kinds(START, seen([1.0, math.nan, 1.0, 1.0])) == ["", ""]
    assert kinds(seen([math.nan] * 4), seen([math.nan] * 4)) == ["", ""]


@pytest.mark.parametrize(("factor", "kind"), [(0.9, ""), (1.1, "loss")])
def test_one_clients_absurd_loss_is_enough(factor, kind):
    found = told(START, seen([1.0, 1.0, ABSURD * CHANCE * factor, 1.0], 0.6))[1]
    assert found.get("kind", "") == kind
    assert found.get("clients", ["cleo"]) == ["cleo"]


def test_a_client_is_compared_with_its_own_start():
    """Rows of another scale are bad before training; that is not divergence."""
    assert kinds(seen([2.3, 2.3, 1e6, 2.3]), seen([1.0, 1.0, 1e6, 1.0])) == ["", ""]
    assert kinds(seen([2.3, 2.3, 1e6, 2.3]), seen([1.0, 1.0, 1.1e8, 1.0])) == ["", "loss"]


@pytest.mark.parametrize(("factor", "kind"), [(0.9, ""), (1.1, "loss")])
def test_a_loss_far_above_its_start_is_divergence(factor, kind):
    assert kinds(START, seen(RISEN * CHANCE * factor)) == ["", kind]


def test_overconfident_models_that_are_mostly_right_have_not_diverged():
    """Local models that have memorised their rows: loss 30, accuracy as good as ever."""
    assert kinds(START, seen(0.9, 0.7), seen(30.0, 0.68)) == ["", "", ""]
    assert kinds(START, seen(0.9, 0.7), seen(30.0, 0.3)) == ["", "", "loss"]


@pytest.mark.parametrize(("left", "kind"), [(1.1, ""), (0.9, "chance")])
def test_accuracy_that_falls_to_chance_is_named_at_once(left, kind):
    """As in FEMNIST: 74 % at one evaluation, 7 % at the next, and a loss that says nothing."""
    best = 0.74
    fallen = 0.1 + LEFT * (best - 0.1) * left
    assert best - 0.1 >= CLEAR_LEAD
    assert kinds(START, seen(0.9, best), seen(2.3, fallen)) == ["", "", kind]


def test_a_small_lead_has_to_be_lost_three_times_in_a_row():
    """Label skew with few clients a round: down to chance for two evaluations, and up again."""
    up, down = seen(1.9, 0.1 + LEAD * 1.1), seen(2.3, 0.11)
    assert kinds(START, up, down, down, up, down, down, down) == [*[""] * 7, "chance"]
    noise = seen(2.2, 0.1 + LEAD * 0.9)
    assert kinds(START, noise, down, down, down) == [""] * 5


def test_chance_is_the_share_of_the_commonest_class():
    skewed = np.tile([41, *[1] * 9], (4, 1))
    made = Evaluation(WHO, np.full(4, 2.0), np.full(4, 0.85), None, skewed)
    assert made.chance(10) == pytest.approx(0.82)
    assert made.lead(10) == pytest.approx(0.03)
    assert Evaluation(WHO, np.full(4, 2.0), np.full(4, 0.85)).chance(10) == 0.1


def test_one_class_for_everyone_is_named_after_three_evaluations():
    stuck = [seen(2.6, one=1.0), seen(2.4, one=1.0), seen(2.5, one=1.0), seen(2.6, one=1.0)]
    assert kinds(START, *stuck)[: STUCK + 1] == ["", "", "", "one class"]
    almost = [seen(2.6 + i / 10, one=EVERYONE - 0.05) for i in range(4)]
    assert kinds(START, *almost) == [""] * 5
    recovers = [*stuck[:2], seen(2.5, one=0.2), stuck[2]]
    assert kinds(START, *recovers) == [""] * 5
    dead = [seen(loss, one=1.0) for loss in (2.29, 2.31, 2.3, 2.31, 2.3)]
    assert kinds(START, *dead) == ["", "", "", "", "one class", "one class"], "no new low in three of them"


def test_a_client_whose_rows_are_of_one_class_may_be_told_so():
    """Label skew: personal models that say one class, with a loss far below that of a constant answer."""
    skew = np.zeros((4, 10), dtype=int)
    for i in range(4):
        skew[i, [i, 9]] = 45, 5
    said = np.where(skew == 45, 50, 0)
    sure = [Evaluation(WHO, np.full(4, loss), np.full(4, 0.9), said, skew) for loss in (0.3, 0.4, 0.5, 0.45)]
    assert sure[0].one_class
    assert sure[0].entropy == pytest.approx(-(4 * 0.225 * math.log(0.225) + 0.1 * math.log(0.1)))
    assert kinds(START, *sure) == [""] * 5


def test_a_slow_start_and_a_rule_that_is_not_trained_are_not_stuck():
    slow = [seen(2.35 - i / 1000, one=1.0) for i in range(8)]
    assert kinds(seen(2.36), *slow) == [""] * 9
    assert kinds(START, *[seen(2.41, one=1.0)] * 6) == [""] * 7


@pytest.mark.parametrize(("factor", "kind"), [(0.9, ""), (1.1, "constant")])
def test_regression_far_worse_than_a_constant_answer_is_divergence(factor, kind):
    constant = 4.0
    now = seen(RISEN * constant * factor, None)
    assert kinds(seen(6.0, None), seen(5.0, None), now, constant=constant, classes=0)[-1] == kind


def test_regression_that_starts_far_off_may_take_its_time():
    """Targets near 100 with a variance of 9: the loss before training is a thousand times the variance."""
    falling = [seen(9e3 * 0.7**i, None) for i in range(12)]
    assert set(kinds(*falling, constant=9.0, classes=0)) == {""}
    ends = [seen(value, None) for value in (2e8, 9e7, 7e7, 7e7)]
    assert kinds(*ends, constant=1e4, classes=0) == ["", "", "", "constant"], "it does not fall any more"


def test_divergence_stands_until_models_are_of_use_again():
    broken = seen(1e4, 0.1)
    assert kinds(START, broken, seen(2.29, 0.1), seen(1.5, 0.5)) == ["", "loss", "loss", ""]
    path = [START, seen(0.9, 0.7), broken, seen(1.5, 0.2), seen(1.0, 0.6)]
    assert kinds(*path) == ["", "", "loss", "loss", ""]


def test_a_round_is_looked_at_once():
    trace, start = Trace(), dict.fromkeys(WHO, 2.3)
    for _ in range(5):
        look(trace, 1, seen(2.6, one=1.0), start, CHANCE, 10)
    assert (trace.single, trace.looked) == (1, 1)


def test_norms_are_outliers_beside_what_was_sent_and_beside_the_cohort():
    sent, median = 2.0, 3.0
    limit = OUTLIER * max(sent, median)
    grown = {"ann": (limit * 1.1, sent), "bob": (limit * 0.9, sent), "cleo": (limit * 1.1, limit)}
    assert outliers(grown, median) == {"ann": limit * 1.1}
    assert outliers(grown, median * 2) == {}


def test_rows_of_another_scale_show_before_training():
    limit = ABSURD * CHANCE
    assert odd_starts(seen([2.3, 2.3, 2.3, limit * 1.1]), CHANCE) == {"dan": limit * 1.1}
    assert odd_starts(seen([2.3, 2.3, 2.3, limit * 0.9]), CHANCE) == {}
    assert odd_starts(seen(1e6), CHANCE) == {}, "all alike: nobody is of another scale"


def test_a_message_names_the_client_and_its_norm():
    facts = {"round": 51, "kind": "loss", "text": "loss 4e+05", "clients": list("abcdef")}
    assert brief(facts) == "diverged at round 51: 6 clients, loss 4e+05"
    loud = {**facts, "largest": ["f1912_13", 1.02e9]}
    assert message(loud).startswith("diverged at round 51: 6 clients, client f1912_13's norm 1e+09, loss")
    assert "lower local.lr or set local.clip" in message(loud)
