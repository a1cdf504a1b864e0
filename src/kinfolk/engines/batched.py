"""Engine `batched`: many clients in one vmapped call, chunk by chunk, on a CPU or a CUDA device.

Clients of unequal size share a call: their plans are padded, a padded row has weight 0 and a padded
step leaves the client as it was. Clients with plans of similar length are put into one chunk, so that
little is padded. On a CUDA device a pass is recorded once and replayed. A network so large that one
client's step nearly fills the device gains nothing from sharing calls; there chunks of few clients run side
by side in lanes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from kinfolk.engines.asked import willing
from kinfolk.engines.fast import CudaLane, Passes, lanes_on
from kinfolk.engines.loop import Loop, message_for
from kinfolk.engines.memory import InProcess, Memories, by_form
from kinfolk.engines.one import first_steps, on_device, opens_models, row_counts, train_rows
from kinfolk.engines.padded import Padded, padded
from kinfolk.engines.spec import EngineSpec
from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation
from kinfolk.script import Ask
from kinfolk.streams import RoundContext
from kinfolk.task import Carry, ClientInfo, Table, Task
from kinfolk.types import Client, Message, Stack, map_leaves, stack_messages

# Clients a call of a task that does without the large network which others have lanes for.
LIGHT = 64
# Plans made ahead, or that serve every round.
MOST_PLANS = 16


@dataclass(frozen=True)
class Prepared:
    """A chunk of clients whose plans are made."""

    who: tuple[Client, ...]
    rows: Tensor  # [clients] training rows, on the host
    steps: Tensor  # [clients] steps of the first pass
    plans: list[Padded]


@dataclass(frozen=True)
class Underway:
    """A chunk whose work is queued on a lane, with all that the device may still have to read."""

    lane: CudaLane
    ready: Prepared
    reply: Message
    kept: Message | None
    given: tuple[Message, Message, Message]
    conclude: Callable[[Message], Message] | None


class Batched(InProcess):
    """Performs a task for a chunk of clients at a time."""

    name, in_process, chunked = "batched", True, True

    def __init__(
        self,
        federation: Federation,
        table: Table,
        memories: Memories,
        chunk: int = 64,
        device: torch.device | str = "cpu",
        record: bool = True,
        lanes: int = 1,
    ) -> None:
        self.device = torch.device(device)
        self.federation = on_device(federation, self.device)
        self.table, self.memories, self.chunk = table, memories, max(1, chunk)
        self.lanes = lanes_on(self.device, lanes)
        self.note = f"batched: {self.chunk} clients a call on {self.device}"
        self.note += f", {len(self.lanes)} calls side by side" if len(self.lanes) > 1 else ""
        self._passes = Passes(self.device, record)
        self._ahead: dict[Any, Prepared] = {}
        self._asked: dict[str, list[tuple[Client, ...]]] = {}
        self._light: dict[str, bool] = {}
        self._fallen: dict[str, Passes | None] = {}  # tasks that have failed, and how they go on
        self._warnings: list[str] = []

    @classmethod
    def make(cls, spec: EngineSpec, federation: Federation, table: Table, memories: Memories) -> Batched:
        """The engine that a filled-in `[engine]` table describes."""
        return cls(federation, table, memories, spec.chunk, spec.device, lanes=spec.lanes)

    def claims(self, who: Sequence[Client]) -> dict[Client, int]:
        """How many training rows each client has."""
        return row_counts(self.federation, who)

    def replies(self, request: Ask[Any], context: RoundContext) -> Iterator[Stack]:
        """The replies to a request, in chunks; within a chunk sorted by client.

        A task that fails under a recording or in a call for many clients goes on in a simpler way, from then
        on: without recordings, and if that fails, one client after another. Only if this fails too there is
        an error.
        """
        task = self.table[request.task]
        assert isinstance(task, Task)
        request = willing(task, request)
        while self._way(request.task) is not None:
            done: set[Client] = set()
            try:
                for chunk in self._in_chunks(request, context):
                    done.update(chunk.clients)
                    yield chunk
                return
            except (KinfolkError, torch.OutOfMemoryError):
                raise
            except Exception as problem:
                self._fall_back(request.task, problem)
            request = replace(request, to=tuple(c for c in request.to if c not in done))
        yield from Loop(self.federation, self.table, self.memories, self.device).replies(request, context)

    def _way(self, task: str) -> Passes | None:
        """How a task goes over rows; None: one client after another."""
        return self._fallen.get(task, self._passes)

    def take_warnings(self) -> list[str]:
        """What there was to tell since the last call."""
        told, self._warnings = self._warnings, []
        return told

    def _fall_back(self, task: str, problem: BaseException) -> None:
        recorded = self._way(task) is self._passes and self._passes.records
        self._fallen[task] = Passes(self.device, record=False) if recorded else None
        for lane in self.lanes:
            lane.recordings.clear()
        while problem.__context__ is not None:  # a recording that is broken off has an error of its own
            problem = problem.__context__
        reason = (str(problem).splitlines() or [type(problem).__name__])[0][:160]
        cannot = "be recorded" if recorded else "be done for many clients in one call"
        on = "without a recording" if recorded else "one client after another"
        times = f", up to {10 if recorded else self.chunk} times slower" if self.device.type == "cuda" else ""
        text = f"{task!r} cannot {cannot} ({_layer_of(problem)}{reason}); it goes on {on}{times}"
        self._warnings.append(text)
        self.note += f"; {task} {on}"

    def _in_chunks(self, request: Ask[Any], context: RoundContext) -> Iterator[Stack]:
        task = self.table[request.task]
        assert isinstance(task, Task)
        forms = by_form(request.to, self.memories)
        chunks = [chunk for some in forms for chunk in self._chunks(task, some, request, context)]
        ready = [self._prepare(request.task, chunk, context) for chunk in chunks[:1]]
        under_way: deque[Underway] = deque()
        try:
            for i in range(len(chunks)):
                lane = self.lanes[i % len(self.lanes)]
                under_way.append(self._run(task, request, ready.pop(), context, lane))
                # While the device works on this chunk, the host plans the next one; after the last, the
                # first of the next round, if the same clients were asked the last time.
                if i + 1 < len(chunks):
                    ready.append(self._prepare(request.task, chunks[i + 1], context))
                elif self._asked.get(request.task) == chunks:
                    self._prepare(request.task, chunks[0], replace(context, round=context.round + 1))
                if len(under_way) == len(self.lanes):
                    yield self._end(under_way.popleft())
            while under_way:
                yield self._end(under_way.popleft())
        finally:
            for left in under_way:  # nobody asks for the rest, but the device still reads what it was given
                left.lane.join()
        self._asked[request.task] = chunks

    def _chunks(
        self, task: Task, who: list[Client], request: Ask[Any], context: RoundContext
    ) -> list[tuple[Client, ...]]:
        by_length = sorted(who, key=lambda c: (first_steps(task, self.federation, c), c))
        # Where a network is so large that clients do not share calls, tasks without it still gain by it.
        light = len(self.lanes) > 1 and self._is_light(task, request, by_length[-1], context)
        most = max(self.chunk, LIGHT) if light else self.chunk
        # Chunks of one size, as near as can be: each size is recorded once.
        calls = -(-len(by_length) // most)
        cuts = [len(by_length) * i // max(calls, 1) for i in range(calls + 1)]
        return [tuple(sorted(by_length[a:b])) for a, b in pairwise(cuts)]

    def _is_light(self, task: Task, request: Ask[Any], who: Client, context: RoundContext) -> bool:
        """Whether a task goes over rows without the large network that clients train."""
        if request.task not in self._light:
            given = message_for(request, who), self.memories[who]
            message, memory = (map_leaves(lambda t: t.to(self.device), part) for part in given)
            data = on_device(self.federation.among([who]), self.device)
            opens = opens_models(task, message, memory, data, who, context)
            self._light[request.task] = bool(task.passes) and not opens
        return self._light[request.task]

    def _prepare(self, name: str, who: tuple[Client, ...], context: RoundContext) -> Prepared:
        task = self.table[name]
        assert isinstance(task, Task)
        # Rows that are neither shuffled nor changed are the same in every round.
        shuffled = any(one.plan.shuffle or one.plan.augment or one.plan.draws for one in task.passes)
        key = (name, who, context.seed, context.round if shuffled else -1)
        if key in self._ahead:
            return self._ahead.pop(key) if shuffled else self._ahead[key]
        data = self.federation.among(who)
        if data is not self.federation:
            data = on_device(data, self.device)
        plans = [
            padded(one, number, task.stream, data, who, context, self.device)
            for number, one in enumerate(task.passes)
        ]
        rows = torch.tensor([train_rows(self.federation, c) for c in who])
        steps = torch.tensor([first_steps(task, self.federation, c) for c in who])
        ready = Prepared(who, rows, steps.to(self.device), plans)
        if data is self.federation:
            while len(self._ahead) >= MOST_PLANS:
                self._ahead.pop(next(iter(self._ahead)))
            self._ahead[key] = ready
        return ready

    def _run(
        self, task: Task, request: Ask[Any], ready: Prepared, context: RoundContext, lane: CudaLane
    ) -> Underway:
        who = ready.who
        to_device: Callable[[Tensor], Tensor] = lambda t: t.to(self.device)  # noqa: E731
        shared = map_leaves(to_device, request.shared)
        own = map_leaves(to_device, request.each.at(who).body) if request.each else {}
        # Moved before they are stacked: a client that was never asked still has its memory on the host.
        memory = stack_messages([map_leaves(to_device, self.memories[c]) for c in who])

        def start(own: Message, memory: Message, rows: Tensor, steps: Tensor) -> Carry:
            return task.start({**shared, **own}, memory, ClientInfo(rows, steps, context.round))

        with lane.entered():
            with torch.no_grad():
                carry: Carry = vmap(start)(own, memory, ready.rows.to(self.device), ready.steps)
            for one, plan in zip(task.passes, ready.plans, strict=True):
                made = plan.data is not self.federation
                way = self._way(request.task)
                assert way is not None, "a task that has failed for many clients is not asked so again"
                carry = way.run(one, carry, plan, context.round, lane, made)
            reply, kept = _finish(task, carry)
        return Underway(lane, ready, reply, kept, (shared, own, memory), task.conclude)

    def _end(self, chunk: Underway) -> Stack:
        chunk.lane.join()
        if chunk.kept is not None:
            for i, c in enumerate(chunk.ready.who):
                self.memories[c] = map_leaves(lambda t, i=i: t[i].clone(), chunk.kept)  # type: ignore[misc]
        return Stack(chunk.ready.who, chunk.ready.rows, _concluded(chunk, self.device))


def _concluded(chunk: Underway, device: torch.device) -> Message:
    """The replies of a chunk as they leave the clients, on the device, where the server's models are."""
    if chunk.conclude is None:
        return chunk.reply
    here = map_leaves(lambda t: t.cpu(), chunk.reply)  # once, and not for each client
    of = range(len(chunk.ready.who))
    left = stack_messages([chunk.conclude(map_leaves(lambda t, i=i: t[i], here)) for i in of])  # type: ignore[misc]
    return map_leaves(lambda t: t.to(device), left)


def _layer_of(problem: BaseException) -> str:
    """The layer that an error came from, as far as can be told from where it was raised."""
    kind, trace = "", problem.__traceback__
    while trace is not None:
        within = trace.tb_frame.f_locals.get("self")
        kind = type(within).__name__.removeprefix("Client") if isinstance(within, nn.Module) else kind
        trace = trace.tb_next
    return f"layer {kind}: " if kind else ""


def _finish(task: Task, carry: Carry) -> tuple[Message, Message | None]:
    kept: list[bool] = []

    def one(carry: Carry) -> tuple[Message, Message]:
        reply, memory = task.finish(carry)
        kept.append(memory is not None)
        return reply, memory or {}

    with torch.no_grad():
        reply, memory = vmap(one)(carry)
    return reply, memory if kept[0] else None
