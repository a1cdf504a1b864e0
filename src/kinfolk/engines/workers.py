"""Engine `workers`: one single-threaded process per core, for machines without a GPU.

Small networks gain nothing from several threads and lose when the machine is busy; whole clients
side by side use every core. Each process has an engine of its own and is given a few clients at a
time. Rows are inherited, not sent; messages travel through shared memory as safetensors, never as
pickles; where the fold allows it a process sums what its clients reply and sends one total. Memories
stay with the parent, so any process may serve any client.
"""

from __future__ import annotations

import gc
import json
import mmap
import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch

from kinfolk.codec import decode, encode
from kinfolk.engines import parcel
from kinfolk.engines.batched import Batched
from kinfolk.engines.coordinator import Engine, Part, fold_part, part_as_message, part_from_message
from kinfolk.engines.fast import trace
from kinfolk.engines.fast.heap import keep_large_blocks
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories, swap_in_process
from kinfolk.engines.spec import EngineSpec
from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation
from kinfolk.fold import Mergeable, from_spec
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import PeerTask, Table
from kinfolk.types import Client, Message, Stack

_ENDED = "a worker process ended unexpectedly (out of memory?); use fewer processes"
# A message up to this size fits into a pipe; a larger one goes through memory that both sides see, up to
# as much as that holds. Pages that are never written cost nothing.
_SMALL, _SHARED = 1 << 15, 1 << 29
# A fold is cut into this many parts whatever the number of processes, so that the sums have the same bits.
PARTS = 4

Inner = Callable[[Memories], Engine]
R = TypeVar("R")


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Channel:
    """One end of the way between the parent and a worker."""

    def __init__(self, pipe: Connection, out: mmap.mmap, into: mmap.mmap) -> None:
        self.pipe, self.out, self.into = pipe, out, into

    def put(self, data: bytes) -> None:
        """Send; the other side has read what was sent before."""
        if _SMALL < len(data) <= len(self.out):
            self.out[: len(data)] = data
            self.pipe.send_bytes(b"m" + len(data).to_bytes(8, "little"))
        else:
            self.pipe.send_bytes(b"p" + data)

    def take(self) -> bytes:
        """The next message."""
        got = self.pipe.recv_bytes()
        return self.into[: int.from_bytes(got[1:], "little")] if got[:1] == b"m" else got[1:]


