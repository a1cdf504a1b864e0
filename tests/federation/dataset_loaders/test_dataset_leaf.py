import io
import json

import numpy as np
import pytest
from PIL import Image

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.catalogue import read_official

RNG = np.random.default_rng(5)


def document(rows: dict[str, tuple[list, list]], **changes) -> str:
    whole = {
        "users": list(rows),
        "num_samples": [len(y) for _, y in rows.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in rows.items()},
    }
    return json.dumps(whole | changes)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def characters(count: int) -> tuple[np.ndarray, tuple[list, list]]:
    pixels = RNG.integers(0, 256, (count, 784))
    return pixels, (np.round(pixels / 255, 4).tolist(), RNG.integers(0, 62, count).tolist())


def test_femnist_from_its_split(tmp_path):
    made = {name: characters(n) for name, n in [("f1_02", 3), ("f0_01", 2)]}
    held = {"f0_01": characters(1)}
    write(
        tmp_path / "data/train/all_data_0_niid_05_keep_0_train_9.json", document({"f1_02": made["f1_02"][1]})
    )
    write(
        tmp_path / "data/train/all_data_1_niid_05_keep_0_train_9.json", document({"f0_01": made["f0_01"][1]})
    )
    write(tmp_path / "data/test/all_data_0_niid_05_keep_0_test_9.json", document({"f0_01": held["f0_01"][1]}))
    write(tmp_path / "data/all_data/all_data_0.json", "not even json: the split is what counts")
    rows = read_official("femnist", tmp_path)
    assert rows.client_names == ("f0_01", "f1_02")
    for name in rows.client_names:
        own = rows.client == rows.client_names.index(name)
        for half, source in ((~rows.test, made), (rows.test, held)):
            pixels, (_, labels) = source.get(name, (np.zeros((0, 784)), ([], [])))
            assert np.array_equal(rows.x[own & half].reshape(-1, 784), pixels)
            assert rows.y[own & half].tolist() == labels
    assert rows.classes == len(rows.class_names) == 62
    assert [rows.class_names[i] for i in (0, 10, 35, 36, 61)] == ["0", "A", "Z", "a", "z"]
    # White paper is 1 in LEAF's scale.
    assert 255 * rows.scale[0] + rows.scale[1] == 1.0


def test_femnist_unsplit_has_no_test_rows(tmp_path):
    pixels, pair = characters(4)
    write(tmp_path / "all_data_0.json", document({"f0_01": pair}))
    rows = read_official("femnist", tmp_path)
    assert rows.test is None
    assert np.array_equal(rows.x.reshape(-1, 784), pixels)


def test_no_row_is_read_twice(tmp_path):
    pair = characters(4)[1]
    write(tmp_path / "data/all_data/all_data_0.json", document({"f0_01": pair}))
    # What LEAF leaves behind on its way to a split.
    write(tmp_path / "data/sampled_data/all_data_0_niid_05.json", document({"f0_01": pair}))
    write(tmp_path / "data/rem_user_data/all_data_0_niid_05_keep_0.json", document({"f0_01": pair}))
    assert len(read_official("femnist", tmp_path).y) == 4
    write(tmp_path / "data/all_data/all_data_1.json", document({"f0_01": pair}))
    with pytest.raises(
        KinfolkError, match=r"all_data_1\.json': not used: user 'f0_01' is in another file as well"
    ):
        read_official("femnist", tmp_path)


def test_half_a_split_is_not_used(tmp_path):
    write(tmp_path / "train/a.json", document({"f0_01": characters(2)[1]}))
    with pytest.raises(KinfolkError, match=r"test/\*\.json': is missing"):
        read_official("femnist", tmp_path)
    (tmp_path / "train").rename(tmp_path / "test")
    with pytest.raises(KinfolkError, match=r"train/\*\.json': is missing"):
        read_official("femnist", tmp_path)


X, Y = characters(3)[1]
GOOD = {"bob": (X, Y)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (document({"bob": (X, Y), "ann": (X, Y[:2])}, num_samples=[3, 3]), "user 'ann' has 3 x and 2 y"),
        (document({"bob": (X, Y), "ann": ([], [])}), "user 'ann' has no data"),
        (document(GOOD, users=["bob", "ann"], num_samples=[3, 3]), "user 'ann' has no data"),
        (document(GOOD, num_samples=[4]), "user 'bob' has 3 rows, but num_samples says 4"),
        (document(GOOD, num_samples=[3, 3]), "1 users and 2 num_samples"),
        (document(GOOD, users=[], num_samples=[]), "user 'bob' has data and is not among the users"),
        (document({"bob": (X, [1, 2, 62])}), "user 'bob' has label 62 in row 3"),
        (document({"bob": (X, [1, "two", 3])}), "user 'bob' has label 'two' in row 2"),
        (document({"bob": (X, [1, 2.5, 3])}), "user 'bob' has label 2.5 in row 2"),
        (document({"bob": ([*X[:2], X[2][:-1]], Y)}), "user 'bob' has rows that are not 784"),
        (document({"bob": ([*X[:2], ["a"] * 784], Y)}), "user 'bob' has rows that are not 784"),
        (document({"bob": ([*X[:2], [1.5] * 784], Y)}), "user 'bob' has rows that are not 784"),
        (document({"bob": ([*X[:2], [float("nan")] * 784], Y)}), "user 'bob' has rows that are not 784"),
        (document(GOOD)[:-20], "not used"),
        ('{"users": []}', "num_samples"),
        ("[]", "not used"),
    ],
)
def test_bad_json_is_named_with_its_user(tmp_path, text, words):
    write(tmp_path / "all_data_3.json", text)
    with pytest.raises(KinfolkError, match=words) as caught:
        read_official("femnist", tmp_path)
    assert "all_data_3.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def face(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")  # without loss, whatever its name
    return file.getvalue()


