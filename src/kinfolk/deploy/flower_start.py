"""What a Flower kit's start script runs: the kit's processes, each started again by itself when it ends.

At the server they are Flower's SuperLink and a worker that plays runs, which outlives a SuperLink that is
killed; at a site Flower's SuperNode and a worker that hands messages to the site's own process. Nothing else
that Flower has is started: no SuperExec, which would run whatever code comes with a run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Event

from kinfolk.deploy.flower_kits import Card
from kinfolk.errors import KinfolkError

# Tasks are taken by an interface that is not a public one.
VERSION = "1.41.0"
# Where the kit is, for the processes that this one starts.
KIT = "KINFOLK_KIT"
# The SuperNode's own door for its worker, on this machine alone; 0: any that is free.
RUNTIME = "KINFOLK_RUNTIME"
# Flower tells its makers what is started, and asks for newer versions, unless these are set.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
# A server that others are to reach listens to them; what it answers them is the gate's affair.
EVERYWHERE = "0.0.0.0"  # nosec B104
# Seconds before a process that has ended is started again: at first, and at most. All that they have to end.
SOON, LATE, GRACE = 1.0, 15.0, 6.0


def needed() -> None:
    """Refuse to start without the Flower that all this was written for."""
    try:
        found = version("flwr")
    except PackageNotFoundError as error:
        raise KinfolkError("flower", None, "is not installed; run pip install 'kinfolk[flower]'") from error
    if found != VERSION:
        raise KinfolkError("flower", found, f"is not {VERSION}; run pip install 'kinfolk[flower]'")


@dataclass
class Kept:
    """A process that is started whenever it is not there."""

    name: str
    command: list[str]
    environment: dict[str, str]
    running: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    pause: float = 0.0

    def look(self) -> None:
        """Start it if it is not there, and has not just ended."""
        now = time.monotonic()
        if self.running is not None:
            if self.running.poll() is None:
                return
            self.pause = SOON if now - self.began > LATE else min(max(2 * self.pause, SOON), LATE)
            print(
                f"{self.name} has ended with {self.running.returncode}; once more in {self.pause:g} s",
                flush=True,
            )
            self.running, self.began = None, now + self.pause
        if now >= self.began:
            self.running = subprocess.Popen(self.command, env=self.environment, stdin=subprocess.DEVNULL)
            self.began = now


def commands(card: Card, port: int) -> dict[str, list[str]]:
    """The processes of a kit, by name; `port` is that of a SuperNode's own door."""
    flower = [sys.executable, "-m", "kinfolk.deploy.flower_engine", str(os.getpid())]
    worker = [sys.executable, "-m", "kinfolk.deploy.flower_worker", str(os.getpid())]
    secret = ["--isolation", "process", "--superexec-auth-secret-file", str(card.file("superexec.secret"))]
    if card.part == "server":
        inside = card.host in ("localhost", "127.0.0.1")
        certificates = ["--ssl-ca-certfile", str(card.file("ca.crt"))]
        certificates += ["--ssl-certfile", str(card.file("server.pem"))]
        certificates += ["--ssl-keyfile", str(card.file("server.key"))]
        at = ["--host", "127.0.0.1" if inside else EVERYWHERE, "--port", str(card.port)]
        kept = ["--database", str(card.folder.absolute() / "state.db")]
        link = [*flower, "superlink", *certificates, "--enable-supernode-auth", *at, *kept, *secret]
        return {"superlink": [*link, "--disable-runtime-dependency-installation"], "worker": worker}
    if card.part == "site":
        to = ["--superlink", f"{card.host}:{card.port}", "--root-certificates", str(card.file("ca.crt"))]
        to += ["--auth-supernode-private-key", str(card.file("node.key"))]
        node = [*flower, "supernode", *to, "--host", "127.0.0.1", "--port", str(port), *secret]
        return {"supernode": node, "worker": worker}
    raise KinfolkError("kit", str(card.folder), "is an admin's; name the kit of a server or site")


def keep(card: Card, stop: Event) -> None:
    """Keep the processes of a kit running until `stop`, or until whoever has started this one is gone."""
    from kinfolk.deploy.local import free_port

    port = free_port() if card.part == "site" else card.port
    home = {"FLWR_HOME": str(card.folder.absolute() / "flwr"), KIT: str(card.folder.absolute())}
    environment = {**os.environ, **QUIET, **home, RUNTIME: str(port)}
    all_of_them = [Kept(name, command, environment) for name, command in commands(card, port).items()]
    parent = os.getppid()
    try:
        while not stop.wait(0.2) and os.getppid() == parent:
            for one in all_of_them:
                one.look()
    finally:
        _end([one.running for one in all_of_them if one.running is not None])


def _end(running: list[subprocess.Popen[bytes]]) -> None:
    for one in running:
        one.terminate()
    until = time.monotonic() + GRACE
    for one in running:
        try:
            one.wait(max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()


def main() -> None:
    """`python -m kinfolk.deploy.flower_start KIT`."""
    from kinfolk.deploy.supervise import until_told

    try:
        needed()
        keep(Card.read(Path(sys.argv[1])), until_told())
    except KinfolkError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
