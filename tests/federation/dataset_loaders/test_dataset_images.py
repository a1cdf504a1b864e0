"""Published formats of the image sets, made small by hand and read back."""

import bz2
import gzip
import io
import struct
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.catalogue import read_official

RNG = np.random.default_rng(7)


def bytes_of(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def idx_file(values: np.ndarray, code: str = "B") -> bytes:
    kind = {"B": 8, "i": 12}[code]
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, kind, values.ndim, *values.shape)
    return head + struct.pack(f">{values.size}{code}", *values.ravel().tolist())


@pytest.fixture
def mnist(tmp_path):
    """Six training and four test images, the training half packed."""
    made = {
        "train": (bytes_of(6, 28, 28), RNG.integers(0, 10, 6)),
        "t10k": (bytes_of(4, 28, 28), np.arange(4)),
    }
    for word, (x, y) in made.items():
        for what, data in (("images-idx3", idx_file(x)), ("labels-idx1", idx_file(y))):
            packed = word == "train"
            name = f"{word}-{what}-ubyte" + ".gz" * packed
            (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
    return tmp_path, made


def test_idx_files_plain_and_packed(mnist):
    folder, made = mnist
    rows = read_official("mnist", folder)
    assert np.array_equal(rows.x[:, 0], np.concatenate([made["train"][0], made["t10k"][0]]))
    assert rows.y.tolist() == [*made["train"][1].tolist(), 0, 1, 2, 3]
    assert rows.test.tolist() == [False] * 6 + [True] * 4
    assert rows.client is None
    assert len(rows.class_names) == rows.classes == 10


def qmnist(labels, writers, more=0):
    table = np.zeros((len(labels) + more, 8), np.int64)
    table[: len(labels), 0], table[: len(labels), 1], table[: len(labels), 2] = labels, 4, writers
    return idx_file(table, "i")


def test_writers_come_from_qmnist(mnist):
    folder, made = mnist
    writers = [2154, 7, 7, 300, 7, 2154]
    packed = gzip.compress(qmnist(made["train"][1], writers))
    (folder / "qmnist-train-labels-idx2-int.gz").write_bytes(packed)
    with pytest.raises(KinfolkError, match="qmnist-test-labels-idx2-int': is missing"):
        read_official("mnist", folder)
    # QMNIST has more test rows than MNIST; the first ones are MNIST's.
    (folder / "qmnist-test-labels-idx2-int").write_bytes(qmnist(made["t10k"][1], [9, 9, 8, 8], more=5))
    rows = read_official("mnist", folder)
    wanted = [f"writer-{w:04d}" for w in (*writers, 9, 9, 8, 8)]
    assert [rows.client_names[c] for c in rows.client] == wanted


@pytest.mark.parametrize("change", [lambda y: (y + 1) % 10, lambda y: y[:-1]])
def test_labels_of_other_digits_are_not_mnists(mnist, change):
    folder, made = mnist
    labels = change(made["train"][1])
    (folder / "qmnist-train-labels-idx2-int").write_bytes(qmnist(labels, labels))
    with pytest.raises(KinfolkError, match="labels are not MNIST's"):
        read_official("mnist", folder)


def test_bad_idx_files_are_named(mnist):
    folder, _ = mnist
    name = "t10k-labels-idx1-ubyte"
    good = (folder / name).read_bytes()
    cases = [
        (good[:-1], "11 bytes instead of 12"),
        (good[:3], "magic number 000008"),
        (b"", "magic number"),
        (good[:6], "6 bytes instead of"),
        (good + b"x", "13 bytes"),
        (idx_file(np.arange(3)), "3 labels for 4"),
        (idx_file(np.arange(4), "i"), "magic number 00000c01"),
    ]
    for data, words in cases:
        (folder / name).write_bytes(data)
        with pytest.raises(KinfolkError, match=words) as caught:
            read_official("mnist", folder)
        assert name in str(caught.value)
    (folder / name).unlink()
    with pytest.raises(KinfolkError, match=f"{name}': is missing"):
        read_official("mnist", folder)
    train = folder / "train-images-idx3-ubyte.gz"
    train.write_bytes(train.read_bytes()[:200])
    with pytest.raises(KinfolkError, match=r"train-images-idx3-ubyte\.gz': not used"):
        read_official("mnist", folder)


def test_usps_as_libsvm_has_it(tmp_path):
    levels = RNG.integers(0, 256, (5, 256))
    values = levels / 255 * 2 - 1
    digits = [0, 9, 4, 4, 2]
    values[0, 3], levels[0, 3] = 0.0, 128  # left out below: LIBSVM does not write zeros
    lines = [
        f"{d + 1} " + " ".join(f"{i}:{v:.6f}" for i, v in enumerate(row, 1) if v)
        for d, row in zip(digits, values, strict=True)
    ]
    (tmp_path / "usps.bz2").write_bytes(bz2.compress("\n".join(lines[:3]).encode()))
    (tmp_path / "usps.t").write_text("\n".join(lines[3:]) + "\n")
    rows = read_official("usps", tmp_path)
    assert np.array_equal(rows.x.reshape(5, 256), levels)
    assert rows.y.tolist() == digits
    assert rows.test.tolist() == [False] * 3 + [True] * 2
    assert rows.x.shape == (5, 1, 16, 16)


def test_usps_as_the_book_has_it(tmp_path):
    levels = RNG.integers(0, 256, (4, 256))
    lines = [
        f"{d}.0000 " + " ".join(f"{v / 255 * 2 - 1:.4f}" for v in row) + " "
        for d, row in zip([6, 5, 0, 9], levels, strict=True)
    ]
    (tmp_path / "zip.train.gz").write_bytes(gzip.compress("\n".join(lines[:3]).encode()))
    (tmp_path / "zip.test").write_text(lines[3])
    rows = read_official("usps", tmp_path)
    assert np.array_equal(rows.x.reshape(4, 256), levels)
    assert rows.y.tolist() == [6, 5, 0, 9]
    assert rows.test.tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1 1:0.5 257:0.5", "line 2"),
        ("1 0:0.5", "line 2"),
        ("six " + "0.1 " * 256, "line 2"),
        ("1 1:0.5 2:ink", "line 2"),
        ("6 " + "0.1 " * 255, "line 2"),
        ("1 1:3.5", "line 2"),
        ("6 " + "nan " * 256, "line 2"),
        ("12 1:0.5", "row 2, column 'label' holds 11"),
    ],
)
def test_bad_lines_of_usps_are_named(tmp_path, line, words):
    (tmp_path / "usps").write_text("1 1:0.5\n" + line)
    (tmp_path / "usps.t").write_text("1 1:0.5\n")
    with pytest.raises(KinfolkError, match=rf"usps': not used: {words}"):
        read_official("usps", tmp_path)


