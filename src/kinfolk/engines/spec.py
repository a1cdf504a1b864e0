"""The `[engine]` table of an experiment file. A new option stands here and in the engine that takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EngineSpec:
    """The `[engine]` table: what performs the work. It may differ when a run is resumed.

    `choose` fills in every "auto" and every 0, and the engine is made from what comes out.

    >>> EngineSpec("workers", processes=2).chunk
    0
    """

    # "loop", "batched", "workers", "wire", "distributed" (started by torchrun), or "auto" to choose.
    name: str = "auto"
    # "cpu", "cuda", or "auto" to choose.
    device: str = "auto"
    # Clients per call of the batched engine; 0: as many as the memory allows.
    chunk: int = 0
    # Calls of the batched engine side by side on a GPU; 0: several where one client's step fills a call.
    lanes: int = 0
    # Processes of the workers engine; 0: one per core.
    processes: int = 0
    # "float32"; "tf32": coarser products on a GPU; "bf16": coarser still, products alone, anywhere.
    precision: str = "float32"
    # GiB the batched engine may use; 0: a quarter of what the device has.
    memory: float = 0.0
    # What each rank of the distributed engine uses: "loop", "batched", or "auto" to choose.
    inner: str = "auto"
    # Seconds one rank of the distributed engine waits for another before it gives up.
    timeout: float = 600.0


# What a key may be besides a name of an engine, which `choose.engine_names` knows.
CHOICES = {
    "engine.device": ("auto", "cpu", "cuda"),
    "engine.precision": ("float32", "tf32", "bf16"),
}

# (what holds, what to do if it does not, the settings it is about)
RANGES: list[tuple[Callable[[Any], bool], str, str]] = [
    (lambda v: v >= 0, "give 0 or more", "engine.chunk engine.lanes engine.processes engine.memory"),
    (lambda v: v > 0, "give a number above 0", "engine.timeout"),
]
