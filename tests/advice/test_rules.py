"""The rules that make advice of scores, each on both sides of its limit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from kinfolk.advice.evidence import Candidate
from kinfolk.advice.rules import (
    FEW_CLIENTS,
    GUESSED,
    Grouping,
    _duels,
    _reach,
    as_facts,
    decide,
    margin_of,
)


def scores(mean, clients=20, seeds=5, spread=0.01, seed=0, score_spread=0.0):
    draw = np.random.default_rng(seed)
    values = spread * draw.normal(size=(clients, seeds)) + score_spread * draw.normal(size=seeds)
    return pd.DataFrame(mean + values - (values.mean() if np.isfinite(mean) else 0))


def one(answer, mean, seed=0, rise=0.0, k=1, model="centre", title="", **how):
    title = title or (f"fesem_shared k={k}" if answer == "groups" else answer)
    agree = how.pop("agree", 1.0)
    frame = scores(mean, seed=seed, **how)
    return Candidate(answer, title, model, frame, rise, k, agree=agree)


def four(local=0.6, fedavg=0.7, tuned=0.7, groups=0.6, k=3, **how):
    return [
        one("local", local, 1, **how),
        one("fedavg", fedavg, 2, **how),
        one("fine-tuned", tuned, 3, **how),
        one("groups", groups, 4, k=k, **how),
    ]


SURE = Grouping(3, "high", "all criteria name it", True)
NONE = Grouping(1, "high", "all criteria name it", True)


@pytest.mark.parametrize(
    ("means", "answer"),
    [
        ((0.8, 0.8, 0.8, 0.8), "local"),  # nothing is gained: the simplest
        ((0.6, 0.8, 0.8, 0.8), "fedavg"),
        ((0.6, 0.7, 0.8, 0.8), "fine-tuned"),
        ((0.6, 0.7, 0.75, 0.9), "groups"),
        ((0.9, 0.7, 0.75, 0.6), "local"),
    ],
)
def test_the_simplest_of_the_best_is_advised(means, answer):
    found = four(*means)
    verdict = decide(found, "accuracy", None, SURE if answer == "groups" else NONE)
    assert (verdict.answer, verdict.confidence) == (answer, "high")
    assert verdict.doubts == []


def test_two_points_that_may_be_chance_are_no_reason_for_a_method_that_costs_more():
    near, far = (
        decide(four(0.6, 0.7, 0.7 + gain, 0.6, spread=0.1), "accuracy", None, NONE) for gain in (0.018, 0.022)
    )
    assert (near.answer, far.answer) == ("fedavg", "fine-tuned")
    assert near.doubts[0].startswith("fine-tuned fedavg may be better by +")
    assert far.doubts == ["fedavg is simpler and cannot be told apart from it"]
    sure = decide(four(0.6, 0.7, 0.718, 0.6, spread=0.001), "accuracy", None, NONE)
    assert (sure.answer, sure.confidence) == ("fine-tuned", "high"), "what is distinguishable counts"


def test_the_margin_of_an_error_is_a_part_of_it():
    assert margin_of("mse", -2.0) == pytest.approx(0.1)
    assert margin_of("accuracy", 0.5) == pytest.approx(0.02)
    near, far = (
        decide([one("local", -2.0 * (1 + worse), spread=0.3), one("fedavg", -2.0, 1)], "mse", None, NONE)
        for worse in (0.03, 0.07)
    )
    assert (near.answer, far.answer) == ("local", "fedavg")


def test_a_simpler_method_that_may_be_as_good_makes_an_answer_a_guess():
    verdict = decide(four(0.66, 0.7, 0.6, 0.5, spread=0.3), "accuracy", None, NONE)
    assert (verdict.answer, verdict.confidence) == ("fedavg", "low")
    assert "local is simpler and cannot be told apart from it" in verdict.doubts


def test_wide_intervals_without_any_difference_say_nothing():
    wide = decide(four(0.7, 0.71, 0.7, 0.7, spread=0.6), "accuracy", None, NONE)
    assert (wide.answer, wide.confidence) == ("unclear", "low")
    assert "no two methods can be told apart" in wide.reason
    assert wide.chosen is None
    narrow = decide(four(0.7, 0.705, 0.7, 0.7, spread=0.03), "accuracy", None, NONE)
    assert (narrow.answer, narrow.confidence) == ("local", "high")


def test_one_bad_seed_of_all_clients_is_no_difference_between_methods():
    steady = [one("local", 0.7, 1), one("fedavg", 0.75, 2)]
    moved = [steady[0], one("fedavg", 0.75, 2, score_spread=0.08)]
    assert decide(steady, "accuracy", None, NONE).confidence == "high"
    assert decide(moved, "accuracy", None, NONE).confidence == "low"


@pytest.mark.parametrize(("gain", "clear"), [(0.02, True), (0.0005, False)])
def test_nothing_is_advised_that_is_no_better_than_a_constant_answer(gain, clear):
    found = [one("local", 0.5, 1), one("fedavg", 0.6, 2)]
    verdict = decide(found, "accuracy", scores(0.6 - gain, seed=7), NONE)
    assert (verdict.answer != "unclear") == clear
    assert clear or "nothing is learned" in verdict.reason


def test_what_is_still_rising_from_a_constant_answer_had_too_short_a_budget():
    found = [one("local", 0.5, 1), one("fedavg", 0.6, 2, rise=0.021)]
    verdict = decide(found, "accuracy", scores(0.6, seed=7), NONE)
    assert verdict.longer
    assert "too short a budget" in verdict.reason
    settled = [found[0], one("fedavg", 0.6, 2, rise=0.019)]
    assert not decide(settled, "accuracy", scores(0.6, seed=7), NONE).longer


@pytest.mark.parametrize(
    ("rise", "confidence"),
    [(0.125, "low"), (0.115, "medium"), (0.041, "medium"), (0.039, "high"), (0.0, "high")],
)
def test_a_curve_that_may_overtake_is_a_doubt(rise, confidence):
    """Ten points behind, two more to matter: reached by one quarter like the last, or by three."""
    found = [one("local", 0.8, 1), one("fedavg", 0.7, 2, rise=rise)]
    verdict = decide(found, "accuracy", None, NONE)
    assert (verdict.answer, verdict.confidence) == ("local", confidence)
    assert verdict.longer == (confidence != "high")


@pytest.mark.parametrize(("rise", "confidence"), [(0.085, "low"), (0.075, "medium"), (0.025, "high")])
def test_a_simpler_method_only_has_to_come_near(rise, confidence):
    found = [one("local", 0.7, 1, rise=rise), one("fedavg", 0.8, 2)]
    verdict = decide(found, "accuracy", None, NONE)
    assert (verdict.answer, verdict.confidence) == ("fedavg", confidence)


@pytest.mark.parametrize(
    ("clients", "confidence"),
    [(GUESSED, "low"), (GUESSED + 1, "medium"), (FEW_CLIENTS - 1, "medium"), (FEW_CLIENTS, "high")],
)
def test_few_clients_make_no_sure_advice(clients, confidence):
    found = [one("local", 0.6, 1, clients=clients, spread=0.001), one("fedavg", 0.8, 2, clients=clients)]
    verdict = decide(found, "accuracy", None, NONE)
    assert (verdict.answer, verdict.confidence) == ("fedavg", confidence)


@pytest.mark.parametrize(
    ("grouping", "agree", "confidence"),
    [
        (SURE, 1.0, "high"),
        (Grouping(3, "medium", "", True, False), 1.0, "medium"),
        (Grouping(3, "low", "", True, False), 1.0, "low"),
        (Grouping(3, "low", "", True, True), 0.81, "medium"),  # longer runs agree where short ones did not
        (Grouping(3, "low", "", True, True), 0.79, "low"),
        (SURE, 0.79, "medium"),
        (SURE, 0.51, "medium"),
        (SURE, 0.49, "low"),
        (Grouping(2, "high", "", True, True), 1.0, "low"),  # another number was counted
        (Grouping(1, "medium", "", True, False), 1.0, "low"),
        (Grouping(problem="groups could not be counted"), 1.0, "medium"),
    ],
)
def test_groups_are_as_sure_as_their_number(grouping, agree, confidence):
    verdict = decide(four(0.6, 0.6, 0.6, 0.9, agree=agree), "accuracy", None, grouping)
    assert (verdict.answer, verdict.confidence) == ("groups", confidence)
    assert as_facts(verdict)["k"] == 3


@pytest.mark.parametrize(("share", "score", "sure"), [(0.79, "accuracy", "high"), (0.81, "accuracy", "low")])
def test_accuracy_says_little_of_a_rare_class(share, score, sure):
    assert decide(four(), score, None, NONE, share).confidence == sure
    assert decide(four(), "balanced_accuracy", None, NONE, share).confidence == "high"


def test_groups_that_were_counted_and_serve_nobody_are_a_doubt():
    assert decide(four(), "accuracy", None, SURE).confidence == "medium"
    assert decide(four(), "accuracy", None, NONE).confidence == "high"


def test_of_several_numbers_of_groups_the_smallest_within_a_margin_is_taken():
    found = [
        one("local", 0.5, 1),
        *(one("groups", mean, 2, k=k) for k, mean in ((2, 0.7), (3, 0.89), (4, 0.9))),
    ]
    assert decide(found, "accuracy", None, SURE).chosen.k == 3


def test_what_diverged_is_no_candidate():
    broken = Candidate("fedavg", "fedavg_tuned", "centre", scores(0.9), diverged=1)
    infinite = Candidate("fine-tuned", "fedavg_tuned", "fine-tuned", scores(np.inf))
    assert decide([one("local", 0.6), broken, infinite], "accuracy").answer == "local"
    verdict = decide([broken], "accuracy")
    assert (verdict.answer, verdict.confidence) == ("unclear", "low")
    assert "diverged" in verdict.reason


def test_intervals_are_students_over_clients_or_seeds_the_wider():
    values = np.array([[0.1, 0.3, 0.2], [0.5, 0.4, 0.9]])
    over_clients = 12.7062 * np.std([0.2, 0.6], ddof=1) / 2**0.5
    assert _reach(values) == pytest.approx(over_clients, rel=1e-4)
    seeds = values.T  # now two seeds, whose means lie apart
    assert _reach(seeds) == pytest.approx(over_clients, rel=1e-4)
    assert _reach(np.array([[0.1, np.nan], [0.5, 0.5]])) == pytest.approx(
        12.7062 * np.std([0.1, 0.5], ddof=1) / 2**0.5, rel=1e-4
    )


def test_differences_are_the_same_both_ways_round():
    found = four(0.6, 0.7, 0.75, 0.9)
    duels = _duels(found)
    for a in found:
        for b in found:
            if a is not b:
                there, back = duels[a.answer, b.answer], duels[b.answer, a.answer]
                assert there.gain == pytest.approx(a.mean - b.mean)
                assert (there.low, there.high) == pytest.approx((-back.high, -back.low))
                assert there.apart == back.apart


def test_clients_that_differ_in_both_directions_are_no_difference():
    """Half of them gain twenty points, the others lose eighteen: the test over clients is not impressed."""
    low = scores(0.6, clients=40, spread=0.001)
    high = low + np.where(np.arange(40) % 2, 0.2, -0.18)[:, None]
    found = [Candidate("local", "local", "personal", low), Candidate("fedavg", "f", "centre", high)]
    assert not _duels(found)["fedavg", "local"].apart


def test_clients_without_validation_rows_are_left_out():
    found = four(0.6, 0.8, 0.8, 0.7)
    for candidate in found:
        candidate.scores.iloc[3] = np.nan
        candidate.scores.iloc[5, 2] = np.nan
    assert decide(found, "accuracy", None, NONE).answer == "fedavg"
