"""Keeps a participant running: the engine's process for the server or a site, started again when it ends."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Event
from typing import Any

from kinfolk.deploy.agent import VARIABLE as SITE
from kinfolk.deploy.agent import Agent, socket_of
from kinfolk.deploy.certificates import warning
from kinfolk.deploy.flower_kits import Card
from kinfolk.deploy.flower_submit import for_flower
from kinfolk.deploy.kits import Kit
from kinfolk.deploy.logs import VARIABLE as LOG
from kinfolk.deploy.logs import Log, log_to, logged, no_log
from kinfolk.deploy.observe import Endpoint, Page
from kinfolk.deploy.site import Site
from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation

RUNS, PORT = "KINFOLK_RUNS", "KINFOLK_STATUS_PORT"
# Seconds before a process that has ended is started again: at first, and at most.
SOON, LATE = 0.5, 60.0
# One that has ended within so many seconds cannot run, and is given more time from try to try.
SHORT = 10.0
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
    """Take part with these rows until `stop`: the site's own process, and the engine's beside it.

    Then it says goodbye, for which it waits `farewell` seconds, so that nobody waits for it.
    """
    if told := warning(kit.folder, kit.site):
        say(told)
    site = Site(kit.site, rows, kit.folder / "memory", kit.identity, trust=kit.trust)
    (kit.folder / LEAVE).unlink(missing_ok=True)

    def leave() -> None:
        say(f"{kit.site} leaves")
        heard = site.leave(farewell)
        log("leaving", heard=heard)
        time.sleep(CARRIED if heard and site.begun else 0)

    with Agent(logged(site.answer, log), socket_of(kit.folder), site.refusal) as agent:
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
    free(served_port(kit), "server")
    for own in filter(None, (port, health_port)):
        free(own, "status")
    if told := warning(kit):
        say(told)
    say(f"server {kit.name}: runs are in {runs}; serving until stopped")
    log, up = log_to(log_file), Event()
    logs = {LOG: str(log_file.absolute())} if log_file else {}

    def heard(event: str, **facts: Any) -> None:
        if event in ("engine started", "engine ended"):
            (up.set if event == "engine started" else up.clear)()
        log(event, **facts)

    pages: dict[str, Page] = {"/health": lambda: ("text/plain", "ok\n" if up.is_set() else "")}
    with Endpoint(None, health_port, given=pages) if health_port else nullcontext():
        keep_running(kit, {RUNS: str(runs.absolute()), PORT: str(port), **logs}, stop, say, heard)
    log("stopped")


def keep_running(
    kit: Path,
    variables: Mapping[str, str],
    stop: Event,
    say: Say,
    log: Log = no_log,
    last: Callable[[], None] = lambda: None,
) -> None:
    """The engine's start script of a kit, again whenever it ends, until `stop`; `last` comes before."""
    script = kit.absolute() / "startup" / "sub_start.sh"
    if not script.exists():
        raise KinfolkError("kit", str(kit), "has no start script; is it a kit of a server or site?")
    bash = shutil.which("bash")
    if bash is None:
        raise KinfolkError("bash", None, "is not installed; start scripts need it")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment, pause = {**os.environ, **variables, "PATH": path}, SOON
    with _alone(kit):
        while not stop.is_set():
            began = time.monotonic()
            code = _once([bash, str(script), "--once"], kit, environment, stop, log, last)
            if not stop.is_set():
                pause = SOON if time.monotonic() - began > SHORT else min(2 * pause, LATE)
                log("engine ended", code=code)
                say(f"the engine's process has ended with {code}; it starts again in {pause:g} s")
                stop.wait(pause)


def _once(
    command: Sequence[str],
    kit: Path,
    environment: Mapping[str, str],
    stop: Event,
    log: Log,
    last: Callable[[], None],
) -> int:
    """Run NVFlare's process until it ends or `stop`; nothing of it is left, nor of one before."""
    end_leftovers(kit)
    with open(kit / "engine.log", "ab") as engine_log:
        running = subprocess.Popen(
            command,
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
        end_leftovers(kit)
    return running.returncode


@contextmanager
def _alone(kit: Path) -> Iterator[None]:
    """Hold a kit's lock: of two that run it, each would end the other's processes as leftovers."""
    with open(kit / ".running", "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise KinfolkError("kit", str(kit), "is running already; stop it first") from error
        yield


def served_port(kit: Path) -> int:
    """The port on which the server of a kit is reached."""
    if for_flower(kit):
        return Card.read(kit).port
    path = kit / "startup" / "fed_server.json"
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return int(str(told["servers"][0]["service"]["target"]).rpartition(":")[2])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise KinfolkError("kit", str(kit), "is no kit of a server; name the folder of the server") from error


def free(port: int, what: str) -> None:
    """Refuse a port that somebody has: the engine would try again and again, and say so in its log alone."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError as error:
            remedy = f"is in use on this machine; stop what has it, or give the {what} another"
            raise KinfolkError("port", port, remedy) from error


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


def end_all(running: Iterable[subprocess.Popen[bytes]]) -> None:
    """End several, which all hear of it before anybody is waited for."""
    waiting = list(running)
    for one in waiting:
        with suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGTERM)
    for one in waiting:
        end(one)


def end_leftovers(kit: Path) -> None:
    """Kill what runs for a kit although its supervisor or its parent was killed."""
    for pid in processes_of(kit):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def processes_of(kit: Path) -> dict[int, str]:
    """NVFlare's processes for a kit, and the module that each runs.

    NVFlare gives every job a session of its own, so that a signal to a group does not reach it.
    """
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            words = os.fsdecode((process / "cmdline").read_bytes()).split("\0")
            module = next((word for word in words if word.startswith("nvflare.")), "")
            if module and str(kit.absolute()) in words:
                found[int(process.name)] = module
    return found


def until_told() -> Event:
    """An event that SIGTERM and Ctrl-C set: what is being answered is finished first."""
    stop = Event()
    for word in (signal.SIGTERM, signal.SIGINT):
        signal.signal(word, lambda *_: stop.set())
    return stop
