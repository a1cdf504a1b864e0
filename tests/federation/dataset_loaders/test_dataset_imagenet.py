import io
import zipfile
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.catalogue import read_official
from kinfolk.federation.datasets.files import Archive
from kinfolk.federation.datasets.pictures import official_imagenet32
from kinfolk.streams import Seed

RNG = np.random.default_rng(3)


def npz(**arrays) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


@pytest.fixture
def small(tmp_path):
    """Classes 11 to 18 with 1 to 8 training images each, over ten batches; one validation image each."""
    y = RNG.permutation(np.repeat(np.arange(11, 19), np.arange(1, 9)))
    x = RNG.integers(0, 256, (len(y), 3072), dtype=np.uint8)
    made = {}
    for i, rows in enumerate(np.array_split(np.arange(len(y)), 10), 1):
        made[f"train_data_batch_{i}.npz"] = npz(data=x[rows], labels=y[rows], mean=np.zeros(3072))
    valid = np.arange(8) * 3 % 8 + 11, RNG.integers(0, 256, (8, 3072), dtype=np.uint8)
    made["val_data.npz"] = npz(data=valid[1], labels=valid[0])
    return tmp_path, made, (x, y), (valid[1], valid[0])


def imagenet32(folder, *options, **named):
    with Archive(folder) as archive:
        return official_imagenet32(archive, *options, **named)


def put(folder, made, zipped=False):
    if zipped:
        for word in ("train", "val"):
            with zipfile.ZipFile(folder / f"Imagenet32_{word}_npz.zip", "w") as archive:
                for name in made:
                    if name.startswith(word):
                        archive.writestr(name, made[name])
        return
    for name, data in made.items():
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("zipped", [False, True])
def test_imagenet32_keeps_large_classes_only(small, zipped):
    folder, made, (x, y), (vx, vy) = small
    put(folder, made, zipped)
    rows = imagenet32(folder, classes=4, more_than=4)
    kept = sorted(int(name.removeprefix("class-")) for name in rows.class_names)
    assert kept == [15, 16, 17, 18]
    chosen, valid = np.isin(y, kept), np.isin(vy, kept)
    assert np.array_equal(rows.x[~rows.test].reshape(-1, 3072), x[chosen])
    assert np.array_equal(rows.x[rows.test].reshape(-1, 3072), vx[valid])
    assert [kept[i] for i in rows.y] == [*y[chosen].tolist(), *vy[valid].tolist()]
    assert sum(rows.left_out.values()) == len(y) + len(vy) - len(rows.y) == 1 + 2 + 3 + 4 + 4


def test_the_classes_follow_from_the_seed(small):
    folder, made, _, _ = small
    put(folder, made)
    seen = [imagenet32(folder, 3, 2, Seed(s)).class_names for s in (0, 0, 1, 2, 3)]
    assert seen[0] == seen[1]
    assert len(set(seen)) > 1
    assert all(int(name[6:]) >= 13 and list(names) == sorted(names) for names in seen for name in names)
    with pytest.raises(KinfolkError, match="only 4 classes have more than 4 images"):
        imagenet32(folder, 5, 4)


def test_bad_batches_of_imagenet32_are_named(small):
    folder, made, _, _ = small
    put(folder, made)
    name = "train_data_batch_7.npz"
    x, y = np.zeros((4, 3072), np.uint8), np.arange(15, 19)
    for bad, words in [
        (made[name][:300], ""),
        (npz(data=x), "has no array 'labels'"),
        (npz(data=x, labels=y - 15), "1 to 1000"),
        (npz(data=x, labels=y + 0.5), "1 to 1000"),
        (npz(data=x[:3], labels=y), "for 4 labels"),
        (npz(data=x / 2, labels=y), "float64"),
    ]:
        (folder / name).write_bytes(bad)
        with pytest.raises(KinfolkError, match=rf"train_data_batch_7\.npz': not used: .*{words}"):
            imagenet32(folder, 4, 4)
    (folder / name).unlink()
    with pytest.raises(KinfolkError, match=r"train_data_batch_7\.npz': is missing"):
        imagenet32(folder, 4, 4)


