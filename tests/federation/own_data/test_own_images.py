import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import kinfolk
from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.own_data.folder import read_folder
from kinfolk.federation.own_data.load import load_own
from kinfolk.federation.own_data.loaded import federate


def save(path, values=None, size=(4, 3), mode="L", colour=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new(mode, size, colour) if values is None else Image.fromarray(values)
    image.save(path)
    return path


def noise(seed, *shape):
    return np.random.Generator(np.random.PCG64(seed)).integers(0, 256, shape, dtype=np.uint8)


def test_classes_are_the_folders_of_all_clients(tmp_path):
    grey = {
        ("ann", "dog", "1.png"): 1,
        ("ann", "cat", "2.PNG"): 2,
        ("bob", "emu", "3.png"): 3,
        ("bob", "dog", "4.png"): 4,
    }
    pictures = {where: noise(seed, 3, 4) for where, seed in grey.items()}
    for where, values in pictures.items():
        save(tmp_path.joinpath(*where), values)
    found = read_folder(tmp_path)
    assert found.class_names == ("cat", "dog", "emu")
    assert found.shape == (1, 3, 4)
    assert found.clients["ann"][1].tolist() == [0, 1]
    assert found.clients["bob"][1].tolist() == [1, 2]
    assert (found.clients["ann"][0][0, 0] == pictures["ann", "cat", "2.PNG"]).all()
    assert (found.clients["bob"][0][1, 0] == pictures["bob", "emu", "3.png"]).all()


def test_pixels_are_trained_on_from_minus_one_to_one(tmp_path):
    save(tmp_path / "ann" / "a" / "1.png", np.array([[0, 51], [204, 255]], dtype=np.uint8))
    federation = federate(read_folder(tmp_path))
    assert federation.x.dtype == torch.uint8
    x, y = federation.take(torch.tensor([0]))
    assert torch.allclose(x, torch.tensor([[[[-1.0, -0.6], [0.6, 1.0]]]]), atol=1e-6)
    assert y.tolist() == [0]


def test_colours_are_planes(tmp_path):
    values = noise(1, 5, 2, 3)
    save(tmp_path / "ann" / "a" / "1.png", values)
    x = read_folder(tmp_path).clients["ann"][0]
    assert x.shape == (1, 3, 5, 2)
    assert (x[0] == values.transpose(2, 0, 1)).all()


def test_mixed_colours_and_transparency_are_stated(tmp_path):
    save(tmp_path / "ann" / "a" / "1.png", mode="RGB", colour=(10, 20, 30))
    save(tmp_path / "ann" / "a" / "2.png", mode="L", colour=7)
    save(tmp_path / "bob" / "a" / "3.png", mode="RGBA", colour=(1, 2, 3, 128))
    save(tmp_path / "bob" / "a" / "4.png", mode="P", colour=0)
    found = read_folder(tmp_path)
    assert found.clients["ann"][0][:, :, 0, 0].tolist() == [[10, 20, 30], [7, 7, 7]]
    assert found.clients["bob"][0][0, :, 0, 0].tolist() == [1, 2, 3]
    assert any("1 grey images among 4" in note for note in found.notes)
    assert any("transparency of 1 images" in note for note in found.notes)


def test_a_palette_that_says_how_clear_each_colour_is(tmp_path):
    image = Image.new("P", (4, 3), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    path = save(tmp_path / "ann" / "a" / "1.png")
    image.save(path, transparency=b"\x80\x40")
    assert read_folder(tmp_path).clients["ann"][0][0, :, 0, 0].tolist() == [10, 20, 30]


def test_jpeg_and_names_that_are_numbers(tmp_path):
    for name in ("10", "9", "2"):
        save(tmp_path / "ann" / name / "1.jpeg", colour=100)
        save(tmp_path / "ann" / name / "2.jpg", colour=100)
    found = read_folder(tmp_path)
    assert found.class_names == ("2", "9", "10")
    assert abs(found.clients["ann"][0].astype(int) - 100).max() <= 2


def test_hidden_files_are_counted_everywhere(tmp_path):
    save(tmp_path / "ann" / "a" / "1.png")
    for path in ("ann/.DS_Store", "ann/a/.DS_Store", "ann/a/._1.png"):
        (tmp_path / path).write_bytes(b"\0")
    assert read_folder(tmp_path).left_out == {"hidden files": 3}


def test_images_of_differing_sizes_are_named_both(tmp_path):
    save(tmp_path / "ann" / "a" / "1.png", size=(4, 3))
    save(tmp_path / "bob" / "b" / "2.png", size=(5, 3))
    with pytest.raises(
        KinfolkError, match=r"data\.bob/b/2\.png = '5 x 3': ann/a/1\.png has 4 x 3; --resize HxW"
    ):
        read_folder(tmp_path)


def test_a_damaged_image_is_named(tmp_path):
    path = save(tmp_path / "ann" / "a" / "1.png", noise(0, 40, 40))
    raw = path.read_bytes()
    for damaged in (b"", b"GIF89a", raw[:30], raw[: len(raw) // 2], raw[:200] + b"\xff" * 50 + raw[250:]):
        path.write_bytes(damaged)
        with pytest.raises(KinfolkError, match=r"ann/a/1\.png': not used"):
            read_folder(tmp_path)
    cut = save(tmp_path / "ann" / "a" / "1.jpg", noise(0, 40, 40))
    path.unlink()
    cut.write_bytes(cut.read_bytes()[:300])
    with pytest.raises(KinfolkError, match=r"ann/a/1\.jpg': not used"):
        read_folder(tmp_path)


def test_an_image_meant_to_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 8)
    save(tmp_path / "ann" / "a" / "1.png", size=(4, 3))
    with pytest.raises(KinfolkError, match=r"1\.png': not used"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("ann/loose.png", r"loose\.png': put a client's images in one folder per class"),
        ("ann/a/deep/1.png", r"deep': not an image of a known kind"),
        ("ann/a/1.tiff", r"1\.tiff': not an image of a known kind \(\.png, \.jpg, \.jpeg\)"),
        ("bob/", r"bob': holds no images"),
        ("bob/empty/", r"bob': holds no images"),
    ],
)
def test_a_wrong_layout_is_told(tmp_path, path, message):
    save(tmp_path / "ann" / "a" / "1.png")
    if path.endswith("/"):
        (tmp_path / path).mkdir(parents=True)
    else:
        save(tmp_path / path)
    with pytest.raises(KinfolkError, match=message):
        read_folder(tmp_path)


def test_deep_colours_and_a_label_are_refused(tmp_path):
    path = save(tmp_path / "ann" / "a" / "1.png", np.zeros((3, 3), dtype=np.uint16))
    with pytest.raises(KinfolkError, match=r"data\.ann/a/1\.png = 'mode I;16': store images with 8 bits"):
        read_folder(tmp_path)
    save(path)
    with pytest.raises(KinfolkError, match="label = 'y': the class folders are the labels"):
        read_folder(tmp_path, "y")


def by_pillow(image, size):
    """A picture resized as a whole, [height, width, channels]."""
    return np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR))


