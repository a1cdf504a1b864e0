from itertools import combinations
from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.clustering.agreement import agreement, sizes, switch_fraction
from kinfolk.errors import KinfolkError
from kinfolk.types import Client

partitions = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=14)


def _ari(found, truth):
    """Hubert and Arabie's index, by looking at every pair."""
    pairs = list(combinations(range(len(found)), 2))
    a = sum(found[i] == found[j] for i, j in pairs)
    b = sum(truth[i] == truth[j] for i, j in pairs)
    both = sum(found[i] == found[j] and truth[i] == truth[j] for i, j in pairs)
    if a == b == both:
        return 1.0
    chance = a * b / len(pairs)
    return (both - chance) / ((a + b) / 2 - chance)


def _entropy(labels):
    shares = [list(labels).count(v) / len(labels) for v in set(labels)]
    return -sum(p * log(p) for p in shares)


def _nmi(found, truth):
    ours, theirs = _entropy(found), _entropy(truth)
    if ours == theirs == 0:
        return 1.0
    joint = _entropy(list(zip(found, truth, strict=True)))
    return 2 * (ours + theirs - joint) / (ours + theirs)


def _purity(found, truth):
    members = [[t for f, t in zip(found, truth, strict=True) if f == g] for g in set(found)]
    return sum(max(m.count(v) for v in m) for m in members) / len(found)


@settings(max_examples=150, deadline=None)
@given(partitions)
def test_agreement_equals_brute_force(pairs):
    found, truth = [f for f, _ in pairs], [t for _, t in pairs]
    expected = {"ari": _ari(found, truth), "nmi": _nmi(found, truth), "purity": _purity(found, truth)}
    assert agreement(found, truth) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(partitions, st.permutations(range(5)))
def test_names_of_groups_do_not_matter(pairs, names):
    found, truth = [f for f, _ in pairs], [t for _, t in pairs]
    renamed = torch.tensor([10 * names[f] - 7 for f in found])
    assert agreement(renamed, torch.tensor(truth)) == pytest.approx(agreement(found, truth), abs=1e-12)


def test_trivial_partitions():
    perfect = {"ari": 1.0, "nmi": 1.0, "purity": 1.0}
    assert agreement([3, 3, 3], [0, 0, 0]) == pytest.approx(perfect)
    assert agreement(range(100), range(100)) == pytest.approx(perfect)
    assert agreement([0], [0]) == pytest.approx(perfect)
    single = agreement([0] * 6, [0, 0, 0, 1, 1, 1])
    assert single == pytest.approx({"ari": 0.0, "nmi": 0.0, "purity": 0.5})


def test_groups_must_match_client_by_client():
    with pytest.raises(KinfolkError, match=r"groups = \(2, 3\)"):
        agreement([0, 1], [0, 1, 1])
    with pytest.raises(KinfolkError, match=r"groups = \(0, 0\)"):
        agreement([], [])


@given(st.lists(st.integers(0, 5)))
def test_sizes_count_every_client_once(found):
    assert sizes(found) == {g: found.count(g) for g in sorted(set(found))}
    assert list(sizes(torch.tensor(found, dtype=torch.int64))) == sorted(set(found))


def test_switch_fraction_is_about_those_asked():
    a, b, c, d = (Client(name) for name in "abcd")
    before, after = {a: 0, b: 1, c: 1}, {a: 1, b: 1, c: 0, d: 0}
    assert switch_fraction(before, after, [a, b]) == 0.5
    assert switch_fraction(before, after, [a, b, c]) == pytest.approx(2 / 3)
    assert switch_fraction(before, after, [b]) == 0.0
    assert switch_fraction(before, after, [d]) == 1.0
    assert switch_fraction(before, after, []) == 0.0
