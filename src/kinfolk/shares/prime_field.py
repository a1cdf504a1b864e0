"""Arithmetic modulo the prime 2**61 - 1 on arrays of 64-bit words, and polynomials through points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PRIME = 2**61 - 1
Words = NDArray[np.uint64]

_P, _61, _31, _30 = np.uint64(PRIME), np.uint64(61), np.uint64(31), np.uint64(30)
_LOW31, _LOW30 = np.uint64(2**31 - 1), np.uint64(2**30 - 1)
# Coordinates in one go: the dozen passes of a product then find their numbers in the cache.
BLOCK = 1 << 14


def reduced(words: Words) -> Words:
    """Any 64-bit words modulo the prime.

    >>> reduced(np.array([PRIME, PRIME + 5, 2**64 - 1], dtype=np.uint64))
    array([0, 5, 7], dtype=uint64)
    """
    folded = (words & _P) + (words >> _61)
    return np.where(folded >= _P, folded - _P, folded)


def times(words: Words, factor: int) -> Words:
    """Each word (below the prime) times one factor.

    >>> times(np.array([2**60, 3], dtype=np.uint64), 2)
    array([1, 6], dtype=uint64)
    """
    high, low = words >> _31, words & _LOW31
    up, down = np.uint64(factor >> 31), np.uint64(factor & (2**31 - 1))
    # 2**62 is 2 and 2**61 is 1 modulo the prime; the terms together stay below 2**64.
    middle = high * down + low * up
    whole = (high * up) * np.uint64(2) + (middle >> _30) + ((middle & _LOW30) << _31) + low * down
    return reduced(whole)


def add_times(into: Words, words: Words, factor: int) -> None:
    """into += factor * words, in place.

    >>> a = np.array([1, 2], dtype=np.uint64); add_times(a, a.copy(), 10); a
    array([11, 22], dtype=uint64)
    """
    for start in range(0, len(into), BLOCK):
        here = slice(start, start + BLOCK)
        into[here] = reduced(into[here] + times(words[here], factor))


def weights(points: Sequence[int], at: int) -> list[int]:
    """Lagrange's weights: the value at `at` of the polynomial through `points` is the weighted sum.

    >>> weights([1, 2], 3) == [PRIME - 1, 2]
    True
    """
    found = []
    for i, own in enumerate(points):
        over, under = 1, 1
        for j, other in enumerate(points):
            if j != i:
                over, under = over * (at - other) % PRIME, under * (own - other) % PRIME
        found.append(over * pow(under, -1, PRIME) % PRIME)
    return found


def value_at(values: Sequence[Words], points: Sequence[int], at: int) -> Words:
    """The polynomials through (points, values), one for each coordinate, at one more point.

    >>> value_at([np.array([5], dtype=np.uint64), np.array([7], dtype=np.uint64)], [1, 2], 0)
    array([3], dtype=uint64)
    """
    whole = np.zeros_like(values[0])
    for factor, part in zip(weights(points, at), values, strict=True):
        add_times(whole, part, factor)
    return whole


def signed(words: Words) -> NDArray[np.int64]:
    """Words below the prime as whole numbers around zero.

    >>> signed(np.array([3, PRIME - 3], dtype=np.uint64))
    array([ 3, -3])
    """
    plain = words.astype(np.int64)
    return np.where(plain > PRIME // 2, plain - PRIME, plain)


def unsigned(whole: NDArray[np.int64]) -> Words:
    """Whole numbers around zero as words below the prime.

    >>> signed(unsigned(np.array([3, -3])))
    array([ 3, -3])
    """
    return np.where(whole < 0, whole + PRIME, whole).astype(np.uint64)
