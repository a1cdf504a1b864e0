"""Engines side by side on this machine, as ratios from one run.

python benchmarks/engines.py          two cores: loop against a bare PyTorch loop, workers against loop
On a machine with a CUDA device the same command measures batched against loop there.
"""

from __future__ import annotations

import platform
import sys

import torch

from kinfolk.experiment.bench import measure


def line(label: str, value: float, bar: float, at_most: bool = False) -> bool:
    fine = value <= bar if at_most else value >= bar
    print(f"{label:58} {value:8.3g}  {'at most' if at_most else 'at least'} {bar:g}  {'ok' if fine else 'MISSED'}")
    return fine


def main() -> int:
    gpu = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if gpu else f"{platform.machine()}, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__} on {name}")
    clients, rows, batch = (192, 500, 50) if gpu else (48, 1000, 50)
    found = {m.engine: m for m in measure("lenet", clients, rows, batch, repeats=3)}
    print(f"LeNet, {clients} clients x {rows} rows of 28x28, batch {batch}: one FedAvg round, best of three")
    for m in found.values():
        print(f"  {m.engine:10} {m.seconds:8.3f} s  {m.samples:12,.0f} samples/s")
    seconds = {name: m.seconds for name, m in found.items()}
    good = line("loop / bare loop, seconds", seconds["loop"] / seconds["bare loop"], 1.10, at_most=True)
    if gpu:
        good &= line("loop / batched, seconds", seconds["loop"] / seconds["batched"], 10)
    else:
        good &= line("loop / workers, seconds", seconds["loop"] / seconds["workers"], 1.7)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
