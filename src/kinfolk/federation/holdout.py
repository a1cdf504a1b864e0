"""Rows kept apart: some of a client's, or some of every class of a pool."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def held_count(count: int, fraction: float) -> int:
    """How many of `count` to hold out: near the fraction, at least one, never all.

    >>> held_count(10, 0.25), held_count(2, 0.01), held_count(1, 0.5), held_count(9, 0.0)
    (2, 1, 0, 0)
    """
    if fraction <= 0 or count < 2:
        return 0
    return min(max(1, round(fraction * count)), count - 1)


def hold_out(rows: Ints, fraction: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Part `rows` in (kept, held). Copies of one row stay on one side, whatever their number.

    >>> kept, held = hold_out(np.array([5, 5, 6, 7]), 0.34, np.random.default_rng(0))
    >>> set(kept.tolist()) & set(held.tolist()), len(kept) + len(held)
    (set(), 4)
    """
    distinct = np.unique(rows)
    chosen = rng.permutation(distinct)[: held_count(len(distinct), fraction)]
    out = np.isin(rows, chosen)
    return rows[~out], rows[out]


def stratified(labels: Ints, fraction: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Part all rows in (kept, held), class by class; both come in increasing order.

    >>> kept, held = stratified(np.array([0, 0, 0, 0, 1, 1]), 0.5, np.random.default_rng(0))
    >>> len(kept), len(held)
    (3, 3)
    """
    held = [hold_out(np.flatnonzero(labels == c), fraction, rng)[1] for c in np.unique(labels)]
    out = np.isin(np.arange(len(labels)), np.concatenate(held))
    return np.flatnonzero(~out), np.flatnonzero(out)
