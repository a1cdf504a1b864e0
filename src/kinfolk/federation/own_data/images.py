"""Images by class: one folder per client, in it one folder per class, in it png or jpg files."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.files import reading, short
from kinfolk.federation.datasets.formats import planes
from kinfolk.federation.own_data.columns import Recipe
from kinfolk.federation.own_data.gather import gather, in_order
from kinfolk.federation.own_data.loaded import Array, ClientRows, LoadedClients
from kinfolk.unpack import check_unpacked

if TYPE_CHECKING:
    from PIL import Image

IMAGES = (".png", ".jpg", ".jpeg")
Size = tuple[int, int]  # height and width
# Pixels are kept as bytes and trained on from -1 to 1.
PIXELS = (2 / 255, -1.0)
_GREY = ("1", "L", "LA")
_COLOUR = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV")
_ALPHA = ("LA", "RGBA", "PA")


class ImageHead(NamedTuple):
    """What the head of an image tells: its name for errors, width and height, and PIL's mode."""

    name: str
    size: tuple[int, int]
    mode: str


def agree(heads: Iterable[ImageHead], size: Size | None = None) -> tuple[str, list[str]]:
    """The mode all images are brought to, "L" or "RGB", and what that takes; one size for all.

    With a `size`, height and width that they are brought to, theirs may differ.

    >>> agree([ImageHead("a.png", (8, 8), "L"), ImageHead("b.png", (8, 9), "L")])
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.b.png = '8 x 9': a.png has 8 x 8; --resize HxW brings all to one size
    """
    heads = list(heads)
    for head in heads:
        if size is None and head.size != heads[0].size:
            (w, h), (wide, high) = head.size, heads[0].size
            remedy = f"{heads[0].name} has {wide} x {high}; --resize HxW brings all to one size"
            raise KinfolkError(f"data.{head.name}", f"{w} x {h}", remedy)
        if head.mode not in _GREY + _COLOUR:
            raise KinfolkError(f"data.{head.name}", f"mode {head.mode}", "store images with 8 bits a colour")
    modes = Counter(head.mode for head in heads)
    grey, clear = sum(modes[m] for m in _GREY), sum(modes[m] for m in _ALPHA)
    mode = "L" if grey == len(heads) else "RGB"
    notes = [f"pixels are scaled from 0..255 to -1..1, {'1 channel' if mode == 'L' else '3 channels'}"]
    if mode == "RGB" and grey:
        notes.append(f"{grey} grey images among {len(heads)} are taken as coloured ones")
    if clear:
        notes.append(f"transparency of {clear} images is left out")
    if size is not None:
        changed = sum(head.size != size[::-1] for head in heads)
        notes.append(f"{changed} of {len(heads)} images are resized to {size[1]} x {size[0]} (bilinear)")
    return mode, notes


def pixels(image: Image.Image, mode: str, size: Size | None = None) -> NDArray[np.uint8]:
    """One image as [channels, height, width], still 0..255; `size` is the height and width it is brought to.

    >>> from PIL import Image
    >>> pixels(Image.new("L", (2, 1), 255), "L")
    array([[[255, 255]]], dtype=uint8)
    """
    if image.mode == "P":  # by way of RGBA, as a palette may say which colour is clear
        image = image.convert("RGBA")
    image = image.convert(mode)
    if size is not None and image.size != size[::-1]:
        from PIL import Image as images

        image = image.resize(size[::-1], images.Resampling.BILINEAR)
    return planes(image)


def resized(rows: Sequence[Array], size: Size, field: str) -> Array:
    """Images as arrays, [height, width] or [channels, height, width], brought to one size, plane by plane.

    As `pixels` does it: by Pillow, bilinear. Bytes stay bytes, floats become float32.

    >>> resized([np.zeros((2, 3), np.uint8), np.zeros((5, 4), np.uint8)], (4, 4), "x").shape
    (2, 4, 4)
    """
    return np.stack([_resized(row, size, field, place) for place, row in enumerate(rows, 1)])


def _resized(image: Array, size: Size, field: str, place: int) -> Array:
    from PIL import Image as images

    if (
        image.ndim not in (2, 3)
        or 0 in image.shape
        or (image.ndim == 3 and image.shape[0] > 4 >= image.shape[2])
    ):
        remedy = (
            f"row {place} is no image [channels, height, width] or [height, width]; only images have a size"
        )
        raise KinfolkError(field, list(image.shape), remedy)
    if image.dtype != np.uint8 and image.dtype.kind != "f":
        remedy = "images are resized as bytes (uint8) or floats; give one of these"
        raise KinfolkError(field, str(image.dtype), remedy)
    plain = image if image.dtype == np.uint8 else image.astype(np.float32)
    if plain.shape[-2:] == size:
        return plain
    layers = plain.reshape(-1, *plain.shape[-2:])
    made = [images.fromarray(one).resize(size[::-1], images.Resampling.BILINEAR) for one in layers]
    return np.stack([np.asarray(one) for one in made]).reshape(*plain.shape[:-2], *size)


