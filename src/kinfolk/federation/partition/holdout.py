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


def hold_out(
    rows: Ints, fraction: float, rng: np.random.Generator, block: Ints | None = None
) -> tuple[Ints, Ints]:
    """Part `rows` in (kept, held). Copies of one row stay on one side, whatever their number.

    So do rows of one block, where `block` says which (by row of the pool); the fraction is then one
    of blocks.

    >>> kept, held = hold_out(np.array([5, 5, 6, 7]), 0.34, np.random.default_rng(0))
    >>> set(kept.tolist()) & set(held.tolist()), len(kept) + len(held)
    (set(), 4)
    """
    unit = rows if block is None else block[rows]
    distinct = np.unique(unit)
    chosen = rng.permutation(distinct)[: held_count(len(distinct), fraction)]
    out = np.isin(unit, chosen)
    return rows[~out], rows[out]


def in_order(rows: Ints, start: Ints, length: int, fraction: float) -> tuple[Ints, Ints]:
    """Part rows of one text in (kept, held): held are those of its last part.

    Row r covers `length` tokens from `start[r]` on. One that covers tokens of both parts is in neither, so
    that nothing of what is held out was seen before.

    >>> [part.tolist() for part in in_order(np.arange(6), np.array([0, 2, 4, 6, 8, 10]), 3, 0.4)]
    [[0, 1, 2], [4, 5]]
    """
    if fraction <= 0 or len(rows) < 2:
        return rows, rows[:0]
    first, end = start[rows].min(), start[rows].max() + length
    cut = end - fraction * (end - first)
    return rows[start[rows] + length <= cut], rows[start[rows] >= cut]


def stratified(
    labels: Ints, fraction: float, rng: np.random.Generator, block: Ints | None = None
) -> tuple[Ints, Ints]:
    """Part all rows in (kept, held), class by class; both come in increasing order.

    >>> kept, held = stratified(np.array([0, 0, 0, 0, 1, 1]), 0.5, np.random.default_rng(0))
    >>> len(kept), len(held)
    (3, 3)
    """
    held = [hold_out(np.flatnonzero(labels == c), fraction, rng, block)[1] for c in np.unique(labels)]
    out = np.isin(np.arange(len(labels)), np.concatenate(held))
    if block is not None:  # a block of several classes goes where any of its rows goes
        out = np.isin(block, block[out])
    return np.flatnonzero(~out), np.flatnonzero(out)


def by_owner(owner: Ints, count: int) -> list[Ints]:
    """The places of each of `count` owners, increasing.

    >>> [places.tolist() for places in by_owner(np.array([1, 0, 1]), 3)]
    [[1], [0, 2], []]
    """
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(1, count)))
