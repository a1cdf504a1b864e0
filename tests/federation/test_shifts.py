from itertools import combinations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.digits import scikit_digits
from kinfolk.federation.pool import pool_of
from kinfolk.federation.shifts import (
    SHIFTS,
    How,
    colour,
    contrast,
    end_to_end,
    label_permutation,
    noise,
    rotation,
    shifted,
)
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed


def digits(test_fraction=0.25, seed=Seed(0)):  # noqa: B008 - a Seed never changes
    return pool_of(scikit_digits(), DataSpec(test_fraction=test_fraction), seed)


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
    assert SHIFTS["none"].see(x, y, 0) == (x, y)


COLOURED = torch.randint(0, 256, (200, 3, 6, 6), generator=Seed(0).torch("test")).to(torch.uint8)
LABELS = torch.arange(200) % 10
SWAPS = {0: {1: 2, 2: 1}, 1: {3: 4, 4: 3}, 2: {5: 6, 6: 5}, 3: {7: 8, 8: 7}}


@pytest.mark.parametrize("name", ["label_swap", "rotation_swap"])
def test_each_group_swaps_one_pair_and_two_groups_disagree_on_four_classes(name):
    seen = [SHIFTS[name].see(COLOURED, LABELS, g)[1].tolist() for g in range(4)]
    for g, labels in enumerate(seen):
        assert labels == [SWAPS[g].get(y, y) for y in LABELS.tolist()]
    for a, b in combinations(seen, 2):
        assert sum(p != q for p, q in zip(a[:10], b[:10], strict=True)) == 4
    with pytest.raises(KinfolkError, match="group 3 swaps classes 7 and 8, the rows have 8; give at most 3"):
        SHIFTS[name].see(COLOURED, LABELS % 8, 3, How(classes=8))
    assert SHIFTS[name].see(COLOURED, LABELS % 7, 2, How(classes=7))[1].max() == 6


def test_rotation_swap_turns_as_rotation_does():
    for g in range(4):
        turned = SHIFTS["rotation_swap"].see(COLOURED, LABELS, g)[0]
        assert np.array_equal(turned.numpy(), np.rot90(COLOURED.numpy(), g, axes=(2, 3)))
    assert SHIFTS["label_swap"].see(COLOURED, LABELS, 2)[0] is COLOURED


def test_each_group_has_its_own_order_of_labels():
    for classes, groups in ((10, 8), (3, 6), (2, 2)):
        y = torch.arange(classes)
        orders = [
            label_permutation(y[:, None], y, g, How(classes, Seed(5)))[1].tolist() for g in range(groups)
        ]
        assert orders[0] == y.tolist()
        assert len({tuple(o) for o in orders}) == groups
        assert all(sorted(o) == y.tolist() for o in orders)
    again = label_permutation(LABELS[:, None], LABELS, 3, How(10, Seed(5)))[1]
    order = label_permutation(LABELS[:, None], torch.arange(10), 3, How(10, Seed(5)))[1]
    assert again.tolist() == [order[y].item() for y in LABELS.tolist()]
    assert not torch.equal(again, label_permutation(LABELS[:, None], LABELS, 3, How(10, Seed(6)))[1])
    with pytest.raises(KinfolkError, match=r"'label_permutation': 3 classes have 6 orders"):
        label_permutation(LABELS[:, None], LABELS, 6, How(3))


def test_colours_change_places_and_nothing_else():
    seen = [colour(COLOURED, LABELS, g)[0] for g in range(6)]
    assert torch.equal(seen[0], COLOURED)
    assert len({s.numpy().tobytes() for s in seen}) == 6
    for s in seen:
        assert s.dtype == torch.uint8
        assert torch.equal(s.sort(1)[0], COLOURED.sort(1)[0])
    with pytest.raises(KinfolkError, match=r"data\.shift = 'colour': only images \[rows, 3"):
        colour(COLOURED[:, :1], LABELS, 1)


def test_contrast_shrinks_about_the_middle():
    for g in range(4):
        seen, labels = contrast(COLOURED, LABELS, g, How(contrast=0.5))
        expected = 127.5 + (COLOURED.numpy().astype(np.float64) - 127.5) * 0.5**g
        assert np.abs(seen.numpy() - expected).max() <= 0.5
        assert labels is LABELS
    floats = torch.tensor([[-1.0, 0.0, 3.0]])
    assert contrast(floats, LABELS, 1, How(contrast=0.5))[0].tolist() == [[0.0, 0.5, 2.0]]


def test_noise_grows_with_the_group_and_stays_with_the_row():
    grey = torch.full((3000, 1, 8, 8), 128, dtype=torch.uint8)
    how = How(seed=Seed(4), noise=0.03)
    for g in (1, 2, 4):
        seen = noise(grey, LABELS, g, how)[0]
        assert seen.dtype == torch.uint8
        off = seen.float() - 128
        assert off.std().item() == pytest.approx(g * 0.03 * 255, rel=0.02)
        assert abs(off.mean().item()) < 0.1 * g
        # Another row beyond the first chunk changes, the first ones do not.
        more = noise(torch.cat([grey, grey]), LABELS, g, how)[0]
        assert torch.equal(more[:3000], seen)
        assert not torch.equal(more[3000:], seen)
    assert noise(grey, LABELS, 0, how)[0] is grey
    assert not torch.equal(
        noise(grey, LABELS, 1, How(seed=Seed(5), noise=0.03))[0], noise(grey, LABELS, 1, how)[0]
    )
    white = noise(torch.full((50, 1, 8, 8), 255, dtype=torch.uint8), LABELS, 4, how)[0]
    assert 0.4 < (white == 255).float().mean().item() < 0.6  # cut off at the end of the range, not wrapped
    floats = torch.zeros(4000, 5)
    floats[0, 0] = 2.0
    assert noise(floats, LABELS, 2, how)[0].std().item() == pytest.approx(2 * 0.03 * 2, rel=0.2)


def test_shifted_pools_lie_end_to_end_in_one_tensor():
    pools = shifted(digits(), "rotation", 3)
    whole = end_to_end([p.x for p in pools])
    assert whole.data_ptr() == pools[0].x.data_ptr()
    assert whole.shape == (3 * 1797, 1, 8, 8)
    assert all(torch.equal(whole[g * 1797 : (g + 1) * 1797], p.x) for g, p in enumerate(pools))
    for parts in ([pools[1].x, pools[0].x], [pools[0].x, pools[2].x], [torch.ones(2, 3), torch.zeros(4, 3)]):
        assert torch.equal(end_to_end(parts), torch.cat(parts))
    assert torch.equal(end_to_end([pools[1].x, pools[2].x]), torch.cat([pools[1].x, pools[2].x]))
    assert torch.equal(end_to_end([whole[::2], whole[1::2]]), torch.cat([whole[::2], whole[1::2]]))
