import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.federation.partition.choose_tests import balanced, shares, shares_within
from kinfolk.federation.partition.draws import label_distribution, take
from kinfolk.federation.partition.holdout import held_count, hold_out, stratified
from kinfolk.federation.partition.partitions import PARTITIONS, deal_dirichlet, deal_iid
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed
from kinfolk.types import Client

ANN, BOB = Client("ann"), Client("bob")


def laws(means: str, alpha: float, count: int = 4000) -> np.ndarray:
    rng, spec = np.random.default_rng(7), DataSpec(alpha=alpha, alpha_means=means)
    return np.stack([label_distribution(10, spec, rng) for _ in range(count)])


@pytest.mark.parametrize(("alpha", "seen"), [(1.0, 2.7), (3.0, 4.3), (10.0, 6.3), (100.0, 9.7)])
def test_total_alpha_leaves_as_many_classes_as_the_paper_says(alpha, seen):
    drawn = laws("total", alpha)
    assert np.allclose(drawn.sum(1), 1)
    assert (drawn >= 0.05).sum(1).mean() == pytest.approx(seen, abs=0.1)


@pytest.mark.parametrize("alpha", [0.5, 3.0, 40.0])
def test_both_readings_have_the_moments_of_their_law(alpha):
    # Var p_c = (1/C)(1 - 1/C) / (A + 1), with A the sum of the concentrations.
    for drawn, total in ((laws("total", alpha), alpha), (laws("each", alpha), 10 * alpha)):
        assert drawn.mean(0) == pytest.approx(np.full(10, 0.1), abs=0.02)
        assert drawn.var(0).mean() == pytest.approx(0.09 / (total + 1), rel=0.05)


def test_largest_share_tells_the_readings_apart():
    assert laws("total", 3.0).max(1).mean() == pytest.approx(0.46, abs=0.02)
    assert laws("each", 3.0).max(1).mean() < 0.25


@pytest.mark.parametrize("alpha", [1e-300, 1e-12, 1e15, 1e308])
def test_extreme_alphas_still_give_laws(alpha):
    for drawn in (laws("total", alpha, 20), laws("each", alpha, 20)):
        assert np.isfinite(drawn).all()
        assert np.allclose(drawn.sum(1), 1)


@given(st.integers(1, 20), st.integers(0, 70), st.integers(0, 99))
def test_take_repeats_a_row_only_when_rows_run_out(rows, count, seed):
    drawn = take(np.arange(rows) + 100, count, np.random.default_rng(seed))
    times = np.bincount(drawn - 100, minlength=rows)
    assert len(drawn) == count == times.sum()
    assert times.max() - times.min() <= 1
    assert count > rows or times.max() <= 1


def test_take_is_uniform():
    rng = np.random.default_rng(3)
    times = sum(np.bincount(take(np.arange(5), 2, rng), minlength=5) for _ in range(5000))
    assert times / 5000 == pytest.approx(np.full(5, 0.4), abs=0.03)


@pytest.mark.parametrize("name", [n for n, p in PARTITIONS.items() if p.reuse and p.sized])
def test_dealing_is_by_name_and_without_repeats(name):
    labels = np.repeat(np.arange(4), 50)
    deal, spec = PARTITIONS[name].deal, DataSpec(alpha=4.0)
    both = deal(labels, {ANN: 30, BOB: 20}, spec, Seed(5))
    other = deal(labels, {BOB: 20, ANN: 30}, spec, Seed(5))
    alone = deal(labels, {BOB: 20}, spec, Seed(5))
    assert both[ANN].tolist() == other[ANN].tolist()
    assert both[BOB].tolist() == other[BOB].tolist() == alone[BOB].tolist()
    assert len(set(both[ANN].tolist())) == 30
    assert both[BOB].tolist() != deal(labels, {BOB: 20}, spec, Seed(6))[BOB].tolist()


def test_dirichlet_dealing_follows_its_own_law():
    """Labels of many clients have the variance of a Dirichlet-multinomial law."""
    labels, n, alpha = np.repeat(np.arange(10), 200), 50, 8.0
    names = {Client(f"c{i}"): n for i in range(1500)}
    for means, total in (("total", alpha), ("each", 10 * alpha)):
        dealt = deal_dirichlet(labels, names, DataSpec(alpha=alpha, alpha_means=means), Seed(1))
        counts = np.stack([np.bincount(labels[rows], minlength=10) for rows in dealt.values()])
        expected = n * 0.09 * (n + total) / (1 + total)
        assert counts.var(0).mean() == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize(("alpha", "seen"), [(3.0, 4.3), (10.0, 6.3), (100.0, 9.7)])
