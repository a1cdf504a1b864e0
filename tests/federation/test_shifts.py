import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from kinfolk.errors import KinfolkError
from kinfolk.federation.digits import digits
from kinfolk.federation.groups import GROUPS, rotation, shifted
from kinfolk.streams import Seed


def test_digits_are_the_bundled_ones_scaled():
    pool, found = digits(), load_digits()
    assert pool.x.dtype == torch.float32
    assert pool.y.dtype == torch.int64
    expected = (found.images[:, None] / 16 - 0.5) / 0.5
    # Sixteenths are exact in float32, so nothing may be lost.
    assert np.array_equal(pool.x.numpy().astype(np.float64), expected)
    assert np.array_equal(pool.y.numpy(), found.target)
    assert pool.classes == 10


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.6])
def test_digits_are_parted_class_by_class(fraction):
    pool = digits(fraction, Seed(3))
    assert sorted([*pool.train, *pool.test]) == list(range(1797))
    total, held = np.bincount(pool.labels), np.bincount(pool.labels[pool.test])
    assert np.abs(held - fraction * total).max() <= 0.5


def test_digits_are_parted_by_seed():
    assert np.array_equal(digits(seed=Seed(1)).test, digits(seed=Seed(1)).test)
    assert not np.array_equal(digits(seed=Seed(1)).test, digits(seed=Seed(2)).test)


def test_rotation_is_exact():
    x, y = torch.randn(5, 3, 7, 7, generator=Seed(0).torch("test")), torch.arange(5)
    for g in range(4):
        turned, labels = rotation(x, y, g)
        assert np.array_equal(turned.numpy(), np.rot90(x.numpy(), g, axes=(2, 3)))
        assert torch.equal(labels, y)


def test_rotated_pools_keep_rows_and_labels():
    pool = digits()
    groups = shifted(pool, "rotation", 4)
    assert len(groups) == 4
    for g, seen in enumerate(groups):
        assert np.array_equal(seen.x[:, 0].numpy(), np.rot90(pool.x[:, 0].numpy(), g, axes=(1, 2)))
        assert torch.equal(seen.y, pool.y)
        assert np.array_equal(seen.test, pool.test)
        assert np.array_equal(seen.train, pool.train)


@pytest.mark.parametrize("shape", [(4, 64), (4, 8, 8), (4, 1, 8, 6)])
def test_rotation_refuses_what_can_not_turn(shape):
    with pytest.raises(KinfolkError, match=r"data\.shift = 'rotation': only square images"):
        rotation(torch.zeros(shape), torch.zeros(4), 1)


def test_no_shift_changes_nothing():
    x, y = torch.zeros(2, 3), torch.arange(2)
    assert GROUPS["none"].see(x, y, 0) == (x, y)
