"""One run in a process of its own that something befalls: a kill, a stop, a signal, a full disk, no memory.

Everything is imported once, and each attempt is forked. A fault comes at a moment that is drawn: at some
fraction of the time that the undisturbed run took, or just before the n-th time that it touches its folder.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from killing import arm

from kinfolk.__main__ import main as command_line
from kinfolk.engines import workers
from kinfolk.engines.heartbeat import Heartbeat

# Seconds after which an attempt hangs, which is a finding.
HANGS = 240
RANKS = 2
# Seconds that torchrun leaves to ranks after SIGTERM.
GRACE = 30


@dataclass(frozen=True)
class Fault:
    """What happens, to whom ("run", or one of its helpers: a worker, a rank), and when."""

    kind: str  # "", "kill", "touch", "stop", "term", "disk", "file", "memory"
    helper: bool = False
    moment: float = 0.0  # of the seconds that the undisturbed run took; of its touches; of its bytes
    size: float = 1.0  # what 1.0 of the moment is

    @property
    def kills(self) -> bool:
        """Whether it is a SIGKILL."""
        return self.kind in ("kill", "touch")

    def __str__(self) -> str:
        return f"{self.kind}{' of a helper' if self.helper else ''} at {self.moment * self.size:.3g}"


@dataclass(frozen=True)
class End:
    """How an attempt ended: its exit code (negative: the signal), what it said, and whether it was hit."""

    code: int
    said: str
    seconds: float
    touches: int  # of its folder
    hit: bool


def attempt(words: Sequence[str], room: Path, folder: Path, fault: Fault, distributed: bool) -> End:
    """The command line on these words, in a child of this process that is befallen."""
    room.mkdir(parents=True, exist_ok=True)
    for old in room.glob("err*"):
        old.unlink()
    before = time.monotonic()
    child = os.fork()
    if child == 0:
        _become(words, room, folder, fault, distributed)
    hit = _befall(child, fault, distributed)
    code = _wait(child, before)
    said = "".join(path.read_text() for path in sorted(room.glob("err*")))
    if fault.kind in ("touch", "disk", "file", "memory"):
        hit = code != 0
    touches = room / "touches"
    count = int(touches.read_text()) if touches.exists() else 0
    return End(code, said, time.monotonic() - before, count, hit)


def _become(words: Sequence[str], room: Path, folder: Path, fault: Fault, distributed: bool) -> None:
    """In the child: the limits, and then the command line. Never returns."""
    os.setsid()
    os.chdir(room)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    # A helper that is stopped is noticed after three seconds, not after a minute.
    workers.Heartbeat = partial(Heartbeat, beat=0.05, missed=60)  # type: ignore[misc]
    most = int(fault.moment * fault.size) if fault.kind == "touch" else 1 << 60
    left = arm(folder, most)
    if fault.kind == "memory":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + int(fault.moment * fault.size),) * 2)
    if fault.kind == "file":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(fault.moment * fault.size),) * 2)

    def work() -> None:
        sys.argv = ["kinfolk", *words]
        command_line()

    code = launch(work, room) if distributed else ended(work)
    Path("touches").write_text(str(most - left[0]))
    os._exit(code)


def ended(work: Callable[[], None]) -> int:
    """The exit code that a program which does this work would have."""
    try:
        work()
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stderr.flush()


def launch(work: Callable[[], None], room: Path) -> int:
    """Ranks that do this work, as torchrun starts them: one fails, the others get SIGTERM, then SIGKILL."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.getsockname()[1])}
    os.environ |= {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": str(RANKS)}
    children = set()
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            os.dup2(os.open(room / f"err.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            os._exit(ended(work))
        children.add(child)
    worst = 0
    while children:
        child, status = os.wait()
        children.remove(child)
        worst = max(worst, abs(os.waitstatus_to_exitcode(status)))
        if worst and children:
            for other in children:
                _signal(other, signal.SIGTERM)
            until = time.monotonic() + GRACE
            while time.monotonic() < until and any(map(_runs, children)):
                time.sleep(0.01)
            for other in children:
                _signal(other, signal.SIGKILL)
    return worst


def _befall(child: int, fault: Fault, distributed: bool) -> bool:
    """Do to the child what is to be done from outside; whether it was there still."""
    if fault.kind not in ("kill", "stop", "term"):
        return False
    until = time.monotonic() + fault.moment * fault.size
    while time.monotonic() < until and _runs(child):
        time.sleep(0.002)
    whom = helpers(child)[-1:] if fault.helper else [child]
    if not whom or not _runs(child):
        return False
    if fault.kind == "term" and distributed:
        whom = helpers(child)  # a launcher passes it on
    for one in whom:
        _signal(one, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}[fault.kind])
    if fault.kind == "stop" and not (fault.helper and not distributed):
        time.sleep(0.3)
        _signal(whom[0], signal.SIGCONT)  # a worker that is stopped is not let go on: it must be noticed
    return True


def _wait(child: int, since: float) -> int:
    """The exit code of the child, and nobody of its session left; 124 if it had to be ended."""
    code = None
    while code is None and time.monotonic() < since + HANGS:
        done, status = os.waitpid(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if done else None
        time.sleep(0.002)
    # Who outlives the run, as ranks do whose launcher was killed, lets go of the folder soon.
    while _session(child) and time.monotonic() < since + HANGS:
        time.sleep(0.01)
    left = _session(child)
    for one in left:
        _signal(one, signal.SIGKILL)
    if code is None:
        os.waitpid(child, 0)
    return 124 if code is None or left else code


def _runs(child: int) -> bool:
    """Whether it has not ended; it is not waited for here."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def helpers(parent: int) -> list[int]:
    """The children of a process."""
    try:
        return [int(word) for word in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:
        return []


def _session(leader: int) -> list[int]:
    """Who is alive of a session."""
    found = subprocess.run(["ps", "-o", "pid=,stat=", "--sid", str(leader)], capture_output=True, text=True)
    rows = [line.split() for line in found.stdout.splitlines()]
    return [int(pid) for pid, state in rows if not state.startswith("Z") and int(pid) != leader]
