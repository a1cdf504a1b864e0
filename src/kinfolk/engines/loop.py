"""Engine `loop`: one client after another in this process. The reference, and the fallback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kinfolk.engines import one
from kinfolk.engines.asked import willing
from kinfolk.engines.memory import InProcess, Memories
from kinfolk.engines.spec import EngineSpec
from kinfolk.federation.federation import Federation
from kinfolk.script import Ask
from kinfolk.streams import RoundContext
from kinfolk.task import Table, Task
from kinfolk.types import Client, Message, Stack, map_leaves


def message_for(request: Ask[Any], who: Client) -> Message:
    """What one client is sent: the shared part and its own."""
    return {**request.shared, **(request.each.row(who) if request.each else {})}


class Loop(InProcess):
    """Performs a task client by client."""

    name, in_process, chunked = "loop", True, False

    def __init__(
        self, federation: Federation, table: Table, memories: Memories, device: torch.device | str = "cpu"
    ) -> None:
        self.device = torch.device(device)
        self.federation = one.on_device(federation, self.device)
        self.table, self.memories = table, memories
        self.note = f"loop: one client after another on {self.device}"

    @classmethod
    def make(cls, spec: EngineSpec, federation: Federation, table: Table, memories: Memories) -> Loop:
        """The engine that a filled-in `[engine]` table describes."""
        return cls(federation, table, memories, spec.device)

    def replies(self, request: Ask[Any], context: RoundContext) -> Iterator[Stack]:
        """The replies to a request, one client each, in order of names."""
        task = self.table[request.task]
        assert isinstance(task, Task)
        request = willing(task, request)
        for who in sorted(request.to):
            message = map_leaves(self._here, message_for(request, who))
            memory = map_leaves(self._here, self.memories[who])
            reply, kept = one.perform(task, message, memory, self.federation, who, context)
            if kept is not None:
                self.memories[who] = kept
            yield Stack.of({who: (one.train_rows(self.federation, who), reply)})

    def claims(self, who: Sequence[Client]) -> dict[Client, int]:
        """How many training rows each client has."""
        return one.row_counts(self.federation, who)

    def _here(self, t: Tensor) -> Tensor:
        return t.to(self.device)
