"""Who is badly served by one model for all: clients that clearly do better otherwise, or lag behind the rest.

A client is named only if its gap matters and is beyond the noise of its own test rows and of the seeds,
corrected for all clients at once (Holm), since the worst of many look bad by chance alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from kinfolk.report.against import Row
from kinfolk.report.groups import same_clients
from kinfolk.report.statistics import LEVEL, holm
from kinfolk.report.verdict.evidence import Evidence
from kinfolk.report.verdict.sentence import Sentence, count, gap, level, listed, say
from kinfolk.scores import about

Floats = NDArray[np.float64]

# A gap that matters to a client: one row in twenty is answered wrongly that need not be; of an error, and of
# any other score, a tenth of its value.
POINTS, PART = 0.05, 0.1
# Two methods are asked who serves a client better than one model for all, and one the other way round.
QUESTIONS = 3
# A client lags behind the rest if it is so far below the median of all: twice as much, as clients differ.
BEHIND = 2
# A spread told by the median deviation is as sure as a standard deviation of so much fewer clients.
EFFICIENCY = 0.37
# A group of so many named clients or more is told, if it holds more than half of those named.
TOLD_GROUP = 3


@dataclass(frozen=True)
class Named:
    """Clients with a gap that matters and is clear."""

    gaps: pd.Series  # by client, the largest first; positive: that much worse off
    clients: int  # of so many
    groups: pd.Series  # of the named ones
    fewest: int  # in a seed, where seeds have other clients under the same names; else all
    most: int
    seeds: int = 1  # over which clients were named, each by itself, where that is so


def matters(score: str, value: float) -> float:
    """The smallest gap that matters to a client that has this score.

    >>> matters("accuracy", 0.9), round(matters("mse", 2.0), 3)
    (0.05, 0.2)
    """
    return POINTS if about(score).percent else PART * abs(value)


def chance_of(gaps: Floats, variances: Floats, free: Floats | float = math.inf) -> Floats:
    """How likely gaps so large are if there is none, one-sided, corrected for all clients (Holm)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.where(variances > 0, gaps / np.sqrt(variances), np.where(gaps > 0, np.inf, -np.inf))
    return np.array(holm(stats.t.sf(size, free).tolist()), dtype=np.float64)


def noise_of_rows(values: Floats, rows: Floats) -> Floats:
    """The variance of shares of so many test rows; a share of 0 or 1 is not certain either (Agresti, Coull).

    >>> noise_of_rows(np.array([0.5, 1.0]), np.array([96.0, 96.0])).round(5).tolist()
    [0.0025, 0.0002]
    """
    near = (values.clip(0, 1) * rows + 2) / (rows + 4)
    found: Floats = near * (1 - near) / (rows + 4)
    return found


def noise_of_seeds(values: Floats) -> tuple[float, float, int]:
    """(what a seed does to all clients, what it does to each, seeds - 1): variances of a client's mean.

    From values [clients, seeds]; NaN with one seed. The first is known from the seeds alone, which are few.

    >>> noise_of_seeds(np.array([[0.0, 2.0], [1.0, 3.0]])), noise_of_seeds(np.array([[0.0, 2.0], [2.0, 0.0]]))
    ((1.0, 0.0, 1), (0.0, 2.0, 1))
    """
    clients, seeds = values.shape
    if seeds < 2:
        return math.nan, math.nan, 0
    shift = values.mean(0) - values.mean()
    rest = values - values.mean(1, keepdims=True) - shift
    each = float(np.square(rest).sum()) / max((clients - 1) * (seeds - 1), 1)
    common = float(np.square(shift).sum()) / (seeds - 1) - each / clients
    return max(common, 0.0) / seeds, each / seeds, seeds - 1


def worse_off(known: Evidence, served: Row, other: Row) -> Named | None:
    """Clients that one row serves clearly worse than another does; None where that cannot be said.

    >>> from kinfolk.report.read import Run
    >>> from kinfolk.report.verdict.evidence import gather
    >>> def run(title, seed, last):
    ...     scores = {"client": ["ann", "bob"], "value": [0.9, last], "rows": 200}
    ...     return Run.of({"title": title, "seed": seed}, scores)
    >>> known = gather([run(*one) for s in (0, 1) for one in (("fedavg", s, 0.5), ("local", s, 0.8))])
    >>> worse_off(known, known.rows[1], known.rows[0]).gaps.round(2).to_dict()
    {'bob': 0.3}
    """
    sign = -1.0 if known.lower else 1.0
    mine, better = known.ends(served), known.ends(other)
    seeds = [seed for seed in known.seeds if seed in mine and seed in better]
    tables = [pd.concat([mine[s]["value"], better[s]["value"], mine[s]["rows"]], axis=1) for s in seeds]
    tables = [table.set_axis(["served", "other", "rows"], axis=1).dropna() for table in tables]
    if not seeds or any(np.isinf(table.to_numpy(dtype=float)).any() for table in tables):
        return None
    groups = {seed: groups_of(known, seed) for seed in seeds}
    if len(seeds) > 1 and not same_everywhere(known, served):
        each = [_named([table], known.score, sign, groups[s]) for s, table in zip(seeds, tables, strict=True)]
        sure = [one for one in each if one is not None]
        if len(sure) < len(each):
            return None
        gaps, many = pd.concat([one.gaps for one in sure]), [len(one.gaps) for one in sure]
        where = pd.concat([one.groups for one in sure])
        return Named(
            gaps.sort_values(ascending=False, kind="stable"),
            max(one.clients for one in sure),
            where,
            min(many),
            max(many),
            len(sure),
        )
    both = set.intersection(*(set(table.index) for table in tables))
    return _named([table.loc[sorted(both)] for table in tables], known.score, sign, groups[seeds[0]])


