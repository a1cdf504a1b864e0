"""Arrays out of .npz files (without pickle), .mat files and pictures, and rows out of the compact files."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kinfolk.federation.datasets.files import Archive, corrupt, reading
from kinfolk.federation.datasets.rows import Array, Rows, check_rows
from kinfolk.unpack import check_unpacked, member

if TYPE_CHECKING:
    from PIL.Image import Image


def read_npz(file: Path | io.BytesIO, name: Path | str, *keys: str) -> dict[str, Array]:
    """The arrays under `keys`, or all; `name` is what errors call the file. An array of objects is refused.

    Members are read whole, so that the archive's own checksums speak before a number is used.

    >>> file = io.BytesIO()
    >>> np.savez(file, y=np.arange(3))
    >>> read_npz(file, "a.npz", "y")["y"].tolist()
    [0, 1, 2]
    >>> read_npz(file, "a.npz", "x")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: data.file = 'a.npz': not used: has no array 'x', only y; replace it
    """
    arrays: dict[str, Array] = {}
    inside = npz_names(file, name)
    packed = file.stat().st_size if isinstance(file, Path) else file.getbuffer().nbytes
    with reading(name), zipfile.ZipFile(file) as archive:
        whole = [info.file_size for info in archive.infolist() if not keys or info.filename[:-4] in keys]
        check_unpacked(sum(whole), packed)
        for key in keys or inside:
            if key not in inside:
                raise ValueError(f"has no array {key!r}, only {', '.join(inside)}")
            array = io.BytesIO(member(archive, f"{key}.npy", packed))
            try:
                arrays[key] = np.lib.format.read_array(array, allow_pickle=False)
            except ValueError as error:
                pickled = "allow_pickle" in str(error)
                raise ValueError(
                    f"array {key!r} is a pickle, never opened" if pickled else str(error)
                ) from error
    return arrays


def npz_names(file: Path | io.BytesIO, name: Path | str | None = None) -> list[str]:
    """The names of the arrays in a .npz file, sorted.

    >>> file = io.BytesIO()
    >>> np.savez(file, y=np.arange(3), x=np.ones(3))
    >>> npz_names(file)
    ['x', 'y']
    """
    with reading(name or str(file)), zipfile.ZipFile(file) as archive:
        return sorted(member.removesuffix(".npy") for member in archive.namelist())


def undelta(delta: Array, name: Path | str) -> Array:
    """Images [n, 3, h, w] from differences along y, then x, of the planes (G, R - G, B - G), modulo 256.

    >>> undelta(np.array([[[[5, 1]], [[2, 0]], [[3, 0]]]], np.uint8), "a.npz").tolist()
    [[[[7, 8]], [[5, 6]], [[8, 9]]]]
    """
    if delta.dtype != np.uint8 or delta.ndim != 4 or delta.shape[1] != 3:
        raise corrupt(name, f"delta-coded images are {delta.dtype} {delta.shape}")
    planes = np.cumsum(delta, axis=2, dtype=np.uint8)
    np.cumsum(planes, axis=3, dtype=np.uint8, out=planes)
    planes[:, 1:] += planes[:, :1]
    return planes[:, [1, 0, 2]]


def read_compact(path: Path) -> dict[str, Array]:
    """All arrays of a compact file: halves joined, images decoded as [n, c, h, w], whole numbers as int64.

    Where rows are published as test rows, "test" says which.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.npz"
    ...     half = {"x": np.zeros((2, 8, 8), np.uint8), "y": np.array([3, 4]), "house": np.array([7, 7])}
    ...     np.savez(path, **{f"{key}_{end}": v for key, v in half.items() for end in ("train", "test")})
    ...     found = read_compact(path)
    >>> found["x"].shape, found["y"].tolist(), found["test"].tolist(), found["house"].tolist()
    ((4, 1, 8, 8), [3, 4, 3, 4], [False, False, True, True], [7, 7, 7, 7])
    """
    found = read_npz(path, path)
    for key in [key for key in found if key.endswith("_delta")]:
        found[key.removesuffix("_delta")] = undelta(found.pop(key), path)
    if "split" in found:
        found["test"] = found["split"] == 1
    _join_halves(found)
    if "x" in found and found["x"].dtype == np.uint8 and found["x"].ndim == 3:
        found["x"] = found["x"][:, None]
    stored = ("x", "text")
    return {
        key: a.astype(np.int64) if key not in stored and a.dtype.kind in "iu" else a
        for key, a in found.items()
    }


def _join_halves(found: dict[str, Array]) -> None:
    for key in [key.removesuffix("_train") for key in found if key.endswith("_train")]:
        ends = [found.pop(f"{key}_{end}") for end in ("train", "test")]
        found[key] = np.concatenate(ends)
        found["test"] = np.arange(len(found[key])) >= len(ends[0])


def compact_rows(found: Mapping[str, Array], names: Sequence[str], scale: tuple[float, float]) -> Rows:
    """The rows of a compact file as they are.

    >>> found = {"x": np.zeros((2, 1, 8, 8), np.uint8), "y": np.array([1, 0])}
    >>> compact_rows(found, ("no", "yes"), (1.0, 0.0)).classes
    2
    """
    natural = "client_name" in found
    return check_rows(
        Rows(
            found["x"],
            found["y"],
            len(names),
            scale,
            found.get("test"),
            found["client"] if natural else None,
            tuple(found["client_name"].tolist()) if natural else (),
            tuple(names),
            found.get("block"),
        )
    )


def read_mat(archive: Archive, name: str, *keys: str) -> list[Array]:
    """The arrays under `keys` of a .mat file; one that is cut short or something else is named.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Archive(Path(folder)) as archive:
    ...     _ = (Path(folder) / "a.mat").write_bytes(b"text" * 99)
    ...     read_mat(archive, "a.mat", "X")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.file = '.../a.mat': not used: Unknown mat file type, ...; replace it
    """
    from scipy.io import loadmat  # slow to import, wanted by two data sets only
    from scipy.io.matlab import MatReadError

    with reading(archive.folder / name):
        try:
            found = loadmat(archive.file(name), variable_names=keys)
        except MatReadError as error:  # an error of its own kind, no ValueError
            raise ValueError(str(error)) from error
        if absent := [key for key in keys if key not in found]:
            raise ValueError(f"has no array {absent[0]!r}")
    return [found[key] for key in keys]


def picture(data: bytes, name: Path | str) -> Image:
    """A picture in RGB, decoded whole.

    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("L", (2, 3), 7).save(file, "PNG")
    >>> picture(file.getvalue(), "a.png").size
    (2, 3)
    """
    from PIL import Image  # other data sets should not wait for it

    with reading(name), Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


def planes(image: Image) -> Array:
    """A picture as bytes [channels, height, width].

    >>> from PIL import Image
    >>> planes(Image.new("RGB", (2, 1), (1, 2, 3))).tolist()
    [[[1, 1]], [[2, 2]], [[3, 3]]]
    """
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
