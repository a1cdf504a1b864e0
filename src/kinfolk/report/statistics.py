"""Which differences between methods are more than chance: paired over clients and seeds, corrected for many.

Methods of a comparison see the same clients and rows, so a client's scores are compared with its own.
Needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

# Differences are called so at this level, after correction, and intervals leave out as much.
LEVEL = 0.05
# With fewer clients Wilcoxon's test cannot reach the level: 2 / 2**5 is above it.
FEWEST_CLIENTS = 6


@dataclass(frozen=True)
class Paired:
    """The difference between two methods, the second less the first, and how sure it is.

    >>> Paired(-0.1, (-0.15, -0.05), 0.01, 0.02, 24, 3, "client").apart
    True
    """

    difference: float
    interval: tuple[float, float]  # 95 %
    p: float  # of this comparison alone
    corrected: float  # with all the others of its table (Holm)
    clients: int  # that both have scored
    seeds: int  # that both have
    unit: str  # what the test is over: "client", "seed", or "" where nothing can be said

    @property
    def apart(self) -> bool | None:
        """Whether the two are distinguishable; None where nothing can be said.

        The test over clients knows nothing of what the clients of a seed share; the interval does. Both must
        agree.
        """
        if not self.unit:
            return None
        low, high = self.interval
        return self.corrected < LEVEL and not low <= 0 <= high


def paired(first: pd.DataFrame, second: pd.DataFrame) -> Paired:
    """Compare two methods by each client's score (rows: clients, columns: seeds; NaN: not scored).

    With six common clients or more the unit of the test is the client: Wilcoxon's signed-rank test on the
    clients' differences, each averaged over the seeds. With fewer, the unit is the seed: Student's t on the
    seeds' mean differences, if there are two or more.

    >>> a = pd.DataFrame({0: [0.5, 0.6, 0.7, 0.8, 0.5, 0.6]})
    >>> b = a + pd.DataFrame({0: [0.1, 0.2, 0.3, 0.11, 0.12, 0.13]})
    >>> found = paired(a, b)
    >>> round(found.difference, 3), found.p, found.unit
    (0.16, 0.03125, 'client')
    """
    apart = (second - first).dropna(how="all", axis=0).dropna(how="all", axis=1)
    values: Floats = apart.to_numpy(dtype=np.float64)
    clients, seeds = values.shape
    nothing = Paired(math.nan, (math.nan, math.nan), math.nan, math.nan, clients, seeds, "")
    if not values.size or np.isinf(values).any():
        return nothing
    if clients >= FEWEST_CLIENTS:
        interval = crossed_interval(values)
        p = signed_rank(_noise_free(np.nanmean(values, axis=1), first))
        return replace(nothing, difference=_mean(values), interval=interval, p=p, corrected=p, unit="client")
    return paired_seeds(_noise_free(np.nanmean(values, axis=0), first), clients)


def paired_seeds(differences: Floats, clients: int = 0) -> Paired:
    """Compare two methods by one difference for each seed: Student's t.

    >>> round(paired_seeds(np.array([1.0, 2.0, 3.0])).p, 4)
    0.0742
    """
    mean, many = float(np.mean(differences)) if len(differences) else math.nan, len(differences)
    if many < 2 or not math.isfinite(mean):
        return Paired(mean, (math.nan, math.nan), math.nan, math.nan, clients, many, "")
    error = float(np.std(differences, ddof=1)) / math.sqrt(many)
    reach = float(stats.t.ppf(1 - LEVEL / 2, many - 1)) * error
    p = float(2 * stats.t.sf(abs(mean) / error, many - 1)) if error else float(mean == 0)
    return Paired(mean, (mean - reach, mean + reach), p, p, clients, many, "seed")


def _noise_free(differences: Floats, scale: pd.DataFrame) -> Floats:
    """Differences without what the order of adding leaves in the last digits, which is no difference."""
    size = float(np.nanmax(np.abs(scale.to_numpy(dtype=np.float64))))
    return np.where(np.abs(differences) <= 1e-12 * size, 0.0, differences)


def signed_rank(differences: Floats) -> float:
    """Wilcoxon's signed-rank test, two-sided: how likely so uneven signs are if neither side is better.

    Exact for up to 50 differences without ties and zeros, else by the normal approximation; zeros are ranked
    and then left out (Pratt), so that many of them make a small difference no surer.

    >>> signed_rank(np.array([1.0, 2.0, 3.0, 4.0, 5.0, -6.0]))
    0.4375
    """
    sizes = np.abs(differences)
    if not sizes.any():
        return 1.0
    exact = len(sizes) <= 50 and sizes.all() and len(np.unique(sizes)) == len(sizes)
    zeros, method = ("wilcox", "exact") if exact else ("pratt", "approx")
    return min(1.0, float(stats.wilcoxon(differences, zero_method=zeros, method=method).pvalue))


def _mean(values: Floats) -> float:
    """The mean over seeds of the means over clients."""
    return float(np.nanmean(values, axis=0).mean())


def crossed_interval(values: Floats) -> tuple[float, float]:
    """A 95 % interval for the mean of values [clients, seeds], both of which are drawn; NaN: not there.

    Clients of one seed share its model, and seeds of one client its rows, so the variance of the mean is that
    over clients plus that over seeds less what both count; the degrees of freedom are Satterthwaite's. With
    one seed this is Student's interval over clients, and says nothing of other seeds.

    >>> low, high = crossed_interval(np.array([[1.0], [2.0], [3.0]]))
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    mean, here = _mean(values), ~np.isnan(values)
    away = np.where(here, values - mean, 0.0)
    total, seeds = int(here.sum()), values.shape[1]
    parts = [_between(away.sum(1), len(values), total)]
    if seeds > 1:
        again = here.sum(1) > 1  # a client with one seed is all remainder: its mean is its value
        rest = away - np.where(again, _means(away, here, 1), 0.0)[:, None]
        rest = np.where(here, rest - np.outer(again, _means(away, here, 0)), 0.0)
        free = total - int(again.sum()) - (seeds - 1 if again.any() else 1)
        parts += [_between(away.sum(0), seeds, total), (-float((rest**2).sum()) / free / total, free)]
    # Never below what the clients alone say: the part that is taken off is an estimate too.
    variance = max(sum(part for part, _ in parts), parts[0][0])
    if not variance:
        return mean, mean
    free_in_all = variance**2 / sum(part**2 / many for part, many in parts)
    reach = float(stats.t.ppf(1 - LEVEL / 2, free_in_all)) * math.sqrt(variance)
    return mean - reach, mean + reach