@pytest.mark.parametrize("size", ["5x7", (5, 7)])
def test_images_of_differing_size_in_python_are_brought_to_one(size):
    pictures = [noise(i, 4 + i, 9 - i, 3) for i in range(4)]
    x = [p.transpose(2, 0, 1) for p in pictures]
    f = from_arrays({"ann": (x[:2], [0, 1]), "bob": (x[2:], [1, 0])}, test={}, resize=size)
    assert (f.x.dtype, f.x.shape) == (torch.uint8, (4, 3, 5, 7))
    for row, picture in zip(f.x, pictures, strict=True):
        assert (row.numpy().transpose(1, 2, 0) == by_pillow(picture, (5, 7))).all()
    grey = [torch.from_numpy(noise(i, 3 + i, 4)).float() / 255 for i in range(2)]
    floats = from_arrays({"ann": (grey, [0, 1])}, test={}, resize="4x4").x
    assert (floats.dtype, floats.shape) == (torch.float32, (2, 4, 4))
    assert torch.equal(floats[1], grey[1]), "what has the size stays as it is"
    assert np.allclose(floats[0], by_pillow(grey[0].numpy(), (4, 4)), atol=1e-6)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([np.zeros((8, 8, 3))] * 2, r"data\.ann\.x = \[8, 8, 3\]: row 1 is no image .*\[channels, height"),
        ([np.zeros(4)] * 2, r"data\.ann\.x = \[4\]: row 1 is no image"),
        (np.zeros((2, 4, 4), dtype=int), "'int64': images are resized as bytes"),
        ({"a": np.zeros((2, 4, 4)), "b": np.zeros(2)}, "of several inputs none is resized"),
    ],
)
def test_what_is_no_image_is_not_resized(x, message):
    with pytest.raises(KinfolkError, match=message):
        from_arrays({"ann": (x, [0, 1])}, resize="3x3")


def test_a_run_resizes_new_images_as_its_own(tmp_path):
    x = [noise(i, 1, 6 + i % 3, 6) for i in range(20)]
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    settings = {"data.resize": "4x4"}
    folder = tmp_path / "run"
    kinfolk.run(
        network, {"ann": (x, [0, 1] * 10)}, rounds=1, folder=folder, settings=settings, progress=False
    )
    run = kinfolk.load(folder, network=network)
    small = torch.from_numpy(np.stack([by_pillow(p[0], (4, 4))[None] for p in x]))
    assert (run.predict(x) == run.model()(small.float()).argmax(1).numpy()).all()
    for who, high in (("ann", 6), ("bob", 8)):
        (tmp_path / "sites").mkdir(exist_ok=True)
        np.savez(
            tmp_path / "sites" / f"{who}.npz",
            x=np.stack([noise(i, 1, high, 6) for i in range(4)]),
            y=[0, 1] * 2,
        )
    rows, _ = load_own(tmp_path / "sites", columns=kinfolk.Columns(resize=(4, 4)))
    assert rows.x.shape == (8, 1, 4, 4)
    assert rows.recipe.resize == (4, 4)


def test_images_have_no_gaps_to_fill(tmp_path):
    save(tmp_path / "ann" / "a" / "1.png")
    with pytest.raises(KinfolkError, match="fill = 'mean': images have no missing values"):
        load_own(tmp_path, columns=kinfolk.Columns(fill="mean"))
