"""What a run owes its clients' secrets: they are saved before they are used, and spent is spent."""

from __future__ import annotations

from typing import Any

from kinfolk.engines.coordinator import Coordinator
from kinfolk.experiment.record import Records
from kinfolk.script import Algorithm, Exchange, Prepares, Spends
from kinfolk.streams import RoundContext


def prepare(algorithm: Algorithm[Any], coordinator: Coordinator, context: RoundContext) -> None:
    """Let all clients make their secrets, where the algorithm has any, before the first checkpoint."""
    if isinstance(algorithm, Prepares) and (name := algorithm.preparation()):
        coordinator.perform(Exchange(name, context.clients), context, rehearse=False)


def after_void(algorithm: Algorithm[Any], before: Any, after: Any) -> Any:
    """The state after a round that is void: the one before it, but for what cannot be taken back."""
    return algorithm.still_spent(before, after) if isinstance(algorithm, Spends) else before


def tell_spending(algorithm: Algorithm[Any], state: Any, records: Records, round: int) -> None:
    """Write the epsilon of every client's answers together into the audit trail, if any was spent."""
    spent = algorithm.spent(state) if isinstance(algorithm, Spends) else {}
    if spent:
        records.audit("epsilon", round=round, most=max(spent.values()), spent=dict(spent))
