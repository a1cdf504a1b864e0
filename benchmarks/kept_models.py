"""Models of 1,000 clients (`--clients`) kept and loaded: bytes, seconds; predictions are as recorded."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from kinfolk import load
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import Experiment, override


def seconds(what) -> tuple[float, object]:
    began = time.perf_counter()
    found = what()
    return time.perf_counter() - began, found


def measure(clients: int, rounds: int, algorithm: str, keep: str) -> None:
    spec = override(
        Experiment(),
        [
            f"data.clients={clients}", "data.rows=20", "data.valid=0.1", f"algorithm.name={algorithm}",
            f"run.rounds={rounds}", f"run.evaluate_every={rounds}", f"run.keep={keep}", "engine.device=cpu",
        ],
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "run"
        whole, _ = seconds(lambda: run(spec, where))
        saving = sum(line["seconds"].get("checkpoint", 0.0) for line in load(where).rounds)
        kept = load(where).facts["kept"]
        opened = load(where)
        first, _ = seconds(lambda: opened.model(opened.outline.clients[0]))
        one, _ = seconds(lambda: opened.model(opened.outline.clients[-1]))
        every, networks = seconds(lambda: opened.models_of(list(opened.outline.clients)))
        right = rows = 0
        federation = opened._kept._parts_with_rows("personal").federation
        test = federation.splits["test"]
        began = time.perf_counter()
        with torch.no_grad():
            for i, who in enumerate(federation.clients):
                x, y = federation.take(test.rows(i))
                right, rows = right + int((networks[who](x).argmax(1) == y).sum()), rows + len(y)
        spoken = time.perf_counter() - began
        scores = opened.scores
        last = scores[(scores["round"] == rounds) & (scores["score"] == "accuracy")]
        last = last[last["model"] == opened.models[0]]
        recorded = round(float((last["value"] * last["rows"]).sum()))
        print(
            f"{algorithm:13} keep={keep:5} {clients} clients: each {kept['checkpoint_bytes']:,} bytes, "
            f"{kept['checkpoints']} kept: {kept['bytes']:,} bytes on the disk\n"
            f"  run {whole:.1f} s (checkpoints {saving:.1f} s); open and first model {first:.2f} s, another "
            f"{one:.3f} s, all {len(networks)} {every:.1f} s\n"
            f"  predicted {rows:,} test rows in {spoken:.1f} s: {right:,} right, recorded {recorded:,}"
        )
        assert right == recorded


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    for algorithm, keep in (("local", "last"), ("local", "all"), ("fedavg_tuned", "best"), ("ifca", "best")):
        measure(given.clients, given.rounds, algorithm, keep)


if __name__ == "__main__":
    main()
