"""What SLFed takes with many clients: seconds, processor time and memory of a few rounds, and a checkpoint.

python benchmarks/slfed_peers.py 10000 --rounds 1
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from kinfolk.experiment.checkpoint import saved_rounds
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import Experiment, override


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", type=int)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tell", choices=("all", "direct"), default="direct")
    given = parser.parse_args()
    torch.set_num_threads(1)
    spec = override(
        Experiment(),
        [
            f"data.clients={given.clients}", "data.rows=8", "model.name=logistic", "algorithm.name=slfed",
            "algorithm.images.kind=noise", "algorithm.images.count=16", f"algorithm.trust.tell={given.tell}",
            f"run.rounds={given.rounds}", f"run.evaluate_every={given.rounds}", "run.pictures=none",
            "engine.name=batched", "engine.device=cpu",
        ],
    )  # fmt: skip
    print("| clients | round | seconds | of processor time | peak memory |\n| --- | --- | --- | --- | --- |")
    began = [(time.perf_counter(), time.process_time())]

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "round":
            now = time.perf_counter(), time.process_time()
            took = " | ".join(f"{b - a:.0f} s" for a, b in zip(began[-1], now, strict=True))
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"| {given.clients:,} | {facts['round']} | {took} | {peak:,.0f} MiB |", flush=True)
            began.append(now)

    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "run"
        run(spec, where, watch=watch)
        last = where / "checkpoints" / f"round-{saved_rounds(where / 'checkpoints')[-1]:06d}"
        size = sum(file.stat().st_size for file in last.iterdir())
        print(f"\na checkpoint: {size / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
