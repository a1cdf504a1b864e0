"""Who is badly served: only clients whose gap matters and is beyond the noise of their rows and seeds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from flat_runs import flat, seeds
from scipy import stats

from kinfolk.report.read import Run
from kinfolk.report.verdict import Sentence, verdict
from kinfolk.report.verdict.served import chance_of, noise_of_rows, noise_of_seeds

EVEN = np.full(12, 0.8)


def rules(runs: list[Run]) -> dict[str, Sentence]:
    return {one.rule: one for one in verdict(runs).sentences}


def low(*clients: int, by: float, start: float = 0.8) -> np.ndarray:
    values = np.full(12, start)
    values[list(clients)] -= by
    return values


@pytest.mark.parametrize(("by", "named"), [(0.044, False), (0.06, True)])
def test_a_gap_of_five_points_matters(by, named):
    runs = seeds("fedavg", low(3, by=by), rows=20_000, noise=1e-4) + seeds(
        "local", EVEN, noise=1e-4, rows=20_000
    )
    found = rules(runs)
    assert ("worse-off" in found) == named
    if named:
        assert (
            "1 of 12 clients (c03) would clearly do better with local, by up to 6.0 points"
            in found["worse-off"].text
        )
    else:
        assert "worse-off-nobody" in found


@pytest.mark.parametrize(("rows", "named"), [(60, False), (1000, True)])
def test_few_test_rows_hide_the_same_gap(rows, named):
    runs = seeds("fedavg", low(3, by=0.15), rows=rows, noise=1e-4) + seeds(
        "local", EVEN, rows=rows, noise=1e-4
    )
    assert ("worse-off" in rules(runs)) == named


@pytest.mark.parametrize(("noise", "named"), [(0.001, True), (0.08, False)])
def test_seeds_that_differ_much_hide_the_same_gap(noise, named):
    runs = seeds("fedavg", low(3, by=0.12), rows=20_000, noise=noise) + seeds(
        "local", EVEN, rows=20_000, noise=noise
    )
    assert ("worse-off" in rules(runs)) == named


@pytest.mark.parametrize(("by", "named"), [(0.15, False), (0.3, True)])
def test_of_an_error_a_tenth_of_its_value_matters(by, named):
    high = np.full(12, 2.0)
    high[5] += by
    runs = seeds("fedavg", high, score="mse") + seeds("local", np.full(12, 2.0), score="mse")
    assert ("worse-off" in rules(runs)) == named


def test_the_other_way_round_losers_are_named_too():
    found = rules(seeds("fedavg", 0.7) + seeds("local", low(1, by=0.3, start=0.85)))
    assert (
        "1 of 12 clients (c01) would clearly do better with fedavg than with local"
        in found["loses-by-it"].text
    )


def test_the_best_method_and_training_alone_are_both_told():
    grouped = seeds("ifca", 0.9, groups=[0, 1] * 6)
    found = rules(seeds("fedavg", low(0, 1, by=0.3)) + grouped + seeds("local", low(1, by=0.3, start=0.75)))
    assert found["worse-off"].numbers["named"] == 12
    assert found["worse-than-alone"].numbers["named"] == 1


def test_the_group_of_those_who_are_badly_served_is_told():
    known = [0, 1, 2] * 4
    runs = seeds("fedavg", low(2, 5, 8, 11, by=0.3), known=known) + seeds("local", EVEN, known=known)
    assert rules(runs)["worse-off"].text.endswith("100% of them are in known group 2.")
    spread = seeds("fedavg", low(0, 1, 2, by=0.3), known=known) + seeds("local", EVEN, known=known)
    assert "group" not in rules(spread)["worse-off"].text


def test_clients_that_differ_from_seed_to_seed_are_counted_and_not_named():
    def run(title: str, seed: int, at: int) -> Run:
        value = low(at, (at + 1) % 12, by=0.4) if title == "fedavg" else EVEN
        return flat(title, seed, value, known=np.roll([0, 1, 2] * 4, seed).tolist())

    runs = [run(title, s, 3 * s) for title in ("fedavg", "local") for s in range(3)]
    text = rules(runs)["worse-off"].text
    assert "2 of 12 clients in each of 3 seeds would clearly do better with local, by up to 4" in text
    assert "c0" not in text


def test_clients_that_are_named_in_some_seeds_only_depend_on_the_seed():
    def run(title: str, seed: int) -> Run:
        value = low(seed, by=0.4) if title == "fedavg" and seed else EVEN
        return flat(title, seed, value, known=np.roll([0, 1, 2] * 4, seed).tolist())

    found = rules([run(title, s) for title in ("fedavg", "local") for s in range(3)])
    assert "worse-off" not in found
    assert "0 to 1 of 12 clients would clearly do better with local" in found["worse-off-by-seed"].text


def test_a_client_far_behind_the_rest_is_named():
    draw = np.random.default_rng(0)
    normal = 0.8 + 0.02 * draw.normal(size=12)
    assert "behind" not in rules(seeds("fedavg", normal))
    straggler = normal.copy()
    straggler[7] = 0.3
    found = rules(seeds("fedavg", straggler))
    assert "1 of 12 clients (c07); the last has 30." in found["behind"].text


@pytest.mark.parametrize(("by", "named"), [(0.08, False), (0.13, True)])
def test_behind_means_ten_points_below_the_median(by, named):
    draw = np.random.default_rng(0)
    values = low(7, by=by) + 0.003 * draw.normal(size=12)
    assert ("behind" in rules(seeds("fedavg", values, rows=20_000, noise=1e-4))) == named


def test_where_no_conclusion_is_allowed_it_is_how_things_stand_so_far():
    found = rules(seeds("fedavg", low(3, by=0.4), before=0.1) + seeds("local", EVEN))
    assert found["worse-off"].text.startswith("So far: badly served")
    assert found["worse-off"].weight == "plain"


def test_the_variances_are_those_of_the_model_they_are_for():
    draw = np.random.default_rng(0)
    gaps = np.array([draw.normal(0, 3, 4) + draw.normal(0, 2, (50, 4)) for _ in range(2000)])
    parts = np.array([noise_of_seeds(one)[:2] for one in gaps]).mean(0)
    assert parts == pytest.approx([9 / 4, 4 / 4], rel=0.1)
    assert noise_of_rows(np.array([0.3]), np.array([500.0])) == pytest.approx(0.3 * 0.7 / 500, rel=0.02)


def test_a_chance_is_that_of_student_times_the_clients():
    found = chance_of(np.array([3.0, 0.0, -1.0]), np.ones(3), 5.0)
    assert found[0] == pytest.approx(3 * stats.t.sf(3.0, 5))
    assert chance_of(np.array([1.0, 0.0]), np.zeros(2)).tolist() == [0.0, 1.0]


def test_with_one_seed_of_an_error_nothing_can_be_said():
    runs = [flat("fedavg", 0, 2.0, score="mse"), flat("local", 0, 1.0, score="mse")]
    assert "worse-off-unknown" in rules(runs)


def test_clients_that_only_one_method_has_are_left_out():
    runs = seeds("fedavg", low(3, by=0.3)) + seeds("local", EVEN)
    for run in runs[3:]:
        kept = run.scores[run.scores["client"] != "c00"]
        run.__dict__["scores"] = pd.DataFrame(kept)
    found = rules(runs)
    assert "lost" in found  # local has no score for c00
    assert "worse-off" not in found
