"""A whole deployment on one machine: real certificates, real processes, one run; for trials and tests."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kinfolk.deploy.kits import Project, provision
from kinfolk.deploy.submit import connected, session, submit
from kinfolk.deploy.supervise import Say, end
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import write_text
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import dump
from kinfolk.federation.sources import build
from kinfolk.streams import Seed

ADMIN = "lead@trial.org"
RUN = "run"
# Seconds until everybody must be up, on a machine with one core per site or fewer.
PATIENCE = 240.0


def local(spec: Experiment, folder: Path, seconds: float, say: Say = print) -> Path:
    """Deploy a spec over as many sites as it has clients; the run's folder."""
    names = build(spec.data, Seed(spec.run.seed)).clients
    project = Project("trial", "localhost", free_port(), tuple(map(str, names)), (ADMIN,))
    say(f"1/4 kits for a server and {len(names)} sites")
    kits, runs = provision(project, folder / "kits"), folder / "runs"
    write_text(folder / "spec.toml", dump(spec))
    say("2/4 server and sites start, each in processes of its own")
    with ExitStack() as stack:
        started = {
            "server": _started(stack, folder, "deploy", "serve", str(kits["localhost"]), "--runs", str(runs))
        }
        for name in names:
            rows = ("--simulated", str(folder / "spec.toml"))
            started[name] = _started(stack, folder, "site", "join", str(kits[name]), *rows)
        opened = _reached(stack, kits[ADMIN], started)
        _wait_for(opened, len(names), started)
        say("3/4 the run is submitted")
        job = submit(opened, spec, RUN, names, seconds=seconds)
        _follow(opened, job, runs / RUN, spec.run.rounds, say)
        say("4/4 done; everybody leaves")
    return runs / RUN


def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _started(stack: ExitStack, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    name = Path(words[2]).name
    with open(folder / f"{name}.log", "ab") as log:
        command = [sys.executable, "-m", "kinfolk", *words]
        running = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    stack.callback(end, running)
    return running


def _reached(stack: ExitStack, kit: Path, started: dict[str, subprocess.Popen[bytes]]) -> Any:
    until = time.monotonic() + PATIENCE
    while True:
        _check(started)
        try:
            return stack.enter_context(session(kit))
        except KinfolkError:
            if time.monotonic() > until:
                raise
            time.sleep(1)


def _wait_for(opened: Any, sites: int, started: dict[str, subprocess.Popen[bytes]]) -> None:
    until = time.monotonic() + PATIENCE
    while len(connected(opened)) < sites:
        _check(started)
        if time.monotonic() > until:
            missing = ", ".join(sorted(set(started) - {"server"} - set(connected(opened))))
            raise KinfolkError("sites", missing, "have not come; see their logs")
        time.sleep(0.5)


def _check(started: dict[str, subprocess.Popen[bytes]]) -> None:
    for name, running in started.items():
        if running.poll() is not None:
            raise KinfolkError(name, running.returncode, "has ended before the run; see its log")


def _follow(opened: Any, job: str, run: Path, rounds: int, say: Say) -> None:
    """Tell how far the run is, until its job has ended."""
    told = -1
    while True:
        status = str(opened.get_job_meta(job).get("status", ""))
        done = _rounds(run)
        if done != told:
            say(f"    round {done} of {rounds}")
            told = done
        if status.startswith("FINISHED"):
            if status != "FINISHED:COMPLETED" or _status(run) not in ("finished", "diverged"):
                raise KinfolkError("run", str(run), f"has failed ({status}); see the server's log")
            return
        time.sleep(0.5)


def _rounds(run: Path) -> int:
    try:
        return max(len((run / "rounds.jsonl").read_text().splitlines()) - 1, 0)
    except OSError:
        return 0


def _status(run: Path) -> str:
    try:
        return str(json.loads((run / "run.json").read_text())["status"])
    except (OSError, ValueError, KeyError):
        return ""
