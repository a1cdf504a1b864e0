"""Numbers in a few letters: scores, times, curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from kinfolk.scores import about

BLOCKS, PLAIN = "▁▂▃▄▅▆▇█", "_.-~=+*#"


def score_text(value: float | None, score: str, unit: bool = True) -> str:
    """A score in a few letters.

    >>> score_text(0.8712, "accuracy"), score_text(0.8712, "accuracy", unit=False), score_text(0.01234, "mse")
    ('87.1%', '87.1', '0.01234')
    """
    if value is None or math.isnan(value):
        return "-"
    percent = about(score).percent and abs(value) < 100
    return f"{100 * value:.1f}" + "%" * unit if percent else f"{value:.4g}"


def clock(seconds: float) -> str:
    """A time that passes, as a clock shows it.

    >>> clock(7), clock(754.6), clock(5025), clock(200_000), clock(4e9), clock(float("nan"))
    ('0:07', '12:35', '1:23:45', '2 d 7 h', '4.6e+04 d', '-')
    """
    if not math.isfinite(seconds):
        return "-"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h" if hours < 2400 else f"{hours / 24:.2g} d"
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def sparkline(
    values: Sequence[float],
    width: int,
    low: float | None = None,
    high: float | None = None,
    marks: str = BLOCKS,
) -> str:
    """A curve in one line of at most `width` letters, between `low` and `high`: by itself, its own ends.

    More values than letters are averaged; what is no number is a blank.

    >>> sparkline([0.0, 0.5, 1.0], 8), sparkline([0.0, 0.5, 1.0], 8, high=2.0)
    ('▁▅█', '▁▃▅')
    >>> sparkline(range(1000), 4), sparkline([3.0, 3.0], 4), sparkline([], 4)
    ('▁▃▆█', '▁▁', '')
    """
    many = len(values)
    ends = [many * i // width for i in range(width + 1)] if many > width else range(many + 1)
    points = [_mean(values[a:b]) for a, b in pairwise(ends)]
    known = [point for point in points if math.isfinite(point)]
    low = min(known, default=0.0) if low is None else low
    high = max(known, default=0.0) if high is None else high
    span = high - low
    places = [min(max((p - low) / span, 0.0), 1.0) if span > 0 else 0.0 for p in known]
    drawn = iter(marks[math.floor(place * (len(marks) - 1) + 0.5)] for place in places)
    return "".join(next(drawn) if math.isfinite(point) else " " for point in points)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan
