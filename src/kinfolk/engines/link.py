"""Bytes between the ranks of a process group, and one clear error when a rank is gone.

Everything goes over gloo except what rank 0 tells all at once, which takes NCCL where every rank has a GPU of
its own. A message's length is sent ahead of it; below 0, so many bytes follow for all.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kinfolk.codec import encode
from kinfolk.errors import KinfolkError

LAUNCH = "torchrun --nproc-per-node 2 -m kinfolk run SPEC --set engine.name=distributed"
# Seconds that rank 0 waits for the others to hear that the run is over.
FAREWELL = 5.0
# Seconds between two looks at whether the launcher still lives, and that the other ranks leave rank 0, once
# it does not, to end the run in order.
LOOK, GRACE = 1.0, 2 * FAREWELL

# Bytes of one message at most: a length beyond it is none, and room for it must not be asked for.
MOST = 1 << 38

# Chunks of replies that a rank may have on their way while it works on the next.
AHEAD = 64

# A message on its way: the work, and the tensors that must live until it is done.
Posted = list[tuple[Any, Tensor]]


def follows(engine: str) -> bool:
    """Whether this process is one that serves rank 0: it neither prints nor writes.

    >>> follows("loop")
    False
    """
    return engine == "distributed" and os.environ.get("RANK", "0") != "0"


@dataclass
class Link:
    """One rank's end of the connections to all others."""

    rank: int
    size: int
    seconds: float
    device: torch.device  # where this rank computes, if it is to be a GPU
    gloo: Any
    nccl: Any = None
    gone: list[int] | None = None  # once rank 0 has said farewell: those who were not there any more
    orphan: bool = False  # whether the launcher has ended before the run has

    @property
    def others(self) -> list[int]:
        """All ranks but this one."""
        return [rank for rank in range(self.size) if rank != self.rank]

    def post(self, data: bytes, to: int) -> Posted:
        """Send without waiting until it has arrived; hold on to what is returned until `settle`."""
        with self._noticing(to):
            return self._start(data, to)

    def settle(self, posted: Posted, to: int) -> None:
        """Wait until a message has arrived."""
        with self._noticing(to):
            for work, _ in posted:
                work.wait()

    def send(self, data: bytes, to: int) -> None:
        """Send and wait until it has arrived."""
        self.settle(self.post(data, to), to)

    def take(self, source: int) -> bytes:
        """The next message from a rank."""
        count = torch.zeros(1, dtype=torch.int64)
        with self._noticing(source):
            dist.recv(count, source, group=self.gloo)
        data = torch.empty(length_of(int(count), source), dtype=torch.uint8)
        if count < 0:
            return self._broadcast(data)
        with self._noticing(source):
            dist.recv(data, source, group=self.gloo)
        return data.numpy().tobytes()

    def spread(self, data: bytes) -> None:
        """Send from rank 0 to all, who take it as any other message."""
        for rank in range(1, self.size):
            with self._noticing(rank):
                dist.send(torch.tensor([-len(data)]), rank, group=self.gloo)
        self._broadcast(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def all_to_all(self, data: dict[int, bytes]) -> dict[int, bytes]:
        """Send to every other rank and take from it; nobody waits before everything is on its way."""
        posted = {rank: self.post(one, rank) for rank, one in data.items()}
        taken = {rank: self.take(rank) for rank in data}
        for rank, one in posted.items():
            self.settle(one, rank)
        return taken

    def farewell(self) -> list[int]:
        """Rank 0 tells all that the run is over; the ranks that cannot be told because they are gone."""
        if self.gone is not None:
            return self.gone
        self.gone, posted = [], []
        for rank in range(1, self.size):
            try:
                posted += self._start(encode({}, {"do": "end"}), rank)
            except RuntimeError:
                self.gone.append(rank)
        until = time.monotonic() + FAREWELL
        for work, _ in posted:
            with suppress(RuntimeError):  # it is busy, and will find the connection closed
                work.wait(timedelta(seconds=max(0.01, until - time.monotonic())))
        return self.gone

    def _broadcast(self, data: Tensor) -> bytes:
        group, device = (self.nccl, self.device) if self.nccl else (self.gloo, torch.device("cpu"))
        data = data.to(device)
        with self._noticing(None):
            dist.broadcast(data, 0, group=group)
        return data.cpu().numpy().tobytes() if self.rank else b""

    def _start(self, data: bytes, to: int) -> Posted:
        parts = [torch.tensor([len(data)]), torch.frombuffer(bytearray(data), dtype=torch.uint8)]
        return [(dist.isend(part, to, group=self.gloo), part) for part in parts]

    def lost(self, rank: int | None, silent: bool) -> KinfolkError:
        """The error for a rank that does not answer, which the others are told."""
        if self.rank:
            return KinfolkError(
                "rank 0" if rank is None else f"rank {rank}", None, "cannot be reached any more"
            )
        gone = sorted({*self.farewell(), *([] if rank is None else [rank])})
        name = "rank " + ", ".join(map(str, gone)) if gone else "a rank"
        end = f"was silent for {self.seconds:g} s (see engine.timeout)" if silent else "has ended"
        return KinfolkError(name, None, f"{end}; look at what it printed and add resume=True to go on")

    @contextmanager
    def _noticing(self, rank: int | None) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # all that torch says of a broken or a silent connection
            raise self.lost(rank, "timed out" in str(error).lower()) from error


def length_of(count: int, rank: int) -> int:
    """The bytes that a rank says are coming.

    >>> length_of(-20, 1)
    20
    >>> length_of(1 << 60, 1)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: rank 1 = 1152921504606846976: is no length of a message; see what it printed
    """
    if abs(count) > MOST:
        raise KinfolkError(f"rank {rank}", count, "is no length of a message; see what it printed")
    return abs(count)


class Served:
    """A rank's way to rank 0: replies may be on their way while the rank works on the next."""

    def __init__(self, link: Link) -> None:
        self.link, self.posted = link, deque[Posted]()

    def put(self, data: bytes) -> None:
        """Send, and wait only if too much is on its way."""
        self.posted.append(self.link.post(data, 0))
        self._settle(AHEAD)

    def take(self) -> bytes:
        """The next message, once all that was sent has arrived."""
        self._settle(0)
        return self.link.take(0)

    def _settle(self, most: int) -> None:
        while len(self.posted) > most:
            self.link.settle(self.posted.popleft(), 0)


@contextmanager
def linked(seconds: float, wish: str) -> Iterator[Link]:
    """Join the other ranks for one run; when it ends here, however it does, the others are told."""
    link = _join(seconds, wish)
    with _signals(link), _with_launcher(link):
        try:
            yield link
        finally:
            if link.rank == 0:
                link.farewell()
    for group in filter(None, (link.gloo, link.nccl)):
        dist.destroy_process_group(group)


def _join(seconds: float, wish: str) -> Link:
    """Connect to all ranks; `wish` is "cpu", "cuda" or "auto"."""
    if not dist.is_available() or not dist.is_gloo_available():
        raise KinfolkError("engine.name", "distributed", "this PyTorch has no gloo; use another engine")
    if not {"RANK", "WORLD_SIZE"} <= set(os.environ):
        raise KinfolkError("engine.name", "distributed", f"start it with {LAUNCH}")
    patience = timedelta(seconds=seconds)
    local, cuda = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count() if wish != "cpu" else 0
    try:
        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=patience)
            atexit.register(_leave)
        gloo, nccl = dist.new_group(backend="gloo", timeout=patience), None
        # All must agree, or some would wait for what others send elsewhere.
        alone = torch.tensor(int(dist.is_nccl_available() and local < cuda))
        dist.all_reduce(alone, dist.ReduceOp.MIN, group=gloo)
        if alone:
            torch.cuda.set_device(local)
            nccl = dist.new_group(backend="nccl", timeout=patience)
    except (RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0][:120]
        remedy = f"the ranks did not find one another ({first}); start it with {LAUNCH}"
        raise KinfolkError("engine.name", "distributed", remedy) from error
    device = torch.device("cuda", local % cuda) if cuda else torch.device("cpu")
    return Link(dist.get_rank(), dist.get_world_size(), seconds, device, gloo, nccl)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def _signals(link: Link) -> Iterator[None]:
    """Rank 0 decides what a signal means. A launcher sends SIGTERM to the rest when one rank has died."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def told(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        gone = link.farewell()
        if gone and not link.orphan:
            raise link.lost(gone[0], silent=False)
        why = "lost the process that launched it" if link.orphan else "was told to stop (SIGTERM)"
        raise KinfolkError("run", None, f"{why}; add resume=True to go on")

    number = signal.SIGINT if link.rank else signal.SIGTERM
    before = signal.signal(number, signal.SIG_IGN if link.rank else told)
    try:
        yield
    except BaseException:
        if link.rank == 0:  # the error is on its way out; a second one would only hide it
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise
    else:
        signal.signal(number, before)


@cache
def _launcher(process: int) -> int:
    """Who started this process, as it was when it first asked: of several runs, at the first."""
    return os.getppid()


@contextmanager
def _with_launcher(link: Link) -> Iterator[None]:
    """Ranks that torchrun has started do not outlive it: nobody could see or stop them."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield
        return
    launcher, over = _launcher(os.getpid()), threading.Event()

    def look() -> None:
        while os.getppid() == launcher:
            if over.wait(LOOK):
                return
        link.orphan = True
        if link.rank and over.wait(GRACE):
            return
        os.kill(os.getpid(), signal.SIGTERM)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()  # a thread that is still there when Python ends may abort the process
