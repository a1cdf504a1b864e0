"""The digits that come with scikit-learn: 1797 grey images of 8 by 8, ten classes, no download."""

from __future__ import annotations

import torch

from kinfolk.federation.pool import Pool, split_pool
from kinfolk.streams import Seed


def digits(test_fraction: float = 0.25, seed: Seed = Seed(0)) -> Pool:  # noqa: B008 - Seed is frozen
    """The digits as a pool, pixels scaled to [-1, 1], split class by class before any sampling.

    >>> pool = digits()
    >>> tuple(pool.x.shape), pool.x.min().item(), pool.x.max().item(), pool.classes
    ((1797, 1, 8, 8), -1.0, 1.0, 10)
    """
    # Imported when asked for: other sources should not wait for scikit-learn.
    from sklearn.datasets import load_digits

    found = load_digits()
    x = torch.from_numpy(found.images).to(torch.float32).unsqueeze(1)
    y = torch.from_numpy(found.target).to(torch.int64)
    return split_pool((x / 16 - 0.5) / 0.5, y, 10, test_fraction, seed)
