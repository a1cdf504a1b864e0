"""Who belongs to whom: the group of every client, what the members of a group share, and how sure that is.

From records alone, without torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import mannwhitneyu

from kinfolk.errors import KinfolkError
from kinfolk.report.read import Run, by_title, check_score, final

# Facts that say how a client was made, not what its rows are.
_NOT_DATA = ("known group",)
# A difference is told if chance would bring it less often than this, over all groups and facts.
CHANCE = 0.05
# The most telling facts of a group that are told.
TOLD = 3
# A client whose second nearest group is within this part of the distance might as well be there.
DOUBT = 0.05


def members(run: Run) -> pd.DataFrame:
    """A row for each client: its group and how sure that is.

    Columns: `group`; `margin`, where the method's server knows it (1: only the own group is near, 0: another
    is as near); `steady`, the share of evaluated rounds since clients were first split in which the client
    was in this group; `switches`, how often it moved after it was first put into a group; `since`, the round
    of its last move; `known`, its known group, NaN where there is none.

    >>> scores = {"round": [1, 1, 2, 2], "client": ["a", "b"] * 2, "value": 0.5, "group": [0, 1, 1, 1]}
    >>> moved = [{"round": r, "groups": {"moved": m}} for r, m in ((1, {"b": [0, 1]}), (2, {"a": [0, 1]}))]
    >>> found = members(Run.of({"title": "ifca", "seed": 0}, scores, moved))
    >>> found[["group", "steady", "switches", "since"]].to_dict("list")
    {'group': [1, 1], 'steady': [0.5, 1.0], 'switches': [1, 0], 'since': [2, 1]}
    """
    if not run.has_groups:
        raise KinfolkError("run", f"{run.path}", f"{run.title} has no groups; try fesem, ifca or mdicfl")
    last = run.scored.end(("client", "group", "margin")).drop_duplicates("client")
    last = last.astype({"client": "str"}).set_index("client").sort_index()
    found = pd.DataFrame({"group": last["group"].astype(int), "margin": last["margin"].astype(float)})
    table = run.scored.groups.dropna(how="all").dropna(how="all", axis="columns")
    moves = [(client, line["round"]) for line in run.rounds for client in _moved(line)]
    # Where clients first move they are put into groups: nobody has changed his mind.
    start = min((r for _, r in moves), default=0)
    split = table[(table.nunique(axis=1) > 1).cummax() & (table.index >= start)]
    found["steady"] = (split == found["group"]).mean() if len(split) else math.nan
    later = pd.Series([c for c, r in moves if r > start], dtype=object).value_counts()
    found["switches"] = later.reindex(found.index).fillna(0).astype(int)
    since = pd.Series(dict(moves), dtype=float)
    found["since"] = since.reindex(found.index).fillna(0).astype(int)
    known = run.client_facts.get("known group")
    found["known"] = math.nan if known is None else known.reindex(found.index)
    return found


def _moved(line: Mapping[str, Any]) -> Mapping[str, Any]:
    moved: Mapping[str, Any] = (line.get("groups") or {}).get("moved") or {}
    return moved


@dataclass(frozen=True)
class Profile:
    """What a group is."""

    group: int
    clients: tuple[str, ...]
    rows: float  # training rows, all members together; NaN if not known
    score: float  # mean of the members' final score
    worst: float
    margin: float  # mean of the members'; NaN if not known
    labels: tuple[tuple[str, float], ...]  # the most frequent labels and their share
    shares: tuple[str, ...]  # in what members differ from everybody else, beyond chance


def profiles(run: Run, score: str | None = None) -> list[Profile]:
    """What each group is, by what was recorded of its members; the largest first.

    >>> scores = {"client": ["a", "b"], "value": [0.5, 1.0], "group": [0, 1]}
    >>> [(p.group, p.clients, p.score) for p in profiles(Run.of({"title": "ifca", "seed": 0}, scores))]
    [(0, ('a',), 0.5), (1, ('b',), 1.0)]
    """
    frame, score = members(run), check_score([run], score)
    facts = run.client_facts.reindex(frame.index)
    values = final(run, run.models[0], score)
    telling = _telling(facts.drop(columns=[n for n in _NOT_DATA if n in facts]), frame["group"])
    found = []
    for group, part in frame.groupby("group"):
        mine, here = facts.loc[part.index], values.reindex(part.index)
        labels = mine[[name for name in mine if name.startswith("label ")]].mean().nlargest(TOLD)
        found.append(
            Profile(
                int(group),
                tuple(part.index),
                float(mine["rows"].sum()) if "rows" in mine else math.nan,
                float(here.mean()),
                float(here.min()),
                float(part["margin"].mean()),
                tuple((name.removeprefix("label "), float(share)) for name, share in labels.items()),
                telling.get(int(group), ()),
            )
        )
    return sorted(found, key=lambda profile: (-len(profile.clients), profile.group))


def _telling(facts: pd.DataFrame, group: pd.Series) -> dict[int, tuple[str, ...]]:
    """Of each group the facts in which its members differ most from all others, beyond chance.

    Mann and Whitney's test for every fact and group, by Holm's rule over all of them; the size is the
    difference of means in standard deviations over clients.
    """
    tried: list[tuple[float, int, str, float]] = []
    for name in facts:
        column = facts[name].astype(float)
        spread = float(column.std(ddof=1))
        if not spread > 1e-12 * max(1.0, float(column.abs().max())):
            continue
        for g in sorted(group.unique()):
            mine, others = column[group == g].dropna(), column[group != g].dropna()
            if len(mine) < 2 or len(others) < 2:
                continue
            p = float(mannwhitneyu(mine, others).pvalue)
            tried.append((p, int(g), str(name), float(mine.mean() - others.mean()) / spread))
    tried.sort()
    found: dict[int, list[tuple[float, str, float]]] = {}
    for place, (p, g, name, size) in enumerate(tried):
        if p > CHANCE / (len(tried) - place):
            break  # Holm: once one is not beyond chance, no later one is
        found.setdefault(g, []).append((-abs(size), name, size))
    return {
        g: tuple(f"{name} {size:+.1f} sd" for _, name, size in sorted(f)[:TOLD]) for g, f in found.items()
    }


def between_seeds(runs: Iterable[Run]) -> dict[str, list[float]]:
    """Of each method with groups the adjusted Rand index of the groups of every two seeds.

    Only over clients that both have, and only where a client's name means the same in both: known groups
    agree, or clients are natural. Nothing where that is not so.

    >>> def run(seed, groups):
    ...     scores = {"client": ["a", "b", "c", "d"], "value": 0.5, "group": groups}
    ...     return Run.of({"title": "ifca", "seed": seed}, scores)
    >>> between_seeds([run(0, [0, 0, 1, 1]), run(1, [1, 1, 0, 0])])
    {'ifca': [1.0]}
    """
    from sklearn.metrics import adjusted_rand_score  # a second of imports that few reports need

    found = {
        title: [float(adjusted_rand_score(a, b)) for a, b in same_clients(map(members, same))]
        for title, some in by_title(runs).items()
        if len(same := [run for run in some if run.has_groups]) > 1
    }
    return {title: indices for title, indices in found.items() if indices}


def same_clients(frames: Iterable[pd.DataFrame]) -> Iterator[tuple[pd.Series, pd.Series]]:
    """The groups of every two seeds, of the clients that both have, where a name means the same in both."""
    for a, b in combinations(frames, 2):
        both = a.index.intersection(b.index)
        if len(both) > 1 and a["known"].reindex(both).equals(b["known"].reindex(both)):
            yield a["group"].reindex(both), b["group"].reindex(both)


def named(clients: Sequence[str], most: int = 8) -> str:
    """Some names, and how many more there are.

    >>> named(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    text = ", ".join(clients[:most])
    return text if len(clients) <= most else f"{text} and {len(clients) - most:,} more"


def switches(frame: pd.DataFrame) -> str:
    """How many clients changed their group after the start, and who did so last.

    >>> switches(pd.DataFrame({"switches": [0, 2], "since": [1, 7]}, index=["ann", "bob"]))
    '1 of 2 clients changed group after the start, the last in round 7 (bob)'
    """
    moved = frame[frame["switches"] > 0]
    if moved.empty:
        return f"none of {len(frame)} clients changed group after the start"
    last = moved[moved["since"] == moved["since"].max()]
    return (
        f"{len(moved)} of {len(frame)} clients changed group after the start, "
        f"the last in round {int(last['since'].iloc[0])} ({named(list(map(str, last.index)), 3)})"
    )


def doubtful(frame: pd.DataFrame) -> list[str]:
    """Clients whose group is in doubt: another is nearly as near, or they were often in another.

    >>> doubtful(pd.DataFrame({"margin": [0.01, 0.9], "steady": [1.0, 1.0]}, index=["ann", "bob"]))
    ['ann']
    """
    unsure = (frame["margin"] < DOUBT) | (frame["steady"] < 0.5)
    return [str(client) for client in frame.index[np.asarray(unsure, dtype=bool)]]
