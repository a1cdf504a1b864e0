"""Local (NoFed): every client trains alone from the common start. What any federation has to beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kinfolk.learning.learner import Learner, keep_model, own_model
from kinfolk.script import Script, ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Table, Task
from kinfolk.types import Client, Message, PerClient, Tree


@dataclass(frozen=True)
class State:
    """The server holds nothing."""


@dataclass(frozen=True)
class Local:
    """No federation: each client trains its own model for the same number of local epochs."""

    learner: Learner

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """Nothing to hold."""
        return State()

    def init_client(self, who: Client) -> Message:
        """Each client starts from the common initial model."""
        return {"model": self.learner.first}

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """w_i <- w_i after E more local epochs; nothing is sent."""
        yield from ask("practise", cohort)
        return state, {}

    def tasks(self) -> Table:
        """Go on training the own model."""
        return {"practise": self.learner.train(start=own_model, finish=keep_model, reply={})}

    def eval_inputs(self, state: State, who: Sequence[Client]) -> tuple[Message, PerClient | None]:
        """Clients need nothing."""
        return {}, None

    def eval_tasks(self) -> Mapping[str, Task]:
        """Each client's own model."""
        return {"personal": self.learner.score(start=own_model)}
