"""Which seeds: so many from the first on, or these."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from kinfolk.errors import KinfolkError

# A number of seeds, or the seeds themselves.
Seeds = int | Sequence[int]


def seed_numbers(seeds: Seeds, first: int = 0) -> tuple[int, ...]:
    """The seeds that are meant: `3` is three from the first on, `[0, 4, 7]` are these.

    >>> seed_numbers(3, first=10), seed_numbers([0, 4, 7], first=10)
    ((10, 11, 12), (0, 4, 7))
    >>> seed_numbers([1, 1])
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: seeds = [1, 1]: give each seed once
    """
    if isinstance(seeds, Sequence) and not isinstance(seeds, str):
        numbers = tuple(seeds)
        if not numbers or not all(_whole(one) and one >= 0 for one in numbers):
            raise KinfolkError("seeds", list(numbers), "give a list of whole numbers, 0 or more each")
        if len(set(numbers)) < len(numbers):
            raise KinfolkError("seeds", list(numbers), "give each seed once")
        return tuple(map(int, numbers))
    if not _whole(seeds):
        raise KinfolkError("seeds", seeds, "give how many seeds as a whole number, or a list of them")
    if seeds < 1:
        raise KinfolkError("seeds", seeds, "give 1 or more (3 or more for error bars)")
    return tuple(range(first, first + int(seeds)))


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)  # NumPy's too
