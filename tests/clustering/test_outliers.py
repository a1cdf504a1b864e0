"""Who lies far from all others, against a loop in NumPy."""

import numpy as np
import pytest
import torch

from kinfolk.clustering.outliers import outlying
from kinfolk.streams import Seed


def by_hand(points, times):
    """The distance to the second nearest other, and who is more than `times` the median of it."""
    lonely = [
        sorted(np.linalg.norm(p - q) for j, q in enumerate(points) if j != i)[1] for i, p in enumerate(points)
    ]
    return [d > times * np.median(lonely) for d in lonely]


@pytest.mark.parametrize("times", [1.1, 1.5, 3.0])
@pytest.mark.parametrize("n", [3, 8, 25])
def test_the_rule_by_hand(n, times):
    points = Seed(n).numpy("points").normal(size=(n, 6)) ** 3
    assert outlying(torch.from_numpy(points).float(), times).tolist() == by_hand(points, times)


def test_two_that_conspire_are_found_and_groups_are_not():
    draw = Seed(1).numpy("groups")
    groups = np.concatenate([draw.normal(size=(5, 4)) + 20 * k for k in range(3)])
    pair = np.full((2, 4), 500.0)
    found = outlying(torch.from_numpy(np.concatenate([groups, pair])), 3.0)
    assert found.tolist() == [False] * 15 + [True] * 2


def test_nobody_is_asked_or_there_are_too_few():
    points = torch.tensor([[0.0], [1.0], [99.0]])
    assert not outlying(points, 0.0).any()
    assert not outlying(points[1:], 1.5).any()
