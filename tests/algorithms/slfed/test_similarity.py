"""Similarity of predictions against SciPy's cosine and a loop; counts and classes that are refused."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cosine

from kinfolk.algorithms.slfed.similarity import MEASURES, Counts, Images, histogram
from kinfolk.errors import KinfolkError


def similarity(mine, theirs, images, peer):
    return Counts(mine[0].shape[-1], images).similarity(mine, theirs, peer)


def agreement(mine, theirs, classes, images, peer):
    return Images(classes, images).similarity(mine, theirs, peer)


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


@pytest.mark.parametrize("bad", [[4, -1, 0], [1, 1, 0], [4, 0, 0]])
def test_bad_counts_are_refused_with_the_peer_named(bad):
    good = torch.tensor([1, 1, 1])
    for place in range(4):
        four = [good] * 4
        four[place] = torch.tensor(bad)
        with pytest.raises(KinfolkError, match=r"counts with 'bob' on (my|their) images"):
            similarity((four[0], four[1]), (four[2], four[3]), 3, "bob")


def agree_by_loop(a, b):
    return sum(int(a[i]) == int(b[i]) for i in range(len(a))) / len(a)


@given(labels, labels, labels, labels, st.permutations(range(6)))
def test_agreement_equals_a_loop_and_knows_no_order(a, b, c, d, order):
    v, w, x, y = (torch.tensor(one) for one in (a, b, c, d))
    value = agreement((v, w), (x, y), 5, 6, "bob")
    assert value.dtype == torch.float64
    assert float(value) == pytest.approx((agree_by_loop(a, b) + agree_by_loop(c, d)) / 2, abs=1e-12)
    assert 0 <= value <= 1
    assert value == agreement((y, x), (w, v), 5, 6, "ann")
    assert value == agreement((v[order], w[order]), (x, y), 5, 6, "bob")
    assert agreement((v, v), (x, x), 5, 6, "bob") == 1


@given(labels, labels, labels, labels)
def test_both_measures_out_of_notes_are_the_functions_of_labels(a, b, c, d):
    four = [torch.tensor(one) for one in (a, b, c, d)]
    for measure in (Counts(5, 6), Images(5, 6)):
        notes = [measure.note(one) for one in four]
        assert all((one.dtype, tuple(one.shape)) == measure.form for one in notes)
        got = measure.similarity((notes[0], notes[1]), (notes[2], notes[3]), "bob")
        if isinstance(measure, Images):
            assert got == agreement((four[0], four[1]), (four[2], four[3]), 5, 6, "bob")
        else:
            counts = [histogram(one, 5) for one in four]
            assert got == similarity((counts[0], counts[1]), (counts[2], counts[3]), 6, "bob")


def test_the_share_of_all_images_is_one_and_counts_forget_what_classes_tell():
    for n in (49, 1000):  # 49 * (1 / 49) is less than 1
        one = torch.arange(n) % 3
        assert agreement((one, one), (one, one), 3, n, "bob") == 1
    some, swapped = torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 0, 0])
    pair = (some, swapped)
    by = {name: of(2, 4) for name, of in MEASURES.items()}
    found = {n: m.similarity(*[tuple(map(m.note, pair))] * 2, "bob") for n, m in by.items()}
    assert {n: float(value) for n, value in found.items()} == {"counts": 1.0, "images": 0.0}


def test_agreement_of_every_pair_at_once():
    seen = torch.tensor([[[0, 1, 2], [0, 1, 1]], [[2, 2, 2], [2, 0, 2]]])  # [images of, model, images]
    own = seen.diagonal().movedim(-1, 0)
    got = agreement((own[:, None], seen), (seen.transpose(0, 1), own[None]), 3, 3, "everybody")
    assert got.tolist() == [[1.0, pytest.approx(2 / 3)], [pytest.approx(2 / 3), 1.0]]


def test_classes_are_bytes_up_to_256():
    last = torch.tensor([0, 255])
    assert Images(256, 2).form == (torch.uint8, (2,))
    assert Images(256, 2).note(last).tolist() == [0, 255]
    assert Images(257, 2).form == (torch.int64, (2,))
    assert Images(257, 2).note(last + 1).tolist() == [1, 256]
    byte = last.to(torch.uint8)
    assert agreement((byte, byte), (byte, byte), 256, 2, "bob") == 1
    with pytest.raises(KinfolkError, match=r"= 255: must lie in 0 \.\.\. 254"):
        agreement((byte, byte), (byte, byte), 255, 2, "bob")


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ([0, -1, 2], r"= -1: must lie in 0 \.\.\. 2"),
        ([0, 1, 3], r"= 3: must lie in 0 \.\.\. 2"),
    ],
)
def test_bad_classes_are_refused_with_the_peer_named(bad, why):
    for place in range(4):
        four = [torch.tensor([0, 1, 2])] * 4
        four[place] = torch.tensor(bad)
        where = "my" if place < 2 else "their"
        with pytest.raises(KinfolkError, match=f"classes with 'bob' on {where} images.*{why}"):
            agreement((four[0], four[1]), (four[2], four[3]), 3, 3, "bob")
