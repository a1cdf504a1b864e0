"""Whether the clients form groups, how many, and how sure that is; "one group" is an answer too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from kinfolk.report.against import Row
from kinfolk.report.convergence import PART, POINTS
from kinfolk.report.groups import doubtful, members
from kinfolk.report.read import Run
from kinfolk.report.statistics import Paired
from kinfolk.report.verdict.evidence import Evidence
from kinfolk.report.verdict.ranking import Ranking
from kinfolk.report.verdict.sentence import Sentence, Weight, count, gap, say, span
from kinfolk.report.verdict.stability import SETTLED, Agreement, agreement
from kinfolk.scores import about

Answer = Literal["groups", "unsettled", "one", "unclear", "unknown"]

# More clients than this share between two groups make the groups themselves doubtful.
DOUBTFUL = 0.1
# Agreement with the known groups from here on is called the same: of 24 clients in four groups one in the
# wrong group leaves 0.88, none leaves 1.
SAME = 0.95
# Groups of one client are individuals: where so large a share of the groups are, the clients form none.
SINGLE = 0.5


@dataclass(frozen=True)
class GroupFindings:
    """What the best method with groups says, next to the best with one model for all."""

    known: Evidence
    ranking: Ranking
    blocked: bool

    @cached_property
    def grouped(self) -> Row | None:
        """The best row whose clients are given their group's model; other kinds gain by more than groups."""
        return self.known.best("groups", model="centre")

    @cached_property
    def one(self) -> Row | None:
        """The best row with one model for all."""
        return self.known.best("one")

    @cached_property
    def gain(self) -> Paired | None:
        """What groups gain over one model, positive where they do; None where one of them was not run."""
        return self.known.gain(self.grouped, self.one) if self.grouped and self.one else None

    @cached_property
    def runs(self) -> list[Run]:
        """The runs of the method with groups, or of the best that has any."""
        row = self.grouped or self.known.best("groups")
        return list(self.known.of[row["algorithm"]]) if row else []

    @property
    def method(self) -> str:
        """The name of that method."""
        return self.runs[0].title

    @cached_property
    def frames(self) -> list[pd.DataFrame]:
        """The members of every run; none where records are of before each client's group was in them."""
        return [members(run) for run in self.runs if run.has_groups and _all_placed(run)]

    @cached_property
    def agreement(self) -> Agreement | None:
        """How far the seeds agree; None where the clients of different seeds cannot be compared."""
        found = agreement(self.frames)
        prints = {str((run.facts.get("federation") or {}).get("fingerprint")) for run in self.runs}
        # Where seeds deal other rows under the same names, that they disagree says nothing.
        return found if found and (found.settled or len(prints) == 1) else None

    @cached_property
    def worth(self) -> float:
        """A gain that would matter: what counts as settled in training."""
        assert self.one is not None
        return POINTS if about(self.known.score).percent else PART * abs(self.one["macro"])

    @cached_property
    def answer(self) -> Answer:
        """In a word."""
        if self.blocked or self.gain is None or not self.gain.unit:
            return "unknown"
        if self.ranking.differ and self.gain.apart:
            if self.gain.difference < 0:
                return "one"
            return "unsettled" if self.agreement and not self.agreement.settled else "groups"
        return "one" if self.gain.interval[1] < self.worth else "unclear"

    @cached_property
    def sizes(self) -> list[list[int]]:
        """The sizes of the groups with members, run by run, the largest first."""
        return [sizes for run in self.runs if (sizes := group_sizes(run))]


def _all_placed(run: Run) -> bool:
    """Whether every client of the last scored round has a group."""
    return bool(run.scored.end(("group",))["group"].notna().all())


def group_sizes(run: Run) -> list[int]:
    """How many clients each group has at the end, the largest first, by records of any version.

    >>> scores = {"client": list("abc"), "value": 1, "group": [2, 0, 2]}
    >>> group_sizes(Run.of({"title": "ifca", "seed": 0}, scores))
    [2, 1]
    """
    if run.has_groups:
        last = run.scored.end(("client", "group"))
        sizes = last.drop_duplicates("client")["group"].value_counts().tolist()
    else:
        told = [fact["groups"].get("sizes") or {} for fact in run.rounds if fact.get("groups")]
        sizes = [int(size) for size in told[-1].values()] if told else []
    return sorted((size for size in sizes if size), reverse=True)


