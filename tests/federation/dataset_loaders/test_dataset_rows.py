from dataclasses import replace

import numpy as np
import pytest

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.rows import CENTRED, PLAIN, UNIT, Rows, check_rows, halves, owners

IMAGES = Rows(np.zeros((3, 1, 4, 4), np.uint8), np.array([0, 1, 2]), 3, CENTRED)
FEATURES = Rows(np.zeros((3, 5), np.float32), np.array([0, 1, 2]), 3, PLAIN)


def test_sound_rows_come_back_as_they_are():
    full = replace(
        FEATURES,
        test=np.array([False, True, True]),
        client=np.array([1, 0, 1]),
        client_names=("ann", "bob"),
        class_names=("a", "b", "c"),
        block=np.array([0, 0, 1]),
    )
    assert check_rows(full) is full
    assert check_rows(IMAGES) is IMAGES


@pytest.mark.parametrize(
    ("rows", "field", "words"),
    [
        (replace(IMAGES, x=IMAGES.x[:, 0]), "data.x", "uint8 images"),
        (replace(IMAGES, x=IMAGES.x.astype(np.float64)), "data.x", "float32 features"),
        (replace(FEATURES, x=FEATURES.x[:, 0]), "data.x", "float32 features"),
        (replace(FEATURES, x=FEATURES.x[:0], y=FEATURES.y[:0]), "data.x", "at least one row"),
        (replace(FEATURES, y=FEATURES.y[:2]), "data.y", "3 rows of x"),
        (replace(FEATURES, y=FEATURES.y.astype(np.int32)), "data.y", "int64"),
        (replace(FEATURES, y=np.array([0, 1, 3])), "data.y", "row 2; labels run from 0 to 2"),
        (replace(FEATURES, y=np.array([0, -1, 2])), "data.y", "row 1"),
        (replace(FEATURES, test=np.array([0, 1, 1])), "data.test", "bool"),
        (replace(FEATURES, test=np.array([True])), "data.test", "3 rows"),
        (
            replace(FEATURES, client=np.array([0, 0, 1]), client_names=("ann",)),
            "data.client",
            "row 2; owners",
        ),
        (replace(FEATURES, client_names=("ann", "ann")), "data.client_names", "twice"),
        (replace(FEATURES, class_names=("a", "b")), "data.class_names", "3 names or none"),
        (replace(FEATURES, block=np.zeros(2, int)), "data.block", "3 rows"),
        (replace(FEATURES, x=np.full((3, 5), np.nan, np.float32)), "data.x", "3 rows hold NaN"),
    ],
)
def test_what_does_not_fit_is_named(rows, field, words):
    with pytest.raises(KinfolkError, match=words) as caught:
        check_rows(rows)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("scale", "ends"), [(CENTRED, (-1.0, 1.0)), (UNIT, (0.0, 1.0)), (PLAIN, (0.0, 255.0))]
)
def test_scales_bring_bytes_to_their_range(scale, ends):
    assert [pytest.approx(end) for end in ends] == [byte * scale[0] + scale[1] for byte in (0, 255)]


def test_halves_of_different_shapes_are_refused():
    with pytest.raises(KinfolkError, match="training rows have"):
        halves((np.zeros((1, 3)), np.zeros(1)), (np.zeros((1, 4)), np.zeros(1)))


def test_owners_are_places_in_sorted_names():
    ids = np.array([100, 3, 22, 3])
    place, names = owners(ids, "writer")
    assert names == ("writer-003", "writer-022", "writer-100")
    assert list(names) == sorted(names)
    assert [names[i] for i in place] == [f"writer-{n:03d}" for n in ids]
