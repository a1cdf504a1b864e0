"""Notices processes that are stopped or stuck: a process at work that uses no processor time has no pulse.

Where the system does not tell the time that a process has used, only the deadline counts.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

# Seconds between two looks, and how many of them may find no pulse. Looks are counted, not seconds: while
# this process is itself stopped (Ctrl-Z, a laptop that sleeps) it looks at nobody.
BEAT, MISSED = 1.0, 60


def used(pid: int) -> float | None:
    """Processor time that a process has used so far, in ticks; None where the system does not tell.

    >>> used(os.getpid()) is None or used(os.getpid()) >= 0
    True
    """
    try:
        # The name of the program, in brackets, may hold anything; what follows it are numbers.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return float(int(fields[11]) + int(fields[12]))
    except (OSError, IndexError, ValueError):
        return None


@dataclass
class _Watched:
    used: float | None
    deadline: float
    looks: int = 0
    missed: int = 0


class Heartbeat:
    """Looks at processes while they have work, and kills one without a pulse: who waits for it then hears.

    `why` says what it was killed for. A process that works for longer than `deadline` seconds on each client
    that it was given is killed too.
    """

    def __init__(
        self,
        deadline: float,
        beat: float = BEAT,
        missed: int = MISSED,
        look: Callable[[int], float | None] = used,
    ) -> None:
        self.deadline, self.beat, self.most, self.look = deadline, beat, missed, look
        self.why: dict[int, str] = {}
        self._busy: dict[int, _Watched] = {}
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kinfolk-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def begin(self, pid: int, clients: int = 1) -> None:
        """From now on this process has work for so many clients."""
        with self._lock:
            self._busy[pid] = _Watched(self.look(pid), self.deadline * max(clients, 1))

    def end(self, *pids: int) -> None:
        """They have done their work, and may rest."""
        with self._lock:
            for pid in pids:
                self._busy.pop(pid, None)

    def _watch(self) -> None:
        while not self._ended.wait(self.beat):
            with self._lock:
                for pid, seen in list(self._busy.items()):
                    why = self._judged(pid, seen)
                    if why:
                        self.why[pid] = why
                        del self._busy[pid]
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)

    def _judged(self, pid: int, seen: _Watched) -> str:
        """Why a process has to go, if it has to."""
        now = self.look(pid)
        seen.looks += 1
        seen.missed = 0 if now is None or now != seen.used else seen.missed + 1
        seen.used = now
        if seen.missed >= self.most:
            return f"used no processor time for {self.most * self.beat:g} s (stopped, or stuck)"
        if seen.looks * self.beat > seen.deadline:
            return f"worked for more than {self.deadline:g} s on a client (see engine.timeout)"
        return ""
