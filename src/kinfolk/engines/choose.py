"""`auto`: which engine, which device and how many clients a call, for this machine and this network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from kinfolk.engines.batched import Batched
from kinfolk.engines.coordinator import Engine
from kinfolk.engines.fast import keep_large_blocks
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.engines.wire import Wire
from kinfolk.engines.workers import Inner, Workers, cores
from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation
from kinfolk.learning.batchable import Cost
from kinfolk.task import Table

ENGINES = ("loop", "batched", "workers", "wire")

# Below this many floating-point operations a step, the time goes into calling PyTorch rather than into
# arithmetic, and one call for many clients wins on a CPU too.
SMALL_STEP = 2e7

# A round of fewer operations than this is over before other processes have read what they were sent.
SMALL_ROUND = 3e8

# More clients a call than this give a device nothing.
MOST_CLIENTS = {"cpu": 32, "cuda": 256}

# Where a kernel of one client's layer nearly fills the device, layers of single networks in several lanes,
# which fill the gaps between kernels, go faster than grouped ones of many. In exact float32 they do not.
LANES = 4

# Bytes of models, gradients and the like that stay near a core while a call goes over them again and again.
NEAR = 24 << 20


@dataclass(frozen=True)
class Wanted:
    """What the user asked for; `auto` and 0 leave the choice to us."""

    name: str = "auto"
    device: str = "auto"
    chunk: int = 0
    processes: int = 0
    memory: float = 0.0
    precision: str = "float32"
    lanes: int = 0


@dataclass(frozen=True)
class Choice:
    """An engine's name and settings, and the reason in words."""

    name: str
    device: torch.device
    chunk: int
    processes: int
    why: str
    warning: str = ""
    lanes: int = 1  # calls side by side on a CUDA device


def choose(wanted: Wanted, cost: Cost, batch: int, clients: int, obstacle: str, steps: float = 5) -> Choice:
    """Pick an engine for clients that take about so many steps of so many rows in a round.

    It depends on sizes, never on timings, so that the same machine chooses alike.

    >>> small = Cost(flops=5000, floats=42, parameters=2410)
    >>> choose(Wanted(device="cpu"), small, 20, 24, "").name
    'batched'
    """
    device = _device(wanted)
    processes = min(wanted.processes or cores(), clients)
    step = 3 * cost.flops * batch
    name, why, warning = wanted.name, "as asked", ""
    if name in ("auto", "batched") and obstacle:
        if name == "batched":
            warning = f"this network can not be batched over clients, so 'loop' is used ({obstacle})"
        plain = device.type == "cuda" or processes == 1
        name = "loop" if plain or wanted.name == "batched" else "workers"
        why = f"not batched: {obstacle}"
    elif name == "auto" and device.type == "cuda":
        name, why = "batched", "a GPU is here"
    elif name == "auto":
        work = step * steps * clients
        name = "workers" if processes > 1 and work > SMALL_ROUND else "batched"
        why = f"no GPU, {processes} cores, rounds of {work:.2g} operations in steps of {step:.2g}"
    where = device if name in ("loop", "batched") else torch.device("cpu")
    chunk = wanted.chunk or _chunk(cost, batch, where, wanted.memory)
    if name == "workers" and obstacle:
        chunk = 0  # one client after another in each process
    lanes = 1
    if name == "batched" and where.type == "cuda":
        lanes = wanted.lanes or 1
        if not wanted.lanes and not wanted.chunk and cost.large(batch) and wanted.precision != "float32":
            chunk, lanes = 1, min(LANES, chunk)  # as many as would have fitted into one call
    return Choice(name, where, chunk, processes, why, warning, lanes)


def make(choice: Choice, federation: Federation, table: Table, memories: Memories) -> Engine:
    """The engine that was chosen."""
    if choice.name == "loop":
        return Loop(federation, table, memories, choice.device)
    if choice.name == "batched":
        return Batched(federation, table, memories, choice.chunk, choice.device, lanes=choice.lanes)
    if choice.name == "workers":
        if choice.chunk == 0:
            return Workers(federation, table, memories, choice.processes)
        inner: Inner = lambda held: Batched(federation, table, held, choice.chunk)  # noqa: E731
        return Workers(federation, table, memories, choice.processes, inner, choice.chunk)
    return Wire(federation, table, memories)


@contextmanager
def arithmetic(device: torch.device, precision: str) -> Iterator[None]:
    """One thread on a CPU, exact float32 and repeatable kernels on a GPU; put back afterwards.

    One thread makes the bits independent of the number of cores; cores are used by `workers`.
    """
    threads = torch.get_num_threads()
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = (cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark)
    try:
        if device.type == "cpu":
            torch.set_num_threads(1)
            keep_large_blocks()
        else:
            cudnn.allow_tf32 = matmul.allow_tf32 = precision == "tf32"
            cudnn.deterministic, cudnn.benchmark = True, False
        yield
    finally:
        torch.set_num_threads(threads)
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark = before


def _device(wanted: Wanted) -> torch.device:
    here = torch.cuda.is_available()
    if wanted.device == "cuda" and wanted.name in ("workers", "wire"):
        remedy = f"{wanted.name!r} is for CPUs; use 'batched' or 'loop' on a GPU"
        raise KinfolkError("engine.device", "cuda", remedy)
    if wanted.device == "cuda" and not here:
        raise KinfolkError("engine.device", "cuda", "no CUDA device is here; use 'cpu' or 'auto'")
    on_gpu = here and wanted.device in ("auto", "cuda") and wanted.name not in ("workers", "wire")
    return torch.device("cuda" if on_gpu else "cpu")


def _chunk(cost: Cost, batch: int, device: torch.device, gib: float) -> int:
    """Clients a call: what fits into the memory budget, by a count of what a step holds."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
    else:
        total = (
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 << 30
        )
    budget = gib * 2**30 if gib else total / 4
    # Parameters, their old copy, gradients, two moments and a reply; every layer's output and its gradient.
    client = 4 * (8 * cost.parameters + 3 * max(batch, 64) * cost.floats)
    most = min(MOST_CLIENTS[device.type], budget / client)
    if device.type == "cpu":
        # A large step keeps a core busy by itself; of small ones, as many as stay near the core.
        near = NEAR / (8 * cost.parameters + 8 * batch * cost.floats)
        most = min(most, near if 3 * cost.flops * batch < SMALL_STEP else 1)
    return int(max(1, most))