def mat(x: np.ndarray, y) -> dict[str, np.ndarray]:
    return {"X": x.transpose(1, 2, 3, 0), "y": np.array(y, np.uint8)[:, None]}


def test_svhn_calls_ten_zero(tmp_path):
    train, test = bytes_of(4, 32, 32, 3), bytes_of(2, 32, 32, 3)
    savemat(tmp_path / "train_32x32.mat", mat(train, [1, 10, 9, 10]))
    savemat(tmp_path / "test_32x32.mat", mat(test, [5, 10]), do_compression=True)
    rows = read_official("svhn", tmp_path)
    assert np.array_equal(rows.x.transpose(0, 2, 3, 1), np.concatenate([train, test]))
    assert rows.y.tolist() == [1, 0, 9, 0, 5, 0]
    assert rows.test.tolist() == [False] * 4 + [True] * 2


def test_bad_svhn_files_are_named(tmp_path):
    good = mat(bytes_of(4, 32, 32, 3), [1, 2, 3, 4])
    savemat(tmp_path / "test_32x32.mat", good)
    path = tmp_path / "train_32x32.mat"
    for bad, words in [
        ({"X": good["X"]}, "'y'"),
        (good | {"y": good["y"][:3]}, "for 3 labels"),
        (good | {"y": good["y"] - 1}, "labels 0 to 3"),
        (good | {"X": good["X"] / 2}, "float64"),
    ]:
        savemat(path, bad)
        with pytest.raises(KinfolkError, match=rf"train_32x32\.mat': not used: .*{words}"):
            read_official("svhn", tmp_path)
    savemat(path, good)
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], whole[:60], b"", b"no matrix" * 100):
        path.write_bytes(data)
        with pytest.raises(KinfolkError, match=r"train_32x32\.mat': not used"):
            read_official("svhn", tmp_path)


def photo(grey: int, size: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (grey, grey, grey)).save(file, "JPEG", quality=100)
    return file.getvalue()


