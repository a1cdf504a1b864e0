"""Paired statistics: against enumeration and textbook formulas, and on planted differences."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy import stats

from kinfolk.report.read import Run
from kinfolk.report.statistics import (
    Paired,
    all_pairs,
    crossed_interval,
    holm,
    paired,
    paired_seeds,
    robust_ranks,
    signed_rank,
)
from kinfolk.report.tables import comparison_rows, comparison_table

Floats = NDArray[np.float64]


def planted(
    draw: np.random.Generator, clients: int, seeds: int, mean: float, by_client: float, by_seed: float
) -> Floats:
    """Differences with a common mean, a part for each client, a part for each seed, and noise of 1."""
    return (
        mean
        + by_client * draw.normal(size=(clients, 1))
        + by_seed * draw.normal(size=(1, seeds))
        + draw.normal(size=(clients, seeds))
    )


def frames(differences: Floats) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two methods' scores that differ by so much."""
    first = pd.DataFrame(np.zeros_like(differences))
    return first, first + differences


@pytest.mark.parametrize("seed", range(3))
def test_the_exact_test_counts_all_signs(seed: int) -> None:
    values = np.random.default_rng(seed).normal(0.5, 1, 9)
    ranks = stats.rankdata(np.abs(values))
    seen = abs(float((ranks * np.sign(values)).sum()))
    all_signs = [abs(float(np.dot(ranks, s))) for s in itertools.product((-1, 1), repeat=9)]
    assert signed_rank(values) == pytest.approx(np.mean([one >= seen - 1e-9 for one in all_signs]))


def test_ties_and_zeros_go_by_the_normal_approximation_with_zeros_ranked_first() -> None:
    values = np.array([0.0, 0.0, 0.1, 0.1, -0.1, 0.2, 0.3, 0.3, 0.4, 0.4, -0.2, 0.5])
    ranks = stats.rankdata(np.abs(values))
    kept = values != 0
    total = float(ranks[(values > 0)].sum())
    # Given the ranks, each that is not of a zero has either sign: half its sum, a quarter of its squares.
    expected, variance = ranks[kept].sum() / 2, (ranks[kept] ** 2).sum() / 4
    assert signed_rank(values) == pytest.approx(
        2 * stats.norm.sf(abs(total - expected) / math.sqrt(variance))
    )
    assert signed_rank(np.zeros(8)) == 1.0


def test_the_interval_of_one_seed_is_students_over_clients() -> None:
    values = np.random.default_rng(0).normal(size=12)
    low, high = stats.t.interval(0.95, 11, values.mean(), stats.sem(values))
    assert crossed_interval(values[:, None]) == pytest.approx((low, high))


def test_the_interval_of_several_seeds_is_that_of_crossed_random_effects() -> None:
    d = planted(np.random.default_rng(1), 10, 4, 1.0, 1.0, 1.0)
    clients, seeds = d.shape
    of_clients = seeds * d.mean(1).var(ddof=1)  # mean squares of a two-way table without repetition
    of_seeds = clients * d.mean(0).var(ddof=1)
    rest = ((d - d.mean(1, keepdims=True) - d.mean(0) + d.mean()) ** 2).sum() / ((clients - 1) * (seeds - 1))
    assert of_seeds > rest
    variance = (of_clients + of_seeds - rest) / d.size
    free = (of_clients + of_seeds - rest) ** 2 / (
        of_clients**2 / (clients - 1) + of_seeds**2 / (seeds - 1) + rest**2 / ((clients - 1) * (seeds - 1))
    )
    reach = stats.t.ppf(0.975, free) * math.sqrt(variance)
    assert crossed_interval(d) == pytest.approx((d.mean() - reach, d.mean() + reach))


def test_clients_that_are_others_in_every_seed_leave_the_seeds_as_units() -> None:
    draw, d = np.random.default_rng(2), np.full((12, 3), np.nan)
    for seed in range(3):
        d[4 * seed : 4 * seed + 4, seed] = seed + draw.normal(size=4)
    each = np.nanmean(d, axis=0)
    assert crossed_interval(d) == pytest.approx(
        stats.t.interval(0.95, 2, each.mean(), stats.sem(each)), rel=0.1
    )


