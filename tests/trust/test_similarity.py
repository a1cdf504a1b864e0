"""Similarity of predictions against SciPy's cosine, and the counts that are refused."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cosine

from kinfolk.errors import KinfolkError
from kinfolk.trust.similarity import checked_counts, histogram, similarity

labels = st.lists(st.integers(0, 4), min_size=6, max_size=6)


@given(labels, labels, labels, labels)
def test_similarity_equals_scipy(a, b, c, d):
    counts = [histogram(torch.tensor(v), 5) for v in (a, b, c, d)]
    for found, drawn in zip(counts, (a, b, c, d), strict=True):
        assert found.tolist() == np.bincount(drawn, minlength=5).tolist()
    value = similarity((counts[0], counts[1]), (counts[2], counts[3]), 6, "bob")
    x, y, z, w = (v.numpy().astype(float) for v in counts)
    assert float(value) == pytest.approx((2 - cosine(x, y) - cosine(z, w)) / 2, abs=1e-12)
    assert 0 <= value <= 1
    assert value == similarity((counts[3], counts[2]), (counts[1], counts[0]), 6, "ann")


def test_the_ends_and_many_at_once():
    some, other = torch.tensor([1000, 0, 0]), torch.tensor([0, 400, 600])
    assert similarity((some, some), (other, other), 1000, "bob") == 1
    assert similarity((some, other), (other, some), 1000, "bob") == 0
    many = torch.stack([some, other])
    assert similarity((many, many), (many, many.flip(0)), 1000, "bob").tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    "bad", [[4, -1, 0], [1, 1, 0], [4, 0, 0], [1.5, 1.5, 0], [float("nan"), 3, 0], [float("inf"), 0, 0]]
)
def test_bad_counts_are_refused_with_the_peer_named(bad):
    good = torch.tensor([1, 1, 1])
    for place in range(4):
        four = [good] * 4
        four[place] = torch.tensor(bad)
        with pytest.raises(KinfolkError, match=r"counts with 'bob' on (my|their) images"):
            similarity((four[0], four[1]), (four[2], four[3]), 3, "bob")


def test_other_refusals():
    good = torch.tensor([1, 2])
    with pytest.raises(KinfolkError, match="same classes"):
        similarity((good, torch.tensor([1, 1, 1])), (good, good), 3, "bob")
    with pytest.raises(KinfolkError, match="images = 0"):
        checked_counts("counts", torch.tensor([0, 0]), 0)
    with pytest.raises(KinfolkError, match="one number for each class"):
        checked_counts("counts", torch.tensor(3), 3)
    for wrong in (torch.tensor([0, 5]), torch.tensor([-1, 0]), torch.tensor([0.0]), torch.zeros(0).long()):
        with pytest.raises(KinfolkError, match="labels"):
            histogram(wrong, 5)
