"""Keeps a participant running: the engine's process for the server or a site, started again when it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event

from kinfolk.deploy.agent import VARIABLE as SITE
from kinfolk.deploy.agent import Agent, socket_of
from kinfolk.deploy.kits import Kit
from kinfolk.deploy.site import Site
from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation

RUNS, PORT = "KINFOLK_RUNS", "KINFOLK_STATUS_PORT"
# Seconds before a process that has ended is started again: at first, and at most.
SOON, LATE = 1.0, 60.0
# Seconds that a process has to end by itself.
GRACE = 10.0

Say = Callable[[str], None]


def join(kit: Kit, rows: Federation, stop: Event, say: Say = print) -> None:
    """Take part with these rows until `stop`: the site's own process, and the engine's beside it."""
    site = Site(kit.site, rows, kit.folder / "memory", kit.identity, trust=kit.trust)
    with Agent(site.answer, socket_of(kit.folder)) as agent:
        say(f"{kit.site} of {kit.trust.federation}: {rows.rows} rows; taking part until stopped")
        keep_running(kit.folder, {SITE: str(agent.path)}, stop, say)


def serve(kit: Path, runs: Path, stop: Event, say: Say = print, port: int = 0) -> None:
    """Serve a federation until `stop`; run folders are in `runs`, and runs are shown on `port`."""
    say(f"server {kit.name}: runs are in {runs}; serving until stopped")
    keep_running(kit, {RUNS: str(runs.absolute()), PORT: str(port)}, stop, say)


def keep_running(kit: Path, variables: Mapping[str, str], stop: Event, say: Say) -> None:
    """The engine's start script of a kit, again whenever it ends, until `stop`."""
    script = kit.absolute() / "startup" / "sub_start.sh"
    if not script.exists():
        raise KinfolkError("kit", str(kit), "has no start script; is it a kit of a server or site?")
    bash = shutil.which("bash")
    if bash is None:
        raise KinfolkError("bash", None, "is not installed; start scripts need it")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment, pause = {**os.environ, **variables, "PATH": path}, SOON
    while not stop.is_set():
        began = time.monotonic()
        with open(kit / "engine.log", "ab") as log:
            running = subprocess.Popen(
                [bash, str(script), "--once"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            while running.poll() is None and not stop.wait(0.2):
                pass
        finally:
            end(running)
        if stop.is_set():
            return
        pause = SOON if time.monotonic() - began > LATE else min(2 * pause, LATE)
        say(f"the engine's process has ended with {running.returncode}; it starts again in {pause:g} s")
        stop.wait(pause)


def end(running: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started: asked first, then killed."""
    for word, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
        try:
            os.killpg(running.pid, word)
        except ProcessLookupError:
            break
        try:
            running.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    running.wait()


def until_told() -> Event:
    """An event that SIGTERM and Ctrl-C set: what is being answered is finished first."""
    stop = Event()
    for word in (signal.SIGTERM, signal.SIGINT):
        signal.signal(word, lambda *_: stop.set())
    return stop