@pytest.mark.parametrize("zipped", [False, True])
def test_sign_photos_by_folder(tmp_path, zipped):
    made = {f"Dataset/{d}/IMG_{1000 + d}.JPG": photo(20 * d + 10, (100, 100)) for d in range(10)}
    made["Dataset/7/IMG_0031.jpg"] = photo(99, (900, 900))
    made["Examples/example_1.JPG"] = photo(1, (9, 9))
    if zipped:
        with zipfile.ZipFile(tmp_path / "repository.zip", "w") as archive:
            for name, data in made.items():
                archive.writestr("repository-main/" + name, data)
    else:
        for name, data in made.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(data)
    rows = read_official("sign_digits", tmp_path)
    assert rows.y.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 7, 8, 9]
    wanted = np.array([10, 30, 50, 70, 90, 110, 130, 99, 150, 170, 190])
    assert rows.x.shape == (11, 1, 64, 64)
    assert (np.abs(rows.x.astype(int) - wanted[:, None, None, None]) <= 1).all()
    assert rows.test is None


def test_sign_photos_that_lack_or_spoil_are_named(tmp_path):
    for d in range(9):
        (tmp_path / str(d)).mkdir()
        (tmp_path / str(d) / "IMG_1.JPG").write_bytes(photo(50, (64, 64)))
    with pytest.raises(KinfolkError, match=r"/9/\*\.JPG': is missing"):
        read_official("sign_digits", tmp_path)
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "IMG_2.JPG").write_bytes(photo(50, (640, 640))[:300])
    with pytest.raises(KinfolkError, match=r"/9/IMG_2\.JPG': not used"):
        read_official("sign_digits", tmp_path)
    (tmp_path / "copy" / "3").mkdir(parents=True)
    (tmp_path / "copy" / "3" / "IMG_1.JPG").write_bytes(b"")
    with pytest.raises(KinfolkError, match="leave only one of them"):
        read_official("sign_digits", tmp_path)


def batches(rows: int = 3) -> dict[str, np.ndarray]:
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    return {
        n: np.column_stack([RNG.integers(0, 10, rows), bytes_of(rows, 3072)]).astype(np.uint8) for n in names
    }


@pytest.mark.parametrize("packed", [False, True])
def test_cifar_binary_batches(tmp_path, packed):
    made = batches()
    if packed:
        with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
            for name, table in sorted(made.items(), reverse=True):
                info = tarfile.TarInfo("cifar-10-batches-bin/" + name)
                info.size = table.nbytes
                archive.addfile(info, io.BytesIO(table.tobytes()))
    else:
        for name, table in made.items():
            (tmp_path / name).write_bytes(table.tobytes())
    rows = read_official("cifar10", tmp_path)
    table = np.concatenate(list(made.values()))
    assert rows.y.tolist() == table[:, 0].tolist()
    assert np.array_equal(rows.x.reshape(18, 3072), table[:, 1:])
    assert rows.x.shape == (18, 3, 32, 32)
    assert rows.test.tolist() == [False] * 15 + [True] * 3


def test_bad_cifar_batches_are_named(tmp_path):
    made = batches()
    for name, table in made.items():
        (tmp_path / name).write_bytes(table.tobytes())
    path = tmp_path / "data_batch_4.bin"
    for data, words in [
        (path.read_bytes()[:-1], "no whole number"),
        (b"", "0 bytes"),
        (made["data_batch_4.bin"][:2].tobytes(), "2 images where another batch has 3"),
    ]:
        path.write_bytes(data)
        with pytest.raises(KinfolkError, match=rf"data_batch_4\.bin': not used: .*{words}"):
            read_official("cifar10", tmp_path)
    path.write_bytes(np.full((3, 3073), 10, np.uint8).tobytes())
    with pytest.raises(KinfolkError, match="labels run from 0 to 9"):
        read_official("cifar10", tmp_path)
    path.unlink()
    with pytest.raises(KinfolkError, match=r"data_batch_4\.bin': is missing"):
        read_official("cifar10", tmp_path)


@pytest.mark.parametrize("name", ["cifar-10-python.tar.gz", "cifar-10-batches-py/data_batch_1"])
def test_pickled_cifar_is_refused_with_the_reason(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(KinfolkError, match="pickled, which can run code; get the binary version"):
        read_official("cifar10", tmp_path)
