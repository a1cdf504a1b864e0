"""Engine `workers`: one single-threaded process per core, for machines without a GPU.

Small networks gain nothing from several threads and lose when the machine is busy; whole clients
side by side use every core. The rows are inherited by the processes, not sent; messages travel as
bytes of safetensors, never as pickles. Memories stay with the parent, so any process may serve any client.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from kinfolk.codec import decode, encode
from kinfolk.engines import one
from kinfolk.engines.memory import Memories, swap_in_process
from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation
from kinfolk.script import Ask
from kinfolk.streams import Seed, Turn
from kinfolk.task import Swap, Table, Task
from kinfolk.types import Client, Message, Stack

_ENDED = "a worker process ended unexpectedly (out of memory?); use fewer processes"


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """Performs a task on several clients at once, each in a process of its own."""

    name = "workers"

    def __init__(self, federation: Federation, table: Table, memories: Memories, processes: int = 0) -> None:
        self.federation, self.table, self.memories = federation, table, memories
        self.device = torch.device("cpu")
        self.processes = processes or cores()
        self.note = f"workers: {self.processes} single-threaded processes"
        self._pipes: list[Connection] = []
        self._running: list[Any] = []

    def replies(self, request: Ask[Any], turn: Turn) -> Iterator[Stack]:
        """The replies to a request, one client each, in order of names whatever the order of arrival."""
        self._start()
        finished = False
        try:
            yield from self._served(request, turn)
            finished = True
        finally:
            if not finished:  # answers may be on their way still; they must not be taken for later ones
                self.close()

    def _served(self, request: Ask[Any], turn: Turn) -> Iterator[Stack]:
        header = {"task": request.task, "run": str(turn.seed.run), "round": str(turn.round)}
        shared = encode(request.shared, header)
        for pipe in self._pipes:
            self._send(pipe, shared)
        todo, done, shown = sorted(request.to), dict[Client, Stack](), 0
        idle, busy, given = list(self._pipes), set[Connection](), 0
        while shown < len(todo):
            while idle and given < len(todo):
                self._give(idle[-1], request, todo[given])
                busy.add(idle.pop())
                given += 1
            for ready in wait(list(busy)):
                pipe = next(p for p in busy if p is ready)
                stack = self._take(pipe)
                done[stack.clients[0]] = stack
                busy.remove(pipe)
                idle.append(pipe)
            # Sums in order of names give the same bits whoever is fastest.
            while shown < len(todo) and todo[shown] in done:
                yield done.pop(todo[shown])
                shown += 1

    def swap(self, swap: Swap, among: tuple[Client, ...], turn: Turn) -> dict[tuple[Client, Client], int]:
        """Let clients send to one another; the bytes of every letter."""
        return swap_in_process(swap, among, turn, self.memories)

    def close(self) -> None:
        """End the processes, even amid a task: they hold nothing that is not here as well."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._running:
            process.kill()
        for process in self._running:
            process.join()
            process.close()
        self._pipes, self._running = [], []

    def _start(self) -> None:
        if self._pipes:
            return
        if "fork" not in multiprocessing.get_all_start_methods():
            raise KinfolkError(
                "engine.name", "workers", "this system can not fork processes; use 'loop' or 'batched'"
            )
        context = multiprocessing.get_context("fork")
        for _ in range(self.processes):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, [*self._pipes, ours], self.federation, self.table), daemon=True
            )
            with warnings.catch_warnings():
                # Python 3.12 warns of forking beside threads; the child runs with one thread of its own.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            theirs.close()
            self._pipes.append(ours)
            self._running.append(process)

    def _give(self, pipe: Connection, request: Ask[Any], who: Client) -> None:
        own = request.each.row(who) if request.each else {}
        parts: Message = {f"own.{k}": v for k, v in own.items()}
        parts |= {f"memory.{k}": v for k, v in self.memories[who].items()}
        self._send(pipe, encode(parts, {"to": who}))

    def _take(self, pipe: Connection) -> Stack:
        try:
            parts, header = decode(pipe.recv_bytes())
        except (EOFError, OSError) as end:
            raise KinfolkError("engine.name", "workers", _ENDED) from end
        if "error" in header:
            raise RuntimeError(f"client {header['from']} failed in a worker process:\n{header['error']}")
        who = Client(header["from"])
        if header["kept"] == "yes":
            self.memories[who] = _part(parts, "memory.")
        return Stack.of({who: (int(header["rows"]), _part(parts, "reply."))})

    def _send(self, pipe: Connection, data: bytes) -> None:
        try:
            pipe.send_bytes(data)
        except OSError as end:
            raise KinfolkError("engine.name", "workers", _ENDED) from end


def _part(parts: Message, prefix: str) -> Message:
    return {key.removeprefix(prefix): value for key, value in parts.items() if key.startswith(prefix)}


def _serve(pipe: Connection, others: list[Connection], federation: Federation, table: Table) -> None:
    """A worker's life: a shared message sets the request, every other one names a client to serve."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches everybody; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not what the parent has made of it
    for other in others:
        other.close()  # the parent's ends: holding them would keep us from seeing the parent go
    shared: Message = {}
    header: dict[str, str] = {}
    while True:
        try:
            parts, given = decode(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        if "task" in given:
            shared, header = parts, given
            continue
        try:
            answer = _answer(parts, shared, header, Client(given["to"]), federation, table)
        except Exception:
            answer = encode({}, {"from": given["to"], "error": traceback.format_exc()})
        try:
            pipe.send_bytes(answer)
        except OSError:
            return


def _answer(
    parts: Message, shared: Message, header: dict[str, str], who: Client, federation: Federation, table: Table
) -> bytes:
    task = table[header["task"]]
    assert isinstance(task, Task)
    turn = Turn(Seed(int(header["run"])), int(header["round"]), federation.clients)
    message = {**shared, **_part(parts, "own.")}
    reply, kept = one.perform(task, message, _part(parts, "memory."), federation, who, turn)
    body: Message = {f"reply.{k}": v for k, v in reply.items()}
    body |= {f"memory.{k}": v for k, v in (kept or {}).items()}
    rows = str(one.train_rows(federation, who))
    return encode(body, {"from": who, "rows": rows, "kept": "no" if kept is None else "yes"})
