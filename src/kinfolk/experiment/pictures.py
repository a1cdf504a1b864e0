"""What a run writes down to look at: sketches of its clients' models, and what its method shows.

For people alone, and in a simulation alone: a server that is sent shares never sees a model, and one that is
sent models keeps none. Nothing is drawn from a generator and nothing follows from it: a run has the same bits
without. How much is written is bounded: MOST_ROUNDS rounds, MOST_CLIENTS clients, MOST_BYTES of a method.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kinfolk.engines.sketched import MOST_CLIENTS, Sketches
from kinfolk.errors import KinfolkError
from kinfolk.experiment.picture_files import write_arrays, write_sketches
from kinfolk.experiment.sample_rows import write_sample_rows
from kinfolk.learning.learner import ScoreTask
from kinfolk.script import MADE, Algorithm, Shows, Stops
from kinfolk.streams import Few, RoundContext
from kinfolk.task import ClientInfo, Info
from kinfolk.types import Client, Message, Tree, map_leaves, stack_messages

if TYPE_CHECKING:
    from kinfolk.experiment.run import Running

# Rounds of a run that are pictured, besides one at which it ends early.
MOST_ROUNDS = 20
# Models that are sketched at once.
AT_ONCE = 16


def pictured(rounds: int, every: int) -> tuple[int, ...]:
    """The rounds that are pictured of a run that is evaluated so often: all, or ever wider apart to the last.

    >>> pictured(6, 2), pictured(5, 2), len(pictured(20, 1))
    ((2, 4, 6), (2, 4, 5), 20)
    >>> pictured(1000, 1)
    (1, 2, 3, 4, 6, 9, 13, 18, 26, 38, 55, 78, 113, 162, 234, 336, 483, 695, 1000)
    """
    last = -(-rounds // every)
    steps = {round(last ** (i / (MOST_ROUNDS - 1))) for i in range(MOST_ROUNDS)}
    numbers = range(1, last + 1) if last <= MOST_ROUNDS else sorted(steps)
    return tuple(min(number * every, rounds) for number in numbers)


class Pictures:
    """What a run draws of itself."""

    def __init__(self, run: Running) -> None:
        self.run, spec = run, run.spec.run
        self.wanted, self.rows = spec.pictures != "none", spec.pictures == "rows"
        if run.parts.privacy:  # what a server is trusted with is not to be looked at
            self.wanted = self.rows = False
        self.rounds = frozenset(pictured(spec.rounds, spec.evaluate_every))
        self.few = Few(run.parts.seed, run.clients)
        self.sketches = Sketches(run.parts.seed, run.parts.learner.names, self.few)
        self.made: Any = None
        # The round that will be the last is not known before where other things than rounds may end a run.
        self.open_end = bool(spec.target or spec.patience) or isinstance(run.algorithm, Stops)
        self._personal: bool | None = None  # whether clients keep models; looked up once

    def begin_folder(self) -> None:
        """Write a few rows, if they are asked for."""
        if self.rows:
            write_sample_rows(self.run.parts.federation, self.few, self.run.folder)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Sketch the models that reach the server meanwhile, if this round may be pictured."""
        due = self.open_end or self.run.done + 1 in self.rounds or not self.run.budget.left(self.run.done + 1)
        watches = self.wanted and due and not self.keeps_models()
        self.sketches.found = {}
        self.run.coordinator.sketches = self.sketches if watches else None
        try:
            yield
        finally:
            self.run.coordinator.sketches = None

    def note(self, info: Info) -> None:
        """Take what a round has made to be shown out of its info."""
        self.made = info.pop(MADE, None)

    def draw(self, ends: bool) -> None:
        """Write the pictures of the round that is just done, if it is one of those."""
        run = self.run
        if not (self.wanted and run.done and (ends or run.done in self.rounds)):
            return
        began = time.perf_counter()
        kind = "personal" if self.keeps_models() else "update"
        held: Callable[[], dict[Client, Message]] = run.memories.everyones
        found = self._personal_sketches(held()) if kind == "personal" else self.sketches.found
        if found:
            who = sorted(found)
            write_sketches(run.folder, run.done, who, kind, torch.stack([found[c] for c in who]).numpy())
        if isinstance(run.algorithm, Shows):
            self._write_shown(run.algorithm, held())
        self.made = None
        run.coordinator.ledger.add_seconds("pictures", time.perf_counter() - began)

    def _write_shown(self, algorithm: Shows, memories: dict[Client, Message]) -> None:
        run = self.run
        context = RoundContext(run.parts.seed, run.done - 1, run.clients, run.spec.run.participation)
        arrays = algorithm.shows(run.state, memories, self.made, context)
        if arrays:
            try:
                write_arrays(run.folder, run.done, {name: t.cpu().numpy() for name, t in arrays.items()})
            except KinfolkError as error:  # a picture is no reason to end a run
                run.records.audit("warning", text=f"round {run.done} is not pictured: {error}")

    def keeps_models(self) -> bool:
        """Whether clients hold models of their own between rounds, as those that are scored as "personal"."""
        if self._personal is None:
            first = self.run.clients[:1]
            models = self._personal_models(first, {first[0]: self.run.memories[first[0]]})
            self._personal = self.sketches.projection.fits(next(models, (None, {}))[1])
        return self._personal

    def _personal_sketches(self, memories: dict[Client, Message]) -> dict[Client, Tensor]:
        found: dict[Client, Tensor] = {}
        who = self.few.of(self.run.clients, MOST_CLIENTS)
        for begin in range(0, len(who), AT_ONCE):
            models = dict(self._personal_models(who[begin : begin + AT_ONCE], memories))
            stacked = stack_messages(list(models.values()))
            found |= zip(models, self.sketches.projection.of(stacked), strict=True)
        return found

    def _personal_models(
        self, who: Sequence[Client], memories: dict[Client, Message]
    ) -> Iterator[tuple[Client, Tree]]:
        """What is scored as "personal" where clients hold it ready and need not train it first."""
        run = self.run
        task = personal_task(run.algorithm)
        if task is None:
            return
        shared, each = run.algorithm.eval_inputs(run.state, who)
        device = run.coordinator.engine.device
        rows = run.parts.federation.splits["train"]
        for c in who:
            message = {**shared, **(each.row(c) if each else {})}
            memory = memories[c] if c in memories else run.memories[c]
            counts = torch.tensor(rows.count(run.parts.federation.place(c)), device=device)
            info = ClientInfo(counts, torch.zeros_like(counts), run.done)
            with torch.no_grad():
                here = [map_leaves(lambda t: t.to(device), part) for part in (message, memory)]
                yield c, task.model(task.start(here[0], here[1], info))


def personal_task(algorithm: Algorithm[Any]) -> ScoreTask | None:
    """The scoring task of models that clients hold, if it trains nothing before it scores.

    >>> from kinfolk.experiment.build import build_parts
    >>> from kinfolk.experiment.sections import AlgorithmSpec, Experiment
    >>> [personal_task(build_parts(Experiment(algorithm=AlgorithmSpec(name))).algorithm) is None
    ...     for name in ("local", "fedavg", "fesem")]
    [False, True, True]
    """
    task = algorithm.eval_tasks().get("personal")
    return task if isinstance(task, ScoreTask) and len(task.passes) == 1 else None
