"""Kinfolk, pfl, Flower and a bare PyTorch loop on the same work, one after another, in one run.

python benchmarks/peers/compare.py                       both settings, small, on this CPU
python benchmarks/peers/compare.py --device cuda --repeat 3
python benchmarks/peers/compare.py --check               do they do the same steps? (times mean nothing)

pfl and Flower live in an environment of their own (requirements.txt beside this file). Repeats are
interleaved, each with another seed, and the best time of each way counts. Ratios are over the fastest way
of each other system. "CPU ms" is the processor time of one client's training, all processes together, and
hardly depends on what else the machine has to do.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OTHERS = ("pfl", "flower", "bare loop")
ROUNDS = {"mlp": 20, "cnn": 3}
# All users in every round and all of a user's rows in one step: nothing is left to chance.
CHECK = ["--users=20", "--cohort=20", "--rows=50", "--batch=50"]


def ways(device: str, cores: int) -> list[tuple[str, str, list[str]]]:
    """(system, script, its own options): every way a system can use this machine."""
    one, all_ = ["--threads=1"], [f"--threads={cores}"]
    if device == "cuda":
        engines = [("kinfolk", "kinfolk_run.py", [f"--engine={e}"]) for e in ("auto", "loop")]
        rest = [("bare loop", "bare.py", one), ("pfl", "pfl_run.py", one), ("flower", "flower_run.py", one)]
        return [*engines, *rest]
    engines = [
        ("kinfolk", "kinfolk_run.py", [f"--engine={e}"]) for e in ("auto", "workers", "batched", "loop")
    ]
    return [
        *engines,
        ("bare loop", "bare.py", one),
        ("bare loop", "bare.py", all_),
        ("pfl", "pfl_run.py", all_),
        ("pfl", "pfl_run.py", [*one, f"--processes={cores}"]),
        ("flower", "flower_run.py", [*one, f"--processes={cores}"]),
    ]


def once(python: str, script: str, arguments: list[str], limit: float) -> dict[str, Any]:
    """One run in a process of its own: what it printed, or why it printed nothing."""
    threads = next((a.split("=")[1] for a in arguments if a.startswith("--threads=")), "1")
    environment = os.environ | {"OMP_NUM_THREADS": threads}
    try:
        done = subprocess.run(
            [python, str(HERE / script), *arguments],
            capture_output=True,
            text=True,
            env=environment,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"no result within {limit:g} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"system"')]
    if done.returncode or len(lines) != 1:
        said = done.stderr.strip().splitlines() or ["nothing said"]
        return {"failed": f"exit {done.returncode}: {said[-1]}"}
    found: dict[str, Any] = json.loads(lines[0])
    return found


def rate(found: list[dict[str, Any]]) -> float:
    return max((one["client_trainings_per_s"] for one in found), default=math.nan)


def table(results: dict[int, list[dict[str, Any]]], listed: list[tuple[str, str, list[str]]]) -> None:
    """A line for each way, the best of its repeats."""
    good = {i: [one for one in many if "seconds" in one] for i, many in results.items()}
    best = {
        other: max((rate(good[i]) for i in good if listed[i][0] == other and good[i]), default=math.nan)
        for other in OTHERS
    }
    titles = "".join(f"{'x ' + other:>12}" for other in OTHERS)
    print(
        f"{'system':10} {'clients/s':>9} {'spread':>7} {'CPU ms':>7}{titles} {'accuracy':>16} {'MiB':>6}  how"
    )
    for i, (system, _, own) in enumerate(listed):
        if not good[i]:
            one = results[i][-1]
            why = f"not installed ({one['missing']})" if "missing" in one else f"failed ({one['failed']})"
            print(f"{system:10} {why} {' '.join(own)}")
            continue
        rates = [one["client_trainings_per_s"] for one in good[i]]
        found = [one["accuracy"] for one in good[i]]
        ratios = "".join(f"{'-' if math.isnan(b) else f'{max(rates) / b:.2f}':>12}" for b in best.values())
        sd = f" ± {statistics.stdev(found):.3f}" if len(found) > 1 else ""
        accuracy = f"{statistics.mean(found):.3f}{sd}"
        memory = max(one["peak_rss_mib"] for one in good[i])
        how = f"{good[i][0]['version']}, {good[i][0]['how']}" + (
            f"; {len(results[i]) - len(good[i])} failed" if len(good[i]) < len(results[i]) else ""
        )
        cpu = min(1000 * one["cpu_seconds"] / one["clients_trained"] for one in good[i])
        spread = f"{max(rates) / min(rates):.2f}"
        print(
            f"{system:10} {max(rates):9.1f} {spread:>7} {cpu:7.1f}{ratios} {accuracy:>16} {memory:6}  {how}"
        )


def agree(
    results: dict[int, list[dict[str, Any]]],
    listed: list[tuple[str, str, list[str]]],
    tests: int,
    exact: bool,
) -> bool:
    """Whether all systems learnt alike, as far as the test rows and the repeats can tell."""
    found = {i: [one["accuracy"] for one in many if "accuracy" in one] for i, many in results.items()}
    found = {i: values for i, values in found.items() if values}
    if len(found) < 2:
        print("accuracies: nothing to compare")
        return True
    middle = statistics.median(statistics.mean(v) for v in found.values())
    between = [statistics.variance(v) for v in found.values() if len(v) > 1]
    if not (exact or between):
        print("accuracies: not judged from one repeat, since draws of clients move a short run; --repeat 3")
        return True
    # The same steps in another order of additions may still turn a row that lies between two classes.
    spread = max(middle * (1 - middle) / tests, statistics.mean(between) if between else 0.0)
    noise = 2 / tests if exact else 3 * math.sqrt(2 * spread / min(map(len, found.values())))
    apart = {i: statistics.mean(v) - middle for i, v in found.items()}
    for i, gap in apart.items():
        if abs(gap) > noise:
            name = " ".join((listed[i][0], *listed[i][2]))
            print(f"ACCURACY DIFFERS: {name} is {gap:+.4f} from the median {middle:.4f} (noise {noise:.4f})")
    fine = max(map(abs, apart.values())) <= noise
    if fine:
        print(f"accuracies agree within {noise:.4f} of the median {middle:.4f}")
    return fine


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    asked.add_argument("--settings", default="mlp,cnn")
    asked.add_argument("--rounds", type=int, default=0, help="timed rounds; 0: 20 of mlp, 3 of cnn")
    asked.add_argument("--repeat", type=int, default=1)
    asked.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    asked.add_argument("--systems", default="kinfolk,bare loop,pfl,flower")
    beside = HERE / ".venv" / "bin" / "python"
    asked.add_argument("--peers-python", default=str(beside) if beside.exists() else sys.executable)
    asked.add_argument("--check", action="store_true", help="few users, no chance: accuracies must be equal")
    asked.add_argument("--limit", type=float, default=1800, help="seconds a run may take")
    given, passed = asked.parse_known_args()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    listed = [way for way in ways(given.device, cores) if way[0] in given.systems.split(",")]
    tests = int(next((a.split("=")[1] for a in passed if a.startswith("--tests=")), 2000))
    fine = True
    for setting in given.settings.split(","):
        rounds = given.rounds or ROUNDS[setting]
        common = [f"--setting={setting}", f"--rounds={rounds}", f"--device={given.device}"]
        common += [*(CHECK if given.check else []), *passed]
        results: dict[int, list[dict[str, Any]]] = {i: [] for i in range(len(listed))}
        for repeat in range(given.repeat):
            for i, (system, script, own) in enumerate(listed):
                python = given.peers_python if system in ("pfl", "flower") else sys.executable
                results[i].append(once(python, script, [*common, f"--seed={repeat}", *own], given.limit))
                print(json.dumps(results[i][-1]), file=sys.stderr, flush=True)
        print(f"\n{setting}: {rounds} timed rounds, {given.device}, {cores} cores, best of {given.repeat}")
        table(results, listed)
        fine &= agree(results, listed, tests, given.check)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
