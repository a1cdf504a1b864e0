import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import trim_mean

from kinfolk.clustering import trimmed
from kinfolk.clustering.trimmed import median, trimmed_mean, trimmed_means
from kinfolk.errors import KinfolkError
from kinfolk.streams import Seed


def _stack(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=Seed(5).torch("stack"))


@given(st.integers(1, 12), st.floats(0, 0.49))
def test_the_trimmed_mean_is_scipys(members, trim):
    stack = _stack(members, 2, 3)
    assert np.allclose(trimmed_mean(stack, trim), trim_mean(stack.numpy(), trim, axis=0))


def test_no_trim_is_the_mean_and_weights_count_among_the_kept():
    stack = _stack(5, 3)
    assert torch.allclose(trimmed_mean(stack, 0.0), stack.mean(0))
    weights = torch.tensor([1.0, 2, 3, 4, 5])
    assert np.allclose(trimmed_mean(stack, 0.0, weights), np.average(stack, axis=0, weights=weights))
    values = torch.tensor([[9.0], [1.0], [2.0], [-7.0]])
    assert trimmed_mean(values, 0.25, torch.tensor([5.0, 3.0, 1.0, 5.0])).item() == (3 * 1 + 1 * 2) / 4
    assert trimmed_mean(values, 0.25, torch.tensor([1.0, 0, 0, 1.0])).item() == 1.5


def test_one_bad_member_does_not_move_it():
    stack = _stack(10, 4)
    bad = stack.clone()
    bad[3] = 1e9
    assert trimmed_mean(bad, 0.1).abs().max() < 5
    assert median(bad).abs().max() < 5


@given(st.integers(1, 9))
def test_the_median_is_numpys(members):
    stack = _stack(members, 3)
    assert np.allclose(median(stack), np.median(stack, axis=0))
    assert np.allclose(median(stack, torch.ones(members)), np.median(stack, axis=0))


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 4)), min_size=1, max_size=6))
def test_whole_weights_are_repeated_members(pairs):
    values = [float(v) for v, w in pairs for _ in range(w)]
    stack = torch.tensor([[float(v)] for v, _ in pairs])
    weights = torch.tensor([w for _, w in pairs])
    if not values:
        with pytest.raises(KinfolkError, match="not all 0"):
            median(stack, weights)
        return
    assert median(stack, weights).item() == pytest.approx(np.median(values))


@pytest.mark.parametrize(("weight", "wanted"), [(0.498, 10.0), (0.5, 5.0), (0.502, 0.0)])
def test_half_the_weight_is_half_of_it(weight, wanted):
    split = torch.tensor(
        [weight / 3] * 3 + [1 - weight], dtype=torch.float64
    )  # thirds: they sum to it nearly
    assert median(torch.tensor([[0.0], [0.0], [0.0], [10.0]]), split).item() == wanted


def test_groups_of_all_restarts_at_once_are_each_groups_own(monkeypatch):
    points = _stack(40, 7)
    draw = Seed(1).numpy("labels")
    labels = torch.from_numpy(draw.integers(0, 4, (3, 40)))
    labels[0, labels[0] == 2] = 1  # an empty group
    monkeypatch.setattr(trimmed, "BLOCK", 3 * 40 * 2)  # two columns at a time
    found = trimmed_means(points, labels, 4, 0.2)
    for restart in range(3):
        for group in range(4):
            members = points[labels[restart] == group]
            wanted = trim_mean(members.numpy(), 0.2, axis=0) if len(members) else np.zeros(7)
            assert np.allclose(found[restart, group], wanted)


def test_what_can_not_be_trimmed_is_refused():
    for trim in (-0.1, 0.5):
        with pytest.raises(KinfolkError, match=r"less than 0\.5"):
            trimmed_mean(torch.ones(2, 1), trim)
    with pytest.raises(KinfolkError, match="at least one"):
        median(torch.ones(0, 1))
