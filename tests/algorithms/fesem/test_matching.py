from itertools import permutations
from math import log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from kinfolk.algorithms.fesem import matching as module
from kinfolk.algorithms.fesem.matching import Matching, gains, match_layer
from kinfolk.errors import KinfolkError
from kinfolk.streams import Seed

priors = st.builds(
    Matching,
    sigma=st.floats(0.3, 3),
    sigma0=st.floats(0.3, 3),
    gamma=st.floats(0.1, 9),
    sweeps=st.just(2),
    growth=st.sampled_from([1.0, 1.5]),
)


def _layer(number, units, features):
    return Seed(number).numpy("layer").normal(size=(units, features))


def _layers(number, clients, units, features):
    return torch.from_numpy(np.stack([_layer(number + j, units, features) for j in range(clients)]))


def _gains(v, g, big, counts, clients, new, how):
    return gains(v @ g.T, (g**2).sum(1), (v**2).sum(1), big, counts, clients, new, how)


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
    found = _gains(v, g, big, np.array([count, 1]), 16, 2, prior)
    first = 1 / prior.sigma0**2
    for i in range(3):
        assert found[i, 0] == pytest.approx(_gain_by_entries(v[i], g[0], big[0], count, 16, prior))
        for m in (1, 2):
            fresh = sum((x / prior.sigma**2) ** 2 / (prior.sigma**-2 + first) for x in v[i])
            assert found[i, 1 + m] == pytest.approx(fresh - 2 * log(m) + 2 * log(prior.gamma / 16))


def test_a_gain_is_the_rise_of_the_log_posterior():
    """Twice the log density of v under N(theta, sigma^2) with theta integrated out, up to what v fixes."""
    prior = Matching(sigma=0.7, sigma0=1.3)
    v, members = np.array([0.4, -1.0]), np.array([[0.5, -0.7], [0.1, -1.2]])
    one, first = prior.sigma**-2, prior.sigma0**-2
    g, big = one * members.sum(0), first + 2 * one
    found = _gains(v[None], g[None], np.array([big]), np.array([2]), 4, 0, prior)[0, 0]
    mean, variance = g / big, 1 / big + prior.sigma**2
    density = (-((v - mean) ** 2) / variance - np.log(variance)).sum()
    fixed = (one * v**2).sum() - 2 * np.log(variance)  # the same for every neuron with as many clients
    assert found == pytest.approx(density + fixed + 4 * np.log(variance) + 2 * log(2 / 2))


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_one_assignment_is_the_best_of_all(seed, units):
    layers = _layers(seed, 2, units, 2)
    prior, theirs, new = Matching(gamma=3.0, growth=1.5), units, units // 2
    table = module._Table(layers, prior)
    table.put(0)
    g, big, counts = table.g.numpy().copy(), table.precision.copy(), table.counts.copy()
    table.put(1)
    worth = _gains(layers[1].numpy(), g, big, counts, 2, new, prior)
    best = max(
        sum(worth[i, c] for i, c in enumerate(order)) for order in permutations(range(theirs + new), units)
    )
    taken = table.assigned[1]
    old = sum(worth[i, c] for i, c in enumerate(taken) if c < theirs)
    fresh = [i for i, c in enumerate(taken) if c >= theirs]
    new = sum(worth[i, theirs] for i in fresh) - 2 * sum(log(m + 1) for m in range(len(fresh)))
    assert old + new == pytest.approx(best)
    # All orders of new neurons are worth the same: a rounding error must not choose among them.
    assert taken[fresh].tolist() == list(range(theirs, theirs + len(fresh)))


@settings(max_examples=25)
@given(st.integers(0, 10**6), priors, st.integers(1, 5), st.integers(2, 4))
def test_running_sums_equal_sums_from_scratch(seed, prior, units, clients):
    layers = _layers(seed, clients, units, 3)
    table = module._Table(layers, prior)
    for j in [*range(clients), *range(clients)]:
        if len(table.assigned[j]):
            table.take(j)
        table.put(j)
    total = len(table.counts)
    g, big, counts = np.zeros((total, 3)), np.full(total, prior.sigma0**-2), np.zeros(total)
    for layer, places in zip(layers.numpy(), table.assigned, strict=True):
        assert len(set(places.tolist())) == units  # nobody is matched twice
        for neuron, place in zip(layer, places, strict=True):
            g[place] += neuron / prior.sigma**2
            big[place] += prior.sigma**-2
            counts[place] += 1
    assert np.allclose(table.g, g)
    assert np.allclose(table.precision, big)
    assert np.array_equal(table.counts, counts)
    assert (counts > 0).all()