def asked_groups(run: Run) -> int:
    """The number of groups that a method was told to find; 0 where it counts them itself.

    >>> asked_groups(Run.of({"title": "fesem k=4", "seed": 0}, {"value": []}))
    4
    """
    told = (run.spec.get("algorithm") or {}).get("k")
    word = next((word[2:] for word in run.title.split() if word.startswith("k=")), "")
    return told if isinstance(told, int) else int(word) if word.isdigit() else 0


def group_sentences(found: GroupFindings) -> list[Sentence]:
    """The answer, then what it rests on."""
    if not found.runs:
        return [_not_tried(found.known), *_choice(found.known)]
    said = [_answer(found), *_found(found), *_seeds(found), *_doubt(found), *_known_groups(found)]
    return [*said, *_choice(found.known)]


def _not_tried(known: Evidence) -> Sentence:
    gone = [row["algorithm"] for row in known.gone if known.kind(row) == "groups"]
    why = f"{gone[0]} diverged" if gone else "no method that looks for groups was run"
    return say("groups-not-tried", f"Whether the clients form groups cannot be said: {why}.", "plain")


def _answer(found: GroupFindings) -> Sentence:
    """Groups or one group, by what the models of groups gain over one model for all."""
    score, gain = found.known.score, found.gain
    if found.one is None or found.grouped is None:
        missing = "one model for all" if found.one is None else "one model for each group"
        text = f"Whether groups help cannot be said: no method with {missing} can be compared."
        return say("groups-no-baseline", text, "plain")
    if found.blocked or gain is None or not gain.unit:
        text = "Whether groups help cannot be said yet: the comparison allows no conclusion."
        return say("groups-too-early", text, "plain")
    low, high = gain.interval
    numbers = {"gain": gain.difference, "low": low, "high": high}
    sure = f"(95 % interval: {span(low, high, score)})"
    pair = f"{found.method} over one model for all, {found.one['algorithm']}"
    if found.answer in ("groups", "unsettled"):
        text = f"There are groups: a model for each group gains {gap(gain.difference, score)} {sure}: {pair}."
        if found.answer == "unsettled":
            text = (
                f"A model for each group gains {gap(gain.difference, score)} {sure}: {pair}. But see below."
            )
        return say("groups-help", text, "good" if found.answer == "groups" else "warning", **numbers)
    if found.ranking.differ and gain.apart:
        cost = f"{gap(gain.difference, score)} (95 % interval: {span(-high, -low, score)})"
        text = f"One group is enough: dividing the clients costs {cost}: {pair}."
        return say("groups-cost", text, "plain", **numbers)
    if found.answer == "one":
        most = _signed(high, score)
        text = f"One group is enough: a model for each group gains {most} at most {sure}: {pair}."
        return say("one-group", text, "plain", worth=found.worth, **numbers)
    text = (
        "Whether there are groups is unclear: a model for each group gains "
        f"{_signed(numbers['gain'], score)} {sure}: {pair}."
    )
    return say("groups-unclear", text, "plain", **numbers)


def _signed(value: float, score: str) -> str:
    return f"{'-' if value < 0 else '+'}{gap(value, score)}"


def _found(found: GroupFindings) -> list[Sentence]:
    """How many groups have members, beside how many were asked for."""
    if not found.sizes:
        return []
    many = [len(sizes) for sizes in found.sizes]
    asked, least, most = asked_groups(found.runs[0]), min(many), max(many)
    span = f"{least}" if least == most else f"{least} to {most}"
    numbers = {"fewest": least, "most": most, "asked": asked}
    if sum(size == 1 for sizes in found.sizes for size in sizes) > SINGLE * sum(many):
        text = f"{found.method} leaves most clients alone: of {span} groups most have a single client."
        return [say("groups-single", text, "warning", **numbers)]
    one, only = len(found.sizes) == 1, found.sizes[0]
    of = f", of {_sizes(only)} clients" if one or all(sizes == only for sizes in found.sizes) else ""
    where = (
        "" if one else f" in each of {len(many)} seeds" if least == most else f", by seed ({len(many)} seeds)"
    )
    if asked and least < asked:
        text = (
            f"{found.method} was asked for {asked} groups, but {'only ' if most < asked else ''}{span} "
            f"{'has' if span == '1' else 'have'} members{where}{of}: {asked} may be too many."
        )
        return [say("groups-empty", text, "warning", **numbers)]
    fixed = " That is the number it was asked for: another may fit better." if asked else ""
    noun = "group" if span == "1" else "groups"
    return [
        say("groups-found", f"{found.method} ends with {span} {noun}{where}{of}.{fixed}", "plain", **numbers)
    ]


