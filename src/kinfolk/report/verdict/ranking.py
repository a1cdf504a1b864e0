"""Which method serves best, beyond the noise: on average over the clients, and for the worst of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from kinfolk.report.against import Row, ends_pairs
from kinfolk.report.convergence import PART, POINTS
from kinfolk.report.read import human_bytes, shown
from kinfolk.report.statistics import FEWEST_CLIENTS, LEVEL
from kinfolk.report.verdict.evidence import Evidence
from kinfolk.report.verdict.sentence import Sentence, better_by, count, gap, level, listed, say, span
from kinfolk.scores import about

# Of so many settings of one algorithm the best is partly luck, since all were judged on the test rows.
MANY_SETTINGS = 3


@dataclass(frozen=True)
class Ranking:
    """Who cannot be told from the best, and who is clearly below."""

    known: Evidence

    @cached_property
    def chance(self) -> float:
        """How likely means over seeds so far apart are if all methods are equal."""
        return chance_of_all(self.known)

    @property
    def differ(self) -> bool:
        """Whether the methods differ at all, beyond what seeds do to them."""
        return self.chance < LEVEL

    @cached_property
    def top(self) -> list[Row]:
        """The best row and all that are not distinguishable from it."""
        rows, pairs = self.known.rows, self.known.pairs
        return [row for j, row in enumerate(rows) if not j or not self.differ or not pairs[0, j].apart]

    @cached_property
    def below(self) -> list[Row]:
        """The rows that are clearly worse than the best."""
        return [row for row in self.known.rows if not any(row is one for one in self.top)]

    @cached_property
    def names(self) -> list[str]:
        """The methods of `top`, each once; with the kind of model where another kind of theirs is below."""
        lower = {row["algorithm"] for row in self.below}
        return list(dict.fromkeys(self.name(row, lower) for row in self.top))

    def name(self, row: Row, torn: set[str] | None = None) -> str:
        """A row's method, with its kind of model where the method's kinds are not on one side."""
        title = str(row["algorithm"])
        if torn is None:
            torn = {r["algorithm"] for r in self.below} & {r["algorithm"] for r in self.top}
        return f"{title} ({row['model']})" if title in torn else title

    @property
    def told(self) -> bool:
        """Whether the comparison could have shown a difference."""
        return bool(self.below) or not too_few_clients(self.known)

    @property
    def leader(self) -> Row:
        """The row with the best mean."""
        return self.known.rows[0]

    @cached_property
    def cheapest(self) -> Row:
        """Of those that cannot be told from the best, who sends least; of equals, who is fastest."""

        def cost(row: Row) -> tuple[float, float]:
            sent, spent = row["bytes_per_client_round"], row["seconds_per_round"]
            return (math.inf if math.isnan(sent) else sent, math.inf if math.isnan(spent) else spent)

        return min(self.top, key=cost)


def chance_of_all(known: Evidence) -> float:
    """How likely means so far apart are if all methods are equal.

    A method may have several kinds of models. To test the best kind of each would make noise look like a
    difference; so both its main kind and the mean of its kinds are tested, each at half the level.
    """
    main, mean = [], []
    for title in known.titles:
        order = {kind: place for run in reversed(known.of[title]) for place, kind in enumerate(run.models)}
        rows = sorted((r for r in known.rows if r["algorithm"] == title), key=lambda r: order[r["model"]])
        each = [[float(known.ends(row)[s]["value"].mean()) for s in known.seeds] for row in rows]
        main.append(each[0])
        mean.append(np.mean(each, axis=0).tolist())
    if len(known.rows) == len(known.titles):
        return any_difference(np.array(main))
    return min(1.0, 2 * any_difference(np.array(main)), 2 * any_difference(np.array(mean)))


def any_difference(means: NDArray[np.float64]) -> float:
    """How likely so large differences between methods [methods, seeds] are if there are none: an F-test.

    Seeds are blocks, since methods of one seed see the same rows. With two methods this is Student's paired
    t-test. What seeds do to a method is pooled over the methods, so that three seeds can say something.

    >>> round(any_difference(np.array([[0.9, 0.8, 0.85], [0.7, 0.65, 0.62]])), 4)
    0.0143
    """
    if means.ndim != 2 or min(means.shape) < 2 or not np.isfinite(means).all():
        return 1.0
    methods, seeds = means.shape
    rest = means - means.mean(0) - means.mean(1)[:, None] + means.mean()
    between = float(((means.mean(1) - means.mean()) ** 2).sum()) * seeds / (methods - 1)
    free = (methods - 1) * (seeds - 1)
    within = float((rest**2).sum()) / free
    tiny = (1e-12 * float(np.abs(means).max())) ** 2  # what the order of adding leaves in the last digits
    if within <= tiny:
        return 0.0 if between > tiny else 1.0
    return float(stats.f.sf(between / within, methods - 1, free))


def ranking_sentences(ranking: Ranking) -> list[Sentence]:
    """Where a conclusion is allowed: best, equals or noise; what is below; the cheapest; the worst client."""
    known, names = ranking.known, ranking.names
    found = (
        [_noise(ranking)] if not ranking.below else [_best(ranking) if len(names) == 1 else _equals(ranking)]
    )
    if len(names) > 1 and ranking.told:
        found += [_cheapest(ranking)]
    if ranking.below:
        found += [_below(ranking)]
    return [*found, *small(ranking), *worst_client(known), *many_settings(known)]


def _best(ranking: Ranking) -> Sentence:
    known, best = ranking.known, ranking.leader
    second = ranking.below[0]
    found = known.gain(best, second)
    low, high = found.interval
    text = (
        f"{ranking.names[0]} serves best: {level(best['macro'], known.score)} on average over the clients, "
        f"{better_by(found.difference, known.score)} than {ranking.name(second)} "
        f"(95 % interval: {span(low, high, known.score)})."
    )
    return say("best", text, "good", mean=best["macro"], gain=found.difference, low=low, high=high)


def _equals(ranking: Ranking) -> Sentence:
    known = ranking.known
    means = [float(row["macro"]) for row in ranking.top]
    text = (
        f"{listed(ranking.names)} serve best and cannot be told apart: "
        f"{level(means[0], known.score)} to {level(means[-1], known.score)} on average over the clients."
    )
    return say("equals", text, "good", methods=len(ranking.names), highest=means[0], lowest=means[-1])


def _noise(ranking: Ranking) -> Sentence:
    known = ranking.known
    best, last, many = known.rows[0], known.rows[-1], len(known.titles)
    numbers = {"methods": many, "highest": best["macro"], "lowest": last["macro"]}
    span = (
        f"from {level(best['macro'], known.score)} ({best['algorithm']}) to "
        f"{level(last['macro'], known.score)} ({last['algorithm']}) on average"
    )
    if clients := too_few_clients(known):
        text = (
            f"{clients} clients are too few to tell {many} methods apart ({span}): compare fewer methods at "
            "once, or more clients."
        )
        return say("too-many-methods", text, "warning", clients=clients, **numbers)
    text = (
        f"The differences between the {many} methods cannot be told from noise: {span}, and none is clearly "
        "better than another."
    )
    return say("noise", text, "plain", **numbers)


def too_few_clients(known: Evidence) -> int:
    """So many clients that no difference between so many methods could be shown; 0 where one could."""
    pairs = [one for one in known.pairs.values() if one.unit == "client"]
    clients = min((one.clients for one in pairs), default=0)
    weak = clients >= FEWEST_CLIENTS and len(pairs) * 2.0 ** (1 - clients) > LEVEL
    return clients if weak else 0


def _cheapest(ranking: Ranking) -> Sentence:
    row = ranking.cheapest
    sent = float(row["bytes_per_client_round"])
    cost = "" if math.isnan(sent) else f" ({human_bytes(sent)} per client and round)"
    text = f"The cheapest of these is {row['algorithm']}{cost}."
    return say("cheapest", text, "plain", bytes=sent, seconds=float(row["seconds_per_round"]))


def _below(ranking: Ranking) -> Sentence:
    known, best = ranking.known, ranking.leader
    gaps: dict[str, float] = {}
    for row in ranking.below:  # of a method with several kinds of model the best one
        gaps.setdefault(ranking.name(row), known.gain(best, row).difference)
    told = [f"{name} by {gap(size, known.score)}" for name, size in gaps.items()]
    text = f"Clearly worse than {ranking.name(best)}: {listed(told)}."
    return say("below", text, "plain", methods=len(gaps), most=max(gaps.values(), key=abs))


def small(ranking: Ranking) -> list[Sentence]:
    """A best method that is ahead of the next by less than what counts as settled."""
    known = ranking.known
    if not ranking.below:
        return []
    size = abs(known.gain(ranking.leader, ranking.below[0]).difference)
    worth = POINTS if about(known.score).percent else PART * abs(ranking.leader["macro"])
    if size >= worth:
        return []
    text = (
        f"The lead over {ranking.name(ranking.below[0])} is beyond noise but small "
        f"({gap(size, known.score)}): cost or privacy may count more."
    )
    return [say("small-lead", text, "plain", lead=size)]


def worst_client(known: Evidence) -> list[Sentence]:
    """How the worst client fares, and whether another method serves it better."""
    if not all(math.isfinite(row["worst"]) for row in known.rows):
        return []
    rows = sorted(known.rows, key=lambda row: row["worst"] if known.lower else -row["worst"])
    first, mean = rows[0], known.rows[0]
    values = {"worst": first["worst"], "of_best_mean": mean["worst"]}
    best = f"{level(first['worst'], known.score)} with {known.label(first)}"
    other = f"{level(mean['worst'], known.score)} with {known.label(mean)}"
    if first["algorithm"] == mean["algorithm"] or first["worst"] == mean["worst"]:
        last = rows[-1]
        than = f", {level(last['worst'], known.score)} with {known.label(last)}" if last is not first else ""
        return [say("worst-client", f"The worst client has {best}{than}.", **values)]
    pairs = ends_pairs(rows, [known.ends(row) for row in rows], "worst")
    place = next(j for j, row in enumerate(rows) if row is mean)
    if pairs[0, place].apart:
        text = f"The worst client is served best by another method: {best}, {other}."
        return [say("worst-other", text, "warning", **values)]
    text = (
        f"The worst client may be served better by another method ({best}, {other}), but that may be noise."
    )
    return [say("worst-maybe", text, "plain", **values)]


def many_settings(known: Evidence) -> list[Sentence]:
    """One algorithm in many settings: which is best was chosen on the test rows."""
    tried: dict[str, int] = {}
    for title in known.titles:
        name = title.split()[0]
        tried[name] = tried.get(name, 0) + 1
    most = max(tried, key=lambda name: tried[name], default="")
    if not most or tried[most] < MANY_SETTINGS:
        return []
    text = (
        f"{most} was run in {tried[most]} settings, all judged on the test rows: "
        "the best of them flatters itself. Search settings on validation rows: `kinfolk tune`."
    )
    return [say("many-settings", text, "warning", settings=tried[most])]


def order_so_far(known: Evidence) -> list[Sentence]:
    """Where no conclusion is allowed: the means as they stand, without a word on who is better."""
    if not known.rows:
        return []
    best = {row["algorithm"]: row for row in reversed(known.rows)}
    told = [f"{title} {shown(best[title]['macro'], known.score, unit=True)}" for title in known.titles]
    last = max(int(row["rounds_most"]) for row in known.rows)
    order = " This order is not a ranking." if known.titles[1:] else ""
    what = about(known.score).title
    text = f"{what}, mean over clients, at the last scored round ({last}): {listed(told, 5)}.{order}"
    numbers = {
        f"mean_{place}": float(best[title]["macro"]) for place, title in enumerate(known.titles[:5], 1)
    }
    return [say("so-far", text, "plain", round=last, **numbers)]


def only_one(known: Evidence) -> list[Sentence]:
    """A single method: how good it is, and that nothing is known of others."""
    row = known.rows[0]
    seeds = count(len(known.seeds), "seed")
    text = (
        f"{known.label(row)} has {level(row['macro'], known.score)} on average over the clients and "
        f"{level(row['worst'], known.score)} for the worst client ({seeds}); no other method was run."
    )
    return [say("one-method", text, "plain", mean=row["macro"], worst=row["worst"], seeds=len(known.seeds))]
