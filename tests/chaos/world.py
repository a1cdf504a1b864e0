"""A deployment on one machine whose processes can be killed and whose lines be cut, for chaos over NVFlare.

Where the kernel lets us, everything is in namespaces of its own: each site has a network with one line to the
server's, and no process outlives the harness. Elsewhere all are on the loopback, and no line is cut.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kinfolk.deploy.kits import Project, provision
from kinfolk.deploy.local import ADMIN, free_port
from kinfolk.deploy.supervise import end_all, end_leftovers, processes_of

# Everything of a run: its own network, mounts and processes, which end with the first of them.
APART = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
HOST, FIRST = "server.trial", "10.77.0.1"
SERVER = "server"
# Modules of NVFlare's processes.
CLIENT, SERVES = "nvflare.private.fed.app.client.client_train", "nvflare.private.fed.app.server.server_train"
SITE_JOB = "nvflare.private.fed.app.client.worker_process"
SERVER_JOB = "nvflare.private.fed.app.server.runner_process"


def apart() -> bool:
    """Whether namespaces with networks can be made here."""
    if any(shutil.which(word) is None for word in ("unshare", "ip")):
        return False
    words = "ip link add name line0 type veth peer name far netns site && ip link add name middle type bridge"
    tried = f"mount -t tmpfs tmpfs /run && ip netns add site && {words}"
    return subprocess.run([*APART, "sh", "-c", tried], capture_output=True).returncode == 0


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass
class World:
    """Server and sites, each started again whenever it is wanted."""

    folder: Path
    sites: Sequence[str]
    spec: Path  # whose rows the sites have
    lines: bool  # whether there are namespaces
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        host, port = (HOST, 8002) if self.lines else ("localhost", free_port())
        if self.lines:
            self._lay_lines()
        self.kits = provision(Project("trial", host, port, tuple(self.sites), (ADMIN,)), self.folder / "kits")
        self.kits[SERVER] = self.kits[host]
        self.admin = self.kits[ADMIN]

    def _lay_lines(self) -> None:
        """A bridge at the server, and one network with one line to it for every site."""
        hosts = self.folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{FIRST} {HOST}\n")
        subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "name", "middle", "type", "bridge")
        _ip("address", "add", f"{FIRST}/16", "dev", "middle")
        _ip("link", "set", "middle", "up")
        for number, site in enumerate(self.sites):
            _ip("netns", "add", site)
            _ip("link", "add", "name", f"line{number}", "type", "veth", "peer", "name", "far", "netns", site)
            _ip("link", "set", f"line{number}", "master", "middle", "up")
            for words in (
                ("link", "set", "lo", "up"),
                ("address", "add", f"10.77.1.{number + 1}/16", "dev", "far"),
                ("link", "set", "far", "up"),
            ):
                _ip("-n", site, *words)

    def start(self, *names: str) -> None:
        """Start the server or sites; all when none is named."""
        for name in names or (SERVER, *self.sites):
            own = ["deploy", "serve", str(self.kits[SERVER]), "--runs", str(self.folder / "runs")]
            if name != SERVER:
                own = ["site", "join", str(self.kits[name]), "--simulated", str(self.spec)]
            where = ["ip", "netns", "exec", name] if self.lines and name != SERVER else []
            with open(self.folder / f"{name}.log", "ab") as log:
                self.running[name] = subprocess.Popen(
                    [*where, sys.executable, "-m", "kinfolk", *own],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

    def kill(self, name: str, module: str = "") -> bool:
        """SIGKILL to NVFlare's processes of one module; without one, to all that a participant runs."""
        found = processes_of(self.kits[name])
        doomed = [pid for pid, its in found.items() if not module or its == module]
        if not module:
            doomed.append(self.running[name].pid)
        for pid in doomed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(doomed)

    def orphan(self, name: str) -> None:
        """SIGKILL to a participant's own process alone: NVFlare's go on without it."""
        self.running[name].kill()

    def restart(self, name: str, after: float) -> None:
        """What systemd or a person would do."""
        self.running[name].wait()
        time.sleep(after)
        self.start(name)

    def cut(self, site: str, seconds: float) -> None:
        """Nothing passes on a site's line for a while."""
        line = f"line{list(self.sites).index(site)}"
        _ip("link", "set", line, "down")
        time.sleep(seconds)
        _ip("link", "set", line, "up")

    def freeze(self, site: str, seconds: float) -> None:
        """Nothing at a site moves for a while."""
        pids = [*processes_of(self.kits[site]), self.running[site].pid]
        for word, pause in ((signal.SIGSTOP, seconds), (signal.SIGCONT, 0.0)):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, word)
            time.sleep(pause)

    def close(self) -> None:
        """End everything."""
        end_all(self.running.values())
        for name in (SERVER, *self.sites):
            end_leftovers(self.kits[name])