def test_holm_rejects_step_by_step() -> None:
    draw = np.random.default_rng(3)
    for _ in range(20):
        p = draw.uniform(size=6) ** 3
        right = holm(p.tolist())
        for level in (0.01, 0.05, 0.2):
            rejected = set()
            for place, i in enumerate(np.argsort(p)):
                if p[i] > level / (6 - place):
                    break
                rejected.add(int(i))
            assert {i for i in range(6) if right[i] <= level} == rejected
    assert holm([math.nan, 0.03]) == [pytest.approx(math.nan, nan_ok=True), 0.03]


def test_only_what_both_have_scored_is_compared() -> None:
    first = pd.DataFrame({0: np.arange(8.0), 1: np.arange(8.0)}, index=list("abcdefgh"))
    second = first + np.linspace(1, 2, 8)[:, None]
    second = second.drop(index="a").assign(**{}).rename(columns={1: 2})
    second.loc["b", 0] = math.nan
    found = paired(first, second)
    assert (found.clients, found.seeds) == (6, 1)
    assert found.difference == pytest.approx(np.linspace(1, 2, 8)[2:].mean())


def test_few_clients_are_compared_over_seeds_and_one_seed_of_them_not_at_all() -> None:
    d = planted(np.random.default_rng(4), 5, 4, 1.0, 0.1, 0.1)
    found = paired(*frames(d))
    assert found.unit == "seed"
    assert found.p == pytest.approx(stats.ttest_1samp(d.mean(0), 0).pvalue)
    assert paired(*frames(d[:, :1])).apart is None
    assert paired_seeds(np.array([])).apart is None


def test_infinite_scores_allow_no_comparison() -> None:
    assert paired(*frames(np.array([[math.inf], *[[0.5]] * 6]))).apart is None


def test_a_seed_that_moves_all_clients_is_no_proof() -> None:
    # Every client is better in two seeds and worse in the third: sure about clients, unsure about seeds.
    d = np.array([[3.0, 3.0, -2.0]]) + 0.01 * np.arange(24)[:, None]
    found = paired(*frames(d))
    assert found.p < 1e-4
    assert found.apart is False


def test_ranks_that_hold_are_told_in_words() -> None:
    def pair(sure: bool) -> Paired:
        return Paired(-0.2, (-0.3, -0.1), 0.001, 0.001 if sure else 0.5, 24, 3, "client")

    def told(apart: set[tuple[int, int]], count: int = 4) -> str:
        return robust_ranks({k: pair(k in apart) for k in itertools.combinations(range(count), 2)}, count)

    everything = set(itertools.combinations(range(4), 2))
    assert told(everything) == "rank 1 holds: it is distinguishable from all others"
    assert told(set()) == "ranks 1 to 4 are not distinguishable"
    assert (
        told(everything - {(0, 1)}) == "ranks 1 and 2 are not distinguishable; ranks 3 and 4 are below both"
    )
    assert (
        told({(0, 2), (0, 3), (1, 3)}) == "ranks 1 and 2 are not distinguishable; rank 4 is below both; "
        "rank 3 is below rank 1, but not below both"
    )


def memory(title: str, seed: int, values: Any, first: int = 0) -> Run:
    names = [f"c{first + i:02d}" for i in range(len(values))]
    return Run.of({"title": title, "seed": seed}, {"client": names, "value": values, "rows": 10})


