"""What algorithms with one model for everyone have in common: its state, its round trip, its scores."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.algorithms.blocks.learns import Learns
from kinfolk.fold import Weights
from kinfolk.script import Request, fold
from kinfolk.streams import Seed
from kinfolk.task import Table, Task
from kinfolk.types import Client, Message, PerClient, Tree


@dataclass(frozen=True)
class State:
    """The common model."""

    model: Tree  # w


def init(self: Any, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
    """Start from the common initial model."""
    return State(first)


def tasks(self: Learns) -> Table:
    """Train the received model on the client's own rows."""
    return {"update": self.learner.train()}


def average(
    w: Tree, cohort: Sequence[Client], weights: Weights, aggregate: RobustMean
) -> Generator[Request, Any, Tree]:
    """Clients train from w; the mean of what they send back, or what is taken for it; w if nobody does."""
    by = aggregate.tree_fold("model", w, weights)
    return (yield from fold(by, "update", cohort, shared={"model": w}))


def eval_inputs(self: Any, state: State, who: Sequence[Client]) -> tuple[Message, PerClient | None]:
    """Everyone is served the common model."""
    return {"model": state.model}, None


def eval_tasks(self: Learns) -> Mapping[str, Task]:
    """The common model, as it is."""
    return {"centre": self.learner.score()}
