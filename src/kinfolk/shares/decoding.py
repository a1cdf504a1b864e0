"""Which of several shares of a sum lie on one polynomial: wrong ones are found and left out.

A response is a vector, one point of as many polynomials as there are coordinates. A random combination of the
coordinates, drawn after the responses are in, makes one number of each: wrong responses stay wrong but for
one chance in 2**61, and the search is over numbers. Of m responses on polynomials of degree t - 1, a set of
at least (m + t) / 2 that fit together is the right one whenever at most (m - t) / 2 are wrong: t of the set
are right then, and t points determine a polynomial.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import comb

import numpy as np

from kinfolk.shares.prime_field import PRIME, Words
from kinfolk.types import Client

# Sets of responses that are tried. 25 responses of which 4 are wrong take 15,276.
_MOST = 20_000


def fitting(
    responses: Mapping[Client, Words], points: Mapping[Client, int], t: int
) -> Iterator[tuple[Client, ...]]:
    """The largest sets of responses that lie on polynomials of degree t - 1: all those of the largest size.

    >>> line = {Client(c): np.array([3 + 2 * x], dtype=np.uint64) for x, c in enumerate("abcde", 1)}
    >>> points = {c: x for x, c in enumerate(line, 1)}
    >>> list(fitting({**line, Client("b"): np.array([9], dtype=np.uint64)}, points, 2))
    [('a', 'c', 'd', 'e')]
    """
    names = sorted(responses)
    values = dict(zip(names, _numbers([responses[who] for who in names]), strict=True))
    tried = 0
    for wrong in range(len(names) - t + 1):
        tried += comb(len(names), wrong)
        if tried > _MOST:
            return
        found = [
            kept
            for kept in combinations(names, len(names) - wrong)
            if _fit([points[who] for who in kept], [values[who] for who in kept], t)
        ]
        if found:
            yield from found
            return


def _numbers(parts: Sequence[Words]) -> list[int]:
    """The same random combination of each vector's coordinates, modulo the prime."""
    if len(parts[0]) == 0:
        return [0] * len(parts)
    factors = np.frombuffer(secrets.token_bytes(8 * len(parts[0])), dtype=np.uint64) >> np.uint64(3)
    return [_dot(part, factors) for part in parts]


def _dot(words: Words, factors: Words) -> int:
    """sum(words * factors) modulo the prime, by halves of the factors, which keep products below 2**64."""
    total, half = 0, np.uint64(31)
    low = factors & np.uint64(2**31 - 1)
    for shift, factor in ((0, low), (31, factors >> half)):
        # Words of 61 bits in two halves as well: 31 by 31 bits, summed as Python's whole numbers.
        for up, part in ((0, words & np.uint64(2**31 - 1)), (31, words >> half)):
            products = part * factor
            low_sum = int((products & np.uint64(2**32 - 1)).sum(dtype=np.uint64))
            high_sum = int((products >> np.uint64(32)).sum(dtype=np.uint64))
            total += (low_sum + (high_sum << 32)) << (shift + up)
    return total % PRIME


def _fit(points: Sequence[int], values: Sequence[int], t: int) -> bool:
    """Whether the values are those of a polynomial of degree below t: its higher differences vanish."""
    weights = []
    for x in points:
        under = 1
        for other in points:
            if other != x:
                under = under * (x - other) % PRIME
        weights.append(pow(under, -1, PRIME))
    terms = [w * v % PRIME for w, v in zip(weights, values, strict=True)]
    for _ in range(len(points) - t):
        if sum(terms) % PRIME:
            return False
        terms = [term * x % PRIME for term, x in zip(terms, points, strict=True)]
    return True