def test_dealt_rows_hold_as_many_classes_as_the_paper_says(alpha, seen):
    labels, n = np.repeat(np.arange(10), 1500), 1000
    dealt = deal_dirichlet(labels, {Client(f"c{i}"): n for i in range(500)}, DataSpec(alpha=alpha), Seed(3))
    counts = np.stack([np.bincount(labels[rows], minlength=10) for rows in dealt.values()])
    assert (counts >= 0.05 * n).sum(1).mean() == pytest.approx(seen, abs=0.2)


def test_iid_dealing_has_the_labels_of_the_pool():
    labels = np.repeat(np.arange(2), [100, 300])
    dealt = deal_iid(labels, {Client(f"c{i}"): 40 for i in range(400)}, DataSpec(), Seed(1))
    assert np.mean([labels[rows].mean() for rows in dealt.values()]) == pytest.approx(0.75, abs=0.01)


def test_dealing_never_asks_for_a_class_that_is_missing():
    labels = np.array([3] * 40 + [7] * 40)
    rows = deal_dirichlet(labels, {ANN: 60}, DataSpec(), Seed(0))[ANN]
    assert set(labels[rows].tolist()) == {3, 7}


def test_more_rows_keep_the_law():
    labels = np.repeat(np.arange(10), 400)
    few, many = (
        np.bincount(labels[deal_dirichlet(labels, {ANN: n}, DataSpec(alpha=3), Seed(2))[ANN]], minlength=10)
        / n
        for n in (400, 1600)
    )
    assert np.abs(few - many).max() < 0.08


@given(st.integers(0, 500), st.floats(0, 0.999))
def test_held_count_leaves_one_and_holds_one(count, fraction):
    held = held_count(count, fraction)
    assert 0 <= held <= max(count - 1, 0)
    assert (held == 0) == (fraction == 0 or count < 2)
    if 1 < fraction * count < count - 1:
        assert abs(held - fraction * count) <= 0.5


@given(st.lists(st.integers(0, 8), min_size=1, max_size=40), st.floats(0, 0.99), st.integers(0, 9))
def test_hold_out_parts_rows_and_never_copies(rows, fraction, seed):
    kept, held = hold_out(np.array(rows), fraction, np.random.default_rng(seed))
    assert sorted([*kept, *held]) == sorted(rows)
    assert not set(kept.tolist()) & set(held.tolist())
    assert len(kept) >= 1


def test_stratified_holds_the_same_fraction_of_each_class():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(3), [40, 20, 1]))
    kept, held = stratified(labels, 0.25, np.random.default_rng(1))
    assert sorted([*kept, *held]) == list(range(61))
    assert np.bincount(labels[held], minlength=3).tolist() == [10, 5, 0]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_balanced_takes_as_many_of_every_class(labels):
    labels = np.array(labels)
    rows = balanced(labels, np.arange(len(labels)))
    present = np.unique(labels)
    assert np.unique(labels[rows]).tolist() == present.tolist()
    assert set(np.bincount(labels[rows])[present]) == {np.bincount(labels)[present].min()}
    assert len(set(rows.tolist())) == len(rows)


COUNTS = st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(sum)


@given(COUNTS, st.integers(0, 50))
def test_shares_are_the_closest_whole_numbers(counts, total):
    counts = np.array(counts)
    given_, quota = shares(counts, total), counts * total / counts.sum()
    assert given_.sum() == total
    assert (np.abs(given_ - quota) < 1).all()
    # Largest remainder minimises the squared distance: moving one row from a to b never helps.
    for a in np.flatnonzero(given_):
        for b in range(len(counts)):
            moved = given_.copy()
            moved[a] -= 1
            moved[b] += 1
            assert ((given_ - quota) ** 2).sum() <= ((moved - quota) ** 2).sum() + 1e-9


@given(COUNTS, st.integers(1, 50), st.lists(st.integers(0, 9), min_size=6, max_size=6))
def test_shares_within_is_the_largest_that_fits(counts, total, room):
    counts, room = np.array(counts), np.array(room[: len(counts)])
    fits = [n for n in range(total + 1) if (shares(counts, n) <= room).all()]
    assert shares_within(counts, total, room).tolist() == shares(counts, max(fits)).tolist()