def inside(folder: Path) -> tuple[list[Path], int]:
    """What a folder holds, sorted by name, and how many hidden files besides.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("b.csv", "a.csv", ".DS_Store"):
    ...         (Path(folder) / name).touch()
    ...     shown, hidden = inside(Path(folder))
    >>> [path.name for path in shown], hidden
    (['a.csv', 'b.csv'], 1)
    """
    with reading(folder):
        paths = sorted(folder.iterdir())
    shown = [path for path in paths if not path.name.startswith(".")]
    return shown, len(paths) - len(shown)


def read_images(folders: Mapping[str, Path], size: Size | None = None) -> LoadedClients:
    """All images of all clients; classes are the names of the class folders, sorted over all clients.

    With a `size`, height and width, all are brought to it.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("cat", "dog"):
    ...         (Path(folder) / "ann" / name).mkdir(parents=True)
    ...         Image.new("L", (4, 3)).save(Path(folder) / "ann" / name / "1.png")
    ...     found = read_images({"ann": Path(folder) / "ann"})
    >>> found.class_names, found.shape, found.clients["ann"][1]
    (('cat', 'dog'), (1, 3, 4), array([0, 1]))
    """
    hidden = 0
    files: dict[str, list[tuple[str, Path]]] = {}
    for who, folder in sorted(folders.items()):
        files[who], skipped = _listed(folder)
        hidden += skipped
    heads = {path: _head(path, who) for who, own in files.items() for _, path in own}
    mode, notes = agree(heads.values(), size)
    names = in_order({name for own in files.values() for name, _ in own})
    number = {name: i for i, name in enumerate(names)}
    parts = {who: _part(own, heads, mode, number, size) for who, own in files.items()}
    modes = sorted({head.mode for head in heads.values()})
    return gather(
        parts,
        kind="images by class",
        class_names=names,
        types={"x": f"8-bit images ({', '.join(modes)})", "y": "names of class folders"},
        left_out={"hidden files": hidden} if hidden else {},
        notes=[f"classes are the {len(names)} class folders of all clients, sorted by name", *notes],
        scale=PIXELS,
        recipe=Recipe(resize=size),
    )


def read_loose(folder: Path, channels: int, size: Size | None = None) -> tuple[list[str], NDArray[np.uint8]]:
    """All images of a folder and those inside it, whatever they are sorted by: names and [images, c, h, w].

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("L", (4, 3)).save(Path(folder) / "1.png")
    ...     names, x = read_loose(Path(folder), 1)
    >>> names, x.shape
    (['1.png'], (1, 1, 3, 4))
    """
    with reading(folder):
        paths = [p for p in sorted(folder.rglob("*")) if p.suffix.lower() in IMAGES and p.is_file()]
    if not paths:
        raise KinfolkError("data.folder", short(folder), f"holds no images ({', '.join(IMAGES)})")
    heads = {path: _head(path, folder.name) for path in paths}
    agree(heads.values(), size)
    mode = "L" if channels == 1 else "RGB"
    part = _part([("", path) for path in paths], heads, mode, {"": 0}, size)
    return [str(path.relative_to(folder)) for path in paths], part.x


def _listed(folder: Path) -> tuple[list[tuple[str, Path]], int]:
    """(class, file) of one client in order of name, and how many hidden files there are."""
    files: list[tuple[str, Path]] = []
    classes, hidden = inside(folder)
    for inner in classes:
        if not inner.is_dir():
            raise KinfolkError("data.file", short(inner), "put a client's images in one folder per class")
        shown, more = inside(inner)
        files, hidden = files + [(inner.name, path) for path in shown], hidden + more
    for _, path in files:
        if path.suffix.lower() not in IMAGES or not path.is_file():
            known = ", ".join(IMAGES)
            raise KinfolkError(
                "data.file", short(path), f"not an image of a known kind ({known}); move it away"
            )
    if not files:
        raise KinfolkError("data.folder", short(folder), "holds no images; put them in one folder per class")
    return files, hidden


def _head(path: Path, who: str) -> ImageHead:
    with _opened(path) as image:
        return ImageHead(f"{who}/{path.parent.name}/{path.name}", image.size, image.mode)


def _part(
    files: Sequence[tuple[str, Path]],
    heads: Mapping[Path, ImageHead],
    mode: str,
    number: Mapping[str, int],
    size: Size | None,
) -> ClientRows:
    high, wide = size or heads[files[0][1]].size[::-1]
    with reading(files[0][1].parents[1]):
        pixels_of_all = len(files) * (1 if mode == "L" else 3) * high * wide
        check_unpacked(pixels_of_all, sum(path.stat().st_size for _, path in files))
    x = np.empty((len(files), 1 if mode == "L" else 3, high, wide), dtype=np.uint8)
    for i, (_, path) in enumerate(files):
        with reading(path), _opened(path) as image:
            x[i] = pixels(image, mode, size)
    y = np.array([number[name] for name, _ in files], dtype=np.int64)
    return ClientRows(x, y, np.zeros(len(y), dtype=bool), np.arange(1, len(y) + 1, dtype=np.int64))


def _opened(path: Path) -> Image.Image:
    from PIL import Image

    with reading(path), warnings.catch_warnings():
        # PIL only warns of an image so large that it may be meant to fill the memory.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            return Image.open(path)
        except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
            raise ValueError(str(error)) from error
