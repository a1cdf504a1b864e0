"""The stage: performs a script's requests, checks replies, counts bytes and time, logs what is amiss."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from kinfolk.engines.asked import check
from kinfolk.engines.cohort import Cohort, GuardSpec, Limits, Usual
from kinfolk.engines.guard import EXPLODED, LARGEST_COUNT, inspect
from kinfolk.engines.memory import Memories
from kinfolk.engines.owners import Owners
from kinfolk.engines.sketched import Sketches
from kinfolk.engines.work import Work, trained_by
from kinfolk.federation.federation import Federation
from kinfolk.fold import Mergeable
from kinfolk.script import Ask, Exchange, Request
from kinfolk.streams import RoundContext
from kinfolk.task import Expected, IntSpec, PeerTask, Table, Task
from kinfolk.types import Client, Message, Stack, map_leaves, nbytes


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
    norms: Tensor  # of their models
    lengths: dict[str, Tensor]  # of their updates, by which those that wait are judged
    waiting: Stack  # replies that are judged when all parts are there: see `Cohort`
    grown: dict[Client, tuple[float, float]] = field(default_factory=dict)  # see `Cohort`
    looks: Stack = field(default_factory=lambda: Stack.join(()))  # see `conduct`


@runtime_checkable
class FoldsInParts(Protocol):
    """An engine of several processes, each of which can fold what its own clients reply."""

    def parts(self, request: Ask[Any], context: RoundContext, limits: Limits) -> Iterator[Part]:
        """The parts of a request whose fold is `Mergeable`, in a fixed order."""
        ...


@runtime_checkable
class Registers(Protocol):
    """An engine whose clients say how many training rows they have before they are asked anything."""

    def claims(self, who: Sequence[Client]) -> Mapping[Client, int]:
        """What each of these says; one that says nothing of use is left out."""
        ...


@runtime_checkable
class Owned(Protocol):
    """An engine whose clients may belong to somebody with several of them."""

    def owners(self) -> Mapping[Client, str]:
        """Who owns each client that is not its own."""
        ...


@runtime_checkable
class Rejects(Protocol):
    """An engine that reads what comes from elsewhere, of which some may be no message."""

    def take_rejected(self) -> dict[Client, str]:
        """Whose messages could not be used since the last call, and why."""
        ...


@runtime_checkable
class Warns(Protocol):
    """An engine that may have to do otherwise than it was chosen for."""

    def take_warnings(self) -> list[str]:
        """What there was to tell since the last call."""
        ...


def warnings_of(engine: Engine) -> list[str]:
    """What an engine had to tell since it was asked last."""
    return engine.take_warnings() if isinstance(engine, Warns) else []


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
        warn: Callable[[str], None] = lambda text: None,
        guard: GuardSpec | None = None,
    ) -> None:
        self.engine, self.log, self.warn, self.absent = engine, log, warn, absent
        self.federation, self.afford, self.guard = federation, afford, guard or GuardSpec()
        self.usual, self._claims, self._most_rows = Usual(), dict[Client, int](), LARGEST_COUNT
        self.ledger, self.folding = Ledger(), 0.0
        self.sketches: Sketches | None = None  # who looks at the models that are replied, if anybody does
        self.owners = Owners(engine.owners() if isinstance(engine, Owned) else {})
        self.excluded: set[Client] = set()  # who has no part in rounds any more, and is scored all the same
        self.begin()

    def begin(self) -> None:
        """A new round: nobody was asked yet."""
        self._usual_before = Usual(self.usual.lately)
        self.asked: set[Client] = set()
        self.failed: set[Client] = set()
        self.norms: list[Tensor] = []  # of all models that were replied in this round
        self.grown: dict[
            Client, tuple[float, float]
        ] = {}  # models far larger than what was sent: see `Cohort`
        self.looks: dict[
            str, list[Stack]
        ] = {}  # what updates of this round look like, by task: see `conduct`
        self.exploded: dict[Client, str] = {}  # whose reply was rejected for its numbers, and why
        self.answered: set[Client] = set()  # those who gave a usable reply to all they were asked

    def forget(self) -> None:
        """Judge what comes as if the round had not been."""
        self.usual = Usual(self._usual_before.lately)

    def perform(self, request: Request, context: RoundContext, rehearse: bool = True) -> Any:
        """Do what a script asks; the answer is a Stack, what the fold made of the replies, or nothing.

        Without `rehearse` nobody is absent.
        """
        self._hear_claims(context.clients, context.round)
        who = request.among if isinstance(request, Exchange) else request.to
        present = self._present(who, context, rehearse)
        began, self.folding = time.perf_counter(), 0.0
        name = request.swap if isinstance(request, Exchange) else request.task
        try:
            if isinstance(request, Exchange):
                return self._exchange(request, present, context)
            return self._ask(request, present, context)
        finally:
            looked = self.sketches.take_seconds() if self.sketches is not None else 0.0
            if looked:
                self.folding += looked
                self.ledger.add_seconds("pictures", looked)
            # What is made of replies is the server's work, not that of those who were asked.
            self.ledger.add_seconds(name, time.perf_counter() - began - self.folding)
            for text in warnings_of(self.engine):
                self.warn(text)

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
        fold: Any = request.fold
        request = Ask(request.task, present, request.shared, request.each, fold)
        check(task, request)
        chunks = self._looked_at(request, task, context) if present else iter(())
        if fold is None:
            replies = list(chunks)
            return Stack.join(replies) if replies else _nobody(task.reply)
        total = fold.begin()
        for more in chunks:
            total = self._folded(fold.add if isinstance(more, Stack) else fold.merge, total, more)
        return self._folded(fold.end, total)

    def _folded(self, step: Callable[..., Any], *given: Any) -> Any:
        """A step of a fold, whose time is noted."""
        began = time.perf_counter()
        made = step(*given)
        self.folding += time.perf_counter() - began
        return made

    def _looked_at(self, request: Ask[Any], task: Task, context: RoundContext) -> Iterator[Any]:
        """The replies that may pass; if somebody looks at models, they are sketched on their way."""
        if self.sketches is None:
            return self._checked(request, task, context)
        sketching = replace(request, fold=self.sketches.around(request.fold, request.to))
        return self.sketches.seen(self._checked(sketching, task, context), request.to)

    def _checked(self, request: Ask[Any], task: Task, context: RoundContext) -> Iterator[Any]:
        """The replies that may pass, chunk by chunk, or folded in parts; last those that had to wait."""
        limits = Limits(self._most_rows, self.guard.norm, self.usual.of(request.task))
        looks = self.looks.setdefault(request.task, [])
        cohort = Cohort(request, task.reply, limits, self.usual, self.norms, grown=self.grown, looks=looks)
        if isinstance(self.engine, FoldsInParts) and isinstance(request.fold, Mergeable):
            yield from self._parts(self.engine, cohort, context)
        else:
            yield from self._inspected(cohort, context)
        good, absurd = cohort.judge()
        self._reject(absurd, cohort, context)
        cohort.silent.update(absurd)
        if good.clients:
            yield good
        for client in sorted(cohort.silent - cohort.refused):
            self.log("silent", round=context.round, client=client, task=request.task)
        # Whoever fails once in a round has not taken part in it, whatever came before and comes after.
        self.failed |= cohort.silent
        # Names that come from other processes are copies; of a hundred thousand, none should stay here.
        self.answered.update(c for c in request.to if c not in cohort.silent)
        self.answered -= self.failed

    def _inspected(self, cohort: Cohort, context: RoundContext) -> Iterator[Stack]:
        """The replies of this engine that may pass at once."""
        request, silent = cohort.request, cohort.silent
        for chunk in self.engine.replies(request, context):
            self.ledger.add_bytes(request.task, "up", nbytes(chunk.body))
            strangers = {
                c: "answered twice" if c in request.to else "was not asked"
                for c in chunk.clients
                if c not in silent
            }
            self._log_rejected(strangers, request, context)
            if strangers:
                chunk = chunk.at([c for c in chunk.clients if c not in strangers])
            if not chunk.clients:
                continue
            good, bad = inspect(chunk, cohort.expected)
            bad |= self._unlike_claims(good)
            good = good.at([c for c in good.clients if c not in bad])
            self._reject(bad, cohort, context)
            silent.difference_update(good.clients)
            if bool((good.size > cohort.limits.rows).any()):
                good = replace(good, size=good.size.clamp(max=cohort.limits.rows))
            good = self.owners.weighed(good)
            good = cohort.pass_on(good) if good.clients else good
            if good.clients:
                yield good
        self._reject(self._malformed(), cohort, context)

    def _malformed(self) -> dict[Client, str]:
        return self.engine.take_rejected() if isinstance(self.engine, Rejects) else {}

    def _parts(self, engine: FoldsInParts, cohort: Cohort, context: RoundContext) -> Iterator[Message]:
        """The totals of all parts."""
        for part in engine.parts(cohort.request, context, cohort.limits):
            self.ledger.add_bytes(cohort.request.task, "up", part.sent)
            self._reject(part.rejected, cohort, context)
            cohort.silent.difference_update(part.heard)
            cohort.seen.append(part.norms)
            for key, length in part.lengths.items():
                cohort.lengths.setdefault(key, []).append(length)
            cohort.grown.update(part.grown)
            cohort.looks.append(part.looks)
            if part.waiting.clients:
                cohort.waiting.append(part.waiting)
            yield part.total

    def _hear_claims(self, who: Sequence[Client], round: int) -> None:
        """Once, before the first request: how many rows clients have, and who counts for fewer."""
        if self._claims or not isinstance(self.engine, Registers):
            return
        self._claims = dict(self.engine.claims(who))
        some = torch.tensor([n for n in self._claims.values() if n > 0], dtype=torch.int64)
        times = self.guard.cap(len(some))
        if not len(some) or not times:
            return
        self._most_rows = min(int(times * int(some.median())), LARGEST_COUNT)
        for client, rows in self._claims.items():
            if rows > self._most_rows:
                told = f"its {rows} rows count as {self._most_rows}, {times:g} times the median"
                self.log("capped", round=round, client=client, reason=told)
        for client, told in self.owners.hear(self._claims, self.guard).items():
            self.log("capped", round=round, client=client, reason=told)

    def _unlike_claims(self, chunk: Stack) -> dict[Client, str]:
        """Whose row count is not what it said at first."""
        if not self._claims or not chunk.clients:
            return {}
        said = [self._claims.get(c, 0) for c in chunk.clients]
        if torch.equal(chunk.size.cpu(), torch.tensor(said)):
            return {}
        pairs = zip(chunk.clients, chunk.size.tolist(), said, strict=True)
        return {
            c: f"row count {now} is not the {was} it said at first" for c, now, was in pairs if now != was
        }

    def _reject(self, bad: dict[Client, str], cohort: Cohort, context: RoundContext) -> None:
        cohort.refused.update(bad)
        self._log_rejected(bad, cohort.request, context)

    def _log_rejected(self, bad: dict[Client, str], request: Ask[Any], context: RoundContext) -> None:
        for client, reason in bad.items():
            self.log("rejected", round=context.round, client=client, task=request.task, reason=reason)
            if any(word in reason for word in EXPLODED):
                self.exploded[client] = reason

    def _exchange(self, request: Exchange, present: tuple[Client, ...], context: RoundContext) -> None:
        swap = self.engine.table[request.swap]
        assert isinstance(swap, PeerTask), f"{request.swap} is a task, not an exchange"
        sent = self.engine.swap(swap, present, context)
        self.engine.memories.flush()  # before anybody writes a message that follows from it
        for client, reason in self._malformed().items():
            self.log("rejected", round=context.round, client=client, task=request.swap, reason=reason)
        self.answered = (self.answered | set(present)) - self.failed
        self.ledger.add_bytes(request.swap, "across", sum(sent.values()))

    def _present(self, who: tuple[Client, ...], context: RoundContext, rehearse: bool) -> tuple[Client, ...]:
        if rehearse:
            who = self.owners.sent(who, context.round)
        self.asked.update(who)
        if rehearse and self.excluded:
            who = tuple(c for c in who if c not in self.excluded)
        if self.absent is None or not rehearse:
            return tuple(sorted(who))
        missing = [c for c in who if self.absent(context, c)]
        for c in missing:
            self.log("absent", round=context.round, client=c)
        return tuple(sorted(set(who) - set(missing)))


def fold_part(
    engine: Engine, request: Ask[Any], fold: Mergeable, context: RoundContext, limits: Limits
) -> Part:
    """Perform a request by an engine of this process and fold the replies that may pass."""
    rejected: dict[Client, str] = {}

    def note(event: str, **facts: Any) -> None:
        rejected[facts["client"]] = facts["reason"]

    coordinator, task = Coordinator(engine, note, guard=GuardSpec(rows=0)), engine.table[request.task]
    assert isinstance(task, Task)
    coordinator._hear_claims(request.to, context.round)
    cohort, total = Cohort(request, task.reply, limits), fold.begin()
    for chunk in coordinator._inspected(cohort, context):
        total = fold.add(total, chunk)
    heard = tuple(sorted(set(request.to) - cohort.silent))
    norms = torch.cat(cohort.seen) if cohort.seen else torch.zeros(0, dtype=torch.float64)
    sent = coordinator.ledger.bytes.get(request.task, {}).get("up", 0)
    lengths = {key: torch.cat(found) for key, found in cohort.lengths.items()}
    waiting, looks = Stack.join(cohort.waiting), Stack.join(cohort.looks)
    return Part(total, heard, rejected, sent, norms, lengths, waiting, cohort.grown, looks)


def _nobody(expected: Expected) -> Stack:
    """No replies, in the shapes that replies would have: a script need not ask whether anybody is there."""

    def none(declared: Any) -> Tensor:
        if isinstance(declared, Tensor):
            return declared.new_zeros((0, *declared.shape))
        if isinstance(declared, IntSpec):
            return torch.zeros(0, dtype=torch.int64)
        return torch.zeros((0, *declared.shape))

    return Stack((), torch.zeros(0, dtype=torch.int64), map_leaves(none, dict(expected)))


def drop_outs(rate: float) -> Callable[[RoundContext, Client], bool] | None:
    """A seeded rule by which a client misses a whole round with probability `rate`.

    >>> drop_outs(0.0) is None
    True
    """
    if rate <= 0:
        return None
    return lambda context, who: bool(context.seed.numpy("absent", context.round, who).random() < rate)
