"""What a run owes its clients' secrets: saved before they are used, spent once spent, and what was told."""

from __future__ import annotations

from typing import Any

from kinfolk.engines.coordinator import Coordinator, Ledger
from kinfolk.experiment.record import Records
from kinfolk.federation.scaling import Scaling
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


def tell_statistics(scaling: Scaling | None, records: Records, ledger: Ledger) -> None:
    """Write down what clients told of their rows before the first round, for all to be standardised."""
    if scaling is not None and scaling.bytes_up:
        records.audit("standardize", by=scaling.by, tells=scaling.tells)
        ledger.add_bytes("standardize", "up", scaling.bytes_up)
        ledger.add_bytes("standardize", "down", scaling.bytes_down)
