"""Where one run stands, by what it tells of its rounds: as events, or as lines of its records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kinfolk.scores import SCORES

# A run that goes on; every other status but "waiting" is an end.
RUNNING, WAITING = "running", "waiting"
# The time that a round takes is a mean over so many.
LAST = 10


@dataclass
class Standing:
    """One run, as far as it has come. A round that is told of twice counts once.

    >>> run = Standing("fedavg", 0, rounds=20)
    >>> spent = {"seconds": {"update": 2.0, "score.centre": 1.0}, "bytes": {"update": {"up": 9}}}
    >>> run.round({"round": 1, **spent})
    >>> run.evaluated(1, {"centre": {"accuracy": {"macro": 0.5, "worst": 0.25}}})
    >>> run.done, run.value, run.worst, run.seconds_per_round, run.left, run.sent
    (1, 0.5, 0.25, 2.0, 57.0, {'up': 9.0})
    """

    title: str
    seed: int
    rounds: int = 0  # in all, as far as is known
    status: str = WAITING
    reason: str = ""
    done: int = 0
    model: str = ""  # the one that is judged, and the score it is judged by
    score: str = ""
    groups: dict[str, Any] = field(default_factory=dict)  # in the last round that tells of them
    last: dict[str, Any] = field(default_factory=dict)  # what the last round tells
    curve: dict[int, tuple[float, float]] = field(
        default_factory=dict
    )  # mean over clients and worst, by round
    switches: dict[int, float] = field(default_factory=dict)
    _seconds: dict[int, tuple[float, float]] = field(default_factory=dict)  # in training, and in all
    _sent: dict[int, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)

    def hear(self, event: str, facts: Mapping[str, Any]) -> None:
        """Take in an event of a run."""
        if event == "engine":
            self.rounds, self.status = facts["rounds"], RUNNING
        elif event == "resume":
            self.back_to(facts["round"])
            self.evaluated(self.done, facts.get("summary") or {})
        elif event == "round":
            self.round(facts)
            self.rounds = facts["rounds"]
        elif event == "evaluate":
            self.evaluated(facts["round"], facts["summary"])
        elif event == "end":
            self.status, self.reason = facts.get("status", "finished"), facts["reason"]
            self.rounds = self.done

    def round(self, facts: Mapping[str, Any]) -> None:
        """Take in what is told of a round."""
        self.done = number = facts["round"]
        spent = {kind: _number(much) for kind, much in named(facts.get("seconds")).items()}
        training = (s for kind, s in spent.items() if not kind.startswith("score.") and kind != "checkpoint")
        self._seconds[number] = sum(training), sum(spent.values())
        self._sent[number] = {kind: named(ways) for kind, ways in named(facts.get("bytes")).items()}
        self.last = {name: facts.get(name) for name in ("cohort", "answered", "unheard", "void")}
        if facts.get("groups"):
            self.groups = named(facts["groups"])
            self.switches[number] = _number(self.groups.get("switch"))

    def evaluated(self, number: int, summary: Mapping[str, Any]) -> None:
        """Take in the scores after a round."""
        found = main_score(summary)
        if found is not None:
            self.model, self.score, over = found
            self.curve[number] = _number(over.get("macro")), _number(over.get("worst"))

    def back_to(self, number: int) -> None:
        """Forget what came after a round."""
        self.done = number
        for held in (self.curve, self.switches, self._seconds, self._sent):
            for later in [one for one in held if one > number]:
                del held[later]

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.status not in (RUNNING, WAITING)

    @property
    def value(self) -> float:
        """The last mean over clients; NaN before the first."""
        return next(reversed(self.curve.values()))[0] if self.curve else math.nan

    @property
    def worst(self) -> float:
        """The worst client's last score; NaN before the first."""
        return next(reversed(self.curve.values()))[1] if self.curve else math.nan

    @property
    def seconds_per_round(self) -> float:
        """What a round of training takes, without scoring; NaN before the first."""
        return _mean_of([training for number, (training, _) in self._seconds.items() if number])

    @property
    def pace(self) -> float:
        """What one of the last rounds took with all that belongs to it; NaN before the first."""
        return _mean_of([whole for number, (_, whole) in self._seconds.items() if number][-LAST:])

    @property
    def left(self) -> float:
        """Seconds until the end, as far as can be told."""
        return 0.0 if self.ended else self.pace * (self.rounds - self.done)

    @property
    def sent(self) -> dict[str, float]:
        """Bytes by way (up, down, across), without those of scoring."""
        found: dict[str, float] = {}
        for by_kind in self._sent.values():
            for kind, ways in by_kind.items():
                for way, count in ways.items() if not kind.startswith("score.") else ():
                    found[way] = found.get(way, 0) + _number(count)
        return found


def main_score(summary: Mapping[str, Any]) -> tuple[str, str, Mapping[str, Any]] | None:
    """(model, score, its numbers over clients) by which a run is judged: the most telling of the first model.

    >>> main_score({"centre": {"loss": {"macro": 2.0}, "accuracy": {"macro": 0.871}}, "personal": {}})
    ('centre', 'accuracy', {'macro': 0.871})
    """
    order = [*(name for name in SCORES if name != "loss"), "loss"]
    for model, scores in summary.items():
        known = [name for name, over in named(scores).items() if named(over).get("macro") is not None]
        known.sort(key=lambda name: order.index(name) if name in order else len(order) - 1.5)
        if known:
            return model, known[0], scores[known[0]]
    return None


def groups_text(groups: Mapping[str, Any]) -> str:
    """How many groups there are and who has moved, in a few words.

    >>> groups_text({"sizes": {"0": 3, "1": 5, "2": 0}, "switch": 0.25, "moved": {"ann": [0, 1]}})
    '2 groups, 1 moved'
    >>> groups_text({})
    ''
    """
    many = sum(1 for count in named(groups.get("sizes")).values() if count)
    moved = len(named(groups.get("moved")))
    said = [f"{many} group" + "s" * (many != 1)] if many else []
    return ", ".join(said + [f"{moved} moved"] * bool(moved))


def named(value: Any) -> dict[str, Any]:
    """What should be values by name; nothing where another program has written something else.

    >>> named({"up": 1}), named([1]), named(None)
    ({'up': 1}, {}, {})
    """
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _mean_of(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
