"""Whether a comparison has converged: how far every mean still moved in the last quarter of the rounds.

A ranking of runs that still improve is a ranking of speeds. On rotated digits FedAvg is 9 points behind
local training after 20 rounds and 7 points ahead of it after 300.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from kinfolk.report.read import Run, by_title, check_score, mean_history
from kinfolk.scores import about

# A mean that moves less than this in the last quarter has settled: one point of a score in percent, and
# of any other score one part in fifty of its value.
POINTS, PART = 0.01, 0.02


def last_quarter(runs: Iterable[Run], score: str | None = None) -> dict[tuple[str, str], tuple[float, float]]:
    """By algorithm and scored model: (the mean at the end, how much better it is than a quarter earlier).

    "A quarter earlier" is the last evaluated round up to three quarters of the last one. Left out is who has
    none between one half and three quarters: too few evaluations to say.

    >>> scores = {"round": [0, 6, 8], "client": "a", "value": [0.1, 0.7, 0.75], "rows": 9}
    >>> found = last_quarter([Run.of({"title": "local", "seed": 0}, scores)])
    >>> {who: (end, round(change, 3)) for who, (end, change) in found.items()}
    {('local', 'centre'): (0.75, 0.05)}
    """
    runs = list(runs)
    score = check_score(runs, score)
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for title, same in by_title(runs).items():
        same = [run for run in same if score in run.metrics]
        for model in dict.fromkeys(kind for run in same for kind in run.models):
            curve = mean_history([run for run in same if model in run.models], model, score)["mean"]
            if curve.empty:
                continue
            end = curve.index[-1]
            before = curve[(curve.index <= 0.75 * end) & (curve.index >= 0.5 * end) & (curve.index > 0)]
            if len(before):
                sign = -1 if about(score).lower_is_better else 1
                found[title, model] = (float(curve.iloc[-1]), sign * float(curve.iloc[-1] - before.iloc[-1]))
    return found


def movement(pair: tuple[float, float], score: str) -> float:
    """How much better the end is than a quarter earlier, in parts of what counts as settled.

    >>> round(movement((0.75, 0.05), "accuracy"), 3), round(movement((0.5, -0.005), "mse"), 3)
    (5.0, -0.5)
    """
    end, change = pair
    return change / POINTS if about(score).percent else change / (PART * max(abs(end), 1e-300))


def convergence_note(runs: Iterable[Run], score: str | None = None) -> str | None:
    """One line for below a table: settled, or who still moves; None where nothing can be said.

    >>> def run(title, *values):
    ...     scores = {"round": [0, 3, 4], "client": "a", "value": [0.1, *values], "rows": 9}
    ...     return Run.of({"title": title, "seed": 0}, scores)
    >>> print(convergence_note([run("local", 0.7, 0.705), run("fedavg", 0.8, 0.8)]))
    converged: in the last quarter of the rounds no mean moved by more than 1 point (most: local +0.5)
    >>> print(convergence_note([run("local", 0.7, 0.705), run("fedavg", 0.6, 0.8)]))
    not converged: fedavg +20.0 points in the last quarter of the rounds; ranks may still change
    """
    runs = list(runs)
    score = check_score(runs, score)
    found = {who: pair for who, pair in last_quarter(runs, score).items() if all(map(math.isfinite, pair))}
    if not found:
        return None
    percent = about(score).percent

    shares = {who: movement(pair, score) for who, pair in found.items()}
    unit, scale = ("point", 100 * POINTS) if percent else ("%", 100 * PART)
    moved = sorted(found, key=lambda who: -abs(shares[who]))
    told = {who: f"{_name(who, found)} {scale * shares[who]:+.1f}" for who in moved}
    when = "in the last quarter of the rounds"
    far = [who for who in moved if abs(shares[who]) > 1]
    if not far:
        limit = f"{scale:g} {unit}" if percent else f"{scale:g} {unit} of its value"
        return f"converged: {when} no mean moved by more than {limit} (most: {told[moved[0]]})"
    names = ", ".join(told[who] for who in far[:3]) + f" {unit}{'s' if percent else ''}"
    more = f" and {len(far) - 3} more" if len(far) > 3 else ""
    return f"not converged: {names}{more} {when}; ranks may still change"


def _name(who: tuple[str, str], found: Iterable[tuple[str, str]]) -> str:
    """The algorithm, and its model where several are scored."""
    title, model = who
    return title if sum(other == title for other, _ in found) == 1 else f"{title} {model}"
