"""Kills runs at random, on every engine and with every method, and sees that each ends as if left alone.

`make chaos` (CHAOS="--engine loop --method fedavg --kills 9 --seed 1" for some of it). A cell is an engine
with a method: a tiny federation is trained undisturbed, and again with faults, one after another: SIGKILL to
the run, a worker or a rank; SIGSTOP; SIGTERM; a full disk; a limit of memory. After each the run is resumed;
after the last it goes on to its end, which must be that of the undisturbed run bit for bit: state, memories,
facts of the checkpoint, scores, records of rounds, names of files. A process that a fault leaves alive says
lines for people and no traceback. Exit code 1 if anything else was seen.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from attempts import End, Fault, attempt
from shortened import LIGHT
from small_runs import assert_same_end

from kinfolk.algorithms import ALGORITHMS
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import override, parse

SPEC = """
[data]
clients = 5
rows = 12
groups = 2
[model]
name = "logistic"
[local]
batch = 6
momentum = 0.9
[engine]
name = "loop"
inner = "loop"
processes = 2
[run]
rounds = 3
absent = 0.1
"""
ENGINES = ("loop", "batched", "workers", "wire", "distributed")
# Besides kills: one of these for each cell, by turns.
OTHERS = ("term", "stop", "disk", "memory")
# Room for a run and its temporary files, and how far beyond what is used a disk may be full.
DISK, NEARLY_FULL = 64 << 20, 96 << 10
MEMORY = 48 << 20
# Exit codes: finished, an error in a line, a stop that was asked for, SIGTERM before the run could hear it;
# and what libraries of C++ do with a process that has no memory.
ORDERLY = (0, 2, 143, -signal.SIGTERM, signal.SIGTERM, -signal.SIGABRT, signal.SIGABRT)
# Attempts for each kill that is wanted: some come when the run is through.
TRIES = 12


@dataclass
class Cell:
    """What came of one method on one engine."""

    engine: str
    method: str
    kills: int = 0
    others: int = 0
    resumes: int = 0
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        same = "=" if not self.findings else "DIFFERS"
        return f"{self.kills}+{self.others}/{self.resumes} {same}"


class Disk:
    """A small file system of its own, which can be made full; where none can be mounted, a limit on files."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(mode=0o700)
        words = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)]
        self.mounted = subprocess.run(words, capture_output=True).returncode == 0

    @contextmanager
    def nearly_full(self, free: int) -> Iterator[None]:
        """So many bytes are left."""
        if not self.mounted:
            yield
            return
        status = os.statvfs(self.place)
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        self._resize(used + free)
        try:
            yield
        finally:
            self._resize(DISK)

    def _resize(self, size: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.place)], check=True)

    def close(self) -> None:
        """Give it back."""
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.place)], check=True)


def faults(engine: str, other: str, whole: End, draw: random.Random) -> Iterator[Fault]:
    """What befalls the runs of a cell: one fault that is no kill, and kills by the clock and by touches."""
    helped = engine in ("workers", "distributed")
    sizes = {"term": whole.seconds, "stop": whole.seconds, "disk": NEARLY_FULL, "memory": MEMORY}
    yield Fault(other, other == "stop" and helped, draw.random(), sizes[other])
    while True:
        # By the clock a run is mostly start-up, by its touches it is mostly at work.
        if engine == "distributed" or draw.random() < 0.5:
            yield Fault("kill", helped and draw.random() < 0.5, draw.uniform(0.3, 1), whole.seconds)
        else:
            yield Fault("touch", False, draw.random(), whole.touches)