class Workers:
    """Performs a task on several clients at once, some in each process."""

    name, in_process, chunked = "workers", False, True

    def __init__(
        self,
        federation: Federation,
        table: Table,
        memories: Memories,
        processes: int = 0,
        inner: Inner | None = None,
        together: int = 1,
    ) -> None:
        self.federation, self.table, self.memories = federation, table, memories
        self.device = torch.device("cpu")
        self.processes = processes or cores()
        self.together = together  # clients that a process is given at once
        self.inner: Inner = inner or (lambda memories: Loop(self.federation, self.table, memories))
        self.note = f"workers: {self.processes} single-threaded processes, {together} clients at a time"
        self._channels: list[Channel] = []
        self._running: list[Any] = []

    @classmethod
    def make(cls, spec: EngineSpec, federation: Federation, table: Table, memories: Memories) -> Workers:
        """The engine that a filled-in `[engine]` table describes; without a chunk, each process loops."""
        if not spec.chunk:
            return cls(federation, table, memories, spec.processes)
        inner: Inner = lambda held: Batched(federation, table, held, spec.chunk)  # noqa: E731
        return cls(federation, table, memories, spec.processes, inner, spec.chunk)

    def replies(self, request: Ask[Any], turn: RoundContext) -> Iterator[Stack]:
        """The replies to a request, in order of names whatever the order of arrival."""
        who = sorted(request.to)
        jobs = [who[i : i + self.together] for i in range(0, len(who), self.together)]
        return self._all(request, turn, {}, jobs, self._stack)

    def parts(self, request: Ask[Any], turn: RoundContext) -> Iterator[Part]:
        """What the processes made of their clients' replies, in order of names."""
        assert isinstance(request.fold, Mergeable)
        who = sorted(request.to)
        parts = min(PARTS, len(who))
        cuts = [len(who) * i // parts for i in range(parts + 1)]
        jobs = [who[a:b] for a, b in pairwise(cuts)]
        return self._all(request, turn, request.fold.spec(), jobs, self._part)

    def _all(
        self,
        request: Ask[Any],
        turn: RoundContext,
        words: dict[str, str],
        jobs: list[list[Client]],
        read: Callable[[bytes], R],
    ) -> Iterator[R]:
        self._start()
        finished = False
        try:
            header = {"task": request.task, "run": str(turn.seed.run), "round": str(turn.round)}
            shared = encode(request.shared, {**header, "words": json.dumps(words)})
            for channel in self._channels:
                self._send(channel, shared)
                self._take(channel)  # it has read what all were sent
            yield from self._served(request, jobs, read)
            finished = True
        finally:
            if not finished:  # answers may be on their way still; they must not be taken for later ones
                self.close()

    def _served(self, request: Ask[Any], jobs: list[list[Client]], read: Callable[[bytes], R]) -> Iterator[R]:
        idle, busy, given, shown = list(self._channels), dict[Connection, tuple[Channel, int]](), 0, 0
        done: dict[int, R] = {}
        while shown < len(jobs):
            while idle and given < len(jobs):
                channel = idle.pop()
                self._give(channel, request, jobs[given])
                busy[channel.pipe] = channel, given
                given += 1
            for pipe in wait(list(busy)):
                channel, number = busy.pop(pipe)  # type: ignore[call-overload]
                done[number] = read(self._take(channel))
                idle.append(channel)
            # In order of names, the sums have the same bits whoever is fastest.
            while shown in done:
                yield done.pop(shown)
                shown += 1

    def swap(
        self, swap: PeerTask, among: tuple[Client, ...], turn: RoundContext
    ) -> dict[tuple[Client, Client], int]:
        """Let clients send to one another; the bytes of every letter."""
        return swap_in_process(swap, among, turn, self.memories)

    def close(self) -> None:
        """End the processes, even amid a task: they hold nothing that is not here as well."""
        for channel in self._channels:
            channel.pipe.close()
        for process in self._running:
            process.kill()
        for process in self._running:
            process.join()
            process.close()
        self._channels, self._running = [], []

    def _start(self) -> None:
        if self._channels:
            return
        if "fork" not in multiprocessing.get_all_start_methods():
            raise KinfolkError(
                "engine.name", "workers", "this system can not fork processes; use 'loop' or 'batched'"
            )
        context = multiprocessing.get_context("fork")
        trace.warm()
        down = mmap.mmap(-1, _SHARED)
        for _ in range(self.processes):
            ours, theirs = context.Pipe()
            up = mmap.mmap(-1, _SHARED)
            others = [*(channel.pipe for channel in self._channels), ours]
            process = context.Process(
                target=_serve, args=(Channel(theirs, up, down), others, self.inner), daemon=True
            )
            with warnings.catch_warnings():
                # Python 3.12 warns of forking beside threads; the child runs with one thread of its own.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            theirs.close()
            self._channels.append(Channel(ours, down, up))
            self._running.append(process)

    def _give(self, channel: Channel, request: Ask[Any], who: Sequence[Client]) -> None:
        own = request.each.at(who).body if request.each else {}
        parts: Message = {f"own.{k}": v for k, v in own.items()}
        for i, client in enumerate(who):
            parts |= {f"memory.{i}.{k}": v for k, v in self.memories[client].items()}
        # Through the pipe: the shared memory is the same for all, and others may be reading it.
        self._send(channel, encode(parts, {"to": json.dumps(who)}), plain=True)

    def _opened(self, data: bytes) -> tuple[Message, dict[str, str]]:
        parts, header = decode(data)
        if "error" in header:
            raise RuntimeError(f"client {header['of']} failed in a worker process:\n{header['error']}")
        kept = json.loads(header["kept"])
        self.memories.update(zip(kept, _memories(parts, len(kept)), strict=True))
        return {k: v for k, v in parts.items() if not k.startswith("memory.")}, header

    def _stack(self, data: bytes) -> Stack:
        return parcel.stack(*self._opened(data))

    def _part(self, data: bytes) -> Part:
        return part_from_message(*self._opened(data))

    def _take(self, channel: Channel) -> bytes:
        try:
            return channel.take()
        except (EOFError, OSError) as end:
            raise KinfolkError("engine.name", "workers", _ENDED) from end

    def _send(self, channel: Channel, data: bytes, plain: bool = False) -> None:
        try:
            if plain:
                channel.pipe.send_bytes(b"p" + data)
            else:
                channel.put(data)
        except OSError as end:
            raise KinfolkError("engine.name", "workers", _ENDED) from end


def _memories(parts: Message, count: int) -> list[Message]:
    """The memories in a message, by number."""
    found: list[Message] = [{} for _ in range(count)]
    for path, value in parts.items():
        if path.startswith("memory."):
            _, number, key = path.split(".", 2)
            found[int(number)][key] = value
    return found


def _serve(channel: Channel, others: list[Connection], inner: Inner) -> None:
    """A worker's life: a shared message sets the request, every other one names clients to serve."""
    torch.set_num_threads(1)
    keep_large_blocks()
    _make_way()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches everybody; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not what the parent has made of it
    for other in others:
        other.close()  # the parent's ends: holding them would keep us from seeing the parent go
    engine = inner(Memories(lambda who: {}))
    shared: Message = {}
    header: dict[str, str] = {}
    while True:
        try:
            parts, given = decode(channel.take())
            if "task" in given:
                shared, header = parts, given
                channel.put(b"")
                continue
        except (EOFError, OSError):
            return
        who = [Client(c) for c in json.loads(given["to"])]
        try:
            answer = _answer(engine, parts, shared, header, who)
        except Exception:
            names = who[0] if len(who) == 1 else f"{who[0]} or one of the {len(who) - 1} after it"
            answer = encode({}, {"of": names, "error": traceback.format_exc()})
        try:
            channel.put(answer)
        except OSError:
            return


def _make_way() -> None:
    """Let this process be no hindrance: neither to the parent, nor to itself by what it inherited."""
    # To look for garbage in what was inherited would take a quarter of a second and copy all its pages.
    gc.freeze()
    if hasattr(os, "SCHED_BATCH"):
        # A worker that is woken would take the parent's core, for milliseconds, before others have a job.
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _answer(
    engine: Engine, parts: Message, shared: Message, header: dict[str, str], who: list[Client]
) -> bytes:
    """Perform the task for these clients: their replies, or the total of them, and what they keep."""
    own = {k.removeprefix("own."): v for k, v in parts.items() if k.startswith("own.")}
    each = Stack(tuple(who), torch.zeros(len(who), dtype=torch.int64), own) if own else None
    before = dict(zip(who, _memories(parts, len(who)), strict=True))
    engine.memories.clear()
    engine.memories.update(before)
    turn = RoundContext(Seed(int(header["run"])), int(header["round"]), tuple(who))
    request: Ask[Any] = Ask(header["task"], tuple(who), shared, each)
    words = json.loads(header["words"])
    if words:
        body, told = part_as_message(fold_part(engine, request, from_spec(words), turn))
    else:
        stack = Stack.join(list(engine.replies(request, turn)))
        body = {"size": stack.size, **{f"body.{key}": value for key, value in stack.body.items()}}
        told = {"clients": json.dumps(stack.clients)}
    kept = [c for c in who if engine.memories[c] is not before[c]]
    for i, client in enumerate(kept):
        body |= {f"memory.{i}.{k}": v for k, v in engine.memories[client].items()}
    return encode(body, {**told, "kept": json.dumps(kept)})
