"""The watch on training: signs, in what a run sees anyway, that its models are no longer any use.

Rules on numbers alone: no model is looked at again. What a run then does stands in `divergence`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# A loss this many times that of a constant answer, and of the start, is beyond overfitting: networks that
# have memorised a small client's rows are at most about five times as bad as a constant on others.
RISEN = 10.0
# So far above, a client's model is broken whatever its accuracy: its logits are in the hundreds.
ABSURD = 100.0
# Accuracy was well above chance if it ever had this lead over it; below that a fall may be noise.
LEAD = 0.15
# Such a lead is not lost by noise between two evaluations; a smaller one has to be lost STUCK times in a row,
# since label skew with few clients a round brings accuracy down to chance and up again.
CLEAR_LEAD = 0.5
# Lost is a lead of which less than this part is left: from 74 % with chance at 6 %, below 19.6 %.
LEFT = 0.2
# A model that predicts one class in this many evaluations in a row, while its loss has reached no new low in
# as many, is stuck. One that has just met few classes (few clients a round, label skew) does so once or
# twice, and the loss of a slow start falls all the while.
STUCK = 3
# No better than a constant answer: the entropy of the labels is that of all rows, a client's may be lower.
CONSTANT = 0.95
# One class "for everyone": this part of the rows, of this part of the clients that have several classes.
EVERYONE = 0.9
# A reply's norm this many times what was sent and the cohort's median: no honest update, and below what the
# guard rejects. A "scaled" attacker sends 10 times its update and stays below.
OUTLIER = 100.0
# Recovered is only who is clearly below the loss before training: a dead network hovers at it.
BETTER = 0.9

LOWER_RATE = "lower local.lr or set local.clip"
REMEDIES = {
    "not finite": LOWER_RATE,
    "loss": LOWER_RATE,
    "constant": f"scale rows and targets, {LOWER_RATE}",
    "chance": LOWER_RATE,
    "one class": f"{LOWER_RATE}; look at the labels",
    "rejected": LOWER_RATE,
}


@dataclass(frozen=True)
class Evaluation:
    """The scores of one kind of model, client by client."""

    clients: Sequence[str]
    loss: Floats  # NaN for a client without rows, infinite where it was not finite
    accuracy: Floats | None = None
    said: NDArray[Any] | None = None  # predictions by class, [clients, classes]
    true: NDArray[Any] | None = None  # rows by class
    missing: tuple[str, ...] = ()  # whose scores were rejected, as they were not finite or beyond all bounds

    @property
    def typical(self) -> float:
        """The median of the losses; of regression the mean, which is the number that is compared."""
        known = self.loss[~np.isnan(self.loss)]
        if not known.size:
            return math.nan
        return float(np.median(known) if self.accuracy is not None else known.mean())

    def chance(self, classes: int) -> float:
        """The accuracy, a mean over clients, of the best single class; 1 / classes where it is not known."""
        if self.true is None or not self.true.sum():
            return 1.0 / classes
        rows = self.true.sum(1)
        return float((self.true[rows > 0] / rows[rows > 0, None]).mean(0).max())

    @property
    def entropy(self) -> float:
        """The loss of the best constant answer on all rows; 0 where their classes are not known."""
        if self.true is None or not self.true.sum():
            return 0.0
        share = self.true.sum(0) / self.true.sum()
        return float(-(share[share > 0] * np.log(share[share > 0])).sum())

    def lead(self, classes: int) -> float:
        """How far the mean accuracy is above chance."""
        assert self.accuracy is not None
        known = self.accuracy[~np.isnan(self.accuracy)]
        return float(known.mean()) - self.chance(classes) if known.size else 0.0

    @property
    def one_class(self) -> bool:
        """Whether clients with rows of several classes are each told one class for nearly all of them."""
        if self.said is None or self.true is None:
            return False
        several = (self.true > 0).sum(1) > 1
        most = self.said[several].max(1) >= EVERYONE * self.said[several].sum(1)
        return bool(several.any()) and float(most.mean()) >= EVERYONE


@dataclass(frozen=True)
class Sign:
    """A sign of divergence in one evaluation: what it is, in words, and whose models show it (none: all)."""

    kind: str  # a key of REMEDIES
    text: str
    clients: tuple[str, ...] = ()


@dataclass
class Trace:
    """What must be remembered of one kind of model from evaluation to evaluation."""

    looked: int = -1  # the last evaluated round
    lowest: float = math.inf  # typical loss
    last: float = 0.0  # typical loss
    best: float = 0.0  # lead over chance
    low: int = 0  # evaluations in a row without the lead
    single: int = 0  # evaluations in a row in which one class was predicted
    stale: int = 0  # evaluations in a row in which the loss was no new lowest
    diverged: dict[str, Any] = field(default_factory=dict)  # round, kind, text, clients: while it lasts
    recovered: int = 0  # the last round in which it turned out to be over


def sign_of(
    now: Evaluation, start: Mapping[str, float], trace: Trace, constant: float, classes: int
) -> Sign | None:
    """What is wrong with these models, if anything; `constant` is the loss of a constant answer.

    `start` has every client's loss before training. A start that is bad already is not divergence, unless
    it is not finite or, in regression, training does not bring it down.

    >>> now = Evaluation(("ann", "bob"), np.array([2.0, np.inf]), np.array([0.5, 0.1]))
    >>> sign_of(now, {"ann": 2.3, "bob": 2.3}, Trace(), 2.3, 10)
    Sign(kind='not finite', text='loss is not finite', clients=('bob',))
    """
    gone = tuple(c for c, value in zip(now.clients, now.loss, strict=True) if np.isinf(value)) + now.missing
    if gone:
        return Sign("not finite", "loss is not finite", tuple(sorted(gone)))
    if not trace.looked + 1:  # nothing was trained yet
        return None
    first = np.array([start.get(c, math.nan) for c in now.clients])
    usual = np.fmax(first, constant)
    beyond = [i for i, over in enumerate(now.loss > ABSURD * usual) if over]
    if beyond:
        worst = max(beyond, key=lambda i: now.loss[i] / usual[i])
        text = f"loss {now.loss[worst]:.2g}, {now.loss[worst] / usual[worst]:.1g} times its start"
        return Sign("loss", text, tuple(now.clients[i] for i in _worst_first(beyond, now.loss / usual)))
    before = Evaluation(now.clients, first, now.accuracy).typical
    if now.accuracy is None:
        return _regression(now.typical, trace, constant)
    return _classification(now, before, trace, constant, classes)


def _worst_first(places: Iterable[int], ratio: Floats) -> list[int]:
    return sorted(places, key=lambda i: -ratio[i])


def _regression(loss: float, trace: Trace, constant: float) -> Sign | None:
    falls = loss < trace.lowest and not trace.diverged
    if loss > RISEN * constant and not falls:
        return Sign("constant", f"loss {loss:.2g}, {loss / constant:.1g} times that of a constant answer")
    return None


def _classification(
    now: Evaluation, before: float, trace: Trace, constant: float, classes: int
) -> Sign | None:
    lead, loss = now.lead(classes), now.typical
    if loss > RISEN * max(before, constant) and lead < trace.best / 2 + LEAD / 2:
        return Sign("loss", f"loss {loss:.2g}, {loss / max(before, constant):.1g} times its start")
    if _lost(lead, trace.best) and (trace.best >= CLEAR_LEAD or trace.low >= STUCK - 1):
        accuracy, chance = lead + now.chance(classes), now.chance(classes)
        was = trace.best + chance
        return Sign("chance", f"accuracy fell from {was:.1%} to {accuracy:.1%}, chance is {chance:.1%}")
    stuck = now.one_class and trace.single >= STUCK - 1 and trace.stale >= STUCK - 1 and loss >= trace.lowest
    answer = now.entropy or constant
    # What does not change at all is not trained: a rule, such as the majority label's.
    if stuck and loss >= CONSTANT * answer and loss != trace.last:
        return Sign(
            "one class", f"one class for everyone, loss {loss:.3g}, of a constant answer {answer:.3g}"
        )
    return None


def _lost(lead: float, best: float) -> bool:
    return best >= LEAD and lead < LEFT * best


def look(
    trace: Trace, round: int, now: Evaluation, start: Mapping[str, float], constant: float, classes: int
) -> None:
    """Take an evaluation into account; a round that was looked at before is not looked at again.

    >>> start, trace = {"ann": 2.3}, Trace()
    >>> for round, loss in enumerate([2.3, 900.0, 2.3, 0.5]):
    ...     look(trace, round, Evaluation(("ann",), np.array([loss]), np.array([0.2])), start, 2.3, 10)
    ...     trace.diverged.get("text"), trace.recovered
    (None, 0)
    ('loss 9e+02, 4e+02 times its start', 0)
    ('loss 9e+02, 4e+02 times its start', 0)
    (None, 3)
    """
    if round <= trace.looked:
        return
    sign = sign_of(now, start, trace, constant, classes)
    lead = now.lead(classes) if now.accuracy is not None else 0.0
    if sign is not None and not trace.diverged:
        told = {"kind": sign.kind, "text": sign.text, "clients": list(sign.clients)}
        trace.diverged = {"round": round, **told}
    elif sign is None and trace.diverged and _is_better(now, start, lead, trace, constant):
        trace.diverged, trace.recovered = {}, round
    trace.looked = round
    trace.low = trace.low + 1 if _lost(lead, trace.best) else 0
    trace.single = trace.single + 1 if now.one_class and round else 0
    trace.best = max(trace.best, lead)
    trace.stale = trace.stale + 1 if now.typical >= trace.lowest else 0
    if not math.isnan(now.typical):
        trace.lowest, trace.last = min(trace.lowest, now.typical), now.typical


def _is_better(
    now: Evaluation, start: Mapping[str, float], lead: float, trace: Trace, constant: float
) -> bool:
    """Whether models that had diverged are of use again."""
    first = Evaluation(now.clients, np.array([start.get(c, math.nan) for c in now.clients]), now.accuracy)
    limit = RISEN * constant if now.accuracy is None else BETTER * first.typical
    return now.typical < limit and lead >= trace.best / 2


def outliers(grown: Mapping[str, tuple[float, float]], median: float) -> dict[str, float]:
    """Clients whose model's norm is far beyond what they were sent and the cohort's median, with that norm.

    >>> outliers({"ann": (1e4, 10.0), "bob": (150.0, 10.0)}, 12.0)
    {'ann': 10000.0}
    """
    limit = OUTLIER * median
    return {c: norm for c, (norm, sent) in grown.items() if norm > OUTLIER * sent and norm > limit}


def odd_starts(first: Evaluation, constant: float) -> dict[str, float]:
    """Clients whose loss before training is absurd beside all others': their rows are of another scale.

    >>> odd_starts(Evaluation(("ann", "bob", "cleo"), np.array([2.4, 2.2, 3e5])), 2.3)
    {'cleo': 300000.0}
    """
    known = first.loss[~np.isnan(first.loss)]
    limit = ABSURD * max(float(np.median(known)), constant) if known.size else math.inf
    return {c: float(value) for c, value in zip(first.clients, first.loss, strict=True) if value > limit}


def message(diverged: Mapping[str, Any]) -> str:
    """A divergence in one line: when, whose, what, and what to do.

    >>> message({"round": 51, "kind": "loss", "text": "loss 4e+05", "clients": ["f1912_13"],
    ...     "largest": ["f1912_13", 1e9]})
    'diverged at round 51: client f1912_13, norm 1e+09, loss 4e+05; lower local.lr or set local.clip'
    """
    return f"{brief(diverged)}; {REMEDIES[diverged['kind']]}"


def brief(diverged: Mapping[str, Any]) -> str:
    """The same without the remedy.

    >>> brief({"round": 3, "text": "loss is not finite", "clients": ["ann", "bob"]})
    'diverged at round 3: 2 clients, loss is not finite'
    """
    clients, largest = list(diverged["clients"]), diverged.get("largest")
    who = f"{len(clients)} clients" if len(clients) > 1 else f"client {clients[0]}" if clients else ""
    parts = [who, diverged["text"]]
    if largest:
        name, norm = largest
        parts.insert(1, f"norm {norm:.2g}" if clients == [name] else f"client {name}'s norm {norm:.2g}")
    return f"diverged at round {diverged['round']}: {', '.join(filter(None, parts))}"
