"""Engine `workers`: one single-threaded process per core, for machines without a GPU.

Small networks gain nothing from several threads and lose when the machine is busy; whole clients
side by side use every core. Each process has an engine of its own and is given a few clients at a
time. Rows are inherited, not sent; messages travel through pipes and shared memory; where the fold
allows it a process sums what its clients reply and sends one total. Memories stay with the parent, so
any process may serve any client.
"""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from kinfolk.codec import encode
from kinfolk.engines import rpc
from kinfolk.engines.batched import Batched
from kinfolk.engines.cohort import Limits
from kinfolk.engines.coordinator import Engine, Part
from kinfolk.engines.fast import keep_large_blocks, warm
from kinfolk.engines.heartbeat import Heartbeat
from kinfolk.engines.held_back import held_back
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import InProcess, Memories
from kinfolk.engines.one import row_counts
from kinfolk.engines.rpc import Header, Packed
from kinfolk.engines.spec import EngineSpec
from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation
from kinfolk.fold import Mergeable
from kinfolk.script import Ask
from kinfolk.streams import RoundContext
from kinfolk.task import Table
from kinfolk.types import Client, Stack

# A message up to this size fits into a pipe; a larger one goes through memory that both sides see, up to
# as much as that holds. Pages that are never written cost nothing.
_SMALL, _SHARED = 1 << 15, 1 << 29
# A fold has at least this many parts, so that the sums have the same bits by one, two or four processes.
PARTS = 4

# Seconds that a process whose pipe has closed has to be gone.
LAST_WORDS = 5.0

