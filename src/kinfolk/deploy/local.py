"""A whole deployment on one machine: real certificates, real processes, one run; for trials and tests."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from kinfolk.deploy.flower_start import needed
from kinfolk.deploy.keep import Keeper
from kinfolk.deploy.kits import ENGINES, Project, provision
from kinfolk.deploy.supervise import Say, end
from kinfolk.errors import KinfolkError, near
from kinfolk.experiment.record import write_text
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import dump
from kinfolk.federation.sources import build
from kinfolk.streams import Seed

ADMIN = "lead@trial.org"
RUN = "run"


def local(spec: Experiment, folder: Path, seconds: float, say: Say = print, engine: str = "nvflare") -> Path:
    """Deploy a spec over as many sites as it has clients; the run's folder."""
    if engine not in ENGINES:
        raise KinfolkError("engine", engine, near(engine, ENGINES))
    if engine == "flower":
        needed()
    names = build(spec.data, Seed(spec.run.seed)).clients
    project = Project("trial", "localhost", free_port(), tuple(map(str, names)), (ADMIN,), engine)
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
        say("3/4 the run is submitted")
        shown = _Shown(runs / RUN, spec.run.rounds, started, say)
        Keeper(kits[ADMIN], spec, RUN, names, seconds, say, shown.look).keep()
        shown.look()
        if _status(runs / RUN) not in ("finished", "diverged"):
            raise KinfolkError("run", str(runs / RUN), "has ended without an end; see the log of the server")
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


class _Shown:
    """Tells of every new round, and ends everything when one of the processes has ended."""

    def __init__(self, run: Path, rounds: int, started: dict[str, subprocess.Popen[bytes]], say: Say) -> None:
        self.run, self.rounds, self.started, self.say = run, rounds, started, say
        self.told = 0

    def look(self) -> None:
        """Look once."""
        done = _rounds(self.run)
        if done != self.told:
            self.say(f"    round {done} of {self.rounds}")
            self.told = done
        for name, running in self.started.items():
            if running.poll() is not None:
                raise KinfolkError(name, running.returncode, "has ended before the run; see its log")


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
