"""Arithmetic modulo 2**61 - 1 against Python's whole numbers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.shares import prime_field
from kinfolk.shares.prime_field import PRIME, add_times, reduced, signed, times, unsigned, value_at, weights

edges = [0, 1, 2**30, 2**31 - 1, 2**31, 2**60, PRIME - 2, PRIME - 1]
residues = st.one_of(st.sampled_from(edges), st.integers(0, PRIME - 1))


def words(values):
    return np.array(values, dtype=np.uint64)


@given(st.lists(residues, min_size=1, max_size=9), residues)
def test_products_and_sums(values, factor):
    assert times(words(values), factor).tolist() == [v * factor % PRIME for v in values]
    into = words(values[::-1])
    add_times(into, words(values), factor)
    expected = [(a + b * factor) % PRIME for a, b in zip(values[::-1], values, strict=True)]
    assert into.tolist() == expected


@given(
    st.lists(st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([PRIME, 2 * PRIME, 2**64 - 1])), max_size=9)
)
def test_any_word_is_reduced(values):
    assert reduced(words(values)).tolist() == [v % PRIME for v in values]


def test_all_edges_meet():
    for factor in edges:
        assert times(words(edges), factor).tolist() == [v * factor % PRIME for v in edges]


def test_blocks_join(monkeypatch):
    monkeypatch.setattr(prime_field, "BLOCK", 3)
    into = words(range(10))
    add_times(into, words(range(10)), 2)
    assert into.tolist() == [3 * v for v in range(10)]


@given(st.lists(residues, min_size=1, max_size=6), st.integers(0, 40))
def test_lagrange_finds_the_polynomial(coefficients, at):
    points = [3 * i + 1 for i in range(len(coefficients))]
    value = lambda x: sum(c * pow(x, k, PRIME) for k, c in enumerate(coefficients)) % PRIME  # noqa: E731
    found = value_at([words([value(x)]) for x in points], points, at)
    assert found.tolist() == [value(at)]
    assert sum(weights(points, at)) % PRIME == 1


@given(st.lists(st.integers(-(2**60) + 1, 2**60 - 1), max_size=9))
def test_signs_survive(values):
    whole = np.array(values, dtype=np.int64)
    assert signed(unsigned(whole)).tolist() == values
    assert unsigned(whole).tolist() == [v % PRIME for v in values]
