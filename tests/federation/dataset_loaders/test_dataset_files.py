import bz2
import gzip
import io
import tarfile
import zipfile

import numpy as np
import pytest

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.files import Archive, checksum, corrupt
from kinfolk.federation.datasets.formats import read_compact, read_npz, undelta


def test_files_on_disk_go_before_those_in_archives(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("inner/one.txt", "zipped")
        archive.writestr("inner/two.txt", "zipped")
    (tmp_path / "one.txt").write_text("plain")
    with Archive(tmp_path) as archive:
        assert archive.text(archive.need("one.txt")) == "plain"
        assert archive.need("two.txt") == "inner/two.txt"
        assert archive.text("inner/two.txt") == "zipped"
        assert archive.names == ["a.zip", "inner/one.txt", "inner/two.txt", "one.txt"]


def test_a_broken_archive_is_left_alone_unless_it_is_needed(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"PK nonsense")
    (tmp_path / "one.txt").write_text("plain")
    with Archive(tmp_path) as archive:
        assert archive.find("one.txt") == "one.txt"
        with pytest.raises(KinfolkError, match=r"a\.zip': not used"):
            archive.find("two.txt")


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "a.tar"])
def test_members_of_tars_are_read_and_a_cut_tar_is_named(tmp_path, name):
    body = bytes(range(256)) * 40
    with tarfile.open(tmp_path / name, "w" if name.endswith(".tar") else "w:gz") as archive:
        for inner in ("set/one.bin", "set/two.bin"):
            info = tarfile.TarInfo(inner)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    with Archive(tmp_path) as archive:
        assert archive.read(archive.need("two.bin")) == body
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2] if name != "a.tar" else whole[:12000])
    with Archive(tmp_path) as archive, pytest.raises(KinfolkError, match=f"{name}': not used"):
        archive.find("two.bin")


@pytest.mark.parametrize(("pack", "end"), [(gzip.compress, ".gz"), (bz2.compress, ".bz2")])
def test_packed_files_are_unpacked_and_cut_ones_named(pack, end, tmp_path):
    packed = pack(b"rows" * 500)
    (tmp_path / f"a{end}").write_bytes(packed)
    with Archive(tmp_path) as archive:
        assert archive.read(f"a{end}") == b"rows" * 500
        for bad in (packed[:-5], b"no such thing"):
            (tmp_path / f"a{end}").write_bytes(bad)
            with pytest.raises(KinfolkError, match=f"/a{end}': not used"):
                archive.read(f"a{end}")


def test_an_error_names_folder_and_file_of_a_long_path_in_one_line(tmp_path):
    path = tmp_path / ("x" * 90) / "mnist" / "train-images"
    said = str(corrupt(path, "it is empty"))
    assert said.startswith("data.file = '...xxx")
    assert said.endswith("xx/mnist/train-images': not used: it is empty; replace it")
    with pytest.raises(KinfolkError, match="/mnist/train-images': is missing"):
        checksum(path, "md5")


def test_members_of_an_npz_are_checked_before_use(tmp_path):
    path = tmp_path / "a.npz"
    values = np.arange(5000, dtype=np.int64)
    np.savez(path, x=values, y=values[:3])
    assert np.array_equal(read_npz(path, path, "x")["x"], values)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[20_000] ^= 1
    for bad in (whole[:20_000], bytes(flipped), b"", b"text"):
        path.write_bytes(bad)
        with pytest.raises(KinfolkError, match=r"a\.npz': not used"):
            read_npz(path, path, "x")


def test_an_array_of_objects_is_refused_not_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([Trap()], dtype=object))
    with pytest.raises(KinfolkError, match="not used: array 'x' is a pickle, never opened"):
        read_npz(path, path, "x")
    assert not (tmp_path / "sprung").exists()


def coded(images: np.ndarray) -> np.ndarray:
    """[n, h, w, 3] bytes as the compact files hold them, by plain differences."""
    r, g, b = (images[..., c].astype(np.int64) for c in range(3))
    planes = np.stack([g, r - g, b - g], axis=1)
    planes = np.diff(planes, axis=3, prepend=0)
    return (np.diff(planes, axis=2, prepend=0) % 256).astype(np.uint8)


def test_delta_coded_images_come_back_exactly(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)
    assert np.array_equal(undelta(coded(images), "a").transpose(0, 2, 3, 1), images)
    np.savez(
        tmp_path / "a.npz",
        x_train_delta=coded(images[:4]),
        x_test_delta=coded(images[4:]),
        y_train=np.arange(4),
        y_test=np.arange(2),
    )
    found = read_compact(tmp_path / "a.npz")
    assert np.array_equal(found["x"], images.transpose(0, 3, 1, 2))
    assert found["y"].tolist() == [0, 1, 2, 3, 0, 1]
    assert found["test"].tolist() == [False] * 4 + [True] * 2


def test_delta_coded_images_of_the_wrong_form_are_refused():
    for bad in (np.zeros((1, 2, 3, 3), np.uint8), np.zeros((1, 3, 3), np.uint8), np.zeros((1, 3, 2, 2))):
        with pytest.raises(KinfolkError, match="delta-coded"):
            undelta(bad, "set/a.npz")
