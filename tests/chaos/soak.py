"""A thousand rounds on each engine, with memory and descriptors flat: `make soak`.

(SOAK="--engine loop --rounds 200" for some of it.) Fifty times in a run the resident memory and the open
descriptors of all its processes are noted, and how many objects Python's collector knows in the first. Flat
means: a straight line through the second half rises by no more than 1 % of the memory (at least 2 MiB), by no
more than one descriptor, and by no more objects than a tenth of one a round. Exit code 1 if one is not.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attempts import RANKS, helpers, launch

from kinfolk.experiment.run import run
from kinfolk.experiment.spec import override, parse

SPEC = """
[data]
clients = 6
rows = 12
[model]
name = "logistic"
[local]
batch = 6
[engine]
inner = "loop"
processes = 2
[run]
participation = 0.7
evaluate_every = 10
checkpoint_every = 10
"""
ENGINES = ("loop", "batched", "workers", "wire", "distributed")
SAMPLES = 50
PAGE = resource.getpagesize()
# What a line through the second half may rise by: share of memory, bytes, descriptors, objects a round.
MEMORY, LEAST, DESCRIPTORS, OBJECTS = 0.01, 2 << 20, 1.0, 0.1


def sample() -> dict[str, float]:
    """Memory and descriptors of this run's processes, and the objects of this one."""
    gc.collect()
    spread = "RANK" in os.environ
    everyone = helpers(os.getppid()) if spread else [os.getpid(), *helpers(os.getpid())]
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in everyone]
    open_ = [len(os.listdir(f"/proc/{pid}/fd")) for pid in everyone]
    return {"memory": PAGE * sum(pages), "descriptors": sum(open_), "objects": len(gc.get_objects())}


def rise(values: list[float]) -> float:
    """By how much a straight line through the second half rises from its beginning to its end.

    >>> round(rise([9.0, 0.0, 1.0, 2.0, 3.0, 4.0]), 3)
    2.0
    """
    half = np.array(values[len(values) // 2 :], dtype=np.float64)
    slope = np.polyfit(np.arange(len(half)), half, 1)[0]
    return float(slope * (len(half) - 1))


def risen(samples: Mapping[str, list[float]], rounds: int) -> dict[str, str]:
    """What is not flat, by its name, and by how much it rises.

    >>> flat = {"memory": [9e8] * 8, "descriptors": [7.0] * 8, "objects": [1000.0] * 8}
    >>> risen(flat, 100), risen({**flat, "descriptors": [7.0 + i for i in range(8)]}, 100)
    ({}, {'descriptors': '+3'})
    """
    limits = {
        "memory": max(MEMORY * float(np.mean(samples["memory"])), LEAST),
        "descriptors": DESCRIPTORS,
        "objects": OBJECTS * rounds / 2,
    }
    by = {what: rise(samples[what]) for what in limits}
    return {what: f"+{by[what]:.4g}" for what, limit in limits.items() if by[what] > limit}


def soak(engine: str, method: str, rounds: int, room: Path) -> dict[str, list[float]]:
    """The samples of one run, made in a process of its own."""
    noted, folder = room / f"{engine}-{method}.json", room / f"{engine}-{method}"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if engine == "distributed":
                code = launch(lambda: play(engine, method, rounds, folder, noted), room)
            else:
                play(engine, method, rounds, folder, noted)
                code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"error: {engine} {method} ended with {os.waitstatus_to_exitcode(status)}")
    found: dict[str, list[float]] = json.loads(noted.read_text())
    return found


def play(engine: str, method: str, rounds: int, folder: Path, noted: Path) -> None:
    """The run, sampled as it goes."""
    samples: dict[str, list[float]] = {"memory": [], "descriptors": [], "objects": []}

    def watch(event: str, facts: Mapping[str, Any]) -> None:
        if event == "round" and facts["round"] % max(rounds // SAMPLES, 1) == 0:
            for what, value in sample().items():
                samples[what].append(value)

    changes = [f"engine.name={engine}", f"algorithm.name={method}", f"run.rounds={rounds}"]
    run(override(parse(SPEC), changes), folder, watch=watch)
    if os.environ.get("RANK", "0") == "0":
        noted.write_text(json.dumps(samples))


def main() -> int:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--engine", action="append", choices=ENGINES)
    options.add_argument("--method", action="append", help="fedavg unless said otherwise")
    options.add_argument("--rounds", type=int, default=1000)
    given = options.parse_args()
    torch.set_num_threads(1)
    bad = 0
    print("| engine | method | rounds | seconds | MiB, half to end | rise | descriptors | objects | flat |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as room:
        for engine in given.engine or ENGINES:
            for method in given.method or ["fedavg"]:
                before = time.monotonic()
                samples = soak(engine, method, given.rounds, Path(room))
                wrong = risen(samples, given.rounds)
                bad += bool(wrong)
                print(
                    row(engine, method, given.rounds, time.monotonic() - before, samples, wrong), flush=True
                )
    print(f"\n{RANKS} ranks or 2 workers where there are several processes; memory is that of all together.")
    return 1 if bad else 0


def row(
    engine: str,
    method: str,
    rounds: int,
    seconds: float,
    samples: Mapping[str, list[float]],
    wrong: Mapping[str, str],
) -> str:
    """A line of the table."""
    memory, half = samples["memory"], len(samples["memory"]) // 2
    mib = f"{memory[half] / 2**20:.1f} to {memory[-1] / 2**20:.1f} | {rise(memory) / 2**20:+.2f}"
    counts = [f"{samples[what][half]:.0f} to {samples[what][-1]:.0f}" for what in ("descriptors", "objects")]
    told = "yes" if not wrong else "NO: " + ", ".join(f"{k} {v}" for k, v in wrong.items())
    return f"| {engine} | {method} | {rounds} | {seconds:.0f} | {mib} | {' | '.join(counts)} | {told} |"


if __name__ == "__main__":
    sys.exit(main())
