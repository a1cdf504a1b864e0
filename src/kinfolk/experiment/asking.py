"""A coordinator for a few questions outside of a run: the same engines, chosen as a run would choose them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from kinfolk.algorithms.blocks.warm_start import Points, directions_from, sketch_for, warm_task
from kinfolk.engines.choose import arithmetic, choose, make
from kinfolk.engines.coordinator import Coordinator
from kinfolk.engines.memory import Memories
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import Parts, first_rows
from kinfolk.learning.batchable import cost, obstacle
from kinfolk.script import Ask
from kinfolk.streams import RoundContext
from kinfolk.task import Table
from kinfolk.types import Message, Tree, map_leaves


@contextmanager
def coordinated(parts: Parts, table: Table) -> Iterator[Coordinator]:
    """A coordinator by which the clients of `parts` can be asked the tasks of `table`; closed at the end.

    >>> from kinfolk.experiment.build import build_parts
    >>> from kinfolk.experiment.sections import Experiment
    >>> parts = build_parts(Experiment())
    >>> with coordinated(parts, {"train": parts.learner.train()}) as coordinator:
    ...     coordinator.engine.name
    'batched'
    """
    spec = parts.spec.engine
    one_process(spec.name)
    x, y = first_rows(parts.federation, 2)
    size, blocked = cost(parts.learner, x), obstacle(parts.learner, x, y)
    choice = choose(spec, size, parts.spec.local.batch, len(parts.federation.clients), blocked)
    with arithmetic(choice.device, spec.precision):
        engine = make(choice.engine, parts.federation, table, Memories(lambda who: {}))
        try:
            yield Coordinator(engine)
        finally:
            engine.close()


def one_process(engine: str) -> None:
    """Refuse an engine whose ranks would all have to follow.

    >>> one_process("distributed")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: engine.name = 'distributed': this command runs in one process; use 'auto'
    """
    if engine == "distributed":
        raise KinfolkError("engine.name", engine, "this command runs in one process; use 'auto'")


def here(coordinator: Coordinator, message: Message) -> Message:
    """A message where the engine's own tensors are."""
    return map_leaves(lambda t: t.to(coordinator.engine.device), message)


def trained_alike(parts: Parts, epochs: int, model: Tree | None = None, directions: bool = False) -> Tensor:
    """[clients, P]: what every client makes of one model, the first if none is given; or sketches of it.

    With `directions` which way each went from that model, at unit length: who has more rows gets farther.

    >>> from kinfolk.experiment.build import build_parts
    >>> from kinfolk.experiment.sections import Experiment
    >>> len(trained_alike(build_parts(Experiment()), 1))
    24
    """
    learner, clients = parts.learner, parts.federation.clients
    first = learner.first if model is None else model
    sketch = sketch_for(first, learner.names, len(clients), parts.seed)
    with coordinated(parts, {"train": warm_task(learner, epochs)}) as coordinator:
        fold, sent = Points(learner.names, sketch), here(coordinator, {"model": first})
        request = Ask("train", clients, sent, fold=fold)
        who, _, points = coordinator.perform(request, RoundContext(parts.seed, 0, clients))
    if who != clients:
        lost = len(clients) - len(who)
        raise KinfolkError("local.lr", parts.spec.local.lr, f"{lost} clients diverged; give a smaller one")
    return directions_from(fold.row(sent["model"]) if directions else None, points).cpu()


def middle(centres: Message) -> Message:
    """The mean of K models (every leaf [K, ...]); of counters, which have no mean, the largest.

    >>> import torch
    >>> middle({"w": torch.tensor([[1.0], [3.0]]), "n": torch.tensor([1, 4])})
    {'w': tensor([2.]), 'n': tensor(4)}
    """
    return {
        name: t.double().mean(0).to(t.dtype) if t.is_floating_point() else t.amax(0)
        for name, t in centres.items()
    }
