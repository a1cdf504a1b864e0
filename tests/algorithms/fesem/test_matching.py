from itertools import permutations
from math import log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from kinfolk.algorithms.fesem import matching as module
from kinfolk.algorithms.fesem.matching import Prior, gains, match_layer
from kinfolk.errors import KinfolkError
from kinfolk.streams import Seed

priors = st.builds(
    Prior, sigma=st.floats(0.3, 3), sigma0=st.floats(0.3, 3), gamma=st.floats(0.1, 9), mu0=st.floats(-1, 1)
)


def _layer(number, units, features):
    return Seed(number).numpy("layer").normal(size=(units, features))


def _gain_by_entries(v, g, big, count, clients, p):
    """The formula entry by entry, as it is printed."""
    n = min(count, 10, clients - 0.5)
    terms = [
        (x / p.sigma**2 + h) ** 2 / (1 / p.sigma**2 + big) - h**2 / big for x, h in zip(v, g, strict=True)
    ]
    return sum(terms) + 2 * log(n / (clients - n))


@settings(max_examples=30)
@given(st.integers(0, 10**6), priors, st.integers(1, 15))
def test_gains_are_the_printed_formula(seed, prior, count):
    draw = Seed(seed).numpy("gains")
    v, g, big = draw.normal(size=(3, 4)), draw.normal(size=(2, 4)), draw.uniform(1, 5, 2)
    found = gains(v, g, big, np.array([count, 1]), 16, 2, prior)
    start, first = prior.mu0 / prior.sigma0**2, 1 / prior.sigma0**2
    for i in range(3):
        assert found[i, 0] == pytest.approx(_gain_by_entries(v[i], g[0], big[0], count, 16, prior))
        for m in (1, 2):
            fresh = sum(
                (x / prior.sigma**2 + start) ** 2 / (prior.sigma**-2 + first) - start**2 / first for x in v[i]
            )
            assert found[i, 1 + m] == pytest.approx(fresh - 2 * log(m) + 2 * log(prior.gamma / 16))


def test_a_gain_is_the_rise_of_the_log_posterior():
    """Twice the log density of v under N(theta, sigma^2) with theta integrated out, up to what v fixes."""
    prior = Prior(sigma=0.7, sigma0=1.3, mu0=0.2)
    v, members = np.array([0.4, -1.0]), np.array([[0.5, -0.7], [0.1, -1.2]])
    one, first = prior.sigma**-2, prior.sigma0**-2
    g, big = prior.mu0 * first + one * members.sum(0), first + 2 * one
    found = gains(v[None], g[None], np.array([big]), np.array([2]), 4, 0, prior)[0, 0]
    mean, variance = g / big, 1 / big + prior.sigma**2
    density = (-((v - mean) ** 2) / variance - np.log(variance)).sum()
    fixed = (one * v**2).sum() - 2 * np.log(variance)  # the same for every neuron with as many clients
    assert found == pytest.approx(density + fixed + 4 * np.log(variance) + 2 * log(2 / 2))


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3))
def test_one_assignment_is_the_best_of_all(seed, mine, theirs):
    layers = [_layer(seed, theirs, 2), _layer(seed + 1, mine, 2)]
    prior, cap = Prior(gamma=3.0), theirs + mine
    table = module._Table([torch.from_numpy(v) for v in layers], prior, cap)
    table.put(0)
    g, big, counts = table.g.numpy().copy(), table.precision.copy(), table.counts.copy()
    table.put(1)
    worth = gains(layers[1], g, big, counts, 2, mine, prior)
    best = max(
        sum(worth[i, c] for i, c in enumerate(order)) for order in permutations(range(theirs + mine), mine)
    )
    taken = table.assigned[1]
    old = sum(worth[i, c] for i, c in enumerate(taken) if c < theirs)
    fresh = [i for i, c in enumerate(taken) if c >= theirs]
    new = sum(worth[i, theirs] for i in fresh) - 2 * sum(log(m + 1) for m in range(len(fresh)))
    assert old + new == pytest.approx(best)
    # All orders of new neurons are worth the same: a rounding error must not choose among them.
    assert taken[fresh].tolist() == list(range(theirs, theirs + len(fresh)))


