"""Engines side by side on this machine, as ratios from one run.

python benchmarks/engines.py          two cores: loop against a plain PyTorch loop, workers against loop
On a machine with a CUDA device the same command measures batched against loop there.
"""

from __future__ import annotations

import platform
import sys

import torch

from measure import measure


def line(label: str, value: float, bar: float, at_most: bool = False) -> bool:
    fine = value <= bar if at_most else value >= bar
    wanted = f"{'at most' if at_most else 'at least'} {bar:g}"
    print(f"{label:30} {value:8.3g}  {wanted:14} {'ok' if fine else 'MISSED'}")
    return fine


def table(clients: int, rows: int, repeats: int, engines: tuple[str, ...]) -> dict[str, float]:
    found = measure("lenet", clients, rows, 50, repeats, engines)
    print(f"LeNet, {clients} clients x {rows} rows of 28x28, batch 50: one FedAvg round, best of {repeats}")
    for m in found:
        print(f"  {m.engine:10} {m.seconds:8.3f} s  {m.samples:12,.0f} samples/s")
    return {m.engine: m.seconds for m in found}


def main() -> int:
    gpu = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if gpu else f"{platform.machine()}, {torch.get_num_threads()} cores"
    print(f"torch {torch.__version__} on {name}")
    if gpu:
        seconds = table(192, 500, 3, ("loop", "batched"))
        return 0 if line("loop / batched, seconds", seconds["loop"] / seconds["batched"], 10) else 1
    # Few clients, often: the difference is small and the machine has other things to do.
    close = table(6, 1000, 8, ("loop",))
    wide = table(48, 1000, 2, ("loop", "batched", "workers"))
    good = line("loop / plain loop, seconds", close["loop"] / close["plain loop"], 1.10, at_most=True)
    good &= line("loop / workers, seconds", wide["loop"] / wide["workers"], 1.7)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
