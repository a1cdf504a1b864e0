"""Keeps a participant running: NVFlare's process for the server or a site, started again when it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from typing import Any

from kinfolk.deploy.agent import VARIABLE as SITE
from kinfolk.deploy.agent import Agent, socket_of
from kinfolk.deploy.kits import Kit
from kinfolk.deploy.logs import VARIABLE as LOG
from kinfolk.deploy.logs import Log, log_to, logged, no_log
from kinfolk.deploy.observe import Endpoint, Page
from kinfolk.deploy.site import Site
from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation

RUNS, PORT = "KINFOLK_RUNS", "KINFOLK_STATUS_PORT"
# Seconds before a process that has ended is started again: at first, and at most.
SOON, LATE = 1.0, 60.0
# Seconds that a process has to end by itself.
GRACE = 10.0

# Seconds that a site waits for the lead to hear its goodbye, and after it until the engine has carried it.
FAREWELL, CARRIED = 30.0, 2.0
# In a kit's folder: asks its process to leave (`kinfolk site leave`).
LEAVE = "leave"

Say = Callable[[str], None]


def join(
    kit: Kit,
    rows: Federation,
    stop: Event,
    say: Say = print,
    farewell: float = FAREWELL,
    log: Log = no_log,
) -> None:
    """Take part with these rows until `stop`: the site's own process, and NVFlare's beside it.

    Then it says goodbye, for which it waits `farewell` seconds, so that nobody waits for it.
    """
    site = Site(kit.site, rows, kit.folder / "memory", kit.identity, trust=kit.trust)
    (kit.folder / LEAVE).unlink(missing_ok=True)

    def leave() -> None:
        say(f"{kit.site} leaves")
        heard = site.leave(farewell)
        log("leaving", heard=heard)
        time.sleep(CARRIED if heard and site.begun else 0)

    with Agent(logged(site.answer, log), socket_of(kit.folder)) as agent:
        say(f"{kit.site} of {kit.trust.federation}: {rows.rows} rows; taking part until stopped")
        log("joined", site=kit.site)
        keep_running(kit.folder, {SITE: str(agent.path)}, stop, say, log, leave)
    (kit.folder / LEAVE).unlink(missing_ok=True)
    log("left", site=kit.site)


def leave(kit: Path, seconds: float) -> None:
    """Ask the site of a kit to say goodbye and end, and wait until it has."""
    door, until = socket_of(kit), time.monotonic() + seconds
    if not door.exists():
        raise KinfolkError("kit", str(kit), "its site is not running here; nothing to leave")
    (kit / LEAVE).touch()
    while door.exists():
        if time.monotonic() > until:
            remedy = f"the site has not ended within {seconds:g} s: it finishes what it was asked first"
            raise KinfolkError("kit", str(kit), remedy)
        time.sleep(0.1)


def serve(
    kit: Path,
    runs: Path,
    stop: Event,
    say: Say = print,
    port: int = 0,
    log_file: Path | None = None,
    health_port: int = 0,
) -> None:
    """Serve a federation until `stop`; run folders are in `runs`, and runs are shown on `port`.

    What happens is written to `log_file`, by the lead of a run as well. On `health_port` /health says whether
    the engine is up, also between runs.
    """
    say(f"server {kit.name}: runs are in {runs}; serving until stopped")
    log, up = log_to(log_file), Event()
    told = {LOG: str(log_file.absolute())} if log_file else {}

    def heard(event: str, **facts: Any) -> None:
        if event in ("engine started", "engine ended"):
            (up.set if event == "engine started" else up.clear)()
        log(event, **facts)

    pages: dict[str, Page] = {"/health": lambda: ("text/plain", "ok\n" if up.is_set() else "")}
    with Endpoint(None, health_port, given=pages) if health_port else nullcontext():
        keep_running(kit, {RUNS: str(runs.absolute()), PORT: str(port), **told}, stop, say, heard)
    log("stopped")


def keep_running(
    kit: Path,
    variables: Mapping[str, str],
    stop: Event,
    say: Say,
    log: Log = no_log,
    last: Callable[[], None] = lambda: None,
) -> None:
    """NVFlare's start script of a kit, again whenever it ends, until `stop`; before it is ended, `last`."""
    script = kit.absolute() / "startup" / "sub_start.sh"
    if not script.exists():
        raise KinfolkError("kit", str(kit), "has no start script; is it a kit of a server or site?")
    bash = shutil.which("bash")
    if bash is None:
        raise KinfolkError("bash", None, "is not installed; NVFlare's start scripts need it")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment, pause = {**os.environ, **variables, "PATH": path}, SOON
    while not stop.is_set():
        began = time.monotonic()
        with open(kit / "engine.log", "ab") as engine_log:
            running = subprocess.Popen(
                [bash, str(script), "--once"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=engine_log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        log("engine started")
        try:
            while running.poll() is None and not stop.wait(0.2):
                if (kit / LEAVE).exists():
                    stop.set()
            if stop.is_set():
                last()
        finally:
            end(running)
        if stop.is_set():
            return
        pause = SOON if time.monotonic() - began > LATE else min(2 * pause, LATE)
        log("engine ended", code=running.returncode)
        say(f"NVFlare's process has ended with {running.returncode}; it starts again in {pause:g} s")
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
