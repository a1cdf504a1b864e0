"""The attack that a spec asks for, who its attackers are, and how often a back door opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from kinfolk.attacks.attack import Attack
from kinfolk.attacks.claims import Overstated
from kinfolk.attacks.rows import Trigger
from kinfolk.engines.coordinator import Engine
from kinfolk.errors import KinfolkError
from kinfolk.experiment.sections import RunSpec
from kinfolk.federation.federation import Federation
from kinfolk.scores import summary
from kinfolk.streams import Seed
from kinfolk.types import Client

SUCCESS = "attack_success"  # the score: of triggered rows of other classes, the share taken for the target


def planned(spec: RunSpec, federation: Federation, seed: Seed) -> Attack | None:
    """The attack that a spec asks for, if any."""
    # How often a trigger works where nobody has planted it is what its success is measured beside.
    if spec.attack == "none" or (spec.attackers == 0 and spec.attack != "backdoor"):
        return None
    if spec.attack in ("label_flip", "backdoor") and not federation.classes:
        remedy = "the data have numbers to predict and no classes; choose another attack"
        raise KinfolkError("run.attack", spec.attack, remedy)
    who = attackers(federation.clients, spec.attackers, seed) if spec.attackers else frozenset[Client]()
    trigger = _trigger(spec.attack, federation) if spec.attack == "backdoor" else None
    return Attack(spec.attack, who, federation.classes, seed, trigger)


def attackers(clients: Sequence[Client], share: float, seed: Seed) -> frozenset[Client]:
    """A share of the clients, one at least: those whose own draw is lowest, so that more include fewer.

    >>> few, more = (attackers([Client(c) for c in "abcdefgh"], share, Seed(0)) for share in (0.25, 0.5))
    >>> len(few), len(more), few < more
    (2, 4, True)
    """
    count = max(1, int(share * len(clients) + 0.5))
    if count >= len(clients):
        remedy = f"leaves none of the {len(clients)} clients honest; give less"
        raise KinfolkError("run.attackers", share, remedy)
    drawn = sorted((seed.numpy("attack", who).random(), who) for who in clients)
    return frozenset(who for _, who in drawn[:count])


def _trigger(kind: str, federation: Federation) -> Trigger:
    """The trigger of a back door: the largest number that the first client's training rows hold."""
    held = federation.among(federation.clients[:1])
    x, y = held.take(held.splits["train"].rows(0))
    if not (isinstance(x, Tensor) and x.is_floating_point() and isinstance(y, Tensor) and y.dim() == 1):
        remedy = "needs rows of numbers in one tensor with one class each; choose another attack"
        raise KinfolkError("run.attack", kind, remedy)
    return Trigger(float(x.max()))


def overstating(attack: Attack | None, engine: Engine, federation: Federation) -> Engine:
    """The engine, or one whose attackers claim many rows."""
    if attack is None or attack.kind != "many_rows":
        return engine
    counts = federation.splits["train"].counts().tolist()
    return Overstated(engine, attack.who, dict(zip(federation.clients, counts, strict=True)))


def with_success(
    columns: dict[str, list[Any]], over_all: Mapping[str, Any], triggered: Mapping[str, list[Any]]
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Scores and their summary, with what the attack achieved: the accuracy on `triggered` rows.

    >>> seen = {"model": ["centre"] * 2, "score": ["loss", "accuracy"], "value": [2.0, 0.25], "rows": [4, 4]}
    >>> with_success({name: [] for name in seen}, {"centre": {}}, seen)[0]
    {'model': ['centre'], 'score': ['attack_success'], 'value': [0.25], 'rows': [4]}
    """
    at = [i for i, score in enumerate(triggered["score"]) if score == "accuracy"]
    more = {name: [column[i] for i in at] for name, column in triggered.items()}
    more["score"] = [SUCCESS] * len(at)
    found = {kind: dict(scores) for kind, scores in over_all.items()}
    for kind in dict.fromkeys(more["model"]):
        own = [i for i, model in enumerate(more["model"]) if model == kind]
        values, rows = ([more[name][i] for i in own] for name in ("value", "rows"))
        found.setdefault(kind, {})[SUCCESS] = {**summary(values, rows, True), "clients": len(own)}
    return {name: [*column, *more[name]] for name, column in columns.items()}, found