def _matched_from_scratch(layers, seed, prior):
    """The same turns with all sums taken anew each time, and every assignment solved."""
    table = {}  # client -> names of its neurons; a name stands in `order` where the neuron does
    order, fresh = [], iter(range(10**6))

    def context(j):
        table.pop(j, None)
        order[:] = [n for n in order if any(n in names for names in table.values())]
        mates = [[layers[i][names.index(n)] for i, names in table.items() if n in names] for n in order]
        g = [sum(m) / prior.sigma**2 for m in mates]
        counts, width = np.array([len(m) for m in mates]), len(layers[j])
        new = min(width, int(prior.growth * width) - len(order))
        columns = np.arange(width)
        if order:
            big = prior.sigma0**-2 + counts / prior.sigma**2
            worth = _gains(layers[j], np.array(g), big, counts, len(layers), new, prior)
            columns = linear_sum_assignment(worth, maximize=True)[1]
        named = {int(c): next(fresh) for c in sorted(columns) if c >= len(order)}
        table[j] = [named[int(c)] if int(c) in named else order[c] for c in columns]
        order.extend(named.values())

    for j in range(len(layers)):
        context(j)
    draw = seed.numpy("matching")
    for _ in range(prior.sweeps):
        for j in draw.permutation(len(layers)).tolist():
            context(j)
    return [[order.index(n) for n in table[j]] for j in range(len(layers))]


def _together(assignments):
    """Which neurons of whom are one; of several new ones it is all the same which comes first."""
    named = [(int(place), (j, i)) for j, a in enumerate(assignments) for i, place in enumerate(a)]
    return {frozenset(who for place, who in named if place == p) for p, _ in named}


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), priors, st.integers(2, 5), st.integers(3, 5))
def test_turns_are_those_of_sums_from_scratch(seed, prior, units, clients):
    layers = _layers(seed, clients, units, 3)
    found = match_layer(layers, Seed(seed), prior).tolist()
    plain = _matched_from_scratch(layers.numpy(), Seed(seed), prior)
    assert _together(found) == _together(plain)
    if prior.growth == 1:
        assert found == plain


def test_equal_layers_are_matched_one_to_one():
    layer = _layers(1, 1, 6, 4)
    assert match_layer(layer.expand(4, -1, -1), Seed(0), Matching()).tolist() == [list(range(6))] * 4
    assert match_layer(layer, Seed(0), Matching()).tolist() == [list(range(6))]


@settings(max_examples=30)
@given(st.permutations(range(7)), st.integers(2, 3))
def test_a_shuffled_layer_is_put_back(order, copies):
    layer = _layers(2, 1, 7, 5)[0]
    layers = torch.stack([layer, *[layer[list(order)]] * (copies - 1)])
    found = match_layer(layers, Seed(0), Matching(growth=1.5)).tolist()
    assert found[0] == list(range(7))
    assert found[1] == list(order)


@pytest.mark.parametrize(("growth", "most"), [(1.0, 4), (1.25, 5), (1.5, 6)])
def test_growth_stops_at_its_limit(growth, most):
    far = 10 * _layers(10, 3, 4, 6)
    assert match_layer(far, Seed(0), Matching(gamma=50.0, growth=growth)).max() == most - 1


def test_single_numbers_are_matched_as_doubles_are():
    layers, how = _layers(40, 4, 9, 30).float(), Matching(growth=1.4)
    assert torch.equal(match_layer(layers, Seed(3), how), match_layer(layers.double(), Seed(3), how))


def test_the_prior_is_without_effect_where_nothing_may_grow():
    layers, strange = _layers(50, 5, 7, 3), {"sigma": 0.2, "sigma0": 4.0, "gamma": 30.0, "kappa": 0.5}
    one, two = (match_layer(layers, Seed(0), how) for how in (Matching(), Matching(**strange)))
    assert torch.equal(one, two)
    assert not torch.equal(one, match_layer(layers, Seed(0), Matching(growth=1.5, **strange)))


def test_the_seed_decides_the_order_of_sweeps():
    layers = _layers(20, 5, 8, 2)
    one, two = (match_layer(layers, Seed(1), Matching()) for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sweeps": -1}, r"matching\.sweeps = -1"),
        ({"sigma0": 0.0}, r"matching\.sigma0"),
        ({"growth": 0.9}, r"give 1 to 1\.5"),
        ({"growth": 1.6}, r"give 1 to 1\.5"),
    ],
)
def test_what_makes_no_sense_is_refused(change, words):
    with pytest.raises(KinfolkError, match=words):
        Matching(**change)