@settings(max_examples=25)
@given(st.integers(0, 10**6), priors, st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_running_sums_equal_sums_from_scratch(seed, prior, widths):
    layers = [_layer(seed + j, width, 3) for j, width in enumerate(widths)]
    found = match_layer(layers, Seed(seed), prior, sweeps=3, cap=2 * max(widths))
    total = len(found.counts)
    g = np.full((total, 3), prior.mu0 / prior.sigma0**2)
    big, counts = np.full(total, prior.sigma0**-2), np.zeros(total)
    for layer, places in zip(layers, found.assignments, strict=True):
        assert len(set(places.tolist())) == len(layer)  # nobody is matched twice
        for neuron, place in zip(layer, places, strict=True):
            g[place] += neuron / prior.sigma**2
            big[place] += prior.sigma**-2
            counts[place] += 1
    assert np.allclose(found.sums[0], g)
    assert np.allclose(found.sums[1], big)
    assert np.array_equal(found.counts, counts)
    assert (counts > 0).all()
    assert np.allclose(found.neurons, g / big[:, None])


def _matched_from_scratch(layers, seed, prior, sweeps, cap):
    """The same turns with all sums taken anew each time, and every assignment solved."""
    table = {}  # client -> names of its neurons; a name stands in `order` where the neuron does
    order, fresh = [], iter(range(10**6))

    def context(j):
        table.pop(j, None)
        order[:] = [n for n in order if any(n in names for names in table.values())]
        mates = [[layers[i][names.index(n)] for i, names in table.items() if n in names] for n in order]
        g = [prior.mu0 / prior.sigma0**2 + sum(m) / prior.sigma**2 for m in mates]
        counts, width = np.array([len(m) for m in mates]), len(layers[j])
        new = max(min(width, cap - len(order)), width - len(order))
        columns = np.arange(width)
        if order:
            big = prior.sigma0**-2 + counts / prior.sigma**2
            worth = gains(layers[j], np.array(g), big, counts, len(layers), new, prior)
            columns = linear_sum_assignment(worth, maximize=True)[1]
        named = {int(c): next(fresh) for c in sorted(columns) if c >= len(order)}
        table[j] = [named[int(c)] if int(c) in named else order[c] for c in columns]
        order.extend(named.values())

    for j in sorted(range(len(layers)), key=lambda j: -len(layers[j])):
        context(j)
    draw = seed.numpy("matching")
    for _ in range(sweeps):
        for j in draw.permutation(len(layers)).tolist():
            context(j)
    return [[order.index(n) for n in table[j]] for j in range(len(layers))]


def _together(assignments):
    """Which neurons of whom are one; of several new ones it is all the same which comes first."""
    named = [(int(place), (j, i)) for j, a in enumerate(assignments) for i, place in enumerate(a)]
    return {frozenset(who for place, who in named if place == p) for p, _ in named}


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), priors, st.lists(st.integers(2, 5), min_size=3, max_size=5), st.booleans())
def test_turns_are_those_of_sums_from_scratch(seed, prior, widths, grows):
    layers = [_layer(seed + j, width, 3) for j, width in enumerate(widths)]
    cap = max(widths) + 3 * grows
    found = match_layer(layers, Seed(seed), prior, 2, cap)
    plain = _matched_from_scratch(layers, Seed(seed), prior, 2, cap)
    assert _together(found.assignments) == _together(plain)
    if len(set(widths)) == 1 and not grows:
        assert [a.tolist() for a in found.assignments] == plain


def test_equal_layers_are_matched_one_to_one():
    layer = _layer(1, 6, 4)
    for places in match_layer([layer] * 4, Seed(0)).assignments:
        assert places.tolist() == list(range(6))
    assert match_layer([layer], Seed(0)).assignments[0].tolist() == list(range(6))


@settings(max_examples=30)
@given(st.permutations(range(7)), st.integers(2, 3))
def test_a_shuffled_layer_is_put_back(order, copies):
    layer = _layer(2, 7, 5)
    found = match_layer([layer, *[layer[list(order)]] * (copies - 1)], Seed(0), cap=10)
    assert len(found.counts) == 7
    assert found.assignments[0].tolist() == list(range(7))
    assert found.assignments[1].tolist() == list(order)


def test_a_narrow_client_is_found_inside_a_wide_one():
    wide = 3 * _layer(3, 6, 5)
    found = match_layer([wide[[4, 1]], wide], Seed(0))
    assert found.assignments[0].tolist() == found.assignments[1][[4, 1]].tolist()
    assert found.counts[found.assignments[1]].tolist() == [1, 2, 1, 1, 2, 1]


@pytest.mark.parametrize("cap", [4, 5, 8])
def test_growth_stops_at_the_cap(cap):
    far = [10 * _layer(10 + j, 4, 6) for j in range(3)]
    found = match_layer(far, Seed(0), Prior(gamma=50.0), cap=cap)
    assert len(found.counts) == cap


def test_single_numbers_are_matched_as_doubles_are():
    layers = [_layer(40 + j, 9, 30).astype("float32") for j in range(4)]
    single = match_layer([torch.from_numpy(v) for v in layers], Seed(3), cap=12)
    double = match_layer([v.astype("float64") for v in layers], Seed(3), cap=12)
    assert [a.tolist() for a in single.assignments] == [a.tolist() for a in double.assignments]
    assert np.allclose(single.neurons, double.neurons, atol=1e-12)  # sums are double in both


def test_the_prior_is_without_effect_where_nothing_may_grow():
    layers = [_layer(50 + j, 7, 3) for j in range(5)]
    found = [
        match_layer(layers, Seed(0), prior)
        for prior in (Prior(), Prior(sigma=0.2, sigma0=4.0, gamma=30.0, kappa=0.5))
    ]
    one, two = ([a.tolist() for a in f.assignments] for f in found)
    assert one == two
    grown = match_layer(layers, Seed(0), Prior(sigma=0.2, sigma0=4.0, gamma=30.0, kappa=0.5), cap=10)
    assert [a.tolist() for a in grown.assignments] != one


def test_the_seed_decides_the_order_of_sweeps():
    layers = [_layer(20 + j, 8, 2) for j in range(5)]
    one, two = (match_layer(layers, Seed(1)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one.assignments, two.assignments, strict=True))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"neurons": []}, "one D for each client"),
        ({"neurons": [np.ones((2, 3)), np.ones((2, 4))]}, "one D for each client"),
        ({"neurons": [np.full((2, 3), np.nan)]}, "NaN"),
        ({"cap": 1}, "give 2 or more"),
        ({"sweeps": -1}, "sweeps = -1"),
    ],
)
def test_what_makes_no_sense_is_refused(change, words):
    with pytest.raises(KinfolkError, match=words):
        match_layer(**{"neurons": [np.ones((2, 3))], "seed": Seed(0)} | change)
    with pytest.raises(KinfolkError, match=r"prior\.sigma0"):
        Prior(sigma0=0.0)
