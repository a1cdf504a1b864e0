"""What every process of a run is made of, and how all ranks of the distributed engine but the first serve."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch

from kinfolk.engines.choose import arithmetic, make
from kinfolk.engines.distributed import serve
from kinfolk.engines.link import Link
from kinfolk.engines.memory import Memories
from kinfolk.engines.stage import Engine
from kinfolk.experiment.build import Parts
from kinfolk.experiment.choice import chosen
from kinfolk.federation.federation import Federation
from kinfolk.script import Remembers, installed
from kinfolk.task import Table
from kinfolk.types import map_leaves


def follow(build: Callable[[], Parts], link: Link) -> None:
    """Serve rank 0 with the same parts, which are built here from the same spec."""
    with ExitStack() as held:

        def engine() -> tuple[Engine, Federation]:
            parts = build()
            choice = chosen(parts, link)
            held.enter_context(arithmetic(choice.device, parts.spec.engine.precision))
            memories = memories_of(parts, choice.device)
            return make(choice, parts.federation, table_of(parts), memories), parts.federation

        serve(engine, link)


def memories_of(parts: Parts, device: torch.device) -> Memories:
    """What clients remember, before anybody is asked."""
    remember = parts.algorithm.remember if isinstance(parts.algorithm, Remembers) else lambda who: {}
    marked = parts.attack.mark(remember) if parts.attack else remember
    return Memories(lambda who: map_leaves(lambda t: t.to(device), marked(who)))


def table_of(parts: Parts) -> Table:
    """What clients can be asked, attackers included."""
    table = installed(parts.algorithm)
    return table if parts.attack is None else parts.attack.arm(table)
