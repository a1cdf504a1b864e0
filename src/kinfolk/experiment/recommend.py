"""From what was measured for every number of groups to one answer, which may be "one group".

Three criteria name a number each: the score on validation rows, a gap statistic and the silhouette, both
among models that clients trained from one start. The answer is the number that two of them name, if seeds
agree on its groups and it does not cost score; how sure it is follows from how far they agree.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.clustering.count import elbow
from kinfolk.errors import KinfolkError, near
from kinfolk.scores import about, plus_minus
from kinfolk.streams import Seed

CRITERIA = ("agreement", "accuracy", "intra_distance", "silhouette")
# Groups on which seeds agree less than this are not settled: rounds were too few, or there are none.
SETTLED = 0.8
# Below this the highest silhouette names no groups: clients without any have up to 0.08 on rotated digits
# and with strong label skew up to 0.1; four rotations have 0.26.
LEAST_SILHOUETTE = 0.1
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
    confidence: str = ""  # "high", "medium" or "low"
    named: Mapping[str, int] = field(default_factory=dict)  # the number that each criterion names


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


def recommend(
    rows: Sequence[Row], criterion: str, counted: Sequence[int], score: str = "accuracy", late: bool = False
) -> Advice:
    """One number of groups, by the agreement of all criteria or by one of them, and how sure that is.

    `counted` is what a gap statistic counts among models that were trained from one start, seed by seed.
    `late` says that groups trained for fewer rounds than planned: then nothing is sure.

    >>> one, two = (Row(k, np.full((3, 4), v), (s,) * 3) for k, v, s in ((1, 0.6, 0.0), (2, 0.8, 0.3)))
    >>> advice = recommend([one, two, Row(3, one.scores, one.silhouette)], "agreement", [2, 2, 2])
    >>> advice.k, advice.confidence
    (2, 'high')
    """
    check_criterion(criterion)
    named = names(rows, counted, score)
    if criterion == "agreement":
        advice = _by_agreement(rows, named, score)
    elif criterion == "accuracy":
        advice = _by_score(rows, score)
    else:
        advice = _by_models(rows, criterion, counted)
    sure, why = confidence(advice.k, rows, named, counted)
    if late:
        sure, why = "low", "groups had too few rounds"
    return Advice(advice.k, f"{advice.reason} Confidence: {sure} ({why}).", sure, named)


def names(rows: Sequence[Row], counted: Sequence[int], score: str = "accuracy") -> dict[str, int]:
    """The number of groups that each criterion names by itself; one that was not measured is left out.

    Score: the smallest K within a standard error of the best, of those that are clearly better than one
    group and not found by chance. Gap statistic: the number counted by most seeds, the smaller of two.
    Silhouette: the K with the highest, and one group where that is below LEAST_SILHOUETTE.

    >>> one, two = (Row(k, np.full((3, 4), v), (s,)) for k, v, s in ((1, 0.6, 0.0), (2, 0.8, 0.05)))
    >>> names([one, two], [2, 2, 1])
    {'accuracy': 2, 'gap statistic': 2, 'silhouette': 1}
    """
    found = {score: _by_score(rows, score).k}
    if counted:
        often = Counter(counted)
        found["gap statistic"] = min(often, key=lambda k: (-often[k], k))
    tried = [row for row in rows if row.k > 1 and row.silhouette]
    if tried:
        best = max(tried, key=_silhouette)
        found["silhouette"] = best.k if _silhouette(best) >= LEAST_SILHOUETTE else 1
    return found


def confidence(
    k: int, rows: Sequence[Row], named: Mapping[str, int], counted: Sequence[int]
) -> tuple[str, str]:
    """("high", "medium" or "low", why): how far criteria and seeds agree on an answer.

    High: every criterion names it, the gap statistic with every seed, seeds agree on its groups (by SETTLED
    or more), and a larger K was tried. Medium: two criteria name it, the third agrees on whether there are
    groups at all, and seeds agree. Low: anything else.

    >>> rows = [Row(k, np.ones((1, 1))) for k in (1, 2)]
    >>> confidence(2, rows, {"accuracy": 2, "silhouette": 3}, [])
    ('low', 'accuracy 2, silhouette 3')
    """
    told = ", ".join(f"{name} {number}" for name, number in named.items())
    row = next(row for row in rows if row.k == k)
    agree = sum(number == k for number in named.values())
    loose = row.stability < SETTLED
    if loose:
        told += f"; the seeds agree on the groups by {row.stability:.2f} only"
    if agree < 2 or loose or any((number > 1) != (k > 1) for number in named.values()):
        return "low", told
    if agree == len(named) == 3 and all(one == k for one in counted):
        if k == 1 or k < max(one.k for one in rows):
            return "high", "all criteria name it"
        return "medium", "all criteria name it, but no larger K was tried"
    if agree == len(named):
        return "medium", f"{told}; not every seed counts {k}"
    return "medium", told


def _by_agreement(rows: Sequence[Row], named: Mapping[str, int], score: str) -> Advice:
    """What two criteria name, unless the score speaks clearly against it; else what the score names.

    Against a number of groups speaks that it is clearly worse than what the score names, unless it is still
    clearly better than one group: short runs favour few groups, since each then has more clients.
    """
    by_score, tried = _by_score(rows, score), {row.k: row for row in rows}
    often = Counter(k for name, k in named.items() if name != score)
    other, votes = max(often.items(), key=lambda pair: pair[1], default=(by_score.k, 0))
    if votes < 2 or other == by_score.k or other not in tried:
        return by_score
    row, mine = tried[other], tried[by_score.k]
    if gain(mine, row).clear and not gain(row, rows[0]).clear:
        return by_score
    models = "one cloud" if other == 1 else f"{other} clusters"
    against = "one group" if mine.k == 1 else f"K = {mine.k}"
    return Advice(
        other,
        f"{'One group' if other == 1 else f'{other} groups'}: the clients' models lie in {models} "
        f"(gap statistic and silhouette); {_told(row, mine, score)} on validation rows against "
        f"{against}{_steady(row)}.",
    )


def _by_models(rows: Sequence[Row], criterion: str, counted: Sequence[int]) -> Advice:
    """By silhouettes or distances, once a gap statistic has found more than one cluster."""
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


def _silhouette(row: Row) -> float:
    return float(np.mean(row.silhouette))


def _by_silhouette(firm: Sequence[Row]) -> Advice:
    best = max(firm, key=_silhouette)
    value = _silhouette(best)
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
    if about(score).percent:
        return f"{plus_minus(f'{100 * found.mean:+.1f}', f'{100 * found.std:.1f}')} points"
    # Scores here are better when larger; an error is told as it is.
    sign = -1 if about(score).lower_is_better else 1
    return f"{plus_minus(f'{sign * found.mean:+.3g}', f'{found.std:.2g}')} in {score}"


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
