import gzip
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import platformdirs
import pytest

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.catalogue import CATALOGUE, Remote, data_root, find, known, where

PEN = [f"{d}," * 16 + f"{d}\n" for d in range(10)]


def pendigits(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "pendigits.tra").write_text("".join(PEN))
    (folder / "pendigits.tes").write_text(PEN[3])


def compact(root: Path) -> None:
    rows = np.arange(32, dtype=np.uint8).reshape(2, 16)
    np.savez(
        root / "pendigits.npz", x_train=rows, x_test=rows, y_train=np.array([1, 2]), y_test=np.array([3, 4])
    )


def test_the_names_are_those_promised():
    assert set(CATALOGUE) == {
        *(
            "mnist",
            "usps",
            "svhn",
            "sign_digits",
            "cifar10",
            "imagenet32",
            "tiny_imagenet40",
        ),
        *("femnist", "celeba", "wisdm", "watch_har", "heart_disease", "landmine", "pendigits"),
        *("shakespeare", "sent140", "manuals"),
    }


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_entry_can_be_fetched_or_says_what_to_do(name):
    entry = CATALOGUE[name]
    assert entry.line
    assert entry.licence
    assert entry.files or name in ("watch_har", "manuals")
    assert bool(entry.npz) == (entry.compact is not None)
    assert entry.remote or entry.note
    lengths = {"md5": 32, "sha256": 64}
    for remote in entry.remote:
        assert remote.url.startswith(("https://", "http://"))
        assert "/" not in remote.name
        algorithm, _, digest = remote.digest.partition(":")
        assert not remote.digest or re.fullmatch(rf"[0-9a-f]{{{lengths[algorithm]}}}", digest)
        assert remote.digest or "no checksum" in entry.note


@pytest.mark.parametrize("name", [n for n, entry in CATALOGUE.items() if entry.remote])
def test_a_fetched_file_marks_the_folder_as_used(name, tmp_path):
    for remote in CATALOGUE[name].remote[:1]:
        (tmp_path / name).mkdir()
        (tmp_path / name / remote.name).touch()
    assert where(name, tmp_path) == tmp_path / name


def test_the_root_is_what_the_environment_says_or_a_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("KINFOLK_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.setenv("KINFOLK_DATA", "~/sets")
    assert data_root() == Path.home() / "sets"
    monkeypatch.delenv("KINFOLK_DATA")
    assert data_root() == Path(platformdirs.user_cache_dir("kinfolk")) / "data"


def test_published_files_go_before_the_compact_one(tmp_path, monkeypatch):
    with pytest.raises(
        KinfolkError, match=r"'pendigits': not in .*; run `kinfolk data fetch pendigits`, or set KINF"
    ):
        find("pendigits", tmp_path)
    compact(tmp_path)
    assert find("pendigits", tmp_path).y.tolist() == [1, 2, 3, 4]
    (tmp_path / "pendigits").mkdir()
    (tmp_path / "pendigits" / "readme.txt").write_text("nothing of use")
    assert find("pendigits", tmp_path).y.tolist() == [1, 2, 3, 4]
    (tmp_path / "pendigits" / "readme.txt").unlink()
    (tmp_path / "pendigits").rmdir()
    pendigits(tmp_path / "pendigits")
    assert find("pendigits", tmp_path).y.tolist() == [*range(10), 3]
    monkeypatch.setenv("KINFOLK_DATA", str(tmp_path))
    assert len(find("pendigits").y) == 11
    # Half of the published files is an error, not a reason to read something else.
    (tmp_path / "pendigits" / "pendigits.tes").unlink()
    with pytest.raises(KinfolkError, match=r"pendigits\.tes': is missing"):
        find("pendigits", tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("imagenet32", "image-net.org"),
        ("celeba", "mmlab.ie.cuhk.edu.hk"),
        ("femnist", "preprocess.sh"),
        ("watch_har", "set KINFOLK_DATA to the folder with watch_har.npz"),
        ("mnist", "kinfolk data fetch mnist"),
        ("mnst", "did you mean 'mnist'"),
    ],
)
def test_what_is_not_there_says_what_to_do(name, words, tmp_path):
    with pytest.raises(KinfolkError, match=re.escape(words)) as caught:
        find(name, tmp_path)
    assert caught.value.field == "data.name"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_a_wrong_checksum_is_named_and_the_file_not_used(tmp_path, monkeypatch, algorithm):
    folder = tmp_path / "pendigits"
    pendigits(folder)
    digest = hashlib.new(algorithm, (folder / "pendigits.tra").read_bytes()).hexdigest()
    remote = (Remote("https://a.example/pendigits.tra", "pendigits.tra", f"{algorithm}:{digest}"),)
    monkeypatch.setitem(CATALOGUE, "pendigits", replace(known("pendigits"), remote=remote))
    assert len(find("pendigits", tmp_path).y) == 11
    (folder / "pendigits.tra").write_text("".join(PEN[:9]))  # sound, but not what was published
    with pytest.raises(
        KinfolkError, match=rf"pendigits/pendigits\.tra': not used: its {algorithm} is not {digest}"
    ):
        find("pendigits", tmp_path)


def test_files_packed_anew_are_refused_packed_and_taken_unpacked(tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    images = bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(784)
    made = {"images-idx3": images, "labels-idx1": bytes([0, 0, 8, 1, 0, 0, 0, 1, 5])}
    for word in ("train", "t10k"):
        for what, data in made.items():
            (folder / f"{word}-{what}-ubyte.gz").write_bytes(gzip.compress(data))
    wrong = (
        r"train-images-idx3-ubyte\.gz': not used: its md5 is not f68b3c2d.*; fetch it again, or unpack it if"
    )
    with pytest.raises(KinfolkError, match=wrong):
        find("mnist", tmp_path)
    for path in list(folder.iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert find("mnist", tmp_path).y.tolist() == [5, 5]
