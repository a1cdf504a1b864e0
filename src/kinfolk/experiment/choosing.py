"""Clients who choose among models choose anew before they are scored, those who were never asked as well."""

from __future__ import annotations

from typing import Any

from kinfolk.engines.coordinator import Coordinator, Ledger
from kinfolk.engines.memory import Memories
from kinfolk.experiment.score import Groupings
from kinfolk.script import Algorithm, Chooses, play
from kinfolk.streams import RoundContext

Facts = dict[str, Any]


def choose_now(
    algorithm: Algorithm[Any], state: Any, coordinator: Coordinator, memories: Memories, context: RoundContext
) -> tuple[Any, Facts]:
    """(the state with everybody's choice made now, what that took); the state itself where nobody chooses.

    Nobody is absent, as in scoring. What is sent counts neither as training nor is it lost: it is told.
    """
    script = algorithm.chosen_now(state, context) if isinstance(algorithm, Chooses) else None
    if script is None:
        return state, {}
    usual, coordinator.ledger = coordinator.ledger, Ledger()
    memories.snapshot()
    try:
        coordinator.begin()
        chosen, _ = play(script, lambda request: coordinator.perform(request, context, rehearse=False))
    finally:
        memories.rollback()
        spent, coordinator.ledger = coordinator.ledger, usual
    coordinator.ledger.add_seconds("score.choose", sum(spent.seconds.values()))
    return chosen, {"answered": len(coordinator.answered), "bytes": spent.bytes}


def with_choices(facts: Facts, chosen: Facts, groups: Groupings) -> Facts:
    """A round's facts with groups by the choices made now; how many differ from the round's own is told too.

    >>> facts = {"groups": {"switch": 0.1, "ari": 0.4}}
    >>> with_choices(facts, {"answered": 4}, {"switch": 0.5, "ari": 1.0})
    {'groups': {'switch': 0.1, 'ari': 1.0}, 'chosen': {'answered': 4, 'switch': 0.5}}
    """
    if not chosen:
        return facts
    moves = ("switch", "moved")
    new = {name: value for name, value in groups.items() if name not in moves}
    told = chosen | {name: groups[name] for name in moves if name in groups}
    return {**facts, "groups": {**facts.get("groups", {}), **new}, "chosen": told}
