"""A pool: labelled rows split once into training and test rows, before anything is dealt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from kinfolk.federation.partition.holdout import Ints, stratified
from kinfolk.streams import Seed
from kinfolk.types import Client


@dataclass(frozen=True, eq=False)
class Pool:
    """Rows to deal from. Clients train on rows of `train` and are tested on rows of `test` only."""

    x: Tensor  # [pool, ...] float32, or bytes with a scale
    y: Tensor  # [pool] int64
    train: Ints  # rows, increasing
    test: Ints  # rows, increasing; none of them in train
    classes: int
    scale: tuple[float, float] | None = None  # rows stored as bytes are x * scale[0] + scale[1]
    owner: Ints | None = None  # [pool] whose row it is by nature, a place in `names`
    names: tuple[Client, ...] = ()  # owners, sorted
    block: Ints | None = None  # [pool] rows that resemble one another, such as windows of one recording
    note: str = ""  # who was left out, for the description of the federation
    class_names: tuple[str, ...] = ()  # what the data call their classes

    @property
    def labels(self) -> Ints:
        """The labels as NumPy, for drawing."""
        return np.asarray(self.y.numpy(), dtype=np.int64)


def split_pool(x: Tensor, y: Tensor, classes: int, test_fraction: float, seed: Seed) -> Pool:
    """A pool whose test rows hold the same fraction of every class.

    >>> import torch
    >>> pool = split_pool(torch.zeros(8, 2), torch.tensor([0, 1] * 4), 2, 0.25, Seed(0))
    >>> len(pool.train), pool.y[pool.test].tolist().count(1)
    (6, 1)
    """
    train, test = stratified(np.asarray(y.numpy(), dtype=np.int64), test_fraction, seed.numpy("data", "pool"))
    return Pool(x, y, train, test, classes)
