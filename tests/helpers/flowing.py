"""A federation over Flower in processes of its own, whose processes can be killed one by one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kinfolk.deploy.keep import Keeper
from kinfolk.deploy.kits import Project, provision
from kinfolk.deploy.local import ADMIN, free_port
from kinfolk.deploy.supervise import end
from kinfolk.experiment.record import write_text
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import dump
from kinfolk.types import Client


class Federation:
    """A server, and a site for every client of a spec."""

    def __init__(self, folder: Path, spec: Experiment, clients: tuple[Client, ...]) -> None:
        self.folder, self.clients, self.said = folder, clients, list[str]()
        project = Project(
            "trial", "localhost", free_port(), tuple(map(str, clients)), (ADMIN,), engine="flower"
        )
        self.kits = provision(project, folder / "kits")
        write_text(folder / "spec.toml", dump(spec))
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Federation:
        for name in ("localhost", *self.clients):
            self.start(name)
        return self

    def __exit__(self, *error: object) -> None:
        for one in self.running.values():
            os.killpg(one.pid, signal.SIGTERM)
        enders = [threading.Thread(target=end, args=(one,)) for one in self.running.values()]
        for one in enders:
            one.start()
        for one in enders:
            one.join()

    def start(self, name: str) -> None:
        """The server, or a site; once more if it was killed."""
        if name in self.running:
            self.running[name].wait()
        words = ["deploy", "serve", str(self.kits[name]), "--runs", str(self.folder / "runs")]
        if name != "localhost":
            words = ["site", "join", str(self.kits[name]), "--simulated", str(self.folder / "spec.toml")]
        with open(self.folder / f"{name}.log", "ab") as log:
            command = [sys.executable, "-m", "kinfolk", *words]
            self.running[name] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def play(self, spec: Experiment, run: str, watch: Callable[[], None] = lambda: None) -> Path:
        """Submit a run, and stay with it to its end."""
        Keeper(self.kits[ADMIN], spec, run, self.clients, 120.0, self.say, watch).keep()
        return self.folder / "runs" / run

    def say(self, text: str) -> None:
        """Keep what is told, and show it if the test fails."""
        self.said.append(text)
        print(text, flush=True)

    def kill(self, name: str, word: str) -> int:
        """Kill the process of a participant with a word in its command; how many there were."""
        found = [pid for pid in _processes(self.kits[name]) if word in _command(pid)]
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return len(found)

    def wait(self, true: Callable[[], bool], seconds: float = 90.0) -> None:
        """Until something is so."""
        until = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < until, "it has not come to that"
            time.sleep(0.2)


def _processes(kit: Path) -> list[int]:
    """The processes that were started for a kit: its folder is in their command or their environment."""
    word, found = str(kit.absolute()).encode() + b"\0", list[int]()
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != os.getpid():
            try:
                told = (place / "cmdline").read_bytes() + b"\0" + (place / "environ").read_bytes()
            except OSError:
                continue
            if word in told:
                found.append(int(place.name))
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
