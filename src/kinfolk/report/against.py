"""The rows of a comparison against the best of them: the difference, the mark, and what the marks rest on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import pandas as pd

from kinfolk.report.diverged import is_ranked, unranked
from kinfolk.report.read import Run, by_title, last, power
from kinfolk.report.statistics import (
    FEWEST_CLIENTS,
    LEVEL,
    Pairs,
    all_pairs,
    as_columns,
    corrected,
    paired_seeds,
    robust_ranks,
)
from kinfolk.scores import about, summary

Row = Mapping[str, Any]
_NOT_COMPARED = {
    "difference": math.nan, "interval": (math.nan, math.nan), "p": math.nan, "n": 0, "unit": "",
    "apart": None, "pooled_std": math.nan,
}  # fmt: skip


def last_scores(model: str, score: str, runs: Sequence[Run]) -> list[pd.DataFrame]:
    """The clients at the end of each run that scored this model so."""
    return [last(run, model, score) for run in runs if has_scores(run, model, score)]


def has_scores(run: Run, model: str, score: str) -> bool:
    """Whether a run has ever scored this model so.

    >>> run = Run.of({"title": "local", "seed": 0}, {"value": [0.5]})
    >>> has_scores(run, "centre", "accuracy"), has_scores(run, "centre", "mse")
    (True, False)
    """
    return model in run.models and score in run.metrics and len(last(run, model, score)) > 0


def against_best(rows: Sequence[Row], runs: Sequence[Run], over: str) -> tuple[list[dict[str, Any]], str]:
    """(what to add to each row, the best first: its difference to the best; which ranks hold, in words)."""
    sound = [row for row in rows if is_ranked(row)]  # the others come last and have no rank
    pairs = row_pairs(sound, runs, over)
    found = [_against(place, row, sound[0], over, pairs) for place, row in enumerate(sound)]
    found += [dict(_NOT_COMPARED) for _ in rows[len(sound) :]]
    return found, robust_ranks(pairs, len(sound))


def row_pairs(rows: Sequence[Row], runs: Sequence[Run], over: str = "macro") -> Pairs:
    """Every two rows compared: by their clients, or seed by seed where `over` is no mean over clients."""
    titles = by_title(runs)
    return ends_pairs(rows, [ends_by_seed(row, titles[row["algorithm"]]) for row in rows], over)


def ends_pairs(rows: Sequence[Row], ends: Sequence[Mapping[int, pd.DataFrame]], over: str = "macro") -> Pairs:
    """The same from the last scores of each row, by seed."""
    if over == "macro":
        return all_pairs([pd.DataFrame({seed: end["value"] for seed, end in by.items()}) for by in ends])
    lower = bool(rows) and about(rows[0]["score"]).lower_is_better
    views = [
        pd.Series({s: summary(end["value"], end["rows"], lower)[over] for s, end in by.items()}, dtype=float)
        for by in ends
    ]
    places = combinations(range(len(rows)), 2)
    return corrected({(i, j): paired_seeds((views[j] - views[i]).dropna().to_numpy()) for i, j in places})


def ends_by_seed(row: Row, runs: Sequence[Run]) -> dict[int, pd.DataFrame]:
    """The last scores of a row's runs, by seed; a seed in which nobody could be scored is none."""
    ends = {run.seed: last_scores(row["model"], row["score"], [run]) for run in runs}
    return {seed: found[0] for seed, found in ends.items() if found and found[0]["value"].notna().any()}


def _against(place: int, row: Row, best: Row, over: str, pairs: Pairs) -> dict[str, Any]:
    pooled = math.sqrt((row[f"{over}_std"] ** 2 + best[f"{over}_std"] ** 2) / 2)
    if place:
        found = as_columns(pairs[0, place])
    else:  # the best is not apart from itself, if anything can be said at all
        told = any(one.unit for key, one in pairs.items() if key[0] == 0)
        found = {"difference": 0.0, "interval": (math.nan, math.nan), "p": math.nan, "n": 0, "unit": ""}
        found |= {"apart": False if told else None}
    if not found["unit"]:  # not paired: the plain difference of what the table shows
        found["difference"] = row[over] - best[over] if math.isfinite(best[over]) else math.nan
    return {**found, "pooled_std": pooled}


