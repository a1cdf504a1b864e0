from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import HDBSCAN
from sklearn.metrics import silhouette_samples

from kinfolk.clustering.agreement import agreement
from kinfolk.clustering.distances import cosines, squared
from kinfolk.clustering.hierarchy import bipartition, hdbscan, silhouette
from kinfolk.errors import KinfolkError
from kinfolk.streams import Seed


def _updates(groups, number=12, features=40, noise=0.5):
    draw = Seed(6).torch("updates")
    truth = torch.arange(number) % groups
    points = torch.randn(groups, features, generator=draw)[truth]
    return points + noise * torch.randn(number, features, generator=draw), truth


def _merged(distances, k):
    """Complete linkage by the book: merge the two groups whose farthest members are nearest."""
    groups = [[i] for i in range(len(distances))]
    while len(groups) > k:
        a, b = min(combinations(groups, 2), key=lambda p: max(distances[i, j] for i in p[0] for j in p[1]))
        groups = [g for g in groups if g not in (a, b)] + [a + b]
    labels = np.zeros(len(distances), dtype=int)
    for number, group in enumerate(groups):
        labels[group] = number
    return labels


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(2, 9))
def test_complete_linkage_is_what_the_book_says(seed, number):
    points = torch.randn(number, 3, dtype=torch.float64, generator=Seed(seed).torch("p"))
    distances = squared(points)
    found = bipartition(1 - distances)
    labels = torch.zeros(number).index_fill(0, found.second, 1)
    assert agreement(labels, torch.from_numpy(_merged(distances.numpy(), 2)))["ari"] == 1
    assert found.first[0] == 0


def test_a_bipartition_separates_two_groups_and_says_how_similar_they_are():
    points, truth = _updates(2)
    similarity = cosines(points)
    split = bipartition(similarity)
    assert split.first.tolist() == truth.eq(0).nonzero()[:, 0].tolist()
    assert split.second.tolist() == truth.eq(1).nonzero()[:, 0].tolist()
    assert split.cross == max(float(similarity[i, j]) for i in split.first for j in split.second)


def test_positions_of_a_second_split_are_positions_in_the_sub_matrix():
    points, truth = _updates(3)
    similarity = cosines(points)
    outer = bipartition(similarity)
    members = outer.first if len(outer.first) > len(outer.second) else outer.second
    rest = outer.second if members is outer.first else outer.first
    inner = bipartition(similarity[members][:, members])
    groups = [members[inner.first], members[inner.second], rest]
    assert sorted(torch.cat(groups).tolist()) == list(range(12))
    assert all(len(truth[group].unique()) == 1 for group in groups)


def test_hdbscan_is_scikit_learns_with_strays_alone_or_attached():
    points, truth = _updates(3, 15, noise=0.2)
    distances = squared(torch.cat([points, 99 * points[:1]])).sqrt()
    theirs = HDBSCAN(min_cluster_size=3, min_samples=1, metric="precomputed", copy=True).fit_predict(
        distances.double().numpy()
    )
    assert theirs[-1] == -1
    alone = hdbscan(distances, min_size=3)
    assert agreement(alone[:-1], truth)["ari"] == 1
    assert alone[-1] == 3
    attached = hdbscan(distances, min_size=3, noise="nearest")
    assert attached[-1] == attached[distances[-1, :-1].argmin()]


def test_hdbscan_of_very_few_or_of_scattered_points():
    assert hdbscan(torch.zeros(1, 1)).tolist() == [0]
    two = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert hdbscan(two).tolist() == [0, 1]
    assert hdbscan(two, noise="nearest").tolist() == [0, 0]
    same = hdbscan(torch.zeros(5, 5))  # all alike: one group or five, never an error
    assert len(same) == 5


def test_silhouette_of_distances_and_of_one_group():
    points, truth = _updates(3)
    apart = squared(points).sqrt()
    wanted = silhouette_samples(points.double().numpy(), truth.numpy()).mean()
    assert silhouette(apart, truth) == pytest.approx(wanted)
    assert silhouette(apart, torch.zeros(12)) == 0
    assert silhouette(apart, torch.arange(12)) == 0


def test_rounding_may_differ_both_ways():
    split = bipartition(torch.tensor([[1.0, 0.0], [0.00001, 1.0]]))
    assert (split.first.tolist(), split.second.tolist()) == ([0], [1])


@pytest.mark.parametrize(
    ("apart", "words"),
    [
        (torch.ones(2, 3), "square"),
        (torch.tensor([[0.0, 1.0], [2.0, 0.0]]), "same from i to j"),
        (torch.tensor([[0.0, 1.0], [1.001, 0.0]]), "same from i to j"),
    ],
)
def test_what_is_no_distance_is_refused(apart, words):
    for call in (hdbscan, lambda matrix: bipartition(1 - matrix)):
        with pytest.raises(KinfolkError, match=words):
            call(apart)
