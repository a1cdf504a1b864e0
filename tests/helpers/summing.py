"""Rounds of a method by secure sums on a toy federation, with all that reaches the server written down."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from kinfolk.contract import toy
from kinfolk.engines.choose import arithmetic, make
from kinfolk.engines.coordinator import Coordinator
from kinfolk.engines.memory import Memories
from kinfolk.engines.spec import EngineSpec
from kinfolk.script import Ask, Remembers, Request, client_tasks, play
from kinfolk.secure_sums.asking import Asking
from kinfolk.secure_sums.holding import LOG, armed, first_memory, summed_trees
from kinfolk.secure_sums.member import exchanges
from kinfolk.secure_sums.spec import SecureSumsSpec
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Client, Message, Stack, leaves

ADDITIVE = SecureSumsSpec("additive64")
SHAMIR = SecureSumsSpec("shamir61")


@dataclass
class Server:
    """A stage whose requests for means are secure sums."""

    method: Any
    federation: Any
    coordinator: Coordinator
    asking: Asking
    log: list[dict[str, Any]]
    seen: list[tuple[str, Stack]] = field(default_factory=list)  # replies, with what was asked
    asked: list[str] = field(default_factory=list)  # requests, by name
    before: Callable[[Server, Request], None] = lambda stage, request: None

    @property
    def memories(self) -> Memories:
        return self.coordinator.engine.memories

    def round(self, state: Any, number: int = 0) -> Any:
        """The state after a round of all clients."""
        context = RoundContext(Seed(0), number, self.federation.clients)
        self.coordinator.begin()

        def plain(request: Request) -> Any:
            name = request.task if isinstance(request, Ask) else request.swap
            self.asked.append(name)
            self.before(self, request)
            got = self.coordinator.perform(request, context)
            if isinstance(got, Stack):
                self.seen.append((name, got))
            return got

        script = self.method.round(state, self.federation.clients, context)
        return play(script, self.asking.around(plain, context))[0]

    def answers(self) -> dict[Client, Message]:
        """The last answers of members."""
        got = next(got for name, got in reversed(self.seen) if name.startswith("sums.answer"))
        return {c: got.row(c) for c in got.clients}

    def told(self, event: str) -> list[dict[str, Any]]:
        """What the log has of an event."""
        return [facts for facts in self.log if facts["event"] == event]


@contextmanager
def server(method, federation, spec=ADDITIVE, engine="loop", absent=None):
    """A server that sees sums alone; with spec None, one that sees all."""
    log: list[dict[str, Any]] = []
    note = lambda event, **facts: log.append({"event": event, **facts})  # noqa: E731
    table, summed = client_tasks(method), method.summed
    remember = method.init_client if isinstance(method, Remembers) else lambda who: {}
    trees, lasting = {}, ()
    if spec is not None:
        trees = summed_trees(table, summed)
        table = {**armed(table, summed, len(federation.clients), spec.make().limit), **exchanges(spec)}
        remember, lasting = first_memory(remember), (LOG,)
    wanted = EngineSpec(engine, "cpu", chunk=3, lanes=1, processes=2)
    with arithmetic(toy.CPU, "float32"):
        made = make(wanted, federation, table, Memories(remember, lasting))
        try:
            stage = Coordinator(made, note, absent, federation)
            yield Server(method, federation, stage, Asking(spec, trees, note), log)
        finally:
            made.close()


def first_state(method, federation):
    return method.init(toy.first_model(method), federation.clients, Seed(0))


def flat(tree) -> torch.Tensor:
    """The floating-point numbers of a tree, end to end."""
    return torch.cat([t.double().flatten() for _, _, t in leaves({"": tree}) if t.is_floating_point()])


def trained(method, federation, task, message, number=0) -> Stack:
    """What clients train, seen in the clear: by the plain tasks, without any of what is tested."""
    with toy.coordinated(method, federation) as stage:
        context = RoundContext(Seed(0), number, federation.clients)
        return stage.perform(Ask(task, federation.clients, message), context)