def play(cell: Cell, room: Path, disk: Disk, kills: int, other: str, draw: random.Random) -> None:
    """Try one cell; what is wrong is noted in it."""
    spec = room / "spec.toml"
    room.mkdir()
    changes = [f"algorithm.name={cell.method}", f"engine.name={cell.engine}", *LIGHT.get(cell.method, [])]
    sets = [word for change in changes for word in ("--set", change)]
    spec.write_text(SPEC)
    spread = cell.engine == "distributed"

    def go(folder: Path, fault: Fault) -> End:
        words = ["run", str(spec), *sets, "--out", str(folder), "--resume", "--json"]
        end = attempt(words, room / "said", folder, fault, spread)
        if "Traceback" in end.said or len(end.said.splitlines()) > 40:
            cell.findings.append(f"{fault}:\n{end.said.strip()[-3000:]}")
        if end.code == 124:
            cell.findings.append(f"{fault}: hangs")
        return end

    whole, hurt = room / "whole", disk.place / f"{cell.engine}-{cell.method}"
    end = go(whole, Fault(""))
    if end.code:
        cell.findings.append(f"undisturbed it ends with {end.code}: {end.said.strip()[-300:]}")
        return
    for fault in islice(faults(cell.engine, other, end, draw), TRIES * kills):
        with disk.nearly_full(int(fault.moment * fault.size)) if fault.kind == "disk" else nullcontext():
            struck = go(hurt, fault)
        cell.kills += fault.kills and struck.hit
        cell.others += not fault.kills and struck.hit
        if not fault.kills and struck.code not in ORDERLY:
            cell.findings.append(f"{fault}: ends with {struck.code}: {struck.said.strip()[-300:]}")
        if not struck.code:  # survived it, or was through before: once more from the beginning
            cell.findings += compared(hurt, whole)
            shutil.rmtree(hurt)
        cell.resumes += struck.code != 0 and hurt.exists()
        if cell.kills == kills:
            break
    end = go(hurt, Fault(""))
    if end.code:
        cell.findings.append(f"resumed it ends with {end.code}: {end.said.strip()[-300:]}")
    else:
        cell.findings += compared(hurt, whole)
    shutil.rmtree(hurt)
    shutil.rmtree(room)


def compared(hurt: Path, whole: Path) -> list[str]:
    """How two runs' ends differ, bit by bit."""
    try:
        assert_same_end(hurt, whole)
    except AssertionError as wrong:
        return [f"another end: {(str(wrong).strip() or 'tensors').splitlines()[0]}"]
    # Older checkpoints aside: a kill after the last was written may leave one that had its day.
    names = [{str(p.relative_to(f)) for p in f.rglob("*") if "round-" not in str(p)} for f in (hurt, whole)]
    return [f"files of one alone: {sorted(names[0] ^ names[1])}"] if names[0] != names[1] else []


def table(cells: list[Cell]) -> str:
    """Method by engine: kills + other faults / resumes, and whether the end was equal."""
    engines = [engine for engine in ENGINES if any(cell.engine == engine for cell in cells)]
    by = {(cell.method, cell.engine): str(cell) for cell in cells}
    lines = ["| method | " + " | ".join(engines) + " |", "| --- " * (len(engines) + 1) + "|"]
    for method in dict.fromkeys(cell.method for cell in cells):
        lines.append(f"| {method} | " + " | ".join(by.get((method, e), "-") for e in engines) + " |")
    return "\n".join(lines)


def chaos(engines: list[str], methods: list[str], kills: int, seed: int, room: Path) -> list[Cell]:
    """Every cell in turn, each reported on a line."""
    torch.set_num_threads(1)
    # What is imported late is imported once, before anything is forked.
    run(override(parse(SPEC), ["run.rounds=1"]), room / "warm")
    run(
        override(parse(SPEC), ["run.rounds=1", "algorithm.name=slfed", "engine.name=batched"]),
        room / "warmer",
    )
    disk, cells = Disk(room / "disk"), []
    try:
        for number, (method, engine) in enumerate((m, e) for m in methods for e in engines):
            cell, draw = Cell(engine, method), random.Random(f"{seed} {engine} {method}")
            # Engines and kinds of fault share no divisor: each engine sees each kind.
            play(cell, room / f"{engine}-{method}", disk, kills, OTHERS[number % len(OTHERS)], draw)
            cells.append(cell)
            print(f"{engine} {method}: {cell}", *(f"\n  {line}" for line in cell.findings), flush=True)
    finally:
        disk.close()
    return cells


def main() -> int:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--engine", action="append", choices=ENGINES)
    options.add_argument("--method", action="append", choices=[*ALGORITHMS])
    options.add_argument("--kills", type=int, default=2, help="SIGKILLs for each engine and method")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # who is killed leaves no file behind
    before = time.monotonic()
    with tempfile.TemporaryDirectory() as room:
        cells = chaos(
            given.engine or [*ENGINES], given.method or [*ALGORITHMS], given.kills, given.seed, Path(room)
        )
    print(f"\n{table(cells)}\n")
    kills, others, resumes = (
        sum(getattr(cell, what) for cell in cells) for what in ("kills", "others", "resumes")
    )
    bad = [cell for cell in cells if cell.findings]
    print(
        f"{kills} kills and {others} other faults in {len(cells)} pairs of engine and method, "
        f"{resumes} resumes, {len(cells) - len(bad)} equal to the undisturbed run; "
        f"{time.monotonic() - before:.0f} s"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
