"""FedMedian: FedAvg with the coordinate-wise median, which one bad client cannot move far.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning. ICML 2018.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kinfolk.authoring import (
    Client,
    Learner,
    Message,
    RoundContext,
    Script,
    Seed,
    Stack,
    Table,
    Task,
    Tree,
    ask,
)


@dataclass(frozen=True)
class State:
    """What the server keeps from round to round."""

    model: Tree


@dataclass(frozen=True)
class Median:
    """One model for everyone: the coordinate-wise median of what the clients trained."""

    learner: Learner

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """Start from the common initial model."""
        return State(first)

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """w <- median over clients of w_i."""
        got = yield from ask("update", cohort, shared={"model": state.model})
        if not got.clients:  # nobody answered
            return state, {}
        return State({name: leaf.median(0).values for name, leaf in got.tree("model").items()}), {}

    def tasks(self) -> Table:
        """Train the received model on the client's own rows."""
        return {"update": self.learner.train()}

    def eval_inputs(self, state: State, who: Sequence[Client]) -> tuple[Message, Stack | None]:
        """Everyone is served the common model."""
        return {"model": state.model}, None

    def eval_tasks(self) -> Mapping[str, Task]:
        """The common model."""
        return {"centre": self.learner.score()}
