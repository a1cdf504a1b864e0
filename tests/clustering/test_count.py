import pytest
import torch

from kinfolk.clustering import count as module
from kinfolk.clustering.agreement import stability
from kinfolk.clustering.count import elbow, how_many
from kinfolk.clustering.kmeans import kmeans
from kinfolk.errors import KinfolkError
from kinfolk.streams import Seed

NUMBER, FEATURES = 60, 400


def _normal(name, features=FEATURES):
    return torch.randn(NUMBER, features, generator=Seed(11).torch(name))


def _lengths(kind):
    draw = Seed(12).numpy(kind)
    length = draw.chisquare(2, NUMBER) / 2 if kind == "student" else draw.lognormal(size=NUMBER)
    return torch.from_numpy(length**-0.5 if kind == "student" else length).float()[:, None]


def _groups(k, apart, shape=1.0):
    middles = apart * torch.randn(k, FEATURES, generator=Seed(13).torch("middles"))
    return middles[torch.arange(NUMBER) % k] + shape * _normal("noise")


def _apart(points):
    # By differences: by products, the distance of a point to itself is the root of a rounding error.
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")


FALLING = torch.arange(1, FEATURES + 1) ** -0.7


@pytest.mark.parametrize(
    "points",
    [
        _normal("even"),
        _normal("long axes") * FALLING,
        _normal("plane", 2) * torch.tensor([9.0, 1.0]),
        _normal("student") * _lengths("student"),
        _normal("lognormal") * FALLING * _lengths("lognormal"),
        torch.cat([_normal("stray")[1:], 20 * _normal("stray")[:1]]),
        torch.ones(NUMBER, 3),
    ],
    ids=["even", "long axes", "plane", "student", "lognormal", "stray", "same"],
)
def test_without_groups_the_answer_is_one(points):
    assert how_many(points, 4, Seed(0), 12, restarts=5) == 1


@pytest.mark.parametrize(
    ("k", "points"),
    [
        (2, _groups(2, 0.6)),
        (4, _groups(4, 0.6)),
        (4, _groups(4, 0.3, FALLING)),
        (3, _groups(3, 5.0)),
        (3, _groups(3, 2.0) * (1 + _lengths("lognormal") / 10)),
    ],
)
def test_separate_groups_are_counted(k, points):
    assert how_many(points, 5, Seed(0), 10, restarts=8) == k


def test_a_reference_has_the_spectrum_of_the_data_and_is_centred():
    values, vectors = module._parts(_normal("spectrum").double())
    drawn = module._rotated(NUMBER, values, Seed(1).torch("r"))
    assert torch.allclose(torch.linalg.svdvals(drawn).flip(0), values, rtol=1e-6)
    assert drawn.mean(0).abs().max() < 1e-10
    exact = _normal("spectrum").double()
    assert torch.allclose(_apart(vectors * values), _apart(exact), rtol=1e-9)


def test_taming_leaves_balanced_groups_and_shortens_strays():
    groups = _groups(3, 5.0).double()
    kept = module._tamed(groups, Seed(0))
    assert torch.allclose(_apart(kept), _apart(groups), rtol=0.05)
    far = torch.cat([_normal("stray")[1:], 20 * _normal("stray")[:1]]).double()
    lengths = torch.linalg.vector_norm(module._tamed(far, Seed(0)), dim=1)
    assert lengths.max() < 1.5 * lengths.median()


def test_elbow_takes_the_largest_relative_drop():
    assert elbow({1: 100, 2: 60, 3: 10, 4: 5.5, 5: 5}) == 3
    assert elbow({2: 10, 4: 9}) == 4
    assert elbow({2: 10}) == 2
    assert elbow({1: 8, 2: 0, 3: 0}) == 2
    with pytest.raises(KinfolkError, match="at least one k"):
        elbow({})


def test_how_many_refuses_more_groups_than_points():
    with pytest.raises(KinfolkError, match="give 1 to 3"):
        how_many(torch.ones(3, 2), 4, Seed(0))


def test_stability_tells_groups_from_noise():
    firm, loose = (
        stability([kmeans(points, 3, Seed(number), restarts).labels for number in range(5)])
        for points, restarts in ((_groups(3, 3.0), 10), (_normal("even"), 1))
    )
    assert firm == 1
    assert loose < 0.3
    mixed = stability([torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])])
    assert mixed == pytest.approx((1 - 0.5 - 0.5) / 3)