def png(pixels: np.ndarray) -> bytes:
    """Without loss, so that pixels can be compared; a reader tells the format by content, not by name."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def tiny(tmp_path):
    """Ten classes with two training and one validation picture each; one picture is grey."""
    wnids = [f"n{i:08d}" for i in RNG.permutation(10) + 100]
    pictures = {}
    for wnid in wnids:
        for i in range(2):
            name = f"train/{wnid}/images/{wnid}_{i}.JPEG"
            pictures[name] = RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        pictures[f"val/images/val_{wnid}.JPEG"] = RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    pictures["test/images/test_0.JPEG"] = np.zeros((64, 64, 3), np.uint8)
    grey = f"train/{sorted(wnids)[5]}/images/{sorted(wnids)[5]}_1.JPEG"
    pictures[grey] = pictures[grey][..., 0]
    files = {name: png(pixels) for name, pixels in pictures.items()}
    files["wnids.txt"] = "\n".join(wnids).encode()
    files["words.txt"] = "".join(f"{w}\tthing {w}, stuff\n" for w in [*wnids, "n1"]).encode()
    files["val/val_annotations.txt"] = "".join(f"val_{w}.JPEG\t{w}\t0\t0\t9\t9\n" for w in wnids).encode()
    return tmp_path, files, pictures, sorted(wnids)


def shelve(folder, files, zipped):
    if zipped:
        with zipfile.ZipFile(folder / "tiny-imagenet-200.zip", "w") as archive:
            for name, data in files.items():
                archive.writestr("tiny-imagenet-200/" + name, data)
        return
    for name, data in files.items():
        path = folder / "tiny-imagenet-200" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.mark.parametrize("zipped", [False, True])
def test_tiny_imagenet_keeps_every_fifth_class_averaged(tiny, zipped):
    folder, files, pictures, wnids = tiny
    shelve(folder, files, zipped)
    rows = read_official("tiny_imagenet40", folder)
    kept = [wnids[0], wnids[5]]
    assert rows.class_names == tuple(f"thing {w}, stuff" for w in kept)
    assert Counter(rows.y[~rows.test].tolist()) == {0: 2, 1: 2}
    assert sorted(rows.y[rows.test].tolist()) == [0, 1]
    assert rows.left_out == {"pictures of the classes not among the 2": 8 * 3}
    for label, wnid in enumerate(kept):
        names = [f"train/{wnid}/images/{wnid}_{i}.JPEG" for i in range(2)] + [f"val/images/val_{wnid}.JPEG"]
        for got, name in zip(rows.x[rows.y == label], names, strict=True):
            full = pictures[name].astype(float)
            full = np.repeat(full[..., None], 3, axis=2) if full.ndim == 2 else full
            mean = (full[::2, ::2] + full[1::2, ::2] + full[::2, 1::2] + full[1::2, 1::2]) / 4
            assert np.array_equal(got.transpose(1, 2, 0), np.floor(mean + 0.5))


def test_bad_tiny_imagenet_is_named(tiny):
    folder, files, _, wnids = tiny
    shelve(folder, files, zipped=False)
    base = folder / "tiny-imagenet-200"
    victim = base / "train" / wnids[5] / "images" / f"{wnids[5]}_0.JPEG"
    for data, words in [
        (files[f"train/{wnids[5]}/images/{victim.name}"][:500], ""),
        (b"text", "identify"),
        (png(np.zeros((32, 64, 3), np.uint8)), "64 by 32 pixels"),
    ]:
        victim.write_bytes(data)
        with pytest.raises(KinfolkError, match=rf"{victim.name}': not used: .*{words}"):
            read_official("tiny_imagenet40", folder)
    for picture in (base / "train" / wnids[3] / "images").iterdir():
        picture.unlink()
    # A class that is not kept still shifts which ones are: all of them must be there.
    with pytest.raises(KinfolkError, match=f"train/{wnids[3]}': has no pictures"):
        read_official("tiny_imagenet40", folder)
    (base / "val" / "val_annotations.txt").unlink()
    (base / "words.txt").unlink()
    with pytest.raises(KinfolkError, match=r"words\.txt': is missing"):
        read_official("tiny_imagenet40", folder)
