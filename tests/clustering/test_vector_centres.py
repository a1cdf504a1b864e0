"""Geometric median, Krum and clipping, each against an independent computation on the vectors themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from kinfolk.clustering.vector_centres import clipped, geometric_median, krum, krum_needs
from kinfolk.errors import KinfolkError

DRAW = np.random.Generator(np.random.PCG64(11))
POINTS = DRAW.normal(size=(9, 4))
POINTS[7] = 500.0
ROWS = DRAW.integers(1, 9, size=9).astype(float)
WEIGHTS = [None, ROWS]


def squared(points):
    return torch.from_numpy(((points[:, None] - points[None]) ** 2).sum(2))


def tensor(weights):
    return None if weights is None else torch.from_numpy(weights)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("n", [3, 5, 9])
def test_the_geometric_median_is_the_point_of_least_distances(n, weights):
    points, own = POINTS[:n], np.ones(n) if weights is None else weights[:n]

    def total(y):
        return float((own * np.linalg.norm(points - y, axis=1)).sum())

    found = geometric_median(squared(points), tensor(None if weights is None else own)).numpy() @ points
    best = minimize(
        total,
        np.median(points, axis=0),
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 20000, "maxfev": 20000},
    )
    assert total(found) <= best.fun * (1 + 1e-6)
    assert np.allclose(found, best.x, atol=1e-3)


def test_a_member_far_away_moves_the_geometric_median_no_more_for_being_farther():
    def centre(distance):
        points = POINTS.copy()
        points[7] = distance
        return geometric_median(squared(points)).numpy() @ points

    near, far, farther = centre(50.0), centre(1e4), centre(1e9)
    assert np.abs(far - near).max() < 0.02
    assert np.abs(farther - far).max() < 1e-3
    assert np.abs(POINTS.mean(0) - np.delete(POINTS, 7, 0).mean(0)).max() > 10, "as the mean does"


def test_half_of_the_weight_in_one_place_is_the_geometric_median():
    points = np.array([[0.0, 0.0]] * 4 + [[1.0, 5.0], [7.0, 1.0], [3.0, 3.0]])
    assert np.allclose(geometric_median(squared(points)).numpy() @ points, 0, atol=1e-4)
    one = geometric_median(squared(points[4:]), torch.tensor([5.0, 1.0, 1.0])).numpy() @ points[4:]
    assert np.allclose(one, [1, 5], atol=1e-4)


@pytest.mark.parametrize("points", [POINTS[:1], POINTS[:2], np.ones((4, 2))])
def test_few_or_equal_members_have_a_geometric_median(points):
    assert np.allclose(geometric_median(squared(points)).numpy() @ points, points.mean(0))


def by_hand(points, attackers):
    """Krum's score of every member: the squared distances to the n - f - 2 others that are nearest."""
    scores = []
    for i in range(len(points)):
        apart = sorted(
            sum((a - b) ** 2 for a, b in zip(points[i], points[j], strict=True))
            for j in range(len(points))
            if j != i
        )
        scores.append(sum(apart[: len(points) - attackers - 2]))
    return scores


@pytest.mark.parametrize("attackers", [0, 1, 2, 3])
@pytest.mark.parametrize("chosen", [1, 2, 4])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_krum_takes_the_members_with_the_nearest_neighbours(attackers, chosen, weights):
    best = np.argsort(by_hand(POINTS.tolist(), attackers))[:chosen]
    own = np.ones(9) if weights is None else weights
    want = np.average(POINTS[best], axis=0, weights=own[best])
    got = krum(squared(POINTS), attackers, chosen, tensor(weights)).numpy()
    assert np.allclose(got @ POINTS, want)
    assert got[7] == 0


@pytest.mark.parametrize(
    ("n", "attackers", "chosen", "fits"),
    [(5, 1, 1, True), (4, 1, 1, False), (9, 3, 1, True), (8, 3, 1, False), (9, 3, 4, True), (9, 3, 5, False)],
)
def test_krum_has_limits(n, attackers, chosen, fits):
    assert (n >= krum_needs(attackers, chosen)) == fits
    if fits:
        krum(squared(POINTS[:n]), attackers, chosen)
    else:
        with pytest.raises(KinfolkError, match="Krum needs"):
            krum(squared(POINTS[:n]), attackers, chosen)


@pytest.mark.parametrize("times", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_clipped_is_the_mean_of_updates_no_longer_than_a_median(times, weights):
    long = np.linalg.norm(POINTS, axis=1)
    own = np.ones(9) if weights is None else weights
    want = np.zeros(4)
    for point, length, weight in zip(POINTS, long, own, strict=True):
        want += weight * point * min(1.0, times * np.median(long) / length)
    got = clipped(torch.from_numpy(long), times, tensor(weights)).numpy() @ POINTS
    assert np.allclose(got, want / own.sum())
    assert np.linalg.norm(got) <= times * np.median(long)


def test_who_has_not_moved_is_not_clipped():
    assert clipped(torch.zeros(3), 1.0).tolist() == [1 / 3] * 3
