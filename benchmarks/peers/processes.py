"""Memory and processor time of this process and all it started, from /proc."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path


def family() -> Iterator[Path]:
    """The folders of this process, its children and so on; under torchrun those of all its ranks."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        # The name in brackets may hold spaces; the parent stands second after it.
        fields = _read(folder / "stat").rpartition(")")[2].split()
        if fields:
            parents[int(folder.name)] = int(fields[1])
    found = {os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else os.getpid()}
    while found:
        yield from (Path("/proc") / str(one) for one in found)
        found = {one for one, parent in parents.items() if parent in found}


def peak_mib() -> float:
    """Resident memory, each process at its own peak, added up; pages that they share count for each."""
    if not Path("/proc/self/status").exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    total = 0
    for folder in family():
        lines = _read(folder / "status").splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return total / 1024


def cpu_seconds() -> float:
    """Processor time used so far. On a busy machine it says more than the clock on the wall."""
    if not Path("/proc/self/stat").exists():
        return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    used = 0
    for folder in family():
        used += sum(map(int, _read(folder / "stat").rpartition(")")[2].split()[11:13]))
    return used / os.sysconf("SC_CLK_TCK")


def _read(file: Path) -> str:
    """A file's text; nothing if the process has ended meanwhile."""
    try:
        return file.read_text()
    except OSError:
        return ""
