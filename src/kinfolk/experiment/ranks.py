"""What every process of a run is made of, and how all ranks of the distributed engine but the first serve."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from kinfolk.engines.choose import arithmetic, make
from kinfolk.engines.coordinator import Engine
from kinfolk.engines.distributed import serve
from kinfolk.engines.link import Link
from kinfolk.experiment.best import validation_task
from kinfolk.experiment.build import Parts
from kinfolk.experiment.choice import chosen
from kinfolk.experiment.client_memory import make_memories
from kinfolk.experiment.secure_sums import with_sums
from kinfolk.federation.federation import Federation
from kinfolk.script import client_tasks
from kinfolk.task import Table


def follow(build: Callable[[], Parts], link: Link) -> None:
    """Serve rank 0 with the same parts, which are built here from the same spec."""
    with ExitStack() as held:

        def engine() -> tuple[Engine, Federation]:
            parts = build()
            choice = chosen(parts, link)
            held.enter_context(arithmetic(choice.device, parts.spec.engine.precision))
            memories = make_memories(parts, choice.device)
            return make(choice.engine, parts.federation, table_of(parts), memories), parts.federation

        serve(engine, link)


def table_of(parts: Parts) -> Table:
    """What clients can be asked, attackers included; with secure sums, without their models."""
    table: Table = {**client_tasks(parts.algorithm), **validation_task(parts.algorithm, parts.spec.run)}
    if parts.attack is not None:
        table = parts.attack.arm({**table, **parts.attack.triggered(parts.algorithm.eval_tasks())})
    return with_sums(table if parts.privacy is None else parts.privacy.armed(table), parts)