Inner = Callable[[Memories], Engine]
# Which job it is, its request and for how many clients it is.
Job = tuple[int, tuple[bytes, int]]


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def jobs(who: list[Client], least: int, processes: int) -> list[list[Client]]:
    """At least so many jobs of neighbours, about as large as each other, as many for each process.

    >>> [len(job) for job in jobs(list("abcdefg"), 1, 2)]
    [3, 4]
    >>> [len(job) for job in jobs(list("abcdefg"), 4, 3)]
    [1, 1, 1, 1, 1, 2]
    """
    count = min(len(who), -(-least // processes) * processes)
    cuts = [len(who) * i // max(count, 1) for i in range(count + 1)]
    return [who[a:b] for a, b in pairwise(cuts)]


class Channel:
    """One end of the way between the parent and a worker: a pipe, and memory that both see."""

    def __init__(self, pipe: Connection, out: mmap.mmap, into: mmap.mmap) -> None:
        self.pipe, self.out, self.into = pipe, out, into
        self.process: Any = None  # at the other end, as the parent sees it

    def put(self, data: bytes) -> None:
        """Send to the parent, which has read what was sent before."""
        if _SMALL < len(data) <= len(self.out):
            self.out[: len(data)] = data
            self.pipe.send_bytes(b"m" + len(data).to_bytes(8, "little"))
        else:
            self.pipe.send_bytes(b"p" + data)

    def take(self) -> bytes:
        """The next message; one that lies in memory which all workers read is acknowledged."""
        got = self.pipe.recv_bytes()
        if got[:1] == b"p":
            return got[1:]
        data = self.into[: int.from_bytes(got[1:], "little")]
        if got[:1] == b"a":
            self.pipe.send_bytes(b"")
        return data


class Workers(InProcess):
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
        heartbeat: Callable[[], Heartbeat] = lambda: Heartbeat(EngineSpec.timeout),
    ) -> None:
        self.federation, self.table, self.memories = federation, table, memories
        self.device = torch.device("cpu")
        self.processes = processes or cores()
        self.together = together  # the most clients that a process is given at once
        self.inner: Inner = inner or (lambda memories: Loop(self.federation, self.table, memories))
        self.note = f"workers: {self.processes} single-threaded processes, {together} clients at a time"
        self._channels: list[Channel] = []
        self._warnings = rpc.Warnings()
        self._heartbeat = heartbeat  # makes the watch on the processes of one request
        self._pulse = heartbeat()
        self._down: mmap.mmap | None = None  # what all processes read
        self._told = b""  # where the processes find what the requests of now have in common
        self._lost = 0  # processes that had to be replaced

    @classmethod
    def make(cls, spec: EngineSpec, federation: Federation, table: Table, memories: Memories) -> Workers:
        """The engine that a filled-in `[engine]` table describes; without a chunk, each process loops."""
        watch = lambda: Heartbeat(spec.timeout)  # noqa: E731
        if not spec.chunk:
            return cls(federation, table, memories, spec.processes, heartbeat=watch)
        inner: Inner = lambda held: Batched(federation, table, held, spec.chunk)  # noqa: E731
        return cls(federation, table, memories, spec.processes, inner, spec.chunk, watch)

    def replies(self, request: Ask[Any], context: RoundContext) -> Iterator[Stack]:
        """The replies to a request, in order of names whatever the order of arrival."""
        some = jobs(sorted(request.to), -(-len(request.to) // self.together), self.processes)
        return (rpc.unpack_stack(*got) for got in self._all(request, context, {}, Limits(), some))

    def parts(self, request: Ask[Any], context: RoundContext, limits: Limits) -> Iterator[Part]:
        """What the processes made of their clients' replies, in order of names."""
        assert isinstance(request.fold, Mergeable)
        some = jobs(sorted(request.to), PARTS, self.processes)
        folded = self._all(request, context, request.fold.spec(), limits, some)
        return (rpc.unpack_part(*got) for got in folded)

    def claims(self, who: Sequence[Client]) -> dict[Client, int]:
        """How many training rows each client has."""
        return row_counts(self.federation, who)

    def take_warnings(self) -> list[str]:
        """What the processes had to tell since the last call."""
        return self._warnings.take()

    def close(self) -> None:
        """End the processes, even amid a task: they hold nothing that is not here as well."""
        for channel in self._channels:
            channel.pipe.close()
            channel.process.kill()
        for channel in self._channels:
            channel.process.join()
            channel.process.close()
        self._channels = []

    def _all(
        self, request: Ask[Any], context: RoundContext, fold: Header, limits: Limits, some: list[list[Client]]
    ) -> Iterator[Packed]:
        """What the processes answer, job after job."""
        finished, self._told = False, b""
        try:
            self._start()
            with self._heartbeat() as self._pulse:
                if request.shared:
                    self._spread(encode(request.shared, {"do": "shared"}))
                jobs = ((self._job(request, context, who, fold, limits), len(who)) for who in some)
                yield from self._served(jobs)
            finished = True
        finally:
            if not finished:  # answers may be on their way still; they must not be taken for later ones
                self.close()

    def _job(
        self, request: Ask[Any], context: RoundContext, who: list[Client], fold: Header, limits: Limits
    ) -> bytes:
        own, header = rpc.pack_request(request, context, who, fold, limits)
        held, named = rpc.pack_several((c, self.memories[c]) for c in who)
        return encode({**own, **held}, {**header, **named})

    def _served(self, jobs: Iterator[tuple[bytes, int]]) -> Iterator[Packed]:
        """The answers, in the order of the jobs, which each go to the next process that is idle."""
        idle, busy = list(self._channels), dict[Connection, tuple[Channel, Job]]()
        numbered, done, shown = enumerate(jobs), dict[int, Packed](), 0
        again = deque[Job]()  # jobs of processes that were lost
        while True:
            while idle and (job := again.popleft() if again else next(numbered, None)) is not None:
                channel = idle.pop()
                try:  # by the pipe: others may still read the memory that all share
                    self._pulse.begin(channel.process.pid, job[1][1])
                    channel.pipe.send_bytes(b"p" + job[1][0])
                except OSError:
                    idle.append(self._replaced(channel))
                    again.append(job)
                else:
                    busy[channel.pipe] = channel, job
            if not busy:
                return
            for pipe in wait(list(busy)):
                channel, job = busy.pop(pipe)  # type: ignore[call-overload]
                try:
                    data = channel.take()
                except (EOFError, OSError):
                    idle.append(self._replaced(channel))
                    again.append(job)
                    continue
                self._pulse.end(channel.process.pid)
                done[job[0]] = self._opened(data)
                idle.append(channel)
            # In order of names, the sums have the same bits whoever is fastest.
            while shown in done:
                yield done.pop(shown)
                shown += 1

    def _opened(self, data: bytes) -> Packed:
        """An answer, less the memories, which are kept here."""
        message, header = rpc.opened(data, "a worker process")
        self._warnings.hear(rpc.unpack_warnings(header))
        for who, memory in rpc.unpack_several(message, header):
            self.memories[Client(who)] = memory
        return message, header

    def _spread(self, data: bytes) -> None:
        """Send to all; a large message is written once, and read by all before anything else is sent."""
        small = not _SMALL < len(data) <= _SHARED
        if not small:
            self._channels[0].out[: len(data)] = data
        self._told = b"p" + data if small else b"a" + len(data).to_bytes(8, "little")
        told = dict[Connection, Channel]()
        for channel in list(self._channels):
            if self._tell(channel):
                told[channel.pipe] = channel
            else:
                self._replaced(channel)  # which is told at once
        if small:
            self._pulse.end(*(channel.process.pid for channel in told.values()))
            return
        while told:  # whoever has read may rest, however long others take
            for pipe in wait(list(told)):
                channel = told.pop(pipe)  # type: ignore[call-overload]
                if not self._heard(channel):
                    self._replaced(channel)

    def _tell(self, channel: Channel) -> bool:
        """Send what the requests have in common; whether that went well."""
        self._pulse.begin(channel.process.pid)
        with suppress(OSError):
            channel.pipe.send_bytes(self._told)
            return True
        return False

    def _heard(self, channel: Channel) -> bool:
        """Wait until it was read, where that matters; whether that went well."""
        with suppress(EOFError, OSError):
            if self._told[:1] == b"a":
                channel.pipe.recv_bytes()
            self._pulse.end(channel.process.pid)
            return True
        return False

    def _replaced(self, channel: Channel) -> Channel:
        """Another process in the place of one that is gone; one loss in a run is a mishap, two are not."""
        process, pid = channel.process, channel.process.pid
        channel.pipe.close()
        process.join(LAST_WORDS)
        why = self._pulse.why.get(pid) or _ended(process.exitcode)
        self._pulse.end(pid)
        if self._lost:
            raise KinfolkError("engine.name", "workers", f"worker process {pid} {why}; use fewer processes")
        self._lost += 1
        self._warnings.hear([f"worker process {pid} {why}; another one takes its place"])
        process.kill()
        process.join()
        process.close()
        place = self._channels.index(channel)
        del self._channels[place]
        new = self._forked(place)
        if self._told and not (self._tell(new) and self._heard(new)):
            return self._replaced(new)
        return new

    def _start(self) -> None:
        if self._channels:
            return
        if "fork" not in multiprocessing.get_all_start_methods():
            raise KinfolkError(
                "engine.name", "workers", "this system cannot fork processes; use 'loop' or 'batched'"
            )
        warm()
        self._down = mmap.mmap(-1, _SHARED)
        for place in range(self.processes):
            self._forked(place)

    def _forked(self, place: int) -> Channel:
        """One more process, which `close` knows of as soon as it is there, and the way to it."""
        with held_back():
            self._channels.insert(place, channel := self._fork())
        return channel

    def _fork(self) -> Channel:
        assert self._down is not None
        forking = multiprocessing.get_context("fork")
        ours, theirs = forking.Pipe()
        up = mmap.mmap(-1, _SHARED)
        others = [*(channel.pipe for channel in self._channels), ours]
        given = Channel(theirs, up, self._down), others, self.inner, self.federation.clients
        channel = Channel(ours, self._down, up)
        channel.process = forking.Process(target=_work, args=given, daemon=True)
        with warnings.catch_warnings():
            # Python 3.12 warns of forking beside threads; the child runs with one thread of its own.
            warnings.simplefilter("ignore", DeprecationWarning)
            channel.process.start()
        theirs.close()
        return channel


def _ended(code: int | None) -> str:
    """How a process went that nobody here has ended."""
    if code == -signal.SIGKILL:
        return "was killed (signal 9), as systems do that run out of memory"
    return "does not answer" if code is None else f"ended unexpectedly (exit code {code})"


def _work(channel: Channel, others: list[Connection], inner: Inner, clients: tuple[Client, ...]) -> None:
    """A worker's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches everybody; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not what the parent has made of it
    torch.set_num_threads(1)
    keep_large_blocks()
    _make_way()
    for other in others:
        other.close()  # the parent's ends: holding them would keep us from seeing the parent go
    server = rpc.Server(inner(Memories(lambda who: {})), clients)
    with suppress(EOFError, OSError):  # the parent is gone
        rpc.serve(server, channel)


def _make_way() -> None:
    """Let this process be no hindrance: neither to the parent, nor to itself by what it inherited."""
    # To look for garbage in what was inherited would take a quarter of a second and copy all its pages.
    gc.freeze()
    if hasattr(os, "SCHED_BATCH"):
        # A worker that is woken would take the parent's core, for milliseconds, before others have a job.
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
