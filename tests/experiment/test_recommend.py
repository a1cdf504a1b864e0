"""The rule that says how many groups, on tables made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from kinfolk.errors import KinfolkError
from kinfolk.experiment.recommend import Row, as_facts, chance, gain, rand, recommend
from kinfolk.streams import Seed


def table(means, noise=0.01, clients=20, seeds=3, **more):
    """A row for every K: clients around the mean, the same clients in every row."""
    draw = np.random.default_rng(0)
    own = draw.normal(0, 0.1, clients)
    rows = []
    for k, mean in means.items():
        scores = mean + own + noise * draw.normal(size=(seeds, clients))
        extra = {name: values[k] for name, values in more.items() if k in values}
        rows.append(Row(k, scores, **extra))
    return rows


STEADY = dict.fromkeys((2, 4), 1.0)
BY_CHANCE = dict.fromkeys((2, 4), 0.1)


def test_the_smallest_k_that_is_as_good_as_the_best():
    rows = table({1: 0.5, 2: 0.6, 4: 0.8}, stability=STEADY, chance=BY_CHANCE)
    back_and_forth = np.where(np.arange(20) % 2, 0.05, -0.05)
    five = Row(5, rows[-1].scores + 0.002 + back_and_forth, stability=1.0, chance=0.1)
    advice = recommend([*rows, five], "accuracy", [])
    assert advice.k == 4
    assert "K = 5 is not clearly better" in advice.reason
    clearly = Row(5, rows[-1].scores + 0.03 + back_and_forth, stability=1.0, chance=0.1)
    assert recommend([*rows, clearly], "accuracy", []).k == 5
    assert "+29.7 ± 0.1 points" in advice.reason
    assert "stability 1.00" in advice.reason


@pytest.mark.parametrize("worse", [0.5, 0.5005, 0.45])
def test_one_group_unless_another_k_is_better_beyond_noise(worse):
    advice = recommend(table({1: 0.5, 2: worse, 3: worse}), "accuracy", [4, 4, 4])
    assert advice.k == 1
    assert advice.reason.startswith("One group: no other K is better")


def test_noise_of_clients_counts_as_that_of_seeds():
    # All seeds say the same: +5 points. But it comes from a few clients with few rows.
    base, other = np.full((3, 8), 0.5), np.full((3, 8), 0.5)
    other[:, 0] = 0.9
    assert gain(Row(2, other), Row(1, base)).std == pytest.approx(0)
    assert recommend([Row(1, base), Row(2, other)], "accuracy", []).k == 1
    # The reverse: all clients alike, one seed of three.
    other = np.full((3, 8), 0.5)
    other[0] = 0.9
    assert recommend([Row(1, base), Row(2, other)], "accuracy", []).k == 1


def test_groups_that_seeds_find_by_chance_are_none():
    rows = table({1: 0.5, 2: 0.8}, stability={2: 0.05}, chance={2: 0.1})
    advice = recommend(rows, "accuracy", [])
    assert advice.k == 1
    assert "as by chance" in advice.reason


def test_one_seed_is_judged_by_its_clients():
    assert recommend(table({1: 0.5, 2: 0.7}, seeds=1), "accuracy", []).k == 2
    assert recommend(table({1: 0.5, 2: 0.501}, seeds=1, noise=0.05), "accuracy", []).k == 1


def test_silhouette_and_distance_need_more_than_one_cloud():
    silhouettes = {1: (0.0,), 2: (0.2,), 3: (0.3,)}
    spreads = {1: (9.0,), 2: (8.0,), 3: (4.0,)}
    rows = table({1: 0.5, 2: 0.5, 3: 0.5}, silhouette=silhouettes, spread=spreads)
    for criterion in ("silhouette", "intra_distance"):
        assert recommend(rows, criterion, [3, 1, 2]).k == 3
        assert recommend(rows, criterion, [1, 1, 3]).k == 1
        assert "single cloud" in recommend(rows, criterion, [1, 1, 1]).reason


def test_silhouettes_of_chance_groups_do_not_count():
    rows = table({1: 0.5, 2: 0.5}, silhouette={1: (0.0,), 2: (0.2,)}, stability={2: 0.0}, chance={2: 0.1})
    assert recommend(rows, "silhouette", [2, 2]).k == 1


def test_a_criterion_that_there_is_not():
    with pytest.raises(KinfolkError, match="did you mean 'accuracy'"):
        recommend([], "acuracy", [])


def test_gain_is_paired_and_leaves_out_clients_without_rows():
    draw = np.random.default_rng(1)
    a, b = draw.normal(size=(4, 7)), draw.normal(size=(4, 7))
    a[:, 2] = math.nan
    kept = np.delete(a - b, 2, axis=1)
    found = gain(Row(2, a), Row(1, b))
    assert found.mean == pytest.approx(kept.mean())
    assert found.std == pytest.approx(kept.mean(1).std(ddof=1))
    seeds, clients = kept.mean(1).std(ddof=1) / 2, kept.mean(0).std(ddof=1) / math.sqrt(6)
    assert found.error == pytest.approx(max(seeds, clients))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=2, max_size=12))
def test_rand_is_the_adjusted_rand_index(pairs):
    one, other = np.array(pairs).T
    expected = adjusted_rand_score(one, other)
    assert rand(one[None], other[None])[0] == pytest.approx(expected, abs=1e-12)


def test_chance_is_a_quantile_of_shuffled_agreement():
    runs = [np.arange(30) % 3, np.arange(30) % 3, np.arange(30) % 2]
    draw = np.random.default_rng(5)
    means = []
    for _ in range(400):
        a, b, c = (draw.permutation(run)[None] for run in runs)
        means.append(np.mean([rand(*pair)[0] for pair in ((a, b), (a, c), (b, c))]))
    assert chance(runs, Seed(0), draws=2000) == pytest.approx(np.quantile(means, 0.95), abs=0.015)


def test_facts_of_a_row():
    facts = as_facts(Row(2, np.array([[0.5, 0.7], [0.7, 0.9]]), (0.1, 0.3)), Row(1, np.zeros((2, 2))))
    assert facts["score"]["mean"] == pytest.approx(0.7)
    assert facts["score"]["std"] == pytest.approx(math.sqrt(0.02))
    assert facts["silhouette"]["mean"] == pytest.approx(0.2)
    assert facts["spread"] is None
    assert facts["gain"]["clear"]
