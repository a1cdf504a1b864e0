"""What records and checkpoints take beside the rounds they are of; and how long a large folder takes to open.

python benchmarks/records.py                         # a table: methods x 100, 1,000 and 10,000 clients
python benchmarks/records.py --seconds 60            # what they take of runs as they are by default, so long
python benchmarks/records.py --folder runs/large --methods fedavg --rounds 1000     # 10,000 clients
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kinfolk.experiment.run as runs
from kinfolk.errors import KinfolkError
from kinfolk.experiment import pace
from kinfolk.experiment.checkpoint import saved_rounds
from kinfolk.experiment.pace import SHARE
from kinfolk.experiment.record import Records, read_round, read_rounds, round_files
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


def share(method: str, clients: int, seconds: float) -> str:
    """One line of Markdown: of a run with checkpoints as its time allows, what each kind of file took.

    Without what checkpoints may take besides in a short run: a long one has forgotten it.
    """
    spent, rounds = {"records": [0.0], "conduct": [0.0]}, [0]
    before, conduct = {kind: getattr(Records, kind) for kind in KINDS}, runs.record_conduct
    for kind, real in before.items():
        setattr(Records, kind, timed(spent["records"], real))
    runs.record_conduct = timed(spent["conduct"], conduct)
    allowance, pace.ALLOWANCE = pace.ALLOWANCE, 0.0
    began: list[float] = []
    start: dict[str, float] = {}

    def watch(event: str, facts: dict[str, Any]) -> str:
        if event != "round":
            return ""
        if not began and facts["round"] == 1:  # the first warms up
            began.append(time.perf_counter())
            start.update({kind: much[0] for kind, much in spent.items()})
            return ""
        rounds[0] += bool(began)
        return "stop" if began and time.perf_counter() > began[0] + seconds else ""

    try:
        with tempfile.TemporaryDirectory() as folder:
            spec = override(spec_of(method, clients, 100_000), ["run.checkpoint_every=0"])
            run(spec, Path(folder) / "run", watch=watch)
            lines = read_rounds(Path(folder) / "run")[2:]
            whole = time.perf_counter() - began[0]
    finally:
        runs.record_conduct, pace.ALLOWANCE = conduct, allowance
        for kind, real in before.items():
            setattr(Records, kind, real)
    saving = sum(line["seconds"].get("checkpoint", 0.0) for line in lines)
    saved = sum("checkpoint" in line["seconds"] for line in lines)
    parts = [f"{(spent[kind][0] - start[kind]) / whole:.1%}" for kind in spent]
    fields = method, f"{clients:,}", f"{rounds[0]:,}", f"{whole / rounds[0]:.2f} s", *parts
    return f"| {' | '.join(fields)} | {saving / whole:.1%} ({saved}) |"


def shares(methods: Sequence[str], sizes: Sequence[int], seconds: float) -> None:
    heads = ("method", "clients", "rounds", "a round", "records", "conduct", "checkpoints (how many)")
    print("|", " | ".join(heads), "|\n|", " | ".join(["---"] * len(heads)), "|", flush=True)
    for clients in sizes:
        for method in methods:
            print(share(method, clients, seconds), flush=True)


def table(methods: Sequence[str], sizes: Sequence[int], rounds: int) -> None:
    heads = ("method", "clients", "a round", "records", "on the disk", "a checkpoint", "on the disk", "every")
    print("|", " | ".join(heads), "|\n|", " | ".join(["---"] * len(heads)), "|")
    for clients in sizes:
        for method in methods:
            try:
                print(measure(method, clients, rounds), flush=True)
            except KinfolkError as error:
                print(f"| {method} | {clients:,} | {error} |", flush=True)


def large(folder: Path, method: str, clients: int, rounds: int) -> None:
    """A folder as a run of so many clients and rounds leaves it; then what it takes to open."""
    if not folder.exists():
        run(spec_of(method, clients, 1), folder)
    records, line = Records(folder), read_rounds(folder)[-1]
    first = line["round"] + 1
    last = read_round(round_files(folder, "records")[-1][1]).dropna(axis="columns", how="all")
    conduct = dict(round_files(folder, "conduct"))
    draw, began = np.random.default_rng(0), time.process_time()
    for number in range(first, rounds + 1):
        values = np.clip(last["value"] + draw.normal(0, 0.01, len(last)), 0, 1)
        records.write_scores(number, last.assign(round=number, value=values))
        records.append_round(number, line)
        if conduct:
            shutil.copy(conduct[1], folder / "conduct" / f"round-{number:06d}.parquet")
    if rounds >= first:
        spent = (time.process_time() - began) / (rounds + 1 - first)
        print(f"written: {spent:.3f} s a round, {size(folder) / 1e6:,.0f} MB", flush=True)
    for command in (["show", str(folder)], ["report", str(folder), "--out", f"{folder}.html"]):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "kinfolk", *command], capture_output=True, text=True)
        took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        memory = f"{after.ru_maxrss / 1024:,.0f} MiB at most"
        print(f"{command[0]}: {took:.1f} s, {cpu:.1f} s of processor time, {memory}", end=", ")
        print(f"code {done.returncode} {done.stderr[-300:]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.folder:
        large(given.folder, given.methods[0], given.clients[-1], given.rounds)
    elif given.seconds:
        shares(given.methods, given.clients, given.seconds)
    else:
        table(given.methods, given.clients, given.rounds)


if __name__ == "__main__":
    main()
