"""How fast federations are ready and how much memory they take, each in a process of its own.

python benchmarks/federations.py      made-up clients; FEMNIST too where KINFOLK_DATA names its folder
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from math import inf

# Seconds and GiB count from the start of `build`; memory includes Python and torch themselves.
GAUSSIANS = {"name": "gaussians", "rows": 30, "groups": 10, "shift": "source", "features": 20, "ragged": 0.5,
             "test": "local"}  # fmt: skip
FEMNIST = {"name": "femnist", "clients": 0, "shift": "none", "partition": "natural", "min_rows": 100,
           "test": "local", "test_fraction": 0.2, "valid": 0.1}  # fmt: skip
# (label, table, make all rows as well, most seconds, most GiB)
CASES = [
    ("100,000 made-up clients", {**GAUSSIANS, "clients": 100_000}, False, 10.0, 2.0),
    ("100,000 made-up clients with all their rows", {**GAUSSIANS, "clients": 100_000}, True, inf, 2.0),
    ("1,000,000 made-up clients, described", {**GAUSSIANS, "clients": 1_000_000}, False, inf, 1.0),
    ("FEMNIST, writers with 100 rows or more", FEMNIST, False, 3.0, inf),
]


def measure(table: dict[str, object], whole: bool) -> dict[str, float]:
    from kinfolk.federation.sources import build
    from kinfolk.federation.spec import DataSpec
    from kinfolk.streams import Seed

    start = time.perf_counter()
    federation = build(DataSpec(**table), Seed(0))  # type: ignore[arg-type]
    rows = (
        len(federation.among(federation.clients).x)
        if whole
        else len(federation.only(federation.clients[0]).x)
    )
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux counts KiB
    return {"clients": len(federation.clients), "rows": rows, "seconds": seconds, "gib": peak}


def main() -> int:
    good = True
    for label, table, whole, most_seconds, most_gib in CASES:
        command = [sys.executable, __file__, json.dumps([table, whole])]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["?"])[-1]
            print(f"{label:46} not measured: {last}")
            continue
        found = json.loads(done.stdout)
        fine = found["seconds"] <= most_seconds and found["gib"] <= most_gib
        good &= fine
        bars = [f"{bar:g} {unit}" for bar, unit in ((most_seconds, "s"), (most_gib, "GiB")) if bar < inf]
        print(
            f"{label:46} {found['clients']:9,} clients {found['seconds']:7.2f} s {found['gib']:6.2f} GiB"
            f"   at most {', '.join(bars)}  {'ok' if fine else 'MISSED'}"
        )
    return 0 if good else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(*json.loads(sys.argv[1]))))
    else:
        sys.exit(main())
