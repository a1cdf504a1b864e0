"""The rule that says how many groups, on tables made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from kinfolk.errors import KinfolkError
from kinfolk.experiment.recommend import Row, as_facts, chance, confidence, gain, names, rand, recommend
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


@pytest.mark.parametrize(
    ("score", "told"),
    [("balanced_accuracy", "+29.8 ± 0.1 points"), ("r2", "+0.298 ± "), ("mse", "-0.298 ± ")],
)
def test_a_gain_is_told_in_the_sign_of_its_score(score, told):
    """Inside, larger is always better: an error that fell is told as a minus, any other gain as a plus."""
    rows = table({1: 0.5, 2: 0.8, 4: 0.8}, stability=STEADY, chance=BY_CHANCE)
    assert f"2 groups: {told}" in recommend(rows, "accuracy", [], score).reason


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


KS = range(1, 11)


def criteria(scored, silhouettes, stable=1.0, peak=0.3):
    """Rows of K = 1 to 10 with the best score at `scored` and the highest silhouette at `silhouettes`."""
    scores = {k: 0.5 if scored == 1 else 0.8 - 0.05 * abs(k - scored) if k > 1 else 0.4 for k in KS}
    near = {k: (0.0 if k == 1 else peak if k == silhouettes else 0.05,) * 3 for k in KS}
    firm = {k: stable for k in KS if k > 1}
    return table(scores, noise=0.001, silhouette=near, stability=firm, chance=dict.fromkeys(firm, 0.05))


@pytest.mark.parametrize("k", range(1, 9))
def test_what_all_criteria_name_is_the_answer_and_sure(k):
    advice = recommend(criteria(k, k), "agreement", [k] * 3)
    assert (advice.k, advice.confidence) == (k, "high")
    assert set(advice.named.values()) == {k}
    assert advice.reason.endswith("Confidence: high (all criteria name it).")


@pytest.mark.parametrize(("scored", "k"), [(2, 4), (3, 8), (6, 5), (4, 2)])
def test_the_answer_does_not_contradict_gap_statistic_and_silhouette(scored, k):
    advice = recommend(criteria(scored, k), "agreement", [k] * 3)
    assert (advice.k, advice.confidence) == (k, "medium")
    assert f"{k} groups: the clients' models lie in {k} clusters" in advice.reason
    assert f"against K = {scored}" in advice.reason
    assert f"(accuracy {scored}, gap statistic {k}, silhouette {k})" in advice.reason


def test_a_number_that_only_one_of_them_names_is_never_sure():
    advice = recommend(criteria(2, 4), "agreement", [6] * 3)
    assert (advice.k, advice.confidence) == (2, "low")
    assert "accuracy 2, gap statistic 6, silhouette 4" in advice.reason
    for criterion in ("accuracy", "silhouette"):  # one criterion alone says how far the others agree, too
        assert recommend(criteria(2, 4), criterion, [6] * 3).confidence == "low"


def test_accuracy_and_one_other_are_enough():
    assert recommend(criteria(4, 2), "agreement", [4, 4, 1]).k == 4
    advice = recommend(criteria(4, 4), "agreement", [6, 6, 4])
    assert (advice.k, advice.confidence) == (4, "medium")


def test_clusters_that_cost_accuracy_are_not_recommended():
    # One group is best by far: label skew makes clusters of models that are of no use.
    worse = {k: 0.8 if k == 1 else 0.7 for k in KS}
    near = {k: (0.3 if k == 4 else 0.05,) for k in KS}
    advice = recommend(table(worse, noise=0.001, silhouette=near), "agreement", [4, 4, 4])
    assert (advice.k, advice.confidence) == (1, "low")
    # No worse, no better: the models decide, and the answer is not sure.
    level = dict.fromkeys(KS, 0.8)
    advice = recommend(table(level, noise=0.05, silhouette=near), "agreement", [4, 4, 4])
    assert (advice.k, advice.confidence) == (4, "low")


def test_a_cloud_of_models_does_not_outvote_a_clear_gain():
    advice = recommend(criteria(4, 4, peak=0.05), "agreement", [1, 1, 1])
    assert advice.named == {"accuracy": 4, "gap statistic": 1, "silhouette": 1}
    assert (advice.k, advice.confidence) == (4, "low")


@pytest.mark.parametrize(("stable", "sure"), [(0.81, "high"), (0.79, "low")])
def test_groups_that_change_with_the_seed_are_never_sure(stable, sure):
    advice = recommend(criteria(4, 4, stable), "agreement", [4] * 3)
    assert (advice.k, advice.confidence) == (4, sure)
    assert ("the seeds agree on the groups by 0.79 only" in advice.reason) == (sure == "low")


def test_the_largest_k_that_was_tried_is_not_sure():
    advice = recommend(criteria(6, 6)[:6], "agreement", [6] * 3)
    assert (advice.k, advice.confidence) == (6, "medium")
    assert "no larger K was tried" in advice.reason


def test_a_seed_that_counts_otherwise_is_not_sure():
    advice = recommend(criteria(4, 4), "agreement", [4, 4, 5])
    assert (advice.k, advice.confidence) == (4, "medium")


def test_what_each_criterion_names():
    rows = criteria(3, 5)
    assert names(rows, [2, 4, 4]) == {"accuracy": 3, "gap statistic": 4, "silhouette": 5}
    assert names(rows, [4, 2])["gap statistic"] == 2, "of two the smaller"
    assert names(rows, []) == {"accuracy": 3, "silhouette": 5}
    low, high = (names(criteria(3, 5, peak=peak), [3])["silhouette"] for peak in (0.09, 0.11))
    assert (low, high) == (1, 5)
    assert confidence(3, rows, {"accuracy": 3}, [])[0] == "low", "one criterion alone"


@given(st.integers(2, 8), st.integers(1, 8), st.lists(st.integers(1, 8), min_size=1, max_size=4))
def test_only_full_agreement_is_sure(scored, near, counted):
    advice = recommend(criteria(scored, near), "agreement", counted)
    if advice.confidence == "high":
        assert {scored, near, *counted} == {advice.k}
    # Two that agree are not answered with a third number.
    _, second, third = advice.named.values()
    if second == third > 1:
        assert advice.k == second
