"""What records and checkpoints take beside the rounds they are of; and how long a large folder takes to open.

python benchmarks/records.py                         # a table: methods x 100, 1,000 and 10,000 clients
python benchmarks/records.py --folder runs/large     # 10,000 clients x 1,000 rounds through the real writer
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kinfolk.errors import KinfolkError
from kinfolk.experiment.checkpoint import saved_rounds
from kinfolk.experiment.pace import SHARE
from kinfolk.experiment.record import Records, read_rounds, read_scores, round_files
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import Experiment, override

METHODS = ("fedavg", "local", "local:0.1", "ifca", "slfed_similar")
OPTIONS = {"ifca": ["algorithm.k=3"]}
KINDS = ("write_scores", "append_round", "audit")


def spec_of(method: str, clients: int, rounds: int) -> Experiment:
    """Every round scored, recorded and saved; after a colon the part of the clients that take part."""
    name, _, part = method.partition(":")
    return override(
        Experiment(),
        [
            f"data.clients={clients}", "data.rows=20", "model.name=logistic", f"algorithm.name={name}",
            f"run.rounds={rounds}", "run.checkpoint_every=1", f"run.participation={part or 1}",
            "engine.device=cpu", *OPTIONS.get(name, []),
        ],
    )  # fmt: skip


def timed(spent: list[float], real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return real(*args, **named)
        finally:
            spent[0] += time.perf_counter() - began

    return call


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def measure(method: str, clients: int, rounds: int) -> str:
    """One line of Markdown, of the later rounds of one run."""
    spent, before = [0.0], {kind: getattr(Records, kind) for kind in KINDS}
    for kind, real in before.items():
        setattr(Records, kind, timed(spent, real))
    marks: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "run"
        run(
            spec_of(method, clients, rounds), where,
            watch=lambda event, facts: marks.append(spent[0]) if event == "round" else None,
        )  # fmt: skip
        for kind, real in before.items():
            setattr(Records, kind, real)
        lines = read_rounds(where)[2:]  # a line has the checkpoint of the round before it
        saving = sum(line["seconds"].get("checkpoint", 0.0) for line in lines)
        whole = sum(sum(line["seconds"].values()) for line in lines) - saving
        saved = where / "checkpoints" / f"round-{saved_rounds(where / 'checkpoints')[-1]:06d}"
        shared = sum(file.stat().st_size for file in saved.iterdir())
        written = round_files(where, "records")[-1][1].stat().st_size
        written += (where / "rounds.jsonl").stat().st_size // len(read_rounds(where))
    n = len(lines)
    records, one, each = (marks[-1] - marks[1]) / n, saving / n, whole / n
    fields = (
        *(method, f"{clients:,}", f"{each:.2f} s", f"{records:.3f} s ({records / each:.1%})"),
        *(f"{written / 1e3:,.0f} kB", f"{one:.2f} s ({one / each:.0%})", f"{shared / 1e6:.2f} MB"),
        f"{max(1, np.ceil(one / SHARE / each)):.0f}",
    )
    return f"| {' | '.join(fields)} |"


def table(methods: Sequence[str], sizes: Sequence[int], rounds: int) -> None:
    heads = ("method", "clients", "a round", "records", "on the disk", "a checkpoint", "on the disk", "every")
    print("|", " | ".join(heads), "|\n|", " | ".join(["---"] * len(heads)), "|")
    for clients in sizes:
        for method in methods:
            try:
                print(measure(method, clients, rounds), flush=True)
            except KinfolkError as error:
                print(f"| {method} | {clients:,} | {error} |", flush=True)


def large(folder: Path, clients: int, rounds: int) -> None:
    """A folder as a run of so many clients and rounds leaves it; then what it takes to open."""
    if not folder.exists():
        run(spec_of("local", clients, 1), folder)
        frame, line = read_scores(folder), read_rounds(folder)[-1]
        last, records = frame[frame["round"] == 1].drop(columns=["group", "margin"]), Records(folder)
        draw, began = np.random.default_rng(0), time.process_time()
        for number in range(2, rounds + 1):
            values = np.clip(last["value"] + draw.normal(0, 0.01, len(last)), 0, 1)
            records.write_scores(number, last.assign(round=number, value=values))
            records.append_round(number, line)
        spent = time.process_time() - began
        print(f"written: {spent / (rounds - 1):.3f} s a round, {size(folder) / 1e6:,.0f} MB")
    for command in (["show", str(folder)], ["report", str(folder), "--out", f"{folder}.html"]):
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "kinfolk", *command], capture_output=True, text=True)
        took = time.perf_counter() - began
        print(f"{command[0]}: {took:.1f} s, code {done.returncode} {done.stderr[-300:]}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.folder:
        large(given.folder, given.clients[-1], max(given.rounds, 1000))
    else:
        table(given.methods, given.clients, given.rounds)


if __name__ == "__main__":
    main()
