"""A whole deployment on one machine: real certificates, real processes, one run; for trials and tests."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kinfolk.deploy.flower_start import needed
from kinfolk.deploy.keep import Keeper
from kinfolk.deploy.kits import ENGINES, Project, provision
from kinfolk.deploy.supervise import Say, end_all
from kinfolk.errors import KinfolkError, near
from kinfolk.experiment.record import write_text
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import dump
from kinfolk.federation.sources import build
from kinfolk.streams import Seed
from kinfolk.types import Client

ADMIN = "lead@trial.org"
RUN = "run"
# How a run can have ended, as its folder says.
ENDED = ("finished", "diverged")
# Seconds that a server has to be there.
UP = 120.0


def local(spec: Experiment, folder: Path, seconds: float, say: Say = print, engine: str = "nvflare") -> Path:
    """Deploy a spec over as many sites as it has clients; the run's folder."""
    if engine not in ENGINES:
        raise KinfolkError("engine", engine, near(engine, ENGINES))
    if engine == "flower":
        needed()
    names = build(spec.data, Seed(spec.run.seed)).clients
    say(f"1/4 kits for a server and {len(names)} sites; 2/4 all start, each in processes of its own")
    with trial(spec, names, folder, say, engine) as opened:
        say("3/4 the run is submitted")
        found = opened.play(spec, RUN, seconds)
        say("4/4 done; everybody leaves")
    return found


@dataclass
class Trial:
    """A federation on this machine that has been started."""

    folder: Path
    sites: Sequence[Client]
    started: dict[str, subprocess.Popen[bytes]]
    say: Say

    @property
    def kit(self) -> Path:
        """Of the person who submits runs."""
        return self.folder / "kits" / ADMIN

    def play(self, spec: Experiment, name: str, seconds: float = 600.0) -> Path:
        """One run from its first round to its end, whatever dies on the way; its folder."""
        found = self.folder / "runs" / name
        shown = _Shown(found, spec.run.rounds, self)
        Keeper(self.kit, spec, name, self.sites, seconds, self.say, shown.look).keep()
        shown.look()
        if _status(found) not in ENDED:
            raise KinfolkError("run", str(found), "has ended without an end; see the log of the server")
        return found

    def check(self) -> None:
        """An error names the first process that has ended before its time."""
        for name, running in self.started.items():
            if running.poll() is not None:
                raise KinfolkError(name, running.returncode, "has ended before the run; see its log")


@contextmanager
def trial(
    spec: Experiment, names: Sequence[Client], folder: Path, say: Say = print, engine: str = "nvflare"
) -> Iterator[Trial]:
    """A server and sites with the rows of a spec, in processes that end with the block."""
    project = Project("trial", "localhost", free_port(), tuple(map(str, names)), (ADMIN,), engine=engine)
    kits = provision(project, folder / "kits")
    write_text(folder / "spec.toml", dump(spec))
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        words: list[tuple[str, ...]] = [
            ("deploy", "serve", str(kits["localhost"]), "--runs", str(folder / "runs"))
        ]
        # Whoever ends a trial waits for no goodbye.
        rows = ("--simulated", str(folder / "spec.toml"), "--farewell", "0")
        words += [("site", "join", str(kits[name]), *rows) for name in names]
        for one in words:
            started[Path(one[2]).name] = _started(folder, one)
        opened = Trial(folder, names, started, say)
        _wait_for(project.port, opened)
        yield opened
    finally:
        end_all(started.values())


def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _started(folder: Path, words: Sequence[str]) -> subprocess.Popen[bytes]:
    """A command of ours, in a session of its own; it writes to a log named after its kit."""
    name = Path(words[2]).name
    with open(folder / f"{name}.log", "ab") as log:
        command = [sys.executable, "-m", "kinfolk", *words]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def _wait_for(port: int, opened: Trial) -> None:
    """Until the server listens. To try a session before costs the 10 s that NVFlare tries it for."""
    until = time.monotonic() + UP
    while time.monotonic() < until:
        opened.check()
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            time.sleep(0.2)


class _Shown:
    """Tells of every new round, and ends everything when one of the processes has ended."""

    def __init__(self, run: Path, rounds: int, opened: Trial) -> None:
        self.run, self.rounds, self.opened = run, rounds, opened
        self.told = 0

    def look(self) -> bool:
        """Look once; whether the run has ended: NVFlare says so 10 s later."""
        done = _rounds(self.run)
        if done != self.told:
            self.opened.say(f"    round {done} of {self.rounds}")
            self.told = done
        self.opened.check()
        return _status(self.run) in ENDED


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
