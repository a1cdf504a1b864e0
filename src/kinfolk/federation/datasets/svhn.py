"""SVHN, house-number digits of 32 by 32 in colour, from the .mat files of its second format."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kinfolk.federation.datasets.files import Archive, corrupt
from kinfolk.federation.datasets.idx import DIGITS
from kinfolk.federation.datasets.mat import read_mat
from kinfolk.federation.datasets.rows import CENTRED, Array, Rows, check_rows, halves


def _half(archive: Archive, name: str) -> tuple[Array, Array]:
    name = archive.need(name)
    x, y = read_mat(archive, name, "X", "y")
    y = y.ravel()
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3 or x.shape[3] != len(y):
        wrong = f"X is {x.dtype} {x.shape} for {len(y)} labels"
        raise corrupt(archive.folder / name, wrong)
    if len(y) and not (y.min() >= 1 and y.max() <= 10):
        raise corrupt(archive.folder / name, f"labels {y.min()} to {y.max()}, not 1 to 10")
    # The published files call the digit zero 10.
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y.astype(np.int64) % 10


def official(folder: Path) -> Rows:
    """SVHN from train_32x32.mat and test_32x32.mat; the extra set is not read.

    >>> official(Path("none"))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.file = 'none/train_32x32.mat': is missing; fetch it or add it
    """
    with Archive(folder) as archive:
        x, y, test = halves(_half(archive, "train_32x32.mat"), _half(archive, "test_32x32.mat"))
    return check_rows(Rows(x, y, 10, CENTRED, test, class_names=DIGITS))
