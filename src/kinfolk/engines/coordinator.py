"""The stage: performs a script's requests, checks replies, counts bytes and time, logs what is amiss."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from kinfolk.engines.guard import EXPLODED, Cohort, inspect
from kinfolk.engines.memory import Memories
from kinfolk.engines.work import Work, trained_by
from kinfolk.federation.federation import Federation
from kinfolk.fold import Mergeable
from kinfolk.script import Ask, Exchange, Request
from kinfolk.streams import RoundContext
from kinfolk.task import Expected, FloatSpec, IntSpec, PeerTask, Table, Task
from kinfolk.types import Client, Message, Stack, nbytes


class Engine(Protocol):
    """What performs requests. It aggregates nothing and knows no algorithm."""

    name: str
    note: str  # what it is and how it is set, in words
    device: torch.device
    table: Table
    memories: Memories

    def replies(self, request: Ask[Any], context: RoundContext) -> Iterator[Stack]:
        """Replies in chunks, each sorted by client."""
        ...

    def swap(
        self, swap: PeerTask, among: tuple[Client, ...], context: RoundContext
    ) -> dict[tuple[Client, Client], int]:
        """Perform an exchange; the bytes of every message."""
        ...

    def close(self) -> None:
        """Give back what is held."""
        ...


@dataclass(frozen=True)
class Part:
    """The replies of some clients, checked and folded where they were made."""

    total: Message
    heard: tuple[Client, ...]  # whose replies are in the total
    rejected: dict[Client, str]  # whose are not, and why
    sent: int  # bytes of all their replies
    norms: Tensor  # of their models, by which those that wait are judged
    waiting: Stack  # replies that are judged when all parts are there: see `Cohort`
    grown: dict[Client, tuple[float, float]] = field(default_factory=dict)  # see `Cohort`


@runtime_checkable
class FoldsInParts(Protocol):
    """An engine of several processes, each of which can fold what its own clients reply."""

    def parts(self, request: Ask[Any], context: RoundContext) -> Iterator[Part]:
        """The parts of a request whose fold is `Mergeable`, in a fixed order."""
        ...


class Ledger:
    """Bytes by kind of message (down, up, across), seconds by phase and rows trained by task."""

    def __init__(self) -> None:
        self.bytes: dict[str, dict[str, int]] = {}
        self.seconds: dict[str, float] = {}
        self.trained: dict[str, int] = {}

    def add_bytes(self, kind: str, way: str, count: int) -> None:
        """Count bytes sent."""
        ways = self.bytes.setdefault(kind, {})
        ways[way] = ways.get(way, 0) + count

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Count time spent."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def add_trained(self, task: str, visits: int) -> None:
        """Count rows visited in passes with gradients; a row counts each time."""
        if visits:
            self.trained[task] = self.trained.get(task, 0) + visits

    def take_trained(self) -> dict[str, int]:
        """Row visits by task since the last call."""
        out, self.trained = self.trained, {}
        return out

    def take(self) -> tuple[dict[str, dict[str, int]], dict[str, float]]:
        """Bytes and seconds since the last call."""
        out = self.bytes, self.seconds
        self.bytes, self.seconds = {}, {}
        return out


class Coordinator:
    """Performs requests for a script. `absent` decides who does not answer, to rehearse drop-outs.

    With a `federation`, what clients train is counted, and `afford` is told before they do.
    """

    def __init__(
        self,
        engine: Engine,
        log: Callable[..., None] = lambda event, **facts: None,
        absent: Callable[[RoundContext, Client], bool] | None = None,
        federation: Federation | None = None,
        afford: Callable[[Work], None] = lambda work: None,
    ) -> None:
        self.engine, self.log, self.absent = engine, log, absent
        self.federation, self.afford = federation, afford
        self.ledger, self.folding = Ledger(), 0.0
        self.excluded: set[Client] = set()  # who has no part in rounds any more, and is scored all the same
        self.begin()

    def begin(self) -> None:
        """A new round: nobody was asked yet."""
        self.asked: set[Client] = set()
        self.failed: set[Client] = set()
        self.norms: list[Tensor] = []  # of all models that were replied in this round
        self.grown: dict[
            Client, tuple[float, float]
        ] = {}  # models far larger than what was sent: see `Cohort`
        self.exploded: dict[Client, str] = {}  # whose reply was rejected for its numbers, and why
        self.answered: set[Client] = set()  # those who gave a usable reply to all they were asked

    def perform(self, request: Request, context: RoundContext, rehearse: bool = True) -> Any:
        """Do what a script asks; the answer is a Stack, what the fold made of the replies, or nothing.

        Without `rehearse` nobody is absent.
        """
        who = request.among if isinstance(request, Exchange) else request.to
        present = self._present(who, context, rehearse)
        began, self.folding = time.perf_counter(), 0.0
        name = request.swap if isinstance(request, Exchange) else request.task
        try:
            if isinstance(request, Exchange):
                return self._exchange(request, present, context)
            return self._ask(request, present, context)
        finally:
            # What is made of replies is the server's work, not that of those who were asked.
            self.ledger.add_seconds(name, time.perf_counter() - began - self.folding)

    def _ask(self, request: Ask[Any], present: tuple[Client, ...], context: RoundContext) -> Any:
        task = self.engine.table[request.task]
        assert isinstance(task, Task), f"{request.task} is an exchange, not a task"
        if self.federation is not None:
            work = trained_by(request.task, task, present, request.again, self.federation)
            self.afford(work)
            self.ledger.add_trained(request.task, work.visits)
        sent = nbytes(request.shared) * len(present)
        sent += request.each.nbytes(present) if request.each else 0
        self.ledger.add_bytes(request.task, "down", sent)
        request = Ask(request.task, present, request.shared, request.each, request.fold)
        chunks = self._checked(request, task, context) if present else iter(())
        if request.fold is None:
            replies = list(chunks)
            return Stack.join(replies) if replies else _nobody(task.reply)
        total = request.fold.begin()
        if isinstance(self.engine, FoldsInParts) and isinstance(request.fold, Mergeable):
            for more in self._parts(self.engine, request, task, context) if present else ():
                step = request.fold.add if isinstance(more, Stack) else request.fold.merge
                total = self._folded(step, total, more)
            return self._folded(request.fold.end, total)
        for chunk in chunks:
            total = self._folded(request.fold.add, total, chunk)
        return self._folded(request.fold.end, total)

    def _folded(self, step: Callable[..., Any], *given: Any) -> Any:
        """A step of a fold, whose time is noted."""
        began = time.perf_counter()
        made = step(*given)
        self.folding += time.perf_counter() - began
        return made

    def _checked(self, request: Ask[Any], task: Task, context: RoundContext) -> Iterator[Stack]:
        """The replies that may pass, chunk by chunk; last those that had to wait for all the others."""
        silent, refused, cohort = set(request.to), set[Client](), self._cohort(request, task)
        yield from self._inspected(request, task, context, cohort, silent, refused)
        yield from self._judged(request, context, cohort, silent, refused)
        self._heard(request, context, silent, refused)

    def _inspected(
        self,
        request: Ask[Any],
        task: Task,
        context: RoundContext,
        cohort: Cohort,
        silent: set[Client],
        refused: set[Client],
    ) -> Iterator[Stack]:
        for chunk in self.engine.replies(request, context):
            self.ledger.add_bytes(request.task, "up", nbytes(chunk.body))
            strangers = {
                c: "answered twice" if c in request.to else "was not asked"
                for c in chunk.clients
                if c not in silent
            }
            self._reject(strangers, request, context)
            if strangers:
                chunk = chunk.at([c for c in chunk.clients if c not in strangers])
            if not chunk.clients:
                continue
            good, bad = inspect(chunk, task.reply)
            self._reject(bad, request, context)
            refused.update(bad)
            silent.difference_update(good.clients)
            good = cohort.pass_on(good) if good.clients else good
            if good.clients:
                yield good

    def _judged(
        self,
        request: Ask[Any],
        context: RoundContext,
        cohort: Cohort,
        silent: set[Client],
        refused: set[Client],
    ) -> Iterator[Stack]:
        good, absurd = cohort.judge()
        self._reject(absurd, request, context)
        refused.update(absurd)
        silent.update(absurd)
        if good.clients:
            yield good

    def _parts(
        self, engine: FoldsInParts, request: Ask[Any], task: Task, context: RoundContext
    ) -> Iterator[Message | Stack]:
        """The totals of all parts; last the replies that had to wait for all the others."""
        # Names that come from other processes are copies; of a hundred thousand, none should stay here.
        silent, refused, cohort = set(request.to), set[Client](), self._cohort(request, task)
        for part in engine.parts(request, context):
            self.ledger.add_bytes(request.task, "up", part.sent)
            self._reject(part.rejected, request, context)
            refused.update(part.rejected)
            silent.difference_update(part.heard)
            cohort.seen.append(part.norms)
            cohort.grown.update(part.grown)
            if part.waiting.clients:
                cohort.waiting.append(part.waiting)
            yield part.total
        yield from self._judged(request, context, cohort, silent, refused)
        self._heard(request, context, silent, refused)

    def _cohort(self, request: Ask[Any], task: Task) -> Cohort:
        return Cohort(request, task.reply, self.norms, grown=self.grown)

    def _reject(self, bad: dict[Client, str], request: Ask[Any], context: RoundContext) -> None:
        for client, reason in bad.items():
            self.log("rejected", round=context.round, client=client, task=request.task, reason=reason)
            if any(word in reason for word in EXPLODED):
                self.exploded[client] = reason

    def _heard(
        self, request: Ask[Any], context: RoundContext, silent: set[Client], refused: set[Client]
    ) -> None:
        for client in sorted(silent - refused):
            self.log("silent", round=context.round, client=client, task=request.task)
        # Whoever fails once in a round has not taken part in it, whatever came before and comes after.
        self.failed |= silent
        self.answered.update(c for c in request.to if c not in silent)
        self.answered -= self.failed

    def _exchange(self, request: Exchange, present: tuple[Client, ...], context: RoundContext) -> None:
        swap = self.engine.table[request.swap]
        assert isinstance(swap, PeerTask), f"{request.swap} is a task, not an exchange"
        sent = self.engine.swap(swap, present, context)
        self.engine.memories.flush()  # before anybody writes a message that follows from it
        self.answered = (self.answered | set(present)) - self.failed
        self.ledger.add_bytes(request.swap, "across", sum(sent.values()))

    def _present(self, who: tuple[Client, ...], context: RoundContext, rehearse: bool) -> tuple[Client, ...]:
        self.asked.update(who)
        if rehearse and self.excluded:
            who = tuple(c for c in who if c not in self.excluded)
        if self.absent is None or not rehearse:
            return tuple(sorted(who))
        missing = [c for c in who if self.absent(context, c)]
        for c in missing:
            self.log("absent", round=context.round, client=c)
        return tuple(sorted(set(who) - set(missing)))


def fold_part(engine: Engine, request: Ask[Any], fold: Mergeable, context: RoundContext) -> Part:
    """Perform a request by an engine of this process and fold the replies that may pass."""
    rejected: dict[Client, str] = {}

    def note(event: str, **facts: Any) -> None:
        rejected[facts["client"]] = facts["reason"]

    coordinator, task = Coordinator(engine, note), engine.table[request.task]
    assert isinstance(task, Task)
    cohort, silent, total = Cohort(request, task.reply), set(request.to), fold.begin()
    for chunk in coordinator._inspected(request, task, context, cohort, silent, set()):
        total = fold.add(total, chunk)
    heard = tuple(sorted(set(request.to) - silent))
    norms = torch.cat(cohort.seen) if cohort.seen else torch.zeros(0, dtype=torch.float64)
    sent = coordinator.ledger.bytes.get(request.task, {}).get("up", 0)
    return Part(total, heard, rejected, sent, norms, Stack.join(cohort.waiting), cohort.grown)


def _nobody(expected: Expected) -> Stack:
    """No replies, in the shapes that replies would have: a script need not ask whether anybody is there."""

    def none(declared: Tensor | IntSpec | FloatSpec) -> Tensor:
        if isinstance(declared, Tensor):
            return declared.new_zeros((0, *declared.shape))
        if isinstance(declared, IntSpec):
            return torch.zeros(0, dtype=torch.int64)
        return torch.zeros((0, *declared.shape))

    body = {
        key: {name: none(leaf) for name, leaf in value.items()} if isinstance(value, dict) else none(value)
        for key, value in expected.items()
    }
    return Stack((), torch.zeros(0, dtype=torch.int64), body)


def drop_outs(rate: float) -> Callable[[RoundContext, Client], bool] | None:
    """A seeded rule by which a client misses a whole round with probability `rate`.

    >>> drop_outs(0.0) is None
    True
    """
    if rate <= 0:
        return None
    return lambda context, who: bool(context.seed.numpy("absent", context.round, who).random() < rate)
