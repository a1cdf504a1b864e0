"""The compact files against the figures their README gives."""

import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.catalogue import CATALOGUE, find
from kinfolk.federation.datasets.formats import read_npz
from kinfolk.federation.datasets.rows import Rows
from kinfolk.federation.datasets.tables import ACTIVITIES, HEART, HOSPITALS

ROOT = Path(__file__).resolve().parents[4] / "shared" / "data"
LOADED: dict[str, Rows] = {}


def load(name: str) -> Rows:
    """From the compact file, once for all tests."""
    if not (ROOT / CATALOGUE[name].npz).is_file():
        pytest.skip(f"{CATALOGUE[name].npz} is not beside the repository")
    if name not in LOADED:
        LOADED[name] = find(name, ROOT)
    return LOADED[name]


def per_class(rows: Rows, test: bool) -> list[int]:
    return np.bincount(rows.y[rows.test == test], minlength=rows.classes).tolist()


@pytest.mark.parametrize(
    ("name", "shape", "train", "test"),
    [
        ("mnist", (1, 28, 28), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
         [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]),
        ("usps", (1, 16, 16), [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644],
         [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]),
        ("svhn", (3, 32, 32), [2000] * 10, [500] * 10),
        ("cifar10", (3, 32, 32), [3000] * 10, [600] * 10),
        ("tiny_imagenet40", (3, 32, 32), [250] * 40, [50] * 40),
        ("pendigits", (16,), [780, 779, 780, 719, 780, 720, 720, 778, 719, 719],
         [363, 364, 364, 336, 364, 335, 336, 364, 336, 336]),
    ],
)  # fmt: skip
def test_classes_of_both_halves(name, shape, train, test):
    rows = load(name)
    assert rows.x.shape[1:] == shape
    assert per_class(rows, test=False) == train
    assert per_class(rows, test=True) == test


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("sign_digits", [205, 206, 206, 206, 207, 207, 207, 206, 208, 204]),
        ("wisdm", [528, 1625, 306, 246, 632, 2081]),
        ("landmine", [13916, 904]),
    ],
)
def test_classes_without_official_tests(name, counts):
    rows = load(name)
    assert np.bincount(rows.y).tolist() == counts
    assert rows.test is None


def test_mnist_writers_are_in_one_half_only():
    rows = load("mnist")
    train, test = (np.bincount(rows.client[rows.test == t], minlength=836) for t in (False, True))
    assert ((train > 0).sum(), (test > 0).sum()) == (539, 297)
    assert not ((train > 0) & (test > 0)).any()
    assert (np.median(train[train > 0]), np.median(test[test > 0])) == (116, 21)


def test_images_are_decoded_as_the_readme_says():
    for name, key in [("cifar10", "x_test_delta"), ("svhn", "x_test_delta"), ("celeba", "x_delta")]:
        rows = load(name)
        path = ROOT / CATALOGUE[name].npz
        e = read_npz(path, path, key)[key][:50]
        p = np.cumsum(np.cumsum(e, axis=2, dtype=np.uint8), axis=3, dtype=np.uint8)
        g = p[:, 0]
        x = np.stack([p[:, 1] + g, g, p[:, 2] + g], axis=-1)
        mine = rows.x[rows.test][:50] if rows.test is not None else rows.x[:50]
        assert np.array_equal(mine.transpose(0, 2, 3, 1), x), name


def test_colours_have_the_published_means():
    means = [load("svhn").x[:20000].mean((0, 2, 3)) / 255, load("cifar10").x[:30000].mean((0, 2, 3)) / 255]
    assert means[0] == pytest.approx([0.438, 0.444, 0.473], abs=5e-4)
    # Published for all 50,000 training images; here are 30,000 of them.
    assert means[1] == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-3)


def test_cifar_keeps_the_order_of_the_original():
    assert load("cifar10").y[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]


def test_femnist_by_writer_and_in_time():
    if not (ROOT / "femnist.npz").is_file():
        pytest.skip("femnist.npz is not beside the repository")
    start = time.process_time()  # not the clock: other work on the machine is not ours
    rows = find("femnist", ROOT)
    assert time.process_time() - start < 1.5
    assert len(rows.y) == 55950
    assert (~rows.test).sum() == 43580
    assert rows.test.sum() == 12370
    assert len(rows.client_names) == 540
    assert len(np.unique(rows.client[~rows.test])) == 300
    counts = np.bincount(rows.client)
    assert ((counts >= 100).sum(), counts[counts >= 100].sum()) == (272, 47220)
    large = np.flatnonzero(counts >= 100)
    assert round(np.mean([len(np.unique(rows.y[rows.client == c])) for c in large])) == 53
    # White paper: most pixels are 1 in LEAF's scale.
    assert np.median(rows.x) == 255


def test_celeba_by_celebrity():
    rows = load("celeba")
    counts = np.bincount(rows.client)
    assert rows.x.shape == (3873, 3, 48, 48)
    assert (len(counts), counts.min(), counts.max(), np.median(counts)) == (277, 5, 15, 15)
    assert rows.y.mean() == pytest.approx(0.467, abs=5e-4)


def test_wisdm_is_filled_and_standardised():
    rows = load("wisdm")
    assert rows.x.shape == (5418, 43)
    assert sum(rows.filled.values()) == 615
    assert set(rows.filled) == {"XPEAK", "YPEAK", "ZPEAK"}
    assert len(rows.client_names) == 36
    varied = rows.x.std(0) > 0
    assert np.allclose(rows.x[:, varied].std(0), 1, atol=1e-3)
    assert np.abs(rows.x.mean(0)).max() < 1e-3


