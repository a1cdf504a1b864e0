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


def rand_index(one: ArrayLike, others: ArrayLike) -> NDArray[np.float64]:
    """Adjusted Rand indices (Hubert, Arabie, 1985) of a grouping with each of others [groupings, clients].

    >>> rand_index([0, 0, 1, 1], [[5, 5, 2, 2], [0, 1, 0, 1]]).tolist()
    [1.0, -0.5]
    """
    a: NDArray[np.int64] = np.unique(np.asarray(one), return_inverse=True)[1].ravel()
    b: NDArray[np.int64] = np.unique(np.asarray(others), return_inverse=True)[1].reshape(-1, len(a))
    wide, high = int(a.max()) + 1, int(b.max()) + 1
    cells = (np.arange(len(b))[:, None] * wide + a) * high + b
    both = np.bincount(cells.ravel(), minlength=len(b) * wide * high).reshape(len(b), wide, high)

    def pairs(counts: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray((counts * (counts - 1) / 2).reshape(len(b), -1).sum(1))

    mine, theirs = pairs(both.sum(2)), pairs(both.sum(1))
    expected = mine * theirs / max(len(a) * (len(a) - 1) / 2, 1)
    most = (mine + theirs) / 2
    same = most == expected  # both are one group, or both leave everybody alone
    found: NDArray[np.float64] = np.where(
        same, 1.0, (pairs(both) - expected) / np.where(same, 1.0, most - expected)
    )
    return found


def agreement(frames: Iterable[pd.DataFrame]) -> Agreement | None:
    """How far seeds agree, from the members of each; None if no two have the same clients.

    >>> frame = pd.DataFrame({"group": [0] * 6 + [1] * 6, "known": 0.0}, index=list("abcdefghijkl"))
    >>> found = agreement([frame, frame, frame])
    >>> found.index, found.chance < 0.5, found.pairs
    (1.0, True, 3)
    """
    draw = np.random.Generator(np.random.PCG64(0))
    pairs = [(a.to_numpy(), b.to_numpy()) for a, b in same_clients(list(frames))]
    if not pairs:
        return None
    shuffled = [rand_index(a, draw.permuted(np.tile(b, (DRAWS, 1)), axis=1)) for a, b in pairs]
    return Agreement(
        float(np.mean([rand_index(a, [b])[0] for a, b in pairs])),
        float(np.quantile(np.mean(shuffled, axis=0), BELOW)),
        len(pairs),
    )