def mark(row: Row, score: str, place: int) -> str:
    """What stands in `vs best`; nothing where no comparison is possible.

    >>> row = {"apart": True, "difference": -0.113, "interval": (-0.125, -0.101)}
    >>> mark(row, "accuracy", 1), mark({**row, "apart": False}, "accuracy", 1), mark(row, "accuracy", 0)
    ('-11.3±1.2', '=', 'best')
    """
    if row["apart"] is None:
        return unranked(row)
    if place == 0:
        return "best"
    if not row["apart"]:
        return "="
    scale = 100 if about(score).percent else 1
    difference, reach = scale * row["difference"], scale * (row["interval"][1] - row["interval"][0]) / 2
    if about(score).percent:
        return f"{difference:+.1f}±{reach:.1f}"
    size = math.floor(math.log10(abs(difference)))
    if not -4 <= size < 5:
        return f"{power(difference, 1, '+')} ±{power(reach, 0)}"  # may wrap where there is no room
    decimals = max(0, 1 - size)
    return f"{difference:+.{decimals}f}±{reach:.{decimals}f}"


def marks_told(over: str, frame: pd.DataFrame) -> list[str]:
    """What the column `vs best` says and what its marks rest on, for a caption."""
    tested = frame[frame["unit"] != ""]
    if tested.empty:
        return []
    ranked = ranked_rows(frame)
    many = ranked * (ranked - 1) // 2
    span = sorted({int(n) for n in tested["n"]})
    number = f"{span[0]}" if len(span) == 1 else f"{span[0]} to {span[-1]}"
    by_client = "client" in set(tested["unit"])
    test = "Wilcoxon's signed-rank test" if by_client else "Student's t"
    what = "clients, each averaged over the seeds" if by_client else "seeds"
    seeds = " and seeds" if (frame["seeds"] > 1).any() else ""
    where = f"over clients{seeds}" if by_client else "over seeds"
    pairs = f", corrected (Holm) for {many} pairs" if many > 1 else ""
    return [
        f"vs best: paired difference in {over} ± its 95 % interval {where}; "
        f"= : not distinguishable ({test} over {number} {what}{pairs})."
    ]


def ranked_rows(frame: pd.DataFrame) -> int:
    """How many rows of a comparison have a rank.

    >>> ranked_rows(pd.DataFrame({"diverged": [0, 0, 1], "lost": [0, 2, 0]}))
    1
    """
    return int(((frame["diverged"] == 0) & (frame["lost"] == 0)).sum())


def pair_notes(runs: Sequence[Run], frame: pd.DataFrame) -> list[str]:
    """Which ranks hold, who was compared on some clients only, and where the test is too weak to tell."""
    tested = frame[frame["unit"] == "client"]
    notes = [frame.attrs["ranks"]] if frame.attrs["ranks"] else []
    everyone = len({str(client) for run in runs for client in run.scored.seen.rows["client"]})
    some = tested[tested["n"] < everyone]
    if len(some):
        told = ", ".join(f"{row['algorithm']} {row['n']}" for row in some.to_dict("records"))
        notes.append(f"compared on the clients that both have scored: {told} of {everyone}")
    ranked = ranked_rows(frame)
    many = ranked * (ranked - 1) // 2
    least = int(tested["n"].min()) if len(tested) else 0
    if least >= FEWEST_CLIENTS and many * 2.0 ** (1 - least) > LEVEL:
        few = f"{least} clients are too few for {many} comparisons at once"
        notes.append(f"{few}: compare fewer methods, or more clients")
    return notes