def test_watch_channels_come_first():
    rows = load("watch_har")
    assert rows.x.shape == (2369, 6, 100)
    assert len(rows.client_names) == 10
    assert rows.classes == 7
    assert len(np.unique(rows.block)) == 140
    found = read_npz(ROOT / "watch_har.npz", "watch_har.npz", "x")["x"]
    assert np.allclose(rows.x[5, 2], found[5, :, 2] / 1000)
    # A recording is one subject's and one exercise.
    pairs = set(zip(rows.block.tolist(), rows.client.tolist(), rows.y.tolist(), strict=True))
    assert len(pairs) == 140


def test_heart_disease_has_the_published_rows():
    rows = load("heart_disease")
    who = Counter(rows.client_names[c] for c in rows.client)
    assert who == {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
    path = ROOT / "heart_disease.npz"
    found = read_npz(path, path, "x", "y")
    assert sum(rows.filled.values()) == np.isnan(found["x"]).sum()
    assert np.array_equal(rows.y, found["y"] > 0)


def test_landmine_fields_are_29():
    rows = load("landmine")
    assert (rows.x.shape, len(rows.client_names)) == ((14820, 9), 29)


def test_sign_photos_are_grey():
    rows = load("sign_digits")
    assert rows.x.shape == (2062, 1, 64, 64)


@pytest.mark.parametrize("name", [n for n, entry in CATALOGUE.items() if entry.npz])
def test_every_compact_file_is_named_when_cut_short(name, tmp_path):
    source = ROOT / CATALOGUE[name].npz
    if not source.is_file():
        pytest.skip(f"{source.name} is not beside the repository")
    with source.open("rb") as file:
        (tmp_path / source.name).write_bytes(file.read(5000))
    with pytest.raises(KinfolkError, match=rf"{source.name}': not used"):
        find(name, tmp_path)


def small(name: str) -> dict[str, np.ndarray]:
    """A compact file of two rows, or two in each half, laid out as the large one."""
    y, two = np.array([0, 1], np.uint8), np.array([3, 5], np.int16)
    grey, faces = np.zeros((2, 28, 28), np.uint8), np.zeros((2, 3, 8, 8), np.uint8)
    halves = {
        "mnist": {"x": grey, "y": y, "writer": two, "hsf": y},
        "usps": {"x": grey, "y": y},
        "svhn": {"x_delta": faces, "y": y, "house": two},
        "cifar10": {"x_delta": faces, "y": y, "index": two},
        "tiny_imagenet40": {"x_delta": faces, "y": y},
        "pendigits": {"x": np.full((2, 16), 50, np.uint8), "y": y},
    }
    if name in halves:
        made = {}
        for key, values in halves[name].items():
            base, delta = key.removesuffix("_delta"), "_delta" * key.endswith("_delta")
            made |= {f"{base}_{end}{delta}": values for end in ("train", "test")}
        return made | ({"class_name": np.array(["bee", "cat"])} if name == "tiny_imagenet40" else {})
    x = np.arange(26, dtype=np.float32).reshape(2, 13)
    table = {"x": x, "y": y, "client": y}
    return {
        "sign_digits": {"x": grey, "y": y, "photo": two},
        "femnist": {"x": grey, "y": y, "client": y, "client_name": np.array(["a", "b"]), "split": y},
        "celeba": {
            "x_delta": faces, "y": y, "client": y, "celeb_id": two, "image": two, "attr": faces[:, 0, 0],
        },
        "wisdm": table | {"feature_name": np.array([*"abcdefghijklm"]), "class_name": np.array(ACTIVITIES)},
        "watch_har": {
            "x": np.zeros((2, 100, 6), np.int16), "y": y, "client": y, "side": y, "recording": y,
            "class_name": np.array(["up", "out"]),
        },
        "heart_disease": table | {"feature_name": np.array(HEART[:-1]), "client_name": np.array(HOSPITALS)},
        "landmine": table,
        "manuals": {
            "text": y.astype(np.uint8), "offset": np.arange(3), "client": np.array(["da:a", "en:b"]),
            "language": np.array(["da", "en"]), "alphabet": np.array("ab"),
        },
    }[name]  # fmt: skip


@pytest.mark.parametrize("name", [n for n, entry in CATALOGUE.items() if entry.npz])
def test_every_layout_is_read_and_a_missing_array_is_named(name, tmp_path):
    path, made = tmp_path / CATALOGUE[name].npz, small(name)
    np.savez(path, **made)
    rows = find(name, tmp_path)
    assert rows.y.tolist() == ([0, 1, 0, 1] if "y_train" in made else [0, 1])
    assert len(rows.x) == len(rows.y)
    published = "y_train" in made or "split" in made
    assert (rows.test is not None) == published
    assert (rows.client is not None) == ("client" in made or name == "mnist")
    named = {"attr_name", "celeb_id", "class_name", "feature_name", "client_name", "split"}
    unread = {"hsf", "house", "index", "photo", "image", "attr", "side"}  # more about each row
    for key in set(made) - named:
        if key.removesuffix("_train").removesuffix("_test") in unread:
            continue
        np.savez(path, **{k: v for k, v in made.items() if k != key})
        with pytest.raises(KinfolkError, match=rf"{path.name}': not used: it has no '"):
            find(name, tmp_path)
