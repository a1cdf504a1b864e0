"""Who looks like a free rider or an outlier, by what the coordinator has seen of each update.

A sign is something odd about one update in one round. A client is named once a sign has stood against it in
at least half of the rounds that could show it, and in at least `Rule.rounds` of them. A sign is no proof: who
has too few rows to train is idle without guilt, and who has rare data points elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from kinfolk.experiment.conduct_files import KIND, MARKS, read_conduct
from kinfolk.experiment.record import round_files

if TYPE_CHECKING:
    from kinfolk.report.read import Run

FREE_RIDER, OUTLIER, OTHERS = "free rider", "outlier", "the others"
# The signs, what they make of a client, and what a reader is told.
SIGNS = {
    "idle": (FREE_RIDER, "returns what it was sent"),
    "repeats": (FREE_RIDER, "repeats an earlier reply, update or step of the model"),
    "long": (OUTLIER, "updates far longer than its group's"),
    "short": (OUTLIER, "updates far shorter than its group's"),
    "astray": (OUTLIER, "updates that point away from its group's"),
}
# Rounds that are looked at, the last ones: so many, or fewer where each has many updates, which take time.
MOST_ROUNDS, MOST_UPDATES, FEWEST_ROUNDS = 200, 500_000, 20
# Clients that a line names.
MOST_NAMES = 5
# By this factor a median absolute deviation becomes the standard deviation of a normal distribution.
NORMAL = 1.4826


@dataclass(frozen=True)
class Rule:
    """When a sign stands against an update, and when a client is named.

    >>> Rule().rounds
    3
    """

    idle: float = 0.01  # an update no longer than this part of the cohort's median
    same: float = 0.001  # two updates that differ by no more than this part of their length are one
    factor: float = 2.5  # times the median length, or a part of it
    score: float = 3.5  # and so many standard deviations from it
    cosine: float = 0.1  # and at most so much in common with the direction of the others
    common: float = 0.3  # where a group itself has less in common, nobody is astray
    few: int = 5  # of a group with fewer updates no direction is judged, and lengths beside the cohort's
    rounds: int = 3  # in which a sign must stand, at least


def conduct(run: Run, rule: Rule | None = None) -> pd.DataFrame:
    """The clients that are named, worst first: columns client, looks like, sign, rounds, of.

    >>> from kinfolk.report.read import Run
    >>> list(conduct(Run.of({"title": "fedavg", "seed": 0}, {"value": []})))
    ['client', 'looks like', 'sign', 'rounds', 'of']
    """
    return judged(looked_at(run), rule or Rule())


def looked_at(run: Run) -> Iterator[tuple[int, pd.DataFrame]]:
    """The rounds by which clients are judged: the last ones on record.

    >>> from kinfolk.report.read import Run
    >>> list(looked_at(Run.of({"title": "fedavg", "seed": 0}, {"value": []})))
    []
    """
    updates = max((len(frame) for _, frame in read_conduct(run.path, 1)), default=1)
    return read_conduct(run.path, min(MOST_ROUNDS, max(FEWEST_ROUNDS, MOST_UPDATES // max(1, updates))))


def conduct_lines(run: Run) -> list[str]:
    """What the report says in lines: who is named and why, or that nobody is; nothing where nothing was seen.

    >>> from kinfolk.report.read import Run
    >>> conduct_lines(Run.of({"title": "fedavg", "seed": 0}, {"value": []}))
    []
    """
    if not has_conduct(run):
        return []
    named = conduct(run)
    if named.empty:
        return ["nobody looks like a free rider or an outlier"]
    lines = []
    for (kind, sign), part in named.groupby(["looks like", "sign"], sort=False):
        who = [f"{row.client} ({row.rounds} of {row.of} rounds)" for row in part.itertuples()]
        more = f" and {len(who) - MOST_NAMES} others" if len(who) > MOST_NAMES else ""
        lines.append(f"{kind}? {SIGNS[str(sign)][1]}: {', '.join(who[:MOST_NAMES])}{more}")
    return lines


def has_conduct(run: Run) -> bool:
    """Whether anything is on record: not of older runs, nor where no server sees updates, as in SLFed.

    >>> from kinfolk.report.read import Run
    >>> has_conduct(Run.of({"title": "slfed", "seed": 0}, {"value": []}))
    False
    """
    return bool(round_files(run.path, KIND))


def everyone(run: Run) -> pd.DataFrame:
    """What a chart shows, a row for each client: medians over rounds, and what it looks like.

    Columns client, length (in medians of its group's), cosine, looks like, signs.

    >>> from kinfolk.report.read import Run
    >>> list(everyone(Run.of({"title": "fedavg", "seed": 0}, {"value": []})))
    ['client', 'length', 'cosine', 'looks like', 'signs']
    """
    parts = []
    for _, frame in looked_at(run):
        moved = frame["length"].where(frame["length"] > 0)
        usual = moved.groupby([frame["task"], frame["group"]]).transform("median")
        parts.append(frame.assign(length=frame["length"] / usual)[["client", "length", "cosine"]])
    if not parts:
        return pd.DataFrame(columns=["client", "length", "cosine", "looks like", "signs"])
    table = pd.concat(parts).groupby("client").median()
    named = conduct(run).groupby("client")
    kinds, odd = named["looks like"].first().to_dict(), named["sign"].agg(", ".join).to_dict()
    table["looks like"] = [kinds.get(who, OTHERS) for who in table.index]
    table["signs"] = [odd.get(who, "") for who in table.index]
    return table.reset_index()


def judged(rounds: Iterable[tuple[int, pd.DataFrame]], rule: Rule) -> pd.DataFrame:
    """The same, of facts that are at hand.

    >>> one = {"task": "train", "client": ["a", "b", "c"], "group": -1, "rows": 9, "length": [0.0, 1.0, 1.1]}
    >>> one |= {"cosine": np.nan, "mark0": 0.0, "mark1": 0.0, "mark2": 0.0, "mark3": 0.0}
    >>> judged([(n, pd.DataFrame(one)) for n in (1, 2, 3)], Rule()).values.tolist()
    [['a', 'free rider', 'idle', 3, 3]]
    """
    could: dict[str, pd.DataFrame] = {}
    does: dict[str, pd.DataFrame] = {}
    before: dict[str, pd.DataFrame] = {}
    for _, frame in rounds:
        for task, facts in frame.groupby("task"):
            name, facts = str(task), facts.drop_duplicates("client").set_index("client")
            earlier = before.get(name)
            known, found = signs(facts, earlier, rule)
            could[name] = _sum(could.get(name), known)
            does[name] = _sum(does.get(name), found)
            marks = facts[list(MARKS)]
            before[name] = marks if earlier is None else marks.combine_first(earlier)
    rows = [
        (client, SIGNS[sign][0], sign, int(times), int(could[name].at[client, sign]))
        for name, found in does.items()
        for sign in SIGNS
        for client, times in found[sign].items()
        if times >= rule.rounds and 2 * times >= could[name].at[client, sign]
    ]
    named = pd.DataFrame(rows, columns=["client", "looks like", "sign", "rounds", "of"])
    named = named.sort_values(["looks like", "rounds", "client"], ascending=[True, False, True])
    return named.drop_duplicates(["client", "sign"]).reset_index(drop=True)


def _sum(total: pd.DataFrame | None, more: pd.DataFrame) -> pd.DataFrame:
    return more.astype(int) if total is None else total.add(more, fill_value=0)


def signs(facts: pd.DataFrame, earlier: pd.DataFrame | None, rule: Rule) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(which signs could stand against whom, which do), of one task in one round: clients x SIGNS.

    `earlier` are the marks of each client when it was last heard.
    """
    length, group = facts["length"], facts["group"]
    moved = length > 0
    median = length[moved].median() if 2 * moved.sum() > len(length) else np.nan
    idle = length <= rule.idle * median  # where most stand still, so may everybody
    training = moved & ~idle
    large = group.groupby(group).transform("size") >= rule.few
    logs = _per_row(np.log(length.where(training)), np.log(facts["rows"].clip(lower=1)))
    apart = logs - _centre(logs, group, large)
    many = (training.groupby(group).transform("sum").where(large, training.sum())) >= rule.few
    far = many & (_scores(apart, group, large).abs() > rule.score)
    cosine = facts["cosine"].where(training & large)
    usual = cosine.groupby(group).transform("median")
    cosine = cosine.where(usual >= rule.common)
    again = _repeats(facts[list(MARKS)], earlier, rule.same)
    does = {
        "idle": idle,
        "repeats": again.fillna(False).astype(bool) & training,
        "long": far & (apart > np.log(rule.factor)),
        "short": far & (apart < -np.log(rule.factor)),
        # However much honest directions differ: noise has nothing in common with any.
        "astray": cosine <= rule.cosine,
    }
    could = {
        "idle": pd.Series(not np.isnan(median), facts.index),
        "repeats": again.notna() & training,
        "long": training & many,
        "short": training & many,
        "astray": cosine.notna(),
    }
    return pd.DataFrame(could)[list(SIGNS)], pd.DataFrame(does)[list(SIGNS)]


def _per_row(logs: pd.Series, rows: pd.Series) -> pd.Series:
    """Lengths as they would be if all had equally many rows: more rows make more steps.

    How much longer is seen from the lengths themselves: between not at all and in proportion.
    """
    known = logs.notna()
    spread = rows[known].var(ddof=0)
    slope = logs[known].cov(rows[known], ddof=0) / spread if spread > 0 else 0.0
    return logs - min(max(slope, 0.0), 1.0) * (rows - rows[known].mean())


def _centre(values: pd.Series, group: pd.Series, large: pd.Series) -> pd.Series:
    """The median of each value's group, of small groups that of all."""
    return values.groupby(group).transform("median").where(large, values.median())


def _scores(apart: pd.Series, group: pd.Series, large: pd.Series) -> pd.Series:
    """Distances from a median in standard deviations, by the median of their size."""
    return apart / (NORMAL * _centre(apart.abs(), group, large)).clip(lower=1e-9)


def _repeats(marks: pd.DataFrame, earlier: pd.DataFrame | None, same: float) -> pd.Series:
    """Whether an update, a reply or a step of the model is one of before; NA where that cannot be said.

    A client that was sent the same model again may honestly reply the same.
    """
    if earlier is None:
        return pd.Series(pd.NA, marks.index, dtype="boolean")
    now, then = marks.to_numpy(), earlier.reindex(marks.index).to_numpy()
    update, reply = now[:, :2], now[:, 2:]
    step = (reply - update) - (then[:, 2:] - then[:, :2])
    size = np.linalg.norm(update, axis=1)
    near = [
        np.linalg.norm(one, axis=1) <= same * size
        for one in (update - then[:, :2], reply - then[:, 2:], update - step, update + step)
    ]
    known = np.linalg.norm(step, axis=1) > 0.1 * size
    return pd.Series(np.any(near, axis=0), marks.index, dtype="boolean").where(known)
