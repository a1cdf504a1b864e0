"""What a round costs over NVFlare, beside what NVFlare takes for as many bytes, measured in the same job.

build/deploy/bin/python benchmarks/deploy.py --sites 1 2 4 8
build/deploy/bin/python benchmarks/deploy.py --sites 1 2 4 8 --features 31000 --rounds 6
build/deploy/bin/python benchmarks/deploy.py --methods slfed --rounds 6
build/deploy/bin/python benchmarks/deploy.py --fit costs.jsonl   (the first two with --json costs.jsonl)

A server and as many sites as the largest number, with certificates and real processes, on the loopback of
this machine. Local training is tiny; what `loop` needs for a whole round stands beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

import kinfolk.deploy.kits as kits
from echo_job import model_bytes
from kinfolk.deploy.local import Trial, trial
from kinfolk.deploy.submit import session, write_job
from kinfolk.deploy.supervise import processes_of
from kinfolk.experiment.record import read_rounds
from kinfolk.experiment.run import run
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import parse
from kinfolk.federation.sources import build
from kinfolk.streams import Seed
from kinfolk.types import Client

OURS = {
    "kinfolk.deploy.nvflare_site.Pipe": "echo_job.EchoPipe",
    "kinfolk.deploy.nvflare_lead.Lead": "echo_job.EchoLead",
}
LONGEST = 600.0


def spec_of(method: str, sites: int, features: int, rounds: int, scored: bool) -> Experiment:
    """One step of twenty rows at every site."""
    name, *options = method.split(",")
    given = "\n".join(option.replace("=", " = ") for option in options)
    return parse(
        f"""
        [data]
        name = "gaussians"
        features = {features}
        clients = {sites}
        rows = 20
        test_rows = 20
        shift = "none"
        [algorithm]
        name = "{name}"
        {given}
        [local]
        steps = 1
        [run]
        rounds = {rounds}
        evaluate_every = {1 if scored else rounds}
        pictures = "none"
        [engine]
        name = "loop"
        device = "cpu"
        """
    )


def submitted(
    opened: Trial, spec: Experiment, name: str, sites: list[Client], folder: Path
) -> dict[str, Any]:
    """One job with echoes and a run; what it has noted."""
    job = write_job(folder, spec, name, sites, False, 120.0)
    for config in job.rglob("config_fed_*.json"):
        text = config.read_text()
        for usual, ours in OURS.items():
            text = text.replace(usual, ours)
        config.write_text(text)
    with session(opened.kit) as person:
        person.submit_job(str(job))
    until, noted = time.monotonic() + LONGEST, opened.folder / "runs" / name / "costs.json"
    while not noted.exists():
        opened.check()
        if time.monotonic() > until:
            raise TimeoutError(f"{name} has not ended within {LONGEST:g} s")
        time.sleep(0.5)
    time.sleep(0.5)
    return dict(json.loads(noted.read_text()))


def row(opened: Trial, method: str, sites: int, given: argparse.Namespace, scored: bool) -> dict[str, Any]:
    """The measured costs of one method over so many sites."""
    spec = spec_of(method, sites, given.features, given.rounds, scored)
    name = f"{method.partition(',')[0]}-{sites}-{'scored' if scored else 'plain'}"
    with tempfile.TemporaryDirectory() as folder:
        loop = run(spec, Path(folder) / "loop")
        alone = [sum(one["seconds"].values()) for one in read_rounds(loop.folder) if "seconds" in one]
        told = submitted(opened, spec, name, list(opened.sites[:sites]), Path(folder))
    rounds = [
        b - a for a, b in zip(told["ends"], told["ends"][1:-1], strict=False)
    ]  # the last one has scores
    server = processes_of(opened.folder / "kits" / "localhost")
    peaks = [_peak(pid) for pid, module in server.items() if module.endswith("server_train")]
    return {
        "method": method,
        "sites": sites,
        "scores": scored,
        "bytes": told["size"],
        "echo": statistics.median(told["echoes"]),
        "round": statistics.median(rounds),
        "loop": statistics.median(alone),
        "lead_mib": told["peak_mib"],
        "server_mib": max(peaks, default=0.0),
        "threads": told["threads"],
        "descriptors": told["descriptors"],
        "phases": {
            key: statistics.median([one["seconds"].get(key, 0.0) for one in told["facts"][1:]])
            for key in told["facts"][-1]["seconds"]
        },
    }


def _peak(pid: int) -> float:
    """The most memory that a process has had, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


