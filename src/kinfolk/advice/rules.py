"""From the scores of the trials to one piece of advice, and how sure it is.

The advice is the simplest method that is neither distinguishable from the best nor more than a margin below
it. It is sure of itself only where nothing speaks against it: see `_doubts`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from kinfolk.advice.evidence import ANSWERS, Candidate, is_finite
from kinfolk.advice.look import RARE
from kinfolk.report.statistics import FEWEST_CLIENTS, LEVEL, holm, paired, signed_rank
from kinfolk.scores import about

SURE = ("low", "medium", "high")
# Differences that are smaller do not matter: two points of a score in percent, of any other a part of it.
POINTS, PART = 0.02, 0.05
# What intervals still admit beyond so many margins makes an answer a guess.
WIDE = 2.0
# Seeds that agree less on who belongs together have not found the same groups, or no groups.
SETTLED, LOOSE = 0.8, 0.5
# With fewer clients nothing is sure, and with the fewest everything is a guess.
FEW_CLIENTS, GUESSED = 8, 3
# What a curve may still gain: as much as in the last quarter, or three times as much if it hardly bends.
LIKELY, POSSIBLE = 1.0, 3.0


@dataclass(frozen=True)
class Duel:
    """How much better one candidate is than another, over the clients and seeds that both have."""

    gain: float
    low: float  # of its 95 % interval
    high: float
    apart: bool  # whether they are distinguishable


@dataclass(frozen=True)
class Grouping:
    """What counting the groups has found."""

    k: int = 1
    confidence: str = "high"
    reason: str = ""
    tried: bool = False  # whether groups were looked for
    unanimous: bool = True  # whether all criteria name this number
    problem: str = ""  # why they could not be counted


@dataclass(frozen=True)
class Verdict:
    """The advice: an answer, how sure it is, and why."""

    answer: str  # one of ANSWERS, or "unclear"
    confidence: str
    reason: str
    chosen: Candidate | None = None
    doubts: list[str] = field(default_factory=list)  # why it is no surer
    rivals: Mapping[str, tuple[Candidate, Duel]] = field(default_factory=dict)  # by answer
    longer: bool = False  # whether longer trials may say otherwise


Doubt = tuple[str, str]  # what confidence can be at most, and why


def decide(
    found: Sequence[Candidate],
    score: str,
    constant: pd.DataFrame | None = None,
    grouping: Grouping = Grouping(),  # noqa: B008 - a Grouping never changes
    common: float = 0.0,
) -> Verdict:
    """Advice from candidates; `constant` are the scores of a constant answer, as theirs are.

    `common` is the share of the most frequent class.

    >>> def one(answer, mean, seed):
    ...     draw = np.random.default_rng(seed)
    ...     scores = pd.DataFrame(mean + 0.01 * draw.normal(size=(20, 3)))
    ...     return Candidate(answer, answer, "centre", scores, 0.0)
    >>> verdict = decide([one("local", 0.7, 0), one("fedavg", 0.9, 1), one("fine-tuned", 0.9, 2)], "accuracy")
    >>> verdict.answer, verdict.confidence
    ('fedavg', 'high')
    """
    sound = _one_of_each([one for one in found if is_finite(one)], score)
    if not sound:
        return Verdict("unclear", "low", "Cannot say: training diverged in every trial; lower local.lr.")
    best = max(sound, key=lambda one: one.mean)
    duels, margin = _duels(sound), margin_of(score, best.mean)
    unclear = _nothing_learned(best, constant, score) or _undecided(sound, duels, margin, score)
    if unclear:
        return unclear
    level = [
        one
        for one in sound
        if one is best or (not duels[one.answer, best.answer].apart and best.mean - one.mean <= margin)
    ]
    chosen = min(level, key=lambda one: one.simplicity)
    rivals = {one.answer: (one, duels[one.answer, chosen.answer]) for one in sound if one is not chosen}
    rising = _rising(chosen, rivals, margin)
    doubts = [*_doubts(chosen, rivals, margin, score), *rising, *_grouping_doubts(chosen, grouping)]
    doubts += [*_few(chosen), *_rare(common, score)]
    sure = min((most for most, _ in doubts), key=SURE.index, default="high")
    told = [why for most, why in doubts if most == sure]
    return Verdict(chosen.answer, sure, _reason(chosen, rivals, score), chosen, told, rivals, bool(rising))


def _one_of_each(found: Sequence[Candidate], score: str) -> list[Candidate]:
    """A candidate for each answer, by simplicity: the simplest that is within a margin of its best.

    Several would only weaken the tests, which are corrected for all pairs.
    """
    kept = []
    for answer in ANSWERS:
        same = [one for one in found if one.answer == answer]
        best = max((one.mean for one in same), default=math.nan)
        near = [one for one in same if best - one.mean <= margin_of(score, best)]
        kept += [min(near, key=lambda one: one.simplicity)] if near else []
    return kept


def margin_of(score: str, best: float) -> float:
    """The difference below which two scores are as good as one another.

    >>> margin_of("accuracy", 0.9), margin_of("mse", -2.0)
    (0.02, 0.1)
    """
    return POINTS if about(score).percent else PART * abs(best)


def _duels(found: Sequence[Candidate]) -> dict[tuple[str, str], Duel]:
    """Every two candidates by their answers, both ways round, corrected (Holm) for all of them together.

    Two are distinguishable if the test over clients and the interval both say so; where clients are too few
    for the test to reach the level, the interval alone, which `_few` makes less sure of.
    """
    pairs = list(combinations(found, 2))
    values = [(a.scores - b.scores).dropna(how="all").to_numpy(dtype=np.float64) for a, b in pairs]
    fewest = min(map(len, values), default=0)
    tested = fewest >= FEWEST_CLIENTS and len(pairs) * 2.0 ** (1 - fewest) <= LEVEL
    right = holm([signed_rank(np.nanmean(one, axis=1)) if tested else 0.0 for one in values])
    duels = {}
    for (a, b), one, p in zip(pairs, values, right, strict=True):
        gain, reach = float(np.nanmean(one, axis=0).mean()), _reach(one)
        apart = abs(gain) > reach and p < LEVEL
        duels[a.answer, b.answer] = Duel(gain, gain - reach, gain + reach, apart)
        duels[b.answer, a.answer] = Duel(-gain, -gain - reach, -gain + reach, apart)
    return duels


def _reach(values: NDArray[np.float64]) -> float:
    """Half of the 95 % interval of the mean of [clients, seeds]: the wider of that over clients, over seeds.

    Student's both. Clients differ and have few validation rows each; seeds share starts and rows held out.

    >>> round(_reach(np.array([[0.0, 0.1], [0.2, 0.3]])), 3)
    1.271
    """
    halves = []
    for axis in (0, 1):
        means = np.nanmean(values, axis=axis)
        if len(means) > 1:
            error = float(means.std(ddof=1)) / math.sqrt(len(means))
            halves.append(float(stats.t.ppf(1 - LEVEL / 2, len(means) - 1)) * error)
    return max(halves, default=math.inf)


def _nothing_learned(best: Candidate, constant: pd.DataFrame | None, score: str) -> Verdict | None:
    """Where no trial is clearly better than a constant answer there is nothing to advise."""
    if constant is None:
        return None
    found = paired(constant, best.scores)
    if found.difference > 0 and (found.apart or (found.apart is None)):
        return None
    # What a mean over these clients and seeds moves by chance is no rise.
    chance = _reach(best.scores.to_numpy(dtype=np.float64))
    if best.rise > max(margin_of(score, best.mean), chance):
        why = f"no method is better yet than a constant answer, but {_named(best)} is still rising"
        return Verdict("unclear", "low", f"Cannot say: too short a budget: {why}.", longer=True)
    why = f"no method is better than a constant answer by more than noise (best: {_named(best)}, "
    why += f"{_told(found.difference, score)})"
    return Verdict("unclear", "low", f"Cannot say: nothing is learned from these rows: {why}.")


def _undecided(
    found: Sequence[Candidate], duels: Mapping[tuple[str, str], Duel], margin: float, score: str
) -> Verdict | None:
    """Where nothing can be told apart, although differences that matter are possible."""
    if len(found) < 2 or any(duel.apart for duel in duels.values()):
        return None
    widest = max(duel.high for duel in duels.values())
    if widest <= WIDE * margin:
        return None
    why = "no two methods can be told apart, though they may differ by as much as "
    why += f"{_told(widest, score).lstrip('+')}; more rows, more clients or longer trials may tell"
    return Verdict("unclear", "low", f"Cannot say: too little data: {why}.")


def _doubts(
    chosen: Candidate, rivals: Mapping[str, tuple[Candidate, Duel]], margin: float, score: str
) -> list[Doubt]:
    """What the other answers have to say against the chosen one as things stand."""
    doubts: list[Doubt] = []
    for one, duel in rivals.values():
        if one.simplicity < chosen.simplicity and not duel.apart:
            doubts.append(("low", f"{_named(one)} is simpler and cannot be told apart from it"))
        elif duel.high > margin:
            most = "low" if duel.high > WIDE * margin else "medium"
            doubts.append((most, f"{_named(one)} may be better by {_told(duel.high, score)}"))
    return doubts


def _rising(chosen: Candidate, rivals: Mapping[str, tuple[Candidate, Duel]], margin: float) -> list[Doubt]:
    """Who might change the answer in longer trials: a simpler method by coming near, another by more."""
    doubts: list[Doubt] = []
    for one, duel in rivals.values():
        lead, faster = -duel.gain, one.rise - chosen.rise
        needed = lead - margin if one.simplicity < chosen.simplicity else lead + margin
        if faster > 0 and POSSIBLE * faster > needed:
            most = "low" if LIKELY * faster > needed else "medium"
            doubts.append((most, f"{_named(one)} still rises faster: longer trials may say otherwise"))
    return doubts


def _grouping_doubts(chosen: Candidate, grouping: Grouping) -> list[Doubt]:
    """What counting the groups has to say; seeds of the trials that agree on the groups speak for them."""
    if grouping.problem:
        return [("medium", grouping.problem)]
    told = f"counted were {grouping.k} groups, with {grouping.confidence} confidence ({grouping.reason})"
    if chosen.answer != "groups":
        if not grouping.tried or grouping.k == 1:
            return []
        return [("medium", f"{told}, but they are of no use here")]
    doubts: list[Doubt] = []
    if grouping.k != chosen.k:
        doubts.append(("low", f"{told}; the trials are for {chosen.k}"))
    elif grouping.confidence != "high":
        settled = grouping.unanimous and chosen.agree >= SETTLED
        doubts.append(("medium" if settled else grouping.confidence, told))
    if chosen.agree < SETTLED:
        most = "low" if chosen.agree < LOOSE else "medium"
        doubts.append((most, f"seeds agree on who belongs together by {chosen.agree:.2f} only"))
    return doubts


def _few(chosen: Candidate) -> list[Doubt]:
    clients = int(chosen.scores.notna().any(axis=1).sum())
    if clients >= FEW_CLIENTS:
        return []
    most = "low" if clients <= GUESSED else "medium"
    return [(most, f"{clients} clients are few: the next one may be served otherwise")]


def _rare(common: float, score: str) -> list[Doubt]:
    """Two points of accuracy are much where all that is to be learned are the other classes."""
    if score != "accuracy" or common <= RARE:
        return []
    return [("low", f"{common:.0%} of the rows are of one class, so that accuracy says little")]


def _named(one: Candidate) -> str:
    names = {"local": "local", "fedavg": "fedavg", "fine-tuned": "fine-tuned fedavg"}
    if one.answer != "groups":
        return names[one.answer]
    return one.title + (", fine-tuned" if one.model == "fine-tuned" else "")


def _told(difference: float, score: str) -> str:
    """A difference in words; of a score where lower is better, the sign is turned back."""
    if about(score).percent:
        return f"{100 * difference:+.1f} points"
    sign = -1 if about(score).lower_is_better else 1
    return f"{sign * difference:+.3g} in {score}"


def _reason(chosen: Candidate, rivals: Mapping[str, tuple[Candidate, Duel]], score: str) -> str:
    """Why, in a sentence: against every other answer."""
    told = [
        f"{_told(-duel.gain, score)} against {_named(one)}" + ("" if duel.apart else " (not distinguishable)")
        for one, duel in rivals.values()
    ]
    return f"{_named(chosen)}: {', '.join(told)}" if told else f"{_named(chosen)} alone was tried"


def as_facts(verdict: Verdict) -> dict[str, Any]:
    """The advice in JSON's own types."""
    chosen = verdict.chosen
    return {
        "answer": verdict.answer,
        "k": chosen.k if chosen and chosen.answer == "groups" else None,
        "method": chosen.title if chosen else None,
        "model": chosen.model if chosen else None,
        "confidence": verdict.confidence,
        "reason": verdict.reason,
        "doubts": verdict.doubts,
        "longer": verdict.longer,
    }
