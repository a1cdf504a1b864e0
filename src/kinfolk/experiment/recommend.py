"""From what was measured for every number of groups to one answer, which may be "one group"."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.clustering.count import elbow
from kinfolk.errors import KinfolkError, near
from kinfolk.streams import Seed

CRITERIA = ("accuracy", "intra_distance", "silhouette")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """What was measured with k groups, seed by seed."""

    k: int
    scores: Floats  # [seeds, clients] on validation rows, NaN for a client without; larger is better
    silhouette: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()  # empty: the algorithm does not tell
    stability: float = math.nan  # of the groups across seeds; NaN for one group or one seed
    chance: float = math.nan  # the stability that shuffled groups stay below in 95 of 100 draws

    @property
    def by_chance(self) -> bool:
        """The seeds agree no better than shuffled groups do."""
        return self.stability <= self.chance


@dataclass(frozen=True)
class Gain:
    """How much better one row is than another, paired by seed and client."""

    mean: float
    std: float  # over seeds; NaN for one seed
    error: float  # the larger standard error of the mean: over seeds, over clients

    @property
    def clear(self) -> bool:
        """Beyond noise: more than two standard errors."""
        return self.mean > 2 * self.error


@dataclass(frozen=True)
class Advice:
    """The number of groups to use, and why."""

    k: int
    reason: str


def gain(row: Row, over: Row) -> Gain:
    """The paired difference of two rows.

    Seeds alone would not do: all of them see the same few validation rows, which is noise as well.

    >>> low, high = Row(1, np.array([[0.5, 0.5], [0.5, 0.5]])), Row(2, np.array([[0.7, 0.6], [0.8, 0.9]]))
    >>> found = gain(high, low)
    >>> round(found.mean, 3), round(found.std, 3), round(found.error, 3)
    (0.25, 0.141, 0.1)
    """
    apart = row.scores - over.scores
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a client, or all of them, without validation rows
        seeds, clients = np.nanmean(apart, axis=1), np.nanmean(apart, axis=0)
    clients = clients[~np.isnan(clients)]
    std = float(seeds.std(ddof=1)) if len(seeds) > 1 else math.nan
    errors = [std / len(seeds) ** 0.5] if len(seeds) > 1 else []
    errors += [float(clients.std(ddof=1)) / len(clients) ** 0.5] if len(clients) > 1 else []
    return Gain(float(seeds.mean()), std, max(errors, default=math.inf))


def chance(runs: Sequence[Sequence[int]], seed: Seed, draws: int = 199, level: float = 0.95) -> float:
    """The mean adjusted Rand index between runs whose labels are shuffled: its quantile at `level`.

    >>> 0.0 < chance([[0, 0, 0, 1, 1, 1]] * 3, Seed(0)) < 1.0
    True
    """
    drawn = seed.numpy("stability", "chance")
    shuffled = [
        drawn.permuted(np.tile(np.unique(run, return_inverse=True)[1], (draws, 1)), axis=1) for run in runs
    ]
    pairs = [(a, b) for i, a in enumerate(shuffled) for b in shuffled[:i]]
    return float(np.quantile(np.mean([rand(a, b) for a, b in pairs], axis=0), level))


def rand(one: NDArray[np.int64], other: NDArray[np.int64]) -> Floats:
    """Adjusted Rand indices (Hubert and Arabie, 1985) of many pairs of labellings [draws, clients] at once.

    >>> rand(np.array([[0, 0, 1, 1]]), np.array([[1, 1, 0, 0]]))
    array([1.])
    """
    both = np.einsum(
        "dni,dnj->dij", *((x[..., None] == np.arange(x.max() + 1)).astype(float) for x in (one, other))
    )

    def pairs(counts: Floats, axes: tuple[int, ...]) -> Floats:
        return np.asarray((counts * (counts - 1) / 2).sum(axes))

    index, mine, theirs = pairs(both, (1, 2)), pairs(both.sum(2), (1,)), pairs(both.sum(1), (1,))
    expected = mine * theirs / max(one.shape[1] * (one.shape[1] - 1) / 2, 1)
    most = (mine + theirs) / 2
    same = most == expected  # both are one group, or both leave everybody alone
    return np.where(same, 1.0, (index - expected) / np.where(same, 1.0, most - expected))


def recommend(rows: Sequence[Row], criterion: str, counted: Sequence[int], score: str = "accuracy") -> Advice:
    """One number of groups, by validation rows, by distances or by silhouettes.

    `counted` is what a gap statistic counts among models that were trained from one start, seed by seed.

    >>> one, two = (Row(k, np.full((3, 4), v)) for k, v in ((1, 0.6), (2, 0.8)))
    >>> recommend([one, two], "accuracy", []).k, recommend([one, one], "accuracy", []).k
    (2, 1)
    """
    check_criterion(criterion)
    if criterion == "accuracy":
        return _by_score(rows, score)
    if not any(row.k > 1 for row in rows):
        return Advice(1, "One group: no other number was tried.")
    if sum(k > 1 for k in counted) * 2 <= len(counted):
        seen = sum(k == 1 for k in counted)
        return Advice(
            1,
            "One group: models that the clients trained from one start lie like a single cloud "
            f"(gap statistic, {seen} of {len(counted)} seeds).",
        )
    firm = [row for row in rows if row.k > 1 and not row.by_chance]
    if not firm:
        return Advice(1, "One group: seeds agree on the groups no better than by chance, for any K.")
    return _by_silhouette(firm) if criterion == "silhouette" else _by_distance(rows)


def check_criterion(criterion: str) -> None:
    """Refuse a criterion that there is not.

    >>> check_criterion("silhouete")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: criterion = 'silhouete': did you mean 'silhouette'?
    """
    if criterion not in CRITERIA:
        raise KinfolkError("criterion", criterion, near(criterion, CRITERIA))


def _by_score(rows: Sequence[Row], score: str) -> Advice:
    base, others = rows[0], [row for row in rows if row.k > 1]
    better = [row for row in others if gain(row, base).clear]
    firm = [row for row in better if not row.by_chance]
    if not others:
        return Advice(1, "One group: no other number was tried.")
    if not firm:
        top = max(better or others, key=lambda row: gain(row, base).mean)
        if better:
            why = f"the groups of K = {top.k} change with the seed as by chance{_steady(top)}"
        else:
            best = f"best: K = {top.k}, {_told(top, base, score)}"
            why = f"no other K is better on validation rows beyond noise ({best})"
        return Advice(1, f"One group: {why}.")
    first = max(firm, key=lambda row: float(np.nanmean(row.scores)))
    # The smallest that cannot be told from the best: one standard error, as for pruned trees.
    answer = next(row for row in firm if row is first or (d := gain(first, row)).mean <= d.error)
    than = (
        f"and K = {first.k} is not clearly better"
        if answer is not first
        else "and no smaller K comes as near"
    )
    return Advice(
        answer.k,
        f"{answer.k} groups: {_told(answer, base, score)} on validation rows against one group, "
        f"{than}{_steady(answer)}.",
    )


def _by_silhouette(firm: Sequence[Row]) -> Advice:
    best = max(firm, key=lambda row: float(np.mean(row.silhouette)))
    value = float(np.mean(best.silhouette))
    return Advice(best.k, f"{best.k} groups: the highest silhouette ({value:.2f}){_steady(best)}.")


def _by_distance(rows: Sequence[Row]) -> Advice:
    spreads = {row.k: float(np.mean(row.spread)) for row in rows}
    k = elbow(spreads)
    before = max(j for j in spreads if j < k)
    drop = 100 * (1 - spreads[k] / spreads[before])
    return Advice(
        k, f"{k} groups: the distance to the centre falls most there (by {drop:.1f} % from K = {before})."
    )


def _told(row: Row, base: Row, score: str) -> str:
    """A paired difference in words."""
    found = gain(row, base)
    if score == "accuracy":
        spread = "" if math.isnan(found.std) else f" ± {100 * found.std:.1f}"
        return f"{100 * found.mean:+.1f}{spread} points"
    spread = "" if math.isnan(found.std) else f" ± {found.std:.2g}"
    # Scores here are better when larger; an error is told as it is.
    return f"{-found.mean:+.3g}{spread} in {score}"


def _steady(row: Row) -> str:
    """How far the seeds agree on the groups, in words."""
    if math.isnan(row.stability):
        return ""
    return f"; stability {row.stability:.2f}, by chance up to {row.chance:.2f}"


def as_facts(row: Row, base: Row) -> dict[str, Any]:
    """A row in plain numbers, for the records.

    >>> row = Row(1, np.array([[0.5], [0.7]]), (0.0, 0.0))
    >>> as_facts(row, row)["score"]["mean"]
    0.6
    """

    def told(values: Sequence[float] | Floats) -> dict[str, Any]:
        many = np.asarray(values, dtype=np.float64)
        std = float(many.std(ddof=1)) if len(many) > 1 else math.nan
        return {"mean": float(many.mean()), "std": std, "seeds": many.tolist()}

    found = gain(row, base)
    return {
        "k": row.k,
        "score": told(np.nanmean(row.scores, axis=1)),
        "gain": {"mean": found.mean, "std": found.std, "error": found.error, "clear": found.clear},
        "spread": told(row.spread) if row.spread else None,
        "silhouette": told(row.silhouette),
        "stability": row.stability,
        "chance": row.chance,
    }
