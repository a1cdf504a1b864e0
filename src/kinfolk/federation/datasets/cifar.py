"""CIFAR-10 from its binary version; the Python version is pickled and is not read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kinfolk.federation.datasets.files import Archive, corrupt
from kinfolk.federation.datasets.rows import CENTRED, Array, Rows, check_rows

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_RECORD = 1 + 3 * 32 * 32
_BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


def _batch(archive: Archive, name: str) -> Array:
    name = archive.need(name)
    data = archive.read(name)
    if not data or len(data) % _RECORD:
        wrong = f"{len(data)} bytes are no whole number of images of {_RECORD}"
        raise corrupt(archive.folder / name, wrong)
    return np.frombuffer(data, np.uint8).reshape(-1, _RECORD)


def official(folder: Path) -> Rows:
    """CIFAR-10 from data_batch_1.bin to data_batch_5.bin and test_batch.bin, or from their .tar.gz.

    >>> official(Path("none"))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.file = 'none/data_batch_1.bin': is missing; fetch it or add it
    """
    with Archive(folder) as archive:
        pickled = [
            n for n in archive.plain if n.endswith(("cifar-10-python.tar.gz", "batches-py/data_batch_1"))
        ]
        if pickled and not any(n.endswith((".bin", "binary.tar.gz")) for n in archive.plain):
            wrong = "the Python version is pickled, which can run code"
            raise corrupt(archive.folder / pickled[0], wrong, "get the binary version")
        batches = [_batch(archive, name) for name in _BATCHES]
    # All six hold 10,000 images as published, so one that holds fewer was cut between two images.
    most = max(len(batch) for batch in batches)
    for name, batch in zip(_BATCHES, batches, strict=True):
        if len(batch) < most:
            wrong = f"{len(batch)} images where another batch has {most}"
            raise corrupt(archive.folder / name, wrong)
    table = np.concatenate(batches)
    test = np.arange(len(table)) >= 5 * most
    index = np.where(test, np.arange(len(table)) - 5 * most, np.arange(len(table)))
    x = np.ascontiguousarray(table[:, 1:]).reshape(-1, 3, 32, 32)
    y = table[:, 0].astype(np.int64)
    return check_rows(Rows(x, y, 10, CENTRED, test, class_names=CLASSES, extra={"index": index}))
