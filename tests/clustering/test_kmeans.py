from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from kinfolk.clustering import kmeans as module
from kinfolk.clustering.agreement import agreement
from kinfolk.clustering.kmeans import group_means, kmeans, nearest
from kinfolk.errors import KinfolkError
from kinfolk.streams import Seed

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def _blobs(number, features, groups, apart, name="blobs"):
    draw = Seed(2).torch(name)
    middles = apart * torch.randn(groups, features, generator=draw)
    truth = torch.arange(number) % groups
    return middles[truth] + torch.randn(number, features, generator=draw), truth


def _inertia(points, labels, centres):
    return ((points - centres[labels]) ** 2).sum(1).mean()


@pytest.mark.parametrize("device", DEVICES)
def test_from_the_same_start_it_ends_where_scikit_learn_does(device):
    points, _ = _blobs(200, 5, 4, 1.0)
    points = points.double()
    starts = points[torch.tensor([[0, 1, 2, 3], [50, 51, 60, 77], [9, 13, 21, 34]])]
    for start in starts:
        theirs = KMeans(4, init=start.numpy(), n_init=1, max_iter=300, tol=0, algorithm="lloyd").fit(points)
        ours = kmeans(points.to(device), 4, Seed(0), start=start, iterations=300, tolerance=0.0)
        assert ours.labels.tolist() == theirs.labels_.tolist()
        assert ours.inertia * 200 == pytest.approx(theirs.inertia_, rel=1e-10)
        assert np.allclose(ours.centres.cpu(), theirs.cluster_centers_)
        assert ours.settled
    many = kmeans(points.to(device), 4, Seed(0), start=starts, iterations=300, tolerance=0.0)
    assert many.inertias.shape == (3,)
    assert many.inertia == pytest.approx(float(many.inertias.min()), rel=1e-5)


def test_many_restarts_find_the_best_of_all_partitions():
    points = torch.randn(8, 2, dtype=torch.float64, generator=Seed(4).torch("tiny"))
    best = np.inf
    for labels in product(range(3), repeat=8):
        labels = torch.tensor(labels)
        if len(labels.unique()) == 3:
            centres = torch.stack([points[labels == k].mean(0) for k in range(3)])
            best = min(best, float(_inertia(points, labels, centres)))
    assert kmeans(points, 3, Seed(0), restarts=60).inertia == pytest.approx(best, rel=1e-9)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from(["random", "plusplus"]))
def test_inertia_never_rises_and_every_cluster_has_points(number, k, start):
    draw = Seed(number).numpy("points")
    # Few different values: ties, repeated points and clusters that run empty.
    points = torch.from_numpy(draw.integers(0, 4, (draw.integers(k, 14), 2)).astype(float))
    course = [kmeans(points, k, Seed(number), 5, steps, 0.0, start).inertias for steps in range(1, 6)]
    for before, after in pairwise(course):
        assert (after <= before + 1e-12).all()
    found = kmeans(points, k, Seed(number), 5, 50, 0.0, start)
    assert sorted(set(found.labels.tolist())) == list(range(k))
    assert found.inertia == pytest.approx(float(_inertia(points, found.labels, found.centres)), abs=1e-9)
    if len(points.unique(dim=0)) >= k and found.settled:
        assert torch.allclose(found.centres, group_means(points, found.labels, found.centres))


def test_an_empty_cluster_goes_to_the_farthest_point_but_not_to_a_lonely_one():
    points = torch.tensor([[0.0], [1.0], [3.0], [100.0]])
    # Nobody is nearest to the third centre; 100 is farthest from its own centre, but alone there.
    start = torch.tensor([[0.5], [60.0], [-500.0]])
    labels, own = nearest(points, start)
    assert labels.tolist() == [0, 0, 0, 1]
    labels, own, centres, moved = module._fill(points, start[None], labels[None], own[None])
    assert (labels.tolist(), moved.tolist()) == ([[0, 0, 2, 1]], [True])
    assert centres[0, 2].item() == 3.0
    assert own[0, 2] == 0


def test_ties_go_to_the_lowest():
    assert nearest(torch.tensor([[0.0]]), torch.tensor([[1.0], [-1.0], [1.0]]))[0].tolist() == [0]
    batch = nearest(torch.tensor([[0.0], [4.0]]), torch.tensor([[[1.0], [-1.0]], [[4.0], [4.0]]]))
    assert batch[0].tolist() == [[0, 0], [0, 0]]
    assert batch[1].tolist() == [[1, 9], [16, 0]]


