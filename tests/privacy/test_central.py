"""A server's noisy means: what one client can change of them, in units of their noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kinfolk.privacy import gaussian
from kinfolk.privacy.central import COUNT, Noise, NoisyAggregator, NoisyGroupMeans, NoisyMean
from kinfolk.types import Client, Stack, Tree

W: Tree = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}


def reply(*update: float) -> tuple[int, dict[str, Tree]]:
    a, b, c = update
    return 5, {"model": {"w": W["w"] + torch.tensor([a, b]), "b": W["b"] + torch.tensor([c])}}


def ended(fold, replies):
    total = fold.begin()
    for client, one in replies.items():  # a chunk for each
        total = fold.add(total, Stack.of({Client(client): one}))
    return fold.end(total)


def quiet(monkeypatch) -> None:
    monkeypatch.setattr(gaussian, "normal", lambda count: torch.zeros(count, dtype=torch.float64))


def test_the_mean_is_over_all_who_were_asked(monkeypatch):
    quiet(monkeypatch)
    replies = {"a": reply(3.0, 0.0, 4.0), "b": reply(0.0, 0.5, 0.0)}
    got = ended(NoisyMean("model", W, Noise(1.0, 2.0, 5)), replies)
    # One update of length 5 counts as one of length 1; three clients of five did not answer.
    assert got["w"].tolist() == pytest.approx([1 + 0.6 / 5, 2 + 0.5 / 5])
    assert got["b"].tolist() == pytest.approx([3 + 0.8 / 5])


def test_the_noise_of_a_mean_is_that_of_its_sum_over_the_cohort():
    fold = NoisyMean("model", W, Noise(clip=0.5, multiplier=3.0, cohort=10))
    drawn = np.array([ended(fold, {})["b"].item() for _ in range(4000)])
    assert drawn.std() == pytest.approx(3.0 * 0.5 / 10, rel=0.1)
    assert drawn.mean() == pytest.approx(3.0, abs=0.02)


def test_nobody_weighs_more_than_clip_however_far_it_goes(monkeypatch):
    quiet(monkeypatch)
    fold = NoisyMean("model", W, Noise(0.5, 1.0, 4))
    usual = {"a": reply(0.1, 0.1, 0.1), "b": reply(0.0, 0.2, 0.0)}
    without = ended(fold, usual)
    for far in (1.0, 1e3, 1e9, float("nan")):
        got = ended(fold, {**usual, "c": reply(far, -far, far)})
        moved = math.sqrt(sum(float((got[n] - without[n]).double().square().sum()) for n in W))
        assert moved <= 0.5 / 4 * (1 + 1e-4)


def group_fold(multiplier: float) -> NoisyGroupMeans:
    keep = {n: torch.stack([t, t + 10]) for n, t in W.items()}
    nearest = lambda chunk: (chunk.tree("model")["b"][:, 0] > 8).long()  # noqa: E731
    return NoisyGroupMeans(keep, nearest, Noise(0.5, multiplier, 8))


def test_a_client_moves_sums_and_counts_of_groups_by_less_than_their_noise_hides():
    """The distance between both outcomes over the noise, which is measured, is that of the account."""
    z, clip = 2.0, 0.5
    far = {"w": W["w"] + 10 + torch.tensor([30.0, 0.0]), "b": W["b"] + 10}
    fold = group_fold(z)
    sums, counts, _ = fold.add(fold.begin(), Stack.of({Client("c"): (5, {"model": far})}))
    # Noise alone: models that nobody has moved lie at noise over count; counts are their middle.
    drawn = [fold.end(fold.begin()) for _ in range(3000)]
    raw = np.array([((models["b"][0] - W["b"]).double() * found[0]).item() for models, _, found in drawn])
    std = raw.std()
    wide = NoisyGroupMeans(fold.keep, fold.group, Noise(clip, z, 10**9))
    middle = wide.begin()[0], torch.full((2,), 5e8, dtype=torch.float64), {}
    count_std = np.array([wide.end(middle)[2][0].item() for _ in range(3000)]).std()
    apart = math.sqrt(
        sum(float(t.square().sum()) for t in sums.values()) / std**2
        + float(counts.square().sum()) / count_std**2
    )
    assert apart == pytest.approx(1 / z, rel=0.1)


def test_groups_are_moved_by_their_own_members_over_counts_within_bounds(monkeypatch):
    quiet(monkeypatch)
    fold = group_fold(1.0)
    replies = {"a": reply(3.0, 0.0, 4.0), "b": reply(0.0, 0.25, 0.0), "c": reply(0.0, 0.25, 0.0)}
    models, member, counts = ended(fold, replies)
    assert member == {"a": 0, "b": 0, "c": 0}
    assert counts.tolist() == [3.0, 2.0]  # half an even share of 8 clients in 2 groups is the least
    assert models["w"][0].tolist() == pytest.approx([1 + 0.3 / 3, 2 + 0.5 / 3])
    assert torch.equal(models["w"][1], W["w"] + 10)


def test_an_aggregator_has_noise_in_both_its_folds():
    noisy = NoisyAggregator(noise=Noise(1.0, 1.0, 4))
    assert isinstance(noisy.tree_fold("model", W, "size"), NoisyMean)
    assert isinstance(noisy.fold(W, len), NoisyGroupMeans)
    assert 0 < COUNT <= 1