def test_rows_carry_difference_interval_corrected_p_and_number() -> None:
    draw = np.random.default_rng(5)
    base = draw.uniform(0.3, 0.6, (3, 12))
    gain = {"a": 0.2, "b": 0.195, "c": 0.0}
    values = {name: base + more + draw.normal(0, 0.02, (3, 12)) for name, more in gain.items()}
    runs = [memory(name, seed, by[seed]) for name, by in values.items() for seed in range(3)]
    rows = {row["algorithm"]: row for row in comparison_rows(runs)}
    best, other = sorted(("a", "b"), key=lambda name: -values[name].mean())
    pairs = [(best, other), (best, "c"), (other, "c")]
    p = [stats.wilcoxon((values[y] - values[x]).mean(0)).pvalue for x, y in pairs]
    assert rows["c"]["p"] == pytest.approx(holm(p)[1])
    assert rows["c"]["difference"] == pytest.approx((values["c"] - values[best]).mean())
    low, high = rows["c"]["interval"]
    assert low < rows["c"]["difference"] < high < 0
    assert (rows["c"]["n"], rows["c"]["unit"], rows["c"]["apart"], rows[other]["apart"]) == (
        12,
        "client",
        True,
        False,
    )
    table, notes = comparison_table(runs)
    assert notes == ["ranks 1 and 2 are not distinguishable; rank 3 is below both"]
    assert "12 clients" in str(table.caption)


def test_one_seed_is_compared_over_clients_and_says_what_is_unknown() -> None:
    base = np.linspace(0.2, 0.5, 8)
    runs = [memory("a", 0, base + np.linspace(0.1, 0.2, 8)), memory("b", 0, base)]
    assert [row["apart"] for row in comparison_rows(runs)] == [False, True]
    assert "one seed: how much seeds differ is unknown" in comparison_table(runs)[1]


def test_clients_that_one_method_has_not_scored_are_left_out_and_said() -> None:
    base = np.linspace(0.2, 0.5, 10)
    runs = [memory("a", 0, base + np.linspace(0.1, 0.2, 10)), memory("b", 0, base[2:], first=2)]
    row = comparison_rows(runs)[1]
    assert (row["algorithm"], row["n"]) == ("b", 8)
    assert row["difference"] == pytest.approx(-np.linspace(0.1, 0.2, 10)[2:].mean())
    assert "compared on the clients that both have scored: b 8 of 10" in comparison_table(runs)[1]


def test_too_few_clients_for_many_comparisons_are_named() -> None:
    base = np.linspace(0.2, 0.5, 6)
    runs = [memory(name, 0, base + i * np.linspace(0.1, 0.2, 6)) for i, name in enumerate("abc")]
    assert {row["apart"] for row in comparison_rows(runs)} == {False}
    told = "6 clients are too few for 3 comparisons at once: compare fewer methods, or more clients"
    assert told in comparison_table(runs)[1]


def called(
    draw: np.random.Generator, times: int, clients: int, seeds: int, by_seed: float
) -> tuple[float, float]:
    """(how often an interval covers the planted mean, how often a planted zero is called a difference)."""
    covered = different = 0
    for _ in range(times):
        d = planted(draw, clients, seeds, 0.0, 1.0, by_seed)
        low, high = crossed_interval(d)
        covered += low <= 0 <= high
        different += bool(paired(*frames(d)).apart)
    return covered / times, different / times


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "seeds"), [(8, 1), (24, 1), (24, 3), (100, 3), (24, 10)])
def test_intervals_cover_and_a_planted_zero_is_called_different_in_about_five_percent(
    clients: int, seeds: int
) -> None:
    covered, different = called(np.random.default_rng(clients + seeds), 1000, clients, seeds, 0.0)
    assert 0.935 < covered < 0.985
    assert 0.015 < different < 0.065


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "by_seed"), [(3, 0.5), (5, 0.5), (5, 2.0)])
def test_what_the_clients_of_a_seed_share_is_covered_too(seeds: int, by_seed: float) -> None:
    covered, different = called(np.random.default_rng(seeds), 1000, 24, seeds, by_seed)
    assert covered > 0.92
    assert different < 0.08


@pytest.mark.slow
def test_among_many_equal_methods_none_is_called_different_more_often_than_in_five_percent() -> None:
    draw, found = np.random.default_rng(9), 0
    for _ in range(200):
        scores = [pd.DataFrame(draw.normal(size=(24, 1))) for _ in range(6)]
        scores.sort(key=lambda frame: -float(frame.to_numpy().mean()))
        found += any(one.apart for key, one in all_pairs(scores).items() if key[0] == 0)
    assert found / 200 < 0.075