@pytest.mark.parametrize("start", ["random", "plusplus"])
@pytest.mark.parametrize("device", DEVICES)
def test_the_seed_decides_and_nothing_else(start, device):
    points, _ = _blobs(60, 3, 3, 0.5)
    state = torch.get_rng_state()
    one, two = (kmeans(points.to(device), 5, Seed(7), start=start) for _ in range(2))
    assert torch.equal(one.labels, two.labels)
    assert torch.equal(one.centres, two.centres)
    assert torch.equal(state, torch.get_rng_state())
    other = kmeans(points.to(device), 5, Seed(8), start=start)
    assert not torch.equal(one.inertias, other.inertias)


def test_a_rounding_error_does_not_renumber_the_groups(monkeypatch):
    """Many restarts end in the same groups; which of them is the best to the last digit is the machine's."""
    points, _ = _blobs(40, 30, 4, 3.0)
    lloyd, found = module._lloyd, []
    for machine in range(8):
        noise = 1 + 1e-7 * torch.randn(20, dtype=torch.float64, generator=Seed(machine).torch("rounding"))

        def elsewhere(*given, noise=noise):
            centres, labels, inertias, taken, settled = lloyd(*given)
            return centres, labels, inertias * noise, taken, settled

        monkeypatch.setattr(module, "_lloyd", elsewhere)
        found.append(kmeans(points, 4, Seed(0)))
    assert len({tuple(f.labels.tolist()) for f in found}) == 1
    best = found[0].inertias.min()
    assert (found[0].inertias < 1.001 * best).sum() > 1, "there was a choice"
    assert found[0].inertia == pytest.approx(float(best), rel=1e-5)


def test_blocks_of_rows_change_nothing(monkeypatch):
    points, _ = _blobs(101, 3, 3, 2.0)
    whole = kmeans(points.double(), 3, Seed(1))
    monkeypatch.setattr(module, "BLOCK", 20 * 3 * 7)
    parts = kmeans(points.double(), 3, Seed(1))
    assert torch.equal(whole.labels, parts.labels)
    assert torch.allclose(whole.inertias, parts.inertias)


def test_far_from_the_origin_it_works_as_well_in_float32():
    points, truth = _blobs(90, 4, 3, 5.0)
    found = kmeans(points + 1e4, 3, Seed(0))
    assert agreement(found.labels, truth)["ari"] == 1


def test_plusplus_draws_by_squared_distance():
    points = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    chosen = module._plusplus(points, 2, Seed(0), 6000)
    # Given a first point, the chance of the second is its squared distance over their sum.
    chance = {(0, 1): 1 / 10, (0, 2): 9 / 10, (1, 0): 1 / 5, (1, 2): 4 / 5, (2, 0): 9 / 13, (2, 1): 4 / 13}
    for (first, second), wanted in chance.items():
        rows = chosen[chosen[:, 0] == first]
        assert (rows[:, 1] == second).float().mean().item() == pytest.approx(wanted, abs=0.04)


def test_trimming_withstands_outliers_that_drag_a_mean():
    points, truth = _blobs(100, 3, 2, 6.0)
    bad = points.clone()
    bad[:4] = 60.0
    start = torch.stack([points[truth == g].mean(0) for g in range(2)])
    plain = kmeans(bad, 2, Seed(0), start=start)
    robust = kmeans(bad, 2, Seed(0), start=start, trim=0.1)
    assert (robust.centres - start).abs().max() < 1
    assert (plain.centres - start).abs().max() > 1


def test_group_means_keep_what_has_no_members():
    points = torch.tensor([[1.0, 2.0], [3.0, 4.0], [100.0, 5.0]])
    keep = torch.full((3, 2), 7.0)
    assert group_means(points, torch.tensor([2, 2, 2]), keep, trim=0.34).tolist() == [[7, 7], [7, 7], [3, 4]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"k": 5}, "give 1 to 4"),
        ({"k": 0}, "give 1 to 4"),
        ({"restarts": 0}, "restarts = 0"),
        ({"iterations": 0}, "iterations = 0"),
        ({"start": "plus"}, "plusplus"),
        ({"start": torch.zeros(2, 3)}, "give centres"),
        ({"trim": 0.5}, "trim = 0.5"),
        ({"points": torch.full((4, 1), torch.nan)}, "NaN"),
        ({"points": torch.zeros(4)}, "give floating-point rows"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(change, words):
    given_ = {"points": torch.arange(4.0)[:, None], "k": 2, "seed": Seed(0)} | change
    with pytest.raises(KinfolkError, match=words):
        kmeans(**given_)