COLUMNS = "sites  scores      MB   echo s  round s  ratio  loop s  lead MiB  server MiB"
HEAD = f"{'method':<22} {COLUMNS}"


def line(one: dict[str, Any]) -> str:
    """A row of the table."""
    scores = "yes" if one["scores"] else "no"
    counts = f"{one['sites']:>5} {scores:>7} {one['bytes'] / 1e6:>7.2f}"
    times = f"{one['echo']:>8.2f} {one['round']:>8.2f} {one['round'] / one['echo']:>6.2f} {one['loop']:>7.3f}"
    return f"{one['method']:<22} {counts} {times} {one['lead_mib']:>9.0f} {one['server_mib']:>11.0f}"


def fitted(rows: list[dict[str, Any]]) -> str:
    """A table for more sites: seconds and memory as base + each site's + each MB's, by least squares."""
    rows = [one for one in rows if one["method"] == "fedavg" and not one["scores"]]
    known = np.array([[1.0, one["sites"], one["sites"] * one["bytes"] / 1e6] for one in rows])
    if np.linalg.matrix_rank(known) < 3:
        raise SystemExit("measure several numbers of sites and two sizes of models first")
    laws = {}
    for name in ("round", "lead_mib", "server_mib"):
        # By relative errors, so that large models do not decide all; and nothing costs less than nothing.
        seen = np.array([one[name] for one in rows])
        laws[name] = nnls(known / seen[:, None], np.ones(len(seen)))[0]
    lines = [f"{name:>10} = {a:.3g} + {b:.3g} sites + {c:.3g} sites x MB" for name, (a, b, c) in laws.items()]
    lines.append("sites      MB   MB a round   seconds   lead MiB   server MiB")
    for sites in (10, 100, 1000):
        for size in (0.25, 25.0):
            seconds, lead, server = (float(law @ (1.0, sites, sites * size)) for law in laws.values())
            costs = f"{2 * sites * size:>13,.0f}{seconds:>10.1f}{lead:>11,.0f}{server:>13,.0f}"
            lines.append(f"{sites:>5}{size:>8}{costs}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--methods", nargs="+", default=["fedavg"])
    parser.add_argument("--sites", nargs="+", type=int, default=[8])
    parser.add_argument(
        "--features", type=int, default=300, help="of a row: 300 make 250 kB, 31000 make 25 MB"
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--scores", action="store_true", help="also with scores in every round")
    parser.add_argument("--json", type=Path, help="where rows are appended")
    parser.add_argument("--fit", type=Path, help="measure nothing: what such rows say of more sites")
    given = parser.parse_args()
    if given.fit:
        print(fitted([json.loads(text) for text in given.fit.read_text().splitlines()]))
        return 0
    os.environ["PYTHONPATH"] = f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    kits.ALLOWED = (*kits.ALLOWED, *OURS.values())
    most = spec_of("fedavg", max(given.sites), given.features, given.rounds, False)
    names = build(most.data, Seed(most.run.seed)).clients
    print(f"model {model_bytes(given.features) / 1e6:.2f} MB, {os.cpu_count()} cores", flush=True)
    print(HEAD, flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        trial(most, names, Path(folder), lambda text: None) as opened,
    ):
        for method in given.methods:
            for sites in given.sites:
                for scored in (False, True) if given.scores else (False,):
                    found = row(opened, method, sites, given, scored)
                    print(line(found), flush=True)
                    print("   ", {key: round(value, 3) for key, value in found["phases"].items()}, flush=True)
                    if given.json:
                        with open(given.json, "a") as file:
                            file.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
