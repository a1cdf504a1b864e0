"""Arrays out of .npz files without pickle, and images out of their delta-coded form."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np

from kinfolk.federation.datasets.files import corrupt, reading
from kinfolk.federation.datasets.rows import Array, Bools, halves
from kinfolk.federation.partition.holdout import Ints


def read_npz(file: Path | io.BytesIO, name: Path | str, *keys: str) -> dict[str, Array]:
    """The arrays under `keys`; `name` is what errors call the file. An array of objects is refused.

    Members are read whole, so that the archive's own checksums speak before a number is used.

    >>> file = io.BytesIO()
    >>> np.savez(file, y=np.arange(3))
    >>> read_npz(file, "a.npz", "y")["y"].tolist()
    [0, 1, 2]
    >>> read_npz(file, "a.npz", "x")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: data.file = 'a.npz': not used: has no array 'x', only y; get it again
    """
    arrays: dict[str, Array] = {}
    with reading(name), zipfile.ZipFile(file) as archive:
        inside = [member.removesuffix(".npy") for member in archive.namelist()]
        for key in keys:
            if key not in inside:
                raise ValueError(f"has no array {key!r}, only {', '.join(sorted(inside))}")
            member = io.BytesIO(archive.read(f"{key}.npy"))
            arrays[key] = np.lib.format.read_array(member, allow_pickle=False)
    return arrays


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


def read_halves(path: Path, *more: str) -> tuple[Array, Ints, Bools, dict[str, Ints]]:
    """A compact file of two halves: x, y, which rows are test rows, and whole numbers about each row.

    Images come as [n, c, h, w], whether they lie there grey or delta-coded.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.npz"
    ...     half = {"x": np.zeros((2, 8, 8), np.uint8), "y": np.array([3, 4]), "house": np.array([7, 7])}
    ...     np.savez(path, **{f"{key}_{end}": v for key, v in half.items() for end in ("train", "test")})
    ...     x, y, test, extra = read_halves(path, "house")
    >>> x.shape, y.tolist(), test.tolist(), extra["house"].tolist()
    ((4, 1, 8, 8), [3, 4, 3, 4], [False, False, True, True], [7, 7, 7, 7])
    """
    ends = ("train", "test")
    with reading(path), zipfile.ZipFile(path) as archive:
        coded = "x_train_delta.npy" in archive.namelist()
    images = [f"x_{end}_delta" if coded else f"x_{end}" for end in ends]
    found = read_npz(path, path, *images, *(f"{key}_{end}" for key in ("y", *more) for end in ends))
    parts = []
    for key, end in zip(images, ends, strict=True):
        x = undelta(found[key], path) if coded else found[key]
        parts.append((x[:, None] if x.ndim == 3 else x, found[f"y_{end}"]))
    x, y, test = halves(*parts)
    return x, y, test, {k: np.concatenate([found[f"{k}_{e}"] for e in ends]).astype(np.int64) for k in more}
