"""Distances between models by their outputs, against loops written in NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.algorithms.mdicfl.merging import joined, mutual_distances
from kinfolk.algorithms.mdicfl.output_distance import class_distances, nearest_cluster


def outputs(*size):
    """Probabilities of three outputs."""
    return torch.randn(
        *size, 3, generator=torch.Generator().manual_seed(sum(size)), dtype=torch.float64
    ).softmax(-1)


def test_distances_are_those_of_a_loop():
    n, k, classes, samples = 5, 2, 3, 4
    clients, clusters = outputs(n, k, classes * samples), outputs(k, classes * samples)
    got = class_distances(clients, clusters, classes)
    assert got.shape == (n, k, classes)
    for i in range(n):
        for j in range(k):
            for c in range(classes):
                rows = range(c * samples, (c + 1) * samples)
                apart = [np.abs(clients[i, j, m].numpy() - clusters[j, m].numpy()).sum() for m in rows]
                assert float(got[i, j, c]) == pytest.approx(sum(apart) / samples, abs=1e-12)


def test_distances_lie_between_0_and_2():
    own = torch.eye(3)[None]
    assert class_distances(own[None], own, 3).tolist() == [[[0, 0, 0]]]
    assert class_distances(own.roll(1, -1)[None], own, 3).tolist() == [[[2, 2, 2]]]


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_the_nearest_cluster_is_that_of_a_loop(k, classes, seed):
    draw = np.random.default_rng(seed)
    # Few different values, so that there are ties.
    apart, law = draw.integers(0, 3, (6, k, classes)) / 2, draw.dirichlet(np.ones(classes), 6)
    got = nearest_cluster(torch.from_numpy(apart), torch.from_numpy(law)).tolist()
    for i in range(6):
        costs = [sum(law[i, c] * apart[i, j, c] for c in range(classes)) for j in range(k)]
        assert costs[got[i]] == pytest.approx(min(costs), abs=1e-12)
        assert got[i] == 0 or costs[0] > costs[got[i]] - 1e-12


def test_ties_go_to_the_lowest_and_absent_classes_do_not_count():
    apart = torch.tensor([[1.0, 0.0], [1.0, 2.0], [0.5, 2.0]])
    assert nearest_cluster(apart[:2], torch.tensor([1.0, 0.0])) == 0
    assert nearest_cluster(apart, torch.tensor([1.0, 0.0])) == 2
    assert nearest_cluster(apart, torch.tensor([0.0, 1.0])) == 0
    assert nearest_cluster(apart.expand(4, 3, 2), torch.tensor([[1.0, 0.0]] * 4)).tolist() == [2] * 4


def test_models_are_compared_on_the_rows_of_either_alone():
    said = outputs(4, 4, 6)
    apart = mutual_distances(said).numpy()
    table = said.numpy()
    for a in range(4):
        for b in range(4):
            rows = [(a, table[b, a] - table[a, a]), (b, table[a, b] - table[b, b])]
            by_hand = np.mean([np.abs(gap).sum(1).mean() for _, gap in rows])
            assert apart[a, b] == pytest.approx(by_hand, abs=1e-12)


@given(st.integers(0, 6), st.integers(0, 99))
def test_models_that_agree_are_one_also_by_way_of_others(k, seed):
    draw = np.random.default_rng(seed).uniform(0, 1, (k, k))
    apart = np.triu(draw, 1) + np.triu(draw, 1).T
    got = joined(torch.from_numpy(apart), 0.3).tolist()
    first = list(range(k))  # the same by brute force: let the lower number spread until nothing moves
    for _ in range(k):
        for a in range(k):
            for b in range(k):
                if apart[a, b] < 0.3:
                    first[a] = first[b] = min(first[a], first[b])
    assert got == first
