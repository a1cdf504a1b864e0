"""Attackers that say they have more rows than anybody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from kinfolk.engines.coordinator import Engine, Rejects, warnings_of
from kinfolk.script import Ask
from kinfolk.streams import RoundContext
from kinfolk.types import Client, Stack

ROWS = 10**9  # what such an attacker claims


class Overstated:
    """An engine as it is, whose attackers claim ROWS training rows, as they join and in every reply.

    How many rows a client has is told by whoever carries its replies, and by no task: so it is here that they
    lie. Replies are not folded where they are made, since there the true numbers are known.
    """

    def __init__(self, engine: Engine, who: frozenset[Client], rows: Mapping[Client, int]) -> None:
        self.engine, self.who, self.rows = engine, who, rows
        self.name, self.note, self.device = engine.name, engine.note, engine.device
        self.table, self.memories = engine.table, engine.memories
        self.swap, self.close = engine.swap, engine.close

    def claims(self, who: Sequence[Client]) -> dict[Client, int]:
        """How many rows each client says it has."""
        return {c: ROWS if c in self.who else self.rows[c] for c in who}

    def replies(self, request: Ask[Any], context: RoundContext) -> Iterator[Stack]:
        """The engine's replies, with what attackers claim."""
        for chunk in self.engine.replies(request, context):
            said = self.claims(chunk.clients)
            # Scores weigh by test rows, and attackers are not scored.
            size = torch.tensor([said[c] for c in chunk.clients], dtype=torch.int64, device=chunk.size.device)
            yield replace(chunk, size=size)

    def take_rejected(self) -> dict[Client, str]:
        """What the engine could not use."""
        return self.engine.take_rejected() if isinstance(self.engine, Rejects) else {}

    def take_warnings(self) -> list[str]:
        """What the engine had to tell."""
        return warnings_of(self.engine)
