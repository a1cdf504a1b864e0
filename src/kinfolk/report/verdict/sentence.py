"""A sentence of the verdict, and how numbers are said in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kinfolk.report.read import shown
from kinfolk.scores import about

Weight = Literal["good", "warning", "plain"]

# Bytes and seconds within a tenth of each other are said to be equal: the same run takes a tenth more or less
# time on a machine that others use as well.
ABOUT_EQUAL = 1.1


@dataclass(frozen=True)
class Sentence:
    """What one rule says.

    >>> say("seeds", "Each method has 1 seed.", "warning", seeds=1, wanted=math.nan).numbers
    {'seeds': 1.0}
    """

    rule: str  # its name, as in docs/results/verdict.md
    text: str
    weight: Weight
    numbers: Mapping[str, float] = field(default_factory=dict)  # those in the text, all finite


@dataclass(frozen=True)
class Verdict:
    """What the records say, in words: one sentence for all of it, then one for each rule that holds."""

    headline: str
    sentences: tuple[Sentence, ...]


def say(rule: str, text: str, weight: Weight = "plain", **numbers: float) -> Sentence:
    """A sentence with its numbers; those that are not finite are left out."""
    return Sentence(rule, text, weight, {k: float(v) for k, v in numbers.items() if math.isfinite(v)})


def listed(names: Sequence[str], most: int = 3) -> str:
    """Names in a sentence; of many the first, and how many more there are.

    >>> listed(["ann"]), listed(["ann", "bob"]), listed(["ann", "bob", "cleo", "dan", "eve"])
    ('ann', 'ann and bob', 'ann, bob, cleo and 2 more')
    """
    head, more = list(names[:most]), len(names) - most
    if more > 0:
        return f"{', '.join(head)} and {more:,} more"
    return " and ".join(filter(None, [", ".join(head[:-1]), head[-1]])) if head else ""


def count(number: float, thing: str) -> str:
    """A number of things.

    >>> count(1, "client"), count(1200, "client"), count(4.25, "client")
    ('1 client', '1,200 clients', '4.2 clients')
    """
    text = f"{number:,.0f}" if number == int(number) else f"{number:,.1f}"
    return f"{text} {thing}{'' if number == 1 else 's'}"


def level(value: float, score: str) -> str:
    """A score with its unit.

    >>> level(0.942, "accuracy"), level(0.01234, "mse")
    ('94.2%', 'a mean squared error of 0.0123')
    """
    if about(score).percent:
        return shown(value, score, unit=True)
    return f"{_article(score)} of {shown(value, score)}"


def gap(difference: float, score: str) -> str:
    """The size of a difference.

    >>> gap(-0.049, "accuracy"), gap(0.01, "accuracy"), gap(-0.5, "mse")
    ('4.9 points', '1.0 point', '0.500')
    """
    if about(score).percent:
        text = f"{100 * abs(difference):.1f}"
        return f"{text} point{'' if text == '1.0' else 's'}"
    return shown(abs(difference), score)


def span(low: float, high: float, score: str) -> str:
    """An interval of an advantage.

    >>> span(0.021, 0.078, "accuracy"), span(-0.003, 0.01, "accuracy"), span(-0.5, 0.25, "mse")
    ('2.1 to 7.8 points', '-0.3 to +1.0 points', '-0.500 to +0.250')
    """
    percent = about(score).percent
    ends = [f"{100 * end:.1f}" if percent else shown(end, score) for end in (low, high)]
    if low < 0 < high:
        ends[1] = f"+{ends[1]}"
    return f"{ends[0]} to {ends[1]}{' points' if percent else ''}"


def better_by(difference: float, score: str) -> str:
    """The same, as an advantage over another: in points more, or an error that is lower.

    >>> better_by(0.049, "accuracy"), better_by(-0.5, "mse"), better_by(0.1, "r2")
    ('4.9 points more', '0.500 less', '0.100 more')
    """
    return f"{gap(difference, score)} {'less' if about(score).lower_is_better else 'more'}"


def times(ratio: float, what: str = "much") -> str:
    """How many times as much, in words.

    >>> times(1.04), times(2.5), times(0.5, "long"), times(14.2)
    ('about as much as', '2.5 times as much as', '0.5 times as long as', '14 times as much as')
    """
    if 1 / ABOUT_EQUAL <= ratio <= ABOUT_EQUAL:
        return f"about as {what} as"
    return f"{ratio:.0f} times as {what} as" if ratio >= 10 else f"{ratio:.2g} times as {what} as"


def _article(score: str) -> str:
    title = about(score).title
    name = title if title[1:2].isupper() or not title[1:2].isalpha() else title[:1].lower() + title[1:]
    return f"{'an' if name[:1] in 'aeiouAEIOUR' else 'a'} {name}"
