"""What the verdict is made from: the runs that can be ranked, those that cannot, and every two compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from kinfolk.report.against import Row, ends_by_seed, ends_pairs
from kinfolk.report.convergence import last_quarter, movement
from kinfolk.report.read import Run, by_title, check_score
from kinfolk.report.statistics import Paired, Pairs
from kinfolk.report.tables import ranked_rows
from kinfolk.scores import about

Kind = Literal["groups", "one", "alone", "own"]
Ends = Mapping[int, pd.DataFrame]


@dataclass(frozen=True)
class Evidence:
    """The rows of a comparison (a method and one kind of its models each), by what may be said of them.

    >>> runs = [Run.of({"title": "local", "seed": s}, {"client": ["a", "b"], "value": 0.5}) for s in (0, 1)]
    >>> found = gather(runs)
    >>> found.label(found.rows[0]), found.kind(found.rows[0]), found.seeds
    ('local', 'alone', (0, 1))
    """

    runs: Sequence[Run]
    score: str
    rows: Sequence[Row]  # those that can be ranked, the best mean over clients first
    gone: Sequence[Row]  # whose models had diverged in a run or more
    partial: Mapping[tuple[str, str], int] = field(default_factory=dict)  # clients without a score, by row
    choice: Mapping[str, Any] | None = None  # what `kinfolk choose-k` wrote
    last: Mapping[tuple[str, str], Ends] = field(default_factory=dict)  # the last scores of every row

    @property
    def lower(self) -> bool:
        """Whether a lower score is the better one."""
        return about(self.score).lower_is_better

    @cached_property
    def of(self) -> Mapping[str, list[Run]]:
        """The runs by the title of their method."""
        return by_title(self.runs)

    @cached_property
    def pairs(self) -> Pairs:
        """Every two of `rows` compared, by their places: the second less the first."""
        return ends_pairs(self.rows, [self.ends(row) for row in self.rows])

    @cached_property
    def moves(self) -> Mapping[tuple[str, str], tuple[float, float]]:
        """By ranked row: (change for the better in its last quarter, that in parts of what is settled)."""
        ranked, moved = {_key(row) for row in self.rows}, last_quarter(self.runs, self.score)
        known = {who: pair for who, pair in moved.items() if who in ranked and all(map(math.isfinite, pair))}
        return {who: (pair[1], movement(pair, self.score)) for who, pair in known.items()}

    @cached_property
    def titles(self) -> tuple[str, ...]:
        """The methods that can be ranked, the best first."""
        return tuple(dict.fromkeys(str(row["algorithm"]) for row in self.rows))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that all ranked methods have."""
        each = [set(self.ends(row)) for row in self.rows]
        return tuple(sorted(set.intersection(*each))) if each else ()

    def ends(self, row: Row) -> Ends:
        """The last scores of a row, by seed: columns value and rows, by client."""
        return self.last[_key(row)]

    def kind(self, row: Row) -> Kind:
        """What a row's clients are given: a group's model, the one model, one trained alone, or another."""
        return kind_of(self.of[row["algorithm"]], str(row["model"]))

    def best(self, *kinds: Kind, model: str | None = None) -> Row | None:
        """The best row of these kinds, if there is one."""
        fit = (r for r in self.rows if self.kind(r) in kinds and model in (None, r["model"]))
        return next(fit, None)

    def label(self, row: Row) -> str:
        """A row's method, and its kind of model where several of the method are ranked."""
        title = str(row["algorithm"])
        several = sum(other["algorithm"] == title for other in self.rows) > 1
        return f"{title} ({row['model']})" if several else title

    def pair(self, first: Row, second: Row) -> Paired:
        """The second compared with the first; a positive difference says that the second is higher."""
        i, j = (next(n for n, row in enumerate(self.rows) if row is one) for one in (first, second))
        found = self.pairs[min(i, j), max(i, j)]
        return found if i < j else turned(found)

    def gain(self, better: Row, than: Row) -> Paired:
        """One row compared with another, so that a positive difference is an advantage of the first."""
        return self.pair(better, than) if self.lower else self.pair(than, better)


def turned(one: Paired) -> Paired:
    """The same comparison the other way round."""
    low, high = one.interval
    fields = {**vars(one), "difference": -one.difference, "interval": (-high, -low)}
    return Paired(**fields)


def kind_of(runs: Sequence[Run], model: str) -> Kind:
    """What the clients of a method are given.

    A model is everybody's if it is a centre of a method without groups and no client sends to another; by
    their records such methods can be known that did not exist when this was written.

    >>> kind_of([Run.of({"title": "fedprox", "seed": 0}, {"value": [0.5]})], "centre")
    'one'
    """
    if any(has_groups(run) for run in runs):
        return "groups"
    if all(str(run.facts.get("algorithm") or run.title).split()[0] == "local" for run in runs):
        return "alone"
    ways = {
        way
        for run in runs
        for fact in run.rounds
        for sent in (fact.get("bytes") or {}).values()
        for way in sent
    }
    return "one" if model == "centre" and "across" not in ways else "own"


def has_groups(run: Run) -> bool:
    """Whether a method puts clients into groups, by records of any version."""
    return run.has_groups or any(fact.get("groups") for fact in run.rounds)


def gather(
    runs: Sequence[Run], score: str | None = None, choice: Mapping[str, Any] | None = None
) -> Evidence:
    """All that the rules go by; runs without the score are in `runs` only."""
    score = check_score(runs, score)
    rows = ranked_rows(runs, score)
    titles = by_title(runs)
    last = {_key(row): ends_by_seed(row, titles[row["algorithm"]]) for row in rows}
    lost = lost_clients(rows, runs, last)
    sound = [r for r in rows if not r["diverged"] and not lost[_key(r)] and math.isfinite(r["macro"])]
    partial = {_key(r): lost[_key(r)] for r in rows if not r["diverged"] and r not in sound}
    return Evidence(runs, score, sound, [r for r in rows if r["diverged"]], partial, choice, last)


def _key(row: Row) -> tuple[str, str]:
    return str(row["algorithm"]), str(row["model"])


def lost_clients(
    rows: Sequence[Row], runs: Sequence[Run], last: Mapping[tuple[str, str], Ends]
) -> dict[tuple[str, str], int]:
    """By row: how many clients, at most in a seed, have no score at its end but have one elsewhere.

    A model that is of no use to a client may have no score there (it is not finite, and rejected): the mean
    over the others flatters it. A client without test rows has no score anywhere, and is not lost.

    >>> runs = [Run.of({"title": t, "seed": 0}, {"client": ["a", "b"], "value": [0.5, v]})
    ...     for t, v in (("fedavg", float("nan")), ("local", 0.1))]
    >>> gather(runs).partial
    {('fedavg', 'centre'): 1}
    """
    score = str(rows[0]["score"]) if rows else ""
    there: dict[int, set[Any]] = {}
    for run in runs:
        ever = run.scored.seen.rows
        there.setdefault(run.seed, set()).update(ever.loc[(ever["score"] == score) & ever["known"], "client"])
    found, titles = {}, by_title(runs)
    for row in rows:
        same = [
            run for run in titles[row["algorithm"]] if row["model"] in run.models and score in run.metrics
        ]
        scored = {s: set(end.index[end["value"].notna()]) for s, end in last[_key(row)].items()}
        found[_key(row)] = max(len(there[run.seed] - scored.get(run.seed, set())) for run in same)
    return found
