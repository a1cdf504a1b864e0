"""What algorithms with one model for everyone have in common: its state, and how it is served and scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kinfolk.learning.learner import Learner
from kinfolk.streams import Seed
from kinfolk.task import Task
from kinfolk.types import Client, Message, Stack, Tree


class Learns(Protocol):
    """An algorithm that has a learner."""

    @property
    def learner(self) -> Learner:
        """The network and how it is trained."""
        ...


@dataclass(frozen=True)
class State:
    """The common model."""

    model: Tree  # w


def init(self: Any, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
    """Start from the common initial model."""
    return State(first)


def serve(self: Any, state: State, who: Sequence[Client]) -> tuple[Message, Stack | None]:
    """Everyone is served the common model."""
    return {"model": state.model}, None


def scored(self: Learns) -> Mapping[str, Task]:
    """The common model, as it is."""
    return {"centre": self.learner.score()}