@pytest.mark.parametrize("place", ["raw/img_align_celeba", "data/raw/img_align_celeba"])
def test_celeba_reads_the_pictures_its_json_names(tmp_path, place):
    pixels = RNG.integers(0, 256, (3, 84, 84, 3), dtype=np.uint8)
    (tmp_path / place).mkdir(parents=True)
    for i in range(3):
        (tmp_path / place / f"00000{i}.jpg").write_bytes(face(pixels[i]))
    (tmp_path / place / "000009.jpg").write_bytes(face(np.full((218, 178, 3), 77, np.uint8)))
    text = document(
        {"7": (["000002.jpg", "000000.jpg"], [1, 0]), "12": (["000001.jpg", "000009.jpg"], [1, 1])}
    )
    write(tmp_path / "data/all_data/all_data.json", text)
    rows = read_official("celeba", tmp_path)
    assert [rows.client_names[c] for c in rows.client] == ["7", "7", "12", "12"]
    assert rows.y.tolist() == [1, 0, 1, 1]
    assert np.array_equal(rows.x[:3].transpose(0, 2, 3, 1), pixels[[2, 0, 1]])
    assert rows.x.shape == (4, 3, 84, 84)
    assert (rows.x[3] == 77).all()


def test_celeba_names_pictures_that_lack_or_spoil(tmp_path):
    write(tmp_path / "all_data.json", document({"7": (["000001.jpg"], [1])}))
    with pytest.raises(
        KinfolkError, match=r"all_data\.json': not used: user '7' has picture '000001\.jpg', which"
    ):
        read_official("celeba", tmp_path)
    write(tmp_path / "raw/img_align_celeba/000001.jpg", "no picture")
    with pytest.raises(KinfolkError, match=r"img_align_celeba/000001\.jpg': not used"):
        read_official("celeba", tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"users": "ann"},
        {"users": None},
        {"users": [["ann"]]},
        {"users": [3]},
        {"num_samples": {"ann": 2}},
        {"num_samples": ["2"]},
        {"user_data": []},
        {"user_data": {"ann": []}},
        {"user_data": {"ann": 7}},
        {"user_data": {"ann": {"x": 2, "y": [1, 2]}}},
        {"user_data": {"ann": {"x": "ab", "y": [1, 2]}}},
        {"user_data": {"ann": {"x": {"0": 1, "1": 2}, "y": [1, 2]}}},
        {"user_data": {"ann": {"x": [10**400, 2], "y": [1, 2]}}},
        {"user_data": {"ann": {"x": [[0.5] * 784, [10**400] * 784], "y": [1, 2]}}},
        {"user_data": {"ann": {"x": [[0.5] * 784, [None] * 784], "y": [1, 2]}}},
        {"user_data": {"ann": {"x": [[0.5] * 784] * 2, "y": [True, 2]}}},
        {"user_data": {"ann": {"x": [[0.5] * 784] * 2, "y": [1, 2.0]}}},
        {"user_data": {"ann": {"x": [[0.5] * 784] * 2, "y": [1, 10**400]}}},
    ],
)
def test_json_of_other_types_is_one_line_that_names_the_file(tmp_path, change):
    sound = {"ann": ([[0.5] * 784] * 2, [1, 2])}
    write(tmp_path / "all_data_0.json", document(sound))
    assert len(read_official("femnist", tmp_path).y) == 2
    write(tmp_path / "all_data_0.json", document(sound, **change))
    with pytest.raises(KinfolkError, match=r"all_data_0\.json': not used: ") as caught:
        read_official("femnist", tmp_path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"users": ' * 50_000, '{"users": [' + "9" * 9999 + "]}", "null", "3"]
)
def test_deep_json_and_long_numbers_are_one_line(tmp_path, text):
    write(tmp_path / "all_data_0.json", text)
    with pytest.raises(KinfolkError, match=r"all_data_0\.json': not used: "):
        read_official("femnist", tmp_path)
