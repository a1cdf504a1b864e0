"""Who serves best: named only where it is allowed and beyond the noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flat_runs import flat, seeds
from scipy import stats

from kinfolk.report.read import Run
from kinfolk.report.verdict import Sentence, verdict
from kinfolk.report.verdict.ranking import any_difference


def rules(runs: list[Run], **more) -> dict[str, Sentence]:
    return {one.rule: one for one in verdict(runs, **more).sentences}


def with_cost(runs: list[Run], sent: float, seconds: float = 1.0) -> list[Run]:
    for run in runs:
        run.rounds.append(
            {"round": 4, "cohort": 12, "bytes": {"update": {"up": 12 * sent}}, "seconds": {"update": seconds}}
        )
    return runs


def test_two_methods_are_tested_as_by_student():
    draw = np.random.default_rng(0)
    means = draw.normal(size=(2, 5))
    assert any_difference(means) == pytest.approx(stats.ttest_rel(means[0], means[1]).pvalue)


def test_the_f_test_is_that_of_two_nested_regressions():
    means = np.random.default_rng(1).normal(size=(4, 3)) + np.arange(4)[:, None]
    y, method, seed = means.ravel(), np.repeat(np.arange(4), 3), np.tile(np.arange(3), 4)
    small = np.eye(3)[seed]
    large = np.hstack([small, np.eye(4)[method][:, 1:]])
    rss = [float(((y - x @ np.linalg.lstsq(x, y)[0]) ** 2).sum()) for x in (small, large)]
    f = (rss[0] - rss[1]) / 3 / (rss[1] / 6)
    assert any_difference(means) == pytest.approx(stats.f.sf(f, 3, 6))


@pytest.mark.parametrize(
    "means", [np.zeros((2, 3)), np.ones((1, 3)), np.ones((3, 1)), np.full((2, 3), math.nan)]
)
def test_nothing_to_tell_apart_is_no_difference(means):
    assert any_difference(means) == 1.0


def test_equal_seeds_of_different_methods_are_a_difference():
    assert any_difference(np.array([[0.5, 0.5, 0.5], [0.7, 0.7, 0.7]])) == 0.0


def test_the_best_is_named_with_its_lead_and_interval():
    runs = seeds("fedavg", 0.7) + seeds("local", 0.8)
    found = rules(runs)
    assert found["best"].numbers["gain"] == pytest.approx(0.1, abs=0.005)
    assert found["best"].numbers["low"] < 0.1 < found["best"].numbers["high"]
    assert "local serves best: 80." in found["best"].text
    assert "below" in found
    assert found["best"].weight == "good"
    assert verdict(runs).headline.startswith("local serves best: 80.")


def test_where_lower_is_better_the_lead_is_said_as_less():
    found = rules(seeds("fedavg", 0.9, score="mse") + seeds("local", 0.5, score="mse"))
    assert "a mean squared error of 0.5" in found["best"].text
    assert "less than fedavg" in found["best"].text
    assert "(95 % interval: 0." in found["best"].text  # positive: an advantage


def test_equal_methods_are_noise_and_the_cheapest_is_named():
    runs = with_cost(seeds("fedavg", 0.8), 500) + with_cost(seeds("fedprox", 0.8), 400)
    found = rules(runs)
    assert "noise" in found
    assert not {"best", "below", "equals"} & set(found)
    assert "The cheapest of these is fedprox (400 B per client and round)." in found["cheapest"].text
    assert "No method is clearly better than another, so take the cheapest, fedprox" in verdict(runs).headline


def test_of_equal_bytes_the_faster_is_the_cheapest():
    runs = with_cost(seeds("fedavg", 0.8), 500, 2.0) + with_cost(seeds("fedprox", 0.8), 500, 1.0)
    assert "fedprox" in rules(runs)["cheapest"].text


def test_equals_at_the_top_are_told_from_those_below():
    runs = with_cost(seeds("fedprox", 0.8), 9) + with_cost(seeds("mine", 0.8005), 8) + seeds("fedavg", 0.6)
    found = rules(runs)
    assert found["equals"].numbers["methods"] == 2
    assert "fedavg by 20." in found["below"].text
    assert "mine" in found["cheapest"].text
    assert "cannot be told apart, so take the cheapest, mine (8 B" in verdict(runs).headline


def test_kinds_of_one_method_are_named_only_where_they_differ():
    both = [*seeds("tuned", 0.8, model="centre"), *seeds("fedavg", 0.6)]
    for run in both[:3]:
        other = run.scores.assign(model="fine-tuned")
        other["value"] -= 0.1 * (other["round"] > 0)
        run.__dict__["scores"] = type(other)(
            np.vstack([run.scores, other]), columns=other.columns
        ).infer_objects()
    text = rules(both)["best"].text
    assert text.startswith("tuned (centre) serves best")
    assert "than tuned (fine-tuned)" in text


@pytest.mark.parametrize(("lead", "is_small"), [(0.008, True), (0.015, False)])
def test_a_lead_below_a_point_is_called_small(lead, is_small):
    found = rules(seeds("fedavg", 0.7, noise=1e-4) + seeds("local", 0.7 + lead, noise=1e-4))
    assert "best" in found
    assert ("small-lead" in found) == is_small


def test_the_worst_client_may_be_served_best_by_another():
    steep, even = np.linspace(0.5, 1.0, 12), np.full(12, 0.7)
    runs = seeds("local", steep) + seeds("fedavg", even)
    found = rules(runs)
    assert found["worst-other"].weight == "warning"
    assert found["worst-other"].numbers["worst"] > 0.69
    assert found["worst-other"].numbers["of_best_mean"] < 0.52


def test_a_worst_client_that_is_better_off_by_chance_is_called_noise():
    def run(title, seed, low):
        return flat(title, seed, [low, *[0.9 if title == "local" else 0.7] * 11])

    lows = {"local": (0.4, 0.5, 0.6), "fedavg": (0.7, 0.5, 0.4)}
    runs = [run(title, s, lows[title][s]) for title in lows for s in range(3)]
    found = rules(runs)
    assert "worst-maybe" in found
    assert "worst-other" not in found


def test_the_same_method_for_mean_and_worst_is_said_plainly():
    assert "worst-client" in rules(seeds("fedavg", 0.7) + seeds("local", 0.8))


@pytest.mark.parametrize(("settings", "warned"), [(2, False), (3, True)])
def test_many_settings_of_one_algorithm_flatter_the_best(settings, warned):
    runs = [run for k in range(settings) for run in seeds(f"fesem k={k + 2}", 0.8, groups=[0, 1] * 6)]
    assert ("many-settings" in rules(runs)) == warned


def test_too_few_clients_for_many_methods_are_named():
    runs = [run for i in range(5) for run in seeds(f"m{i}", 0.8, clients=6)]
    found = rules(runs)
    assert found["too-many-methods"].text.startswith("6 clients are too few to tell 5 methods apart")
    assert not {"noise", "cheapest"} & set(found)
    assert verdict(runs).headline.startswith("No conclusion: 6 clients are too few")
    assert "noise" in rules(runs[:6])


def test_one_method_is_said_to_be_compared_with_nothing():
    runs = seeds("fedavg", 0.8)
    assert rules(runs)["one-method"].numbers["mean"] == pytest.approx(0.8, abs=0.01)
    assert "no other method" in verdict(runs).headline
