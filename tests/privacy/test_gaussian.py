"""Noise that is normal and nobody's to repeat, and updates no longer than they may be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from kinfolk.privacy.gaussian import clipped, noised, normal
from kinfolk.streams import Seed


def test_numbers_are_standard_normal_and_unlike_each_other():
    drawn = normal(200_001).numpy()
    assert len(drawn) == 200_001
    # A sound generator fails this once in a million times.
    assert stats.kstest(drawn, "norm").pvalue > 1e-6
    assert abs(drawn.std() - 1) < 0.02
    # Both numbers that one pair of uniform numbers gives.
    assert abs(np.corrcoef(drawn[:100_000], drawn[100_001:])[0, 1]) < 0.02


def test_no_seed_brings_the_same_noise_again():
    def drawn() -> torch.Tensor:
        torch.manual_seed(3)
        np.random.seed(3)
        with Seed(3).borrowed("inside"):
            return normal(8)

    assert not bool((drawn() == drawn()).any())


def test_noise_has_the_deviation_that_is_asked_for_on_every_leaf():
    tree = noised({"w": torch.full((300, 100), 5.0), "b": torch.zeros(20_000)}, 0.25)
    assert float(tree["w"].std()) == pytest.approx(0.25, rel=0.05)
    assert float(tree["b"].std()) == pytest.approx(0.25, rel=0.05)
    assert float(tree["w"].mean()) == pytest.approx(5.0, abs=0.02)


def test_updates_are_shortened_over_all_leaves_together():
    draw = np.random.default_rng(0)
    w, b = draw.normal(size=(5, 3, 2)), draw.normal(size=(5, 4))
    w[0], b[0] = w[0] * 1e-3, b[0] * 1e-3
    got = clipped({"w": torch.tensor(w), "b": torch.tensor(b)}, 0.5)
    for i in range(5):
        whole = np.concatenate([w[i].ravel(), b[i].ravel()])
        length = math.sqrt((whole**2).sum())
        wanted = whole * min(1.0, 0.5 / length)
        found = np.concatenate([got["w"][i].numpy().ravel(), got["b"][i].numpy().ravel()])
        np.testing.assert_allclose(found, wanted, rtol=1e-9)
        assert np.linalg.norm(found) <= 0.5 * (1 + 1e-9)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_an_update_without_a_length_counts_as_none(value):
    got = clipped({"w": torch.tensor([[1.0, value], [0.1, 0.0], [0.0, 0.0]], dtype=torch.float64)}, 1.0)["w"]
    assert bool(got.isfinite().all())
    assert float(got[0].norm()) <= 1
    assert got[1:].tolist() == [[0.1, 0.0], [0.0, 0.0]]