def _named(tables: Sequence[pd.DataFrame], score: str, sign: float, groups: pd.Series) -> Named | None:
    """The clients with a clear gap, each a mean over tables (seeds)."""
    first = tables[0]
    if first.empty:
        return None
    apart = np.stack([sign * (t["other"] - t["served"]).to_numpy(dtype=float) for t in tables], axis=1)
    served, other, rows = (
        np.mean([table[name].to_numpy(dtype=float) for table in tables], axis=0)
        for name in ("served", "other", "rows")
    )
    common, each, free = noise_of_seeds(apart)
    variance = np.full(len(first), common + each)
    if about(score).percent:
        variance = np.nan_to_num(variance) + noise_of_rows(served, rows) + noise_of_rows(other, rows)
    if np.isnan(variance).any():
        return None  # one seed of a score whose noise the rows do not tell
    # Satterthwaite: the common part is known from the seeds alone, the other from all clients.
    parts = 0.0 if not free else (common**2 + each**2 / max(len(first) - 1, 1)) / free
    sure = np.square(variance) / parts if parts > 0 else np.full(len(first), np.inf)
    gaps = apart.mean(1)
    enough = gaps >= np.array([matters(score, value) for value in served])
    clear = (chance_of(gaps, variance, sure) < LEVEL / QUESTIONS) & enough & (gaps > 0)
    named = pd.Series(gaps, index=first.index)[clear].sort_values(ascending=False, kind="stable")
    return Named(named, len(first), groups.reindex(named.index).dropna(), len(named), len(named))


def same_everywhere(known: Evidence, row: Row) -> bool:
    """Whether a client's name means the same in every seed: known groups agree, as in `kinfolk groups`."""
    facts = [run.client_facts for run in known.of[row["algorithm"]] if run.seed in known.seeds]
    frames = [
        pd.DataFrame({"group": 0, "known": f.get("known group", math.nan)}, index=f.index) for f in facts
    ]
    if len(frames) < 2 or any(frame.empty for frame in frames):
        return True
    pairs = len(frames) * (len(frames) - 1) // 2
    return sum(1 for _ in same_clients(frames)) == pairs


def behind(known: Evidence, row: Row) -> Named | None:
    """Clients of a row that lag far behind the others, beyond how clients differ and what their rows tell."""
    table = pd.DataFrame({s: end["value"] for s, end in known.ends(row).items()}, dtype=float)
    if table.shape[1] > 1 and not same_everywhere(known, row):
        return None
    values = table.dropna().mean(axis=1)
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    middle = float(values.median())
    gaps = (middle - values) * (-1 if known.lower else 1)
    # The spread that normal clients would have, from the middle half of them: stragglers do not count.
    spread = 1.4826 * np.median(np.abs(values.to_numpy() - middle))
    variance = np.full(len(values), np.square(spread))
    if about(known.score).percent:
        rows = pd.DataFrame({s: end["rows"] for s, end in known.ends(row).items()}).mean(axis=1)
        variance = variance + noise_of_rows(
            values.to_numpy(), rows.reindex(values.index).to_numpy(dtype=float)
        )
    free = EFFICIENCY * (len(values) - 1)
    clear = (chance_of(gaps.to_numpy(), variance, free) < LEVEL) & (
        gaps >= BEHIND * matters(known.score, middle)
    )
    named = gaps[clear & (gaps > 0)].sort_values(ascending=False, kind="stable")
    groups = groups_of(known, min(known.ends(row))).reindex(named.index).dropna()
    return Named(named, len(values), groups, len(named), len(named))


