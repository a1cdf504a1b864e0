"""Whether seeds agree on who belongs together, beyond what shuffled groups would."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from kinfolk.report.groups import same_clients

# Groups on which seeds agree less than this are not settled; `kinfolk choose-k` has the same limit.
SETTLED = 0.8
# How often groups are shuffled to see what chance does, and how many of these stay below the limit.
DRAWS, BELOW = 199, 0.95


@dataclass(frozen=True)
class Agreement:
    """The mean adjusted Rand index between the groups of every two seeds."""

    index: float
    chance: float  # what 95 of 100 shuffles stay below
    pairs: int  # of seeds

    @property
    def settled(self) -> bool:
        """Whether the seeds found the same groups."""
        return self.index >= SETTLED and not self.by_chance

    @property
    def by_chance(self) -> bool:
        """Whether shuffled groups agree as much."""
        return self.index <= self.chance


def rand_index(one: ArrayLike, other: ArrayLike) -> float:
    """The adjusted Rand index of two groupings of the same clients (Hubert and Arabie, 1985).

    >>> rand_index([0, 0, 1, 1], [5, 5, 2, 2]), rand_index([0, 0, 1, 1], [0, 1, 1, 1])
    (1.0, 0.0)
    """
    return _index(_from_zero(one), _from_zero(other))


def _index(a: NDArray[np.int64], b: NDArray[np.int64]) -> float:
    both, mine, theirs = (_pairs(labels) for labels in (a * (int(b.max()) + 1) + b, a, b))
    expected = mine * theirs / max(len(a) * (len(a) - 1) / 2, 1)
    most = (mine + theirs) / 2
    return 1.0 if most == expected else (both - expected) / (most - expected)


def _from_zero(labels: ArrayLike) -> NDArray[np.int64]:
    found: NDArray[np.int64] = np.unique(np.asarray(labels), return_inverse=True)[1].ravel()
    return found


def _pairs(labels: NDArray[np.int64]) -> float:
    """How many pairs of clients have the same label; labels may be far more than clients."""
    wide = int(labels.max()) + 1
    counts = np.bincount(labels) if wide <= 10 * len(labels) else np.unique(labels, return_counts=True)[1]
    return float((counts * (counts - 1) / 2).sum())


def agreement(frames: Iterable[pd.DataFrame]) -> Agreement | None:
    """How far seeds agree, from the members of each; None if no two have the same clients.

    >>> frame = pd.DataFrame({"group": [0] * 6 + [1] * 6, "known": 0.0}, index=list("abcdefghijkl"))
    >>> found = agreement([frame, frame, frame])
    >>> found.index, found.chance < 0.5, found.pairs
    (1.0, True, 3)
    """
    draw = np.random.Generator(np.random.PCG64(0))
    pairs = [(_from_zero(a), _from_zero(b)) for a, b in same_clients(list(frames))]
    if not pairs:
        return None
    shuffled = [np.mean([_index(a, draw.permutation(b)) for a, b in pairs]) for _ in range(DRAWS)]
    index = float(np.mean([_index(a, b) for a, b in pairs]))
    return Agreement(index, float(np.quantile(shuffled, BELOW)), len(pairs))
