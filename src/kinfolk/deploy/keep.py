"""Keeps a run going over NVFlare, which by itself goes on with nothing: what is lost is submitted again.

A job of NVFlare 2.9 ends when one of its processes is killed, is listed as running for ever when the server
was killed, and never takes back a site whose process was. Our checkpoints and the sites' own memories outlive
all three: the run goes on from its last checkpoint, in another job, to the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinfolk.deploy.line import Line
from kinfolk.deploy.submit import submit
from kinfolk.errors import KinfolkError
from kinfolk.experiment.sections import Experiment
from kinfolk.types import Client

# Seconds between two looks.
LOOK = 1.0
# Seconds that a site may say it has no process for a job that runs: at its start, NVFlare may list none yet;
# later, one look might have come between two lists.
START, MISSING = 10.0, 2.0
# A site that was never in a job may be slow and not lost: the next job waits twice as long, up to so many.
SLOWEST = 160.0
# Seconds that a job has to end when it was told to. The next one finds the run's folder locked until then.
ENDING = 20.0
# Jobs in a row that end by themselves within SHORT seconds: what fails at once fails again. A start takes up
# to 20 s on a busy machine.
SHORT, MOST = 30.0, 4
# Seconds that the server, or a site, may be out of reach.
PATIENCE = 600.0

Say = Callable[[str], None]


@dataclass
class Keeper:
    """One run, in as many jobs as it takes."""

    kit: Path  # of the person who submits
    spec: Experiment | None  # None: what lies in the run's folder
    run: str
    sites: Sequence[Client]
    seconds: float = 600.0
    say: Say = print
    watch: Callable[[], bool | None] = lambda: (
        None
    )  # called at every look; True: the run has ended, as seen there
    jobs: list[str] = field(default_factory=list)
    patience: float = START  # seconds that sites have to be in a job

    def keep(self, resume: bool = False) -> None:
        """Submit, and submit again, until the run has ended by itself."""
        short = 0
        with Line(self.kit, PATIENCE, self.say, self._pause) as self._line:
            while True:
                self._everybody()
                self.jobs.append(self._line.ask(self._submitted, bool(self.jobs) or resume))
                self.say(f"job {len(self.jobs)}: {self.jobs[-1]}")
                began = time.monotonic()
                ended, why = self._until_it_ends(self.jobs[-1])
                if not why:
                    return
                short = short + 1 if ended and time.monotonic() - began < SHORT else 0
                if short >= MOST:
                    remedy = f"{MOST} jobs in a row have ended at once ({why}); see the log of the server"
                    raise KinfolkError("run", self.run, remedy)
                self.say(f"{why}: the run goes on from its last checkpoint")

    def _submitted(self, opened: Any, resume: bool) -> str:
        return submit(opened, self.spec, self.run, self.sites, resume, self.seconds)

    def _everybody(self) -> None:
        """Wait until all sites answer."""
        until, told = time.monotonic() + PATIENCE, ""
        while missing := sorted(set(self.sites) - set(self._line.ask(jobs_of_sites))):
            if told != (told := ", ".join(missing)):
                self.say(f"waiting for {told}")
            if time.monotonic() > until:
                raise KinfolkError("sites", told, "have not come; start them, then resume")
            self._pause()

    def _until_it_ends(self, job: str) -> tuple[bool, str]:
        """(whether it has ended by itself, why the run is to be submitted again; empty when it is done)."""
        running: float | None = None  # since when
        absent: dict[Client, float] = {}  # since when a site says that it has no such job
        seen: set[Client] = set()  # who was in it
        server = self._line.ask(started)
        while True:
            if self._pause():
                return True, ""
            status = str(self._line.ask(lambda opened: opened.get_job_meta(job)).get("status", ""))
            if status.startswith("FINISHED"):
                how = status.partition(":")[2]
                return True, "" if how == "COMPLETED" else f"its job has ended as {how}"
            if self._line.ask(started) != server:
                return False, "the server was started anew"
            if status != "RUNNING":
                continue
            now = time.monotonic()
            running = running or now
            has = self._line.ask(jobs_of_sites)
            seen |= {who for who, jobs in has.items() if job in jobs}
            # One that does not answer may be in it yet, behind a line that is cut: it is waited for.
            without = {who for who in self.sites if who in has and job not in has[who]}
            late = now - running > self.patience
            absent = {who: absent.get(who, now) for who in without if late or who in seen}
            if lost := sorted(who for who, since in absent.items() if now - since > MISSING):
                self._abort(job)
                if not seen.issuperset(lost):
                    self.patience = min(2 * self.patience, SLOWEST)
                return False, f"{', '.join(lost)} is in its job no more"

    def _abort(self, job: str) -> None:
        with suppress(Exception):  # it may have ended meanwhile
            self._line.ask(lambda opened: opened.abort_job(job), patience=0.0)
        until = time.monotonic() + ENDING
        while time.monotonic() < until:
            if str(self._line.ask(lambda opened: opened.get_job_meta(job)).get("status", "")) != "RUNNING":
                return
            self._pause()

    def _pause(self) -> bool:
        """Wait for the next look; whether the run has ended."""
        ended = bool(self.watch())
        if not ended:
            time.sleep(LOOK)
        return ended


def started(opened: Any) -> str:
    """When the server was started, by its own clock."""
    return str(opened.get_system_info().server_info.start_time)


def jobs_of_sites(opened: Any) -> dict[Client, set[str]]:
    """The jobs that each site has a process for. A site that does not answer is left out."""
    found: dict[Client, set[str]] = {}
    for one in opened.get_client_job_status() or []:
        if one.get("status") not in ("no_reply", "error"):
            found.setdefault(Client(one["client_name"]), set()).add(str(one.get("job_id", "")))
    return found
