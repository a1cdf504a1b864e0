"""The engines by name, and `auto`: which of them, which device and how many clients a call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kinfolk.engines.batched import Batched
from kinfolk.engines.coordinator import Engine
from kinfolk.engines.fast import keep_large_blocks
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.engines.spec import EngineSpec
from kinfolk.engines.wire import Wire
from kinfolk.engines.workers import Workers, cores
from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation
from kinfolk.learning.batchable import LARGE_LAYER, Cost
from kinfolk.learning.room import machine_memory
from kinfolk.task import Table

# The registry. An engine is a class with a `name`, `in_process` (no message leaves this process, which may
# use a GPU), `chunked` (it takes several clients a call) and a class method `make`. No other place lists
# engines; "distributed" is none of them: it puts one of these on every rank of a launch.
ENGINES: dict[str, type[Any]] = {kind.name: kind for kind in (Loop, Batched, Workers, Wire)}

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

# Networks have been this many times as fast on a GPU when many clients shared a call, and some more.
MOST_SLOWER = 100

# Bytes of models, gradients and the like that stay near a core while a call goes over them again and again.
NEAR = 24 << 20


@dataclass(frozen=True)
class Choice:
    """The `[engine]` table with every "auto" and 0 filled in, and the reason in words."""

    engine: EngineSpec
    why: str
    warning: str = ""

    @property
    def name(self) -> str:
        """Which engine."""
        return self.engine.name

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return torch.device(self.engine.device)

    def but(self, why: str = "", **changed: Any) -> Choice:
        """The same with some settings of the engine changed.

        >>> Choice(EngineSpec("batched", "cpu", chunk=4), "as asked").but(chunk=2).engine.chunk
        2
        """
        return replace(self, engine=replace(self.engine, **changed), why=why or self.why)


def engine_names() -> dict[str, tuple[str, ...]]:
    """What the keys of the `[engine]` table that name an engine may be.

    >>> engine_names()["engine.inner"]
    ('auto', 'loop', 'batched')
    """
    inner = [name for name, kind in ENGINES.items() if kind.in_process]
    return {"engine.name": ("auto", *ENGINES, "distributed"), "engine.inner": ("auto", *inner)}


def choose(spec: EngineSpec, cost: Cost, batch: int, clients: int, obstacle: str, steps: float = 5) -> Choice:
    """Pick an engine for clients that take about so many steps of so many rows in a round.

    It depends on sizes, never on timings, so that the same machine chooses alike.

    >>> small = Cost(flops=5000, floats=42, parameters=2410)
    >>> choose(EngineSpec(device="cpu"), small, 20, 24, "").name
    'batched'
    """
    device = _device(spec)
    processes = min(spec.processes or cores(), clients)
    name, why, warning, alone = spec.name, "as asked", "", ""
    slower = _slower(cost, batch, clients, device) if obstacle else ""
    told = f"{obstacle}; it cannot be batched over clients, so 'loop' is used: one after another{slower}"
    if name == "batched" and obstacle:
        name, why, warning = "loop", f"not batched: {obstacle}", told
    elif name == "workers" and obstacle:
        why = f"as asked; not batched: {obstacle}{slower}"
    elif name == "auto":
        step = 3 * cost.flops * batch
        alone = f"{obstacle}{slower}" or _faster_alone(cost, step, device)
        name, why = _auto(device, processes, step, steps * clients, alone)
        warning = told if obstacle and device.type == "cuda" else ""
    kind = ENGINES[name]
    chunk, lanes = _together(spec, kind, cost, batch, device, obstacle or alone)
    found = replace(spec, name=name, device=str(device), chunk=chunk, lanes=lanes)
    return Choice(replace(found, processes=1 if kind.in_process else processes), why, warning)


def _slower(cost: Cost, batch: int, clients: int, device: torch.device) -> str:
    """What it costs that clients cannot share calls, by sizes; nothing if that is little."""
    step = max(3 * cost.flops * batch, 1)
    if device.type == "cpu":  # networks have been 2 to 10 times as fast there when clients shared calls
        return ", up to 10 times slower for a network this small" if step < SMALL_STEP and clients > 1 else ""
    # As many clients at a time as would fill the device.
    times = int(min(clients, MOST_SLOWER, LARGE_LAYER * cost.layers / step))
    return f", about {times} times slower" if times > 1 else ""


def _faster_alone(cost: Cost, step: float, device: torch.device) -> str:
    """Why clients are trained one after another though they could share calls; nothing if they should."""
    # An LSTM of 64 units, times the speed of a plain loop: alone 0.92, four clients a call 0.72; of 24 units
    # 0.88 and 1.19.
    slower = cost.lstm and device.type == "cpu" and step >= SMALL_STEP
    return "an LSTM of this size is fastest alone on a CPU" if slower else ""


def _auto(device: torch.device, processes: int, step: float, steps: float, obstacle: str) -> tuple[str, str]:
    """The engine that suits the device and the work of a round, and why."""
    if obstacle:
        alone = device.type == "cuda" or processes == 1
        return "loop" if alone else "workers", f"not batched: {obstacle}"
    if device.type == "cuda":
        return "batched", "a GPU is here"
    work = step * steps
    why = f"no GPU, {processes} cores, rounds of {work:.2g} operations in steps of {step:.2g}"
    return "workers" if processes > 1 and work > SMALL_ROUND else "batched", why


def _together(
    spec: EngineSpec, kind: type[Any], cost: Cost, batch: int, device: torch.device, obstacle: str
) -> tuple[int, int]:
    """Clients a call, and calls side by side on a CUDA device."""
    if not kind.chunked or obstacle:
        return 0, 1  # one client after another
    chunk = spec.chunk or _chunk(cost, batch, device, spec.memory)
    if device.type != "cuda":
        return chunk, 1
    if not spec.lanes and not spec.chunk and cost.large(batch) and spec.precision != "float32":
        return 1, min(LANES, chunk)  # as many as would have fitted into one call
    return chunk, spec.lanes or 1


def make(engine: EngineSpec, federation: Federation, table: Table, memories: Memories) -> Engine:
    """The engine that a filled-in `[engine]` table describes."""
    made: Engine = ENGINES[engine.name].make(engine, federation, table, memories)
    return made


def reply_room(device: torch.device) -> int:
    """Bytes of replies that a server on this device can hold at once: an eighth of a GPU; 0: not known.

    >>> reply_room(torch.device("cpu"))
    0
    """
    return torch.cuda.get_device_properties(device).total_memory // 8 if device.type == "cuda" else 0


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
        # Fused kernels of attention add up in any order, so that equal runs would differ.
        with sdpa_kernel(SDPBackend.MATH) if device.type == "cuda" else nullcontext():
            yield
    finally:
        torch.set_num_threads(threads)
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark = before


def _device(spec: EngineSpec) -> torch.device:
    here = torch.cuda.is_available()
    for_cpus = spec.name in ENGINES and not ENGINES[spec.name].in_process
    if spec.device == "cuda" and for_cpus:
        remedy = f"{spec.name!r} is for CPUs; use 'batched' or 'loop' on a GPU"
        raise KinfolkError("engine.device", "cuda", remedy)
    if spec.device == "cuda" and not here:
        raise KinfolkError("engine.device", "cuda", "no CUDA device is here; use 'cpu' or 'auto'")
    return torch.device("cuda" if here and spec.device != "cpu" and not for_cpus else "cpu")


def _chunk(cost: Cost, batch: int, device: torch.device, gib: float) -> int:
    """Clients a call: what fits into the memory budget, by a count of what a step holds."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
    else:
        total = machine_memory()
    budget = gib * 2**30 if gib else total / 4
    # Parameters, their old copy, gradients, two moments and a reply; every layer's output and its gradient.
    client = 4 * (8 * cost.parameters + 3 * max(batch, 64) * cost.floats)
    most = min(MOST_CLIENTS[device.type], budget / client)
    if device.type == "cpu":
        # A large step keeps a core busy by itself; of small ones, as many as stay near the core.
        near = NEAR / (8 * cost.parameters + 8 * batch * cost.floats)
        most = min(most, near if 3 * cost.flops * batch < SMALL_STEP else 1)
    return int(max(1, most))