def _sizes(sizes: Sequence[int], most: int = 8) -> str:
    if len(sizes) > 1 and len(set(sizes)) == 1:
        return f"{sizes[0]} each: {sum(sizes)}"
    return ", ".join(map(str, sizes[:most])) + (", ..." if len(sizes) > most else "")


def _seeds(found: GroupFindings) -> list[Sentence]:
    """Whether seeds agree on who belongs together."""
    if len(found.runs) < 2:
        text = "One seed cannot show whether the groups are more than its chance."
        return [say("groups-one-seed", text, "plain", seeds=1)]
    agreed = found.agreement
    if agreed is None:
        text = (
            "Each seed deals other rows to the clients, so whether seeds find the same groups cannot be said."
        )
        return [say("groups-not-comparable", text, "plain", seeds=len(found.runs))] if found.frames else []
    numbers = {"agreement": agreed.index, "chance": agreed.chance, "limit": SETTLED}
    value = f"agreement {agreed.index:.2f} of 1, by chance up to {agreed.chance:.2f}"
    if agreed.settled:
        return [
            say("groups-stable", f"The seeds agree on who belongs together ({value}).", "good", **numbers)
        ]
    if agreed.by_chance:
        text = f"The seeds agree on the groups no better than chance ({value}): the groups mean nothing."
        return [say("groups-by-chance", text, "warning", **numbers)]
    text = f"The seeds agree only in part on who belongs together ({value}; settled: {SETTLED} or more)."
    return [say("groups-unstable", text, "warning", **numbers)]


def _doubt(found: GroupFindings) -> list[Sentence]:
    """Clients that are between two groups."""
    told = [frame for frame in found.frames if frame["margin"].notna().any() or frame["steady"].notna().any()]
    told = [frame for frame in told if frame["group"].nunique() > 1]
    if not told:
        return []
    shares = [len(doubtful(frame)) / len(frame) for frame in told]
    share, clients = sum(shares) / len(shares), len(told[0])
    numbers = {"share": share, "limit": DOUBTFUL, "clients": clients}
    if share > DOUBTFUL:
        text = f"{share:.0%} of the clients lie between groups or moved often: the groups are not settled."
        return [say("groups-doubt", text, "warning", **numbers)]
    who = "no client lies" if not share else f"{share:.1%} of the clients lie"
    text = f"In each run, {who} between two groups."
    return [say("groups-clear-cut", text, "plain", **numbers)]


def _known_groups(found: GroupFindings) -> list[Sentence]:
    """Agreement with groups that the data were made with, where there are any."""
    if {(run.facts.get("federation") or {}).get("groups") for run in found.runs} == {1}:
        return [say("groups-none-known", "These data were made without groups.", "plain", groups=1)]
    told = [fact["groups"] for run in found.runs for fact in run.rounds[-1:] if fact.get("groups")]
    indices = [float(facts["ari"]) for facts in told if facts.get("ari") is not None]
    if not indices:
        return []
    mean, low, high = sum(indices) / len(indices), min(indices), max(indices)
    weight: Weight = "good" if mean >= SAME else "plain" if mean >= SETTLED else "warning"
    verb = {"good": "are", "plain": "are mostly", "warning": "are not"}[weight]
    span = f"{low:.2f}" if high - low < 0.005 else f"{low:.2f} to {high:.2f}"
    seeds = f" in {count(len(indices), 'seed')}"
    text = (
        f"The groups {verb} the known ones of these data: agreement {span}{seeds} (1: the same, 0: chance)."
    )
    return [say("groups-known", text, weight, agreement=mean, lowest=low, highest=high)]


def _choice(known: Evidence) -> list[Sentence]:
    """What a search for the number of groups has recommended."""
    facts: Mapping[str, Any] = known.choice or {}
    k, sure = facts.get("recommended"), facts.get("confidence") or "not known"
    if not isinstance(k, int):
        return []
    what = "one group" if k == 1 else f"{k} groups"
    low = ": a guess" if sure == "low" else ""
    text = f"The search for the number of groups recommends {what} (confidence: {sure}{low})."
    return [say("groups-chosen", text, "warning" if sure == "low" else "plain", groups=k)]
