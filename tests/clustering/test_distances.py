import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from kinfolk.clustering.distances import apart, cosine_distances, cosines, flat, squared
from kinfolk.errors import KinfolkError
from kinfolk.streams import Seed


def _points(number, features, name="p"):
    return torch.randn(number, features, dtype=torch.float64, generator=Seed(3).torch(name))


def test_squared_distances_agree_with_scipy():
    points, centres = _points(7, 5), _points(3, 5, "c")
    assert np.allclose(apart(points, centres), cdist(points, centres, "sqeuclidean"))
    assert np.allclose(squared(points), cdist(points, points, "sqeuclidean"))
    batched = torch.stack([centres, centres + 1])
    assert torch.allclose(apart(points, batched)[1], apart(points, centres + 1))


def test_a_large_common_offset_costs_no_digits():
    points = _points(20, 4) + 1e8
    exact = cdist(points, points, "sqeuclidean")
    assert np.allclose(squared(points), exact, rtol=1e-4, atol=1e-4)
    assert not np.allclose(apart(points, points), exact, rtol=1e-1, atol=1e-1)


def test_many_points_are_as_far_from_each_other_both_ways():
    found = squared(_points(67, 41).float())
    assert torch.equal(found, found.T)


def test_distances_of_single_numbers_are_doubles_to_the_last_digit():
    points = _points(6, 3).float()
    exact = cdist(points.double(), points.double(), "sqeuclidean")
    assert np.abs(squared(points).numpy() - exact).max() < 1e-13
    assert squared(points).dtype == cosine_distances(points).dtype == torch.float64


@settings(max_examples=40)
@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), min_size=1, max_size=6))
def test_distances_are_symmetric_and_not_negative(rows):
    points = torch.tensor(rows, dtype=torch.float64)
    for found in (squared(points), cosine_distances(points)):
        assert torch.equal(found, found.T)
        assert (found >= 0).all()
        assert (found.diagonal() == 0).all()
    assert np.allclose(squared(points), cdist(points, points, "sqeuclidean"), rtol=1e-6, atol=1e-6)


def test_cosines_agree_with_scipy_and_vanish_for_zero_vectors():
    points = _points(6, 4)
    assert np.allclose(cosine_distances(points), cdist(points, points, "cosine"))
    with_zero = torch.cat([points, torch.zeros(1, 4, dtype=torch.float64)])
    found = cosines(with_zero)
    assert torch.isfinite(found).all()
    assert (found[-1] == 0).all()
    assert (cosines(with_zero * 1e-14) == 0).all()


def test_flat_lays_named_leaves_side_by_side():
    stack = {
        "b": torch.tensor([[1.0], [2.0]]),
        "w": torch.arange(8.0).reshape(2, 2, 2),
        "n": torch.ones(2).int(),
    }
    assert flat(stack, ["w", "b"])[1].tolist() == [4, 5, 6, 7, 2]
    assert flat(stack)[0].tolist() == [1, 0, 1, 2, 3]
    assert flat({"s": torch.tensor([1.0, 2.0])}).shape == (2, 1)
    with pytest.raises(KinfolkError, match="did you mean 'w'"):
        flat({"w1": torch.ones(1, 1), "w": torch.ones(1, 1)}, ["ww"])
    with pytest.raises(KinfolkError, match="at least one"):
        flat({"n": torch.tensor([1])})