def served_sentences(known: Evidence, early: bool = False) -> list[Sentence]:
    """Who is worse off with one model for all than with the best other method, or alone; who lags behind.

    `early`: where no conclusion is allowed, this too is how things stand so far.
    """
    found = _served(known)
    if not early:
        return found
    return [
        replace(one, text=f"So far: {one.text[0].lower()}{one.text[1:]}", weight="plain") for one in found
    ]


def _served(known: Evidence) -> list[Sentence]:
    one = known.best("one")
    if one is None:
        row = known.rows[0]
        return _behind(known, row, behind(known, row))
    best, alone = known.best("groups", "own", "alone"), known.best("alone")
    said: list[Sentence] = []
    for rule, other in (("worse-off", best), ("worse-than-alone", alone)):
        if other is not None and not (rule == "worse-than-alone" and other is best):
            said += _worse(known, rule, one, other)
    if best is not None:
        said += _losers(known, one, best)
    return [*said, *_behind(known, one, behind(known, one))]


def _worse(known: Evidence, rule: str, one: Row, other: Row) -> list[Sentence]:
    found = worse_off(known, one, other)
    name, with_ = f"one model for all ({known.label(one)})", known.label(other)
    if found is None:
        text = f"Which clients {name} serves worse than {with_} cannot be told from noise here."
        return [say(f"{rule}-unknown", text, "plain")] if rule == "worse-off" else []
    if not found.most:
        text = f"No client is clearly worse off with {name} than with {with_}."
        if rule == "worse-than-alone":
            text = f"No client would clearly do better alone ({with_})."
        return [say(f"{rule}-nobody", text, "plain", clients=found.clients)]
    if not found.fewest:
        many = f"0 to {found.most} of {count(found.clients, 'client')} would clearly do better with {with_}"
        text = f"It depends on the seed whether {name} serves clients badly: {many}."
        return [say(f"{rule}-by-seed", text, "plain", named=found.most, clients=found.clients)]
    most = float(found.gaps.iloc[0])
    numbers = {"fewest": found.fewest, "named": found.most, "clients": found.clients, "most": most}
    size = gap(most, known.score)
    text = f"Badly served by {name}: {_who(found)} would clearly do better with {with_}, by up to {size}."
    return [say(rule, text + _by_group(found), "warning", **numbers)]


def _who(found: Named) -> str:
    """How many clients, and the names of the first where a name means the same in every seed."""
    of = f"of {count(found.clients, 'client')}"
    if found.seeds == 1:
        return f"{found.most} {of} ({listed([str(client) for client in found.gaps.index])})"
    span = f"{found.fewest}" if found.fewest == found.most else f"{found.fewest} to {found.most}"
    return f"{span} {of} in each of {found.seeds} seeds"


def _by_group(found: Named) -> str:
    """The group that holds most of the named clients, if there is one."""
    if found.groups.empty:
        return ""
    each = found.groups.value_counts()
    many = int(each.iloc[0])
    if many < TOLD_GROUP or 2 * many <= len(found.gaps):
        return ""
    return f" {many / len(found.gaps):.0%} of them are in {found.groups.name} {int(each.index[0])}."


def groups_of(known: Evidence, seed: int) -> pd.Series:
    """The group of every client in a seed: the "known group", or the "group" of the best method with any."""
    for run in known.runs:
        if run.seed == seed and "known group" in run.client_facts:
            return run.client_facts["known group"].dropna()
    row = known.best("groups")
    for run in known.of[row["algorithm"]] if row is not None else ():
        if run.seed == seed:
            last = run.scored.end(("client", "group")).drop_duplicates("client").astype({"client": "str"})
            return last.set_index("client")["group"].dropna().astype(float)
    return pd.Series(dtype=float, name="group")


def _losers(known: Evidence, one: Row, best: Row) -> list[Sentence]:
    """Clients that the other method serves clearly worse than one model does."""
    found = worse_off(known, best, one)
    if found is None or not found.fewest:
        return []
    most = float(found.gaps.iloc[0])
    text = (
        f"The other way round, {_who(found)} would clearly do better with {known.label(one)} than with "
        f"{known.label(best)}, by up to {gap(most, known.score)}."
    )
    return [say("loses-by-it", text, "warning", named=found.most, clients=found.clients, most=most)]


def _behind(known: Evidence, row: Row, found: Named | None) -> list[Sentence]:
    if found is None or found.gaps.empty:
        return []
    values = pd.DataFrame({s: end["value"] for s, end in known.ends(row).items()}, dtype=float).mean(axis=1)
    lowest = float(values[found.gaps.index[0]])
    middle = level(float(values.median()), known.score)
    text = (
        f"Far behind the rest with {known.label(row)}: {_who(found)}; the last has "
        f"{level(lowest, known.score)}, the median client {middle}.{_by_group(found)}"
    )
    return [say("behind", text, "warning", named=len(found.gaps), clients=found.clients, lowest=lowest)]
