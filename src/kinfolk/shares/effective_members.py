"""How many members a weighted sum counts for, and weights that count for enough of them.

(sum sigma)**2 / sum sigma**2 is the number of equal weights that would mix as well: n for n equal ones, 1 for
a single one whatever the number of others with weights near 0. Without k of its members a sum counts for at
most k fewer: (a + b)**2 / (p + q) <= a**2 / p + b**2 / q, and k members count for at most k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# Rounding of equal weights must not be taken for a lie.
_SLACK = 1e-9


def effective_members(sigma: Sequence[float]) -> float:
    """The effective number of members, (sum sigma)**2 / sum sigma**2; 0 where all weights are 0.

    >>> effective_members((0.5, 0.5, 0.5)), effective_members((1, 0, 0)), effective_members((0, 0))
    (3.0, 1.0, 0.0)
    """
    largest = max(sigma, default=0.0)
    if not largest > 0:
        return 0.0
    scaled = [one / largest for one in sigma]  # so that no square is too small for a float
    return math.fsum(scaled) ** 2 / math.fsum(one * one for one in scaled)


def enough(sigma: Sequence[float], members: int) -> bool:
    """Whether weights count for at least so many members, up to rounding.

    >>> enough((0.1, 0.1, 0.1), 3), enough((1, 1, 1e-12), 3)
    (True, False)
    """
    return effective_members(sigma) >= members * (1 - _SLACK)


def levelled(sigma: Sequence[float], members: int) -> tuple[float, ...]:
    """The weights, drawn towards their mean by as little as makes them count for so many members.

    Their sum stays. Fewer weights than members, and weights that are all 0, are given back as they are.

    >>> levelled((0.5, 0.4, 0.6, 0.1), 3)  # counts as 3.28
    (0.5, 0.4, 0.6, 0.1)
    >>> [round(one, 3) for one in levelled((0.9, 0.1, 0.1, 0.1), 3)]
    [0.6, 0.2, 0.2, 0.2]
    >>> levelled((0.9, 0.3, 0.3), 3)  # three that count for three are equal
    (0.5, 0.5, 0.5)
    """
    n, given = len(sigma), tuple(float(one) for one in sigma)
    if n < members or enough(given, members) or not max(given, default=0.0) > 0:
        return given
    mean = math.fsum(given) / n
    if n == members:
        return (mean,) * n
    spread = math.fsum((one - mean) ** 2 for one in given)
    # (sum)**2 / (sum**2 / n + keep**2 * spread) = members, solved for what is kept of the differences.
    keep = mean * n * math.sqrt((1 / members - 1 / n) / spread)
    return tuple(mean + keep * (one - mean) for one in given)