def _between(sums: Floats, many: int, total: int) -> tuple[float, int]:
    """(variance of the mean, degrees of freedom) if units are drawn whose values add up to these sums."""
    return float((sums**2).sum()) / total**2 * many / (many - 1), many - 1


def _means(values: Floats, here: NDArray[np.bool_], axis: int) -> Floats:
    found: Floats = values.sum(axis) / here.sum(axis)
    return found


def holm(p: Sequence[float]) -> list[float]:
    """P-values corrected for many comparisons (Holm); NaN are no comparisons.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    known = sorted((value, i) for i, value in enumerate(p) if not math.isnan(value))
    found, least = [math.nan] * len(p), 0.0
    for place, (value, i) in enumerate(known):
        least = max(least, min(1.0, (len(known) - place) * value))
        found[i] = least
    return found


Pairs = dict[tuple[int, int], Paired]


def all_pairs(scores: Sequence[pd.DataFrame]) -> Pairs:
    """Every method with every later one, by their places; corrected for all of them together.

    All pairs, although a table shows those with the best: which is best was found from the same scores.
    """
    return corrected({(i, j): paired(scores[i], scores[j]) for i, j in combinations(range(len(scores)), 2)})


def corrected(pairs: Mapping[tuple[int, int], Paired]) -> Pairs:
    """The same comparisons with p-values corrected for one another."""
    right = holm([one.p for one in pairs.values()])
    return {key: replace(one, corrected=p) for (key, one), p in zip(pairs.items(), right, strict=True)}


def robust_ranks(pairs: Pairs, count: int) -> str:
    """Which ranks of a table hold, in words; empty where nothing can be said.

    >>> def pair(difference, p):
    ...     return Paired(difference, (difference - 0.01, difference + 0.01), p, p, 24, 3, "client")
    >>> robust_ranks({(0, 1): pair(0.0, 0.9), (0, 2): pair(0.2, 0.001), (1, 2): pair(0.2, 0.001)}, 3)
    'ranks 1 and 2 are not distinguishable; rank 3 is below both'
    """
    known = [j for j in range(1, count) if pairs[0, j].unit]
    if not known:
        return ""
    top = [0, *(j for j in known if not pairs[0, j].apart)]
    if len(top) == 1:
        return "rank 1 holds: it is distinguishable from all others"
    lower = [j for j in known if j not in top]
    below = [j for j in lower if all(pairs[min(i, j), max(i, j)].apart for i in top)]
    others = [j for j in lower if j not in below]
    said, them = [f"{_ranks(top)} are not distinguishable"], "both" if len(top) == 2 else "all of them"
    if below:
        said.append(f"{_ranks(below)} {'is' if len(below) == 1 else 'are'} below {them}")
    if others:
        said.append(
            f"{_ranks(others)} {'is' if len(others) == 1 else 'are'} below rank 1, but not below {them}"
        )
    return "; ".join(said)


def _ranks(places: Sequence[int]) -> str:
    """Places in words, counted from one: neighbours joined.

    >>> _ranks([0, 1, 2, 4]), _ranks([3])
    ('ranks 1 to 3 and 5', 'rank 4')
    """
    spans: list[list[int]] = []
    for place in places:
        if spans and spans[-1][-1] == place - 1:
            spans[-1].append(place)
        else:
            spans.append([place])
    told = []
    for span in spans:
        told += [f"{span[0] + 1} to {span[-1] + 1}"] if len(span) > 2 else [str(place + 1) for place in span]
    text = " and ".join(filter(None, [", ".join(told[:-1]), told[-1]]))
    return f"rank{'s' if len(places) > 1 else ''} {text}"


def as_columns(one: Paired) -> dict[str, Any]:
    """What a row of a table says of its difference to the best."""
    return {
        "difference": one.difference,
        "interval": one.interval,
        "p": one.corrected,
        "n": one.clients if one.unit != "seed" else one.seeds,
        "unit": one.unit,
        "apart": one.apart,
    }
