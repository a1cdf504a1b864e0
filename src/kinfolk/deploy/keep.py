"""Keeps a run going over NVFlare, which by itself goes on with nothing: what is lost is submitted again.

A job of NVFlare 2.9 ends when one of its processes is killed, is listed as running for ever when the server
was killed, and never takes back a site whose process was. Our checkpoints and the sites' own memories outlive
all three: the run goes on from its last checkpoint, in another job, to the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinfolk.deploy.submit import connected, session, submit
from kinfolk.errors import KinfolkError
from kinfolk.experiment.sections import Experiment
from kinfolk.types import Client

# Seconds between two looks; that a job has until all its sites must be in it; that one may then be missing.
LOOK, START, MISSING = 1.0, 60.0, 15.0
# Jobs in a row that end within SHORT seconds: what fails at once fails again.
SHORT, MOST = 60.0, 3
# Seconds that the server may be out of reach.
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
    watch: Callable[[], None] = lambda: None  # called at every look
    jobs: list[str] = field(default_factory=list)

    def keep(self, resume: bool = False) -> None:
        """Submit, and submit again, until the run has ended by itself."""
        short = 0
        while True:
            began = time.monotonic()
            self._everybody()
            self.jobs.append(self._asked(self._submitted, bool(self.jobs) or resume))
            self.say(f"job {len(self.jobs)}: {self.jobs[-1]}")
            why = self._until_it_ends(self.jobs[-1])
            if not why:
                return
            short = short + 1 if time.monotonic() - began < SHORT else 0
            if short >= MOST:
                remedy = f"{MOST} jobs in a row have ended at once ({why}); see the log of the server"
                raise KinfolkError("run", self.run, remedy)
            self.say(f"{why}: the run goes on from its last checkpoint")

    def _submitted(self, opened: Any, resume: bool) -> str:
        return submit(opened, self.spec, self.run, self.sites, resume, self.seconds)

    def _everybody(self) -> None:
        """Wait until all sites are connected."""
        until, told = time.monotonic() + PATIENCE, ""
        while missing := sorted(set(self.sites) - set(self._asked(connected))):
            if told != (told := ", ".join(missing)):
                self.say(f"waiting for {told}")
            if time.monotonic() > until:
                raise KinfolkError("sites", told, "have not come; start them, then resume")
            self._pause()

    def _until_it_ends(self, job: str) -> str:
        """Empty when the job is done; else why it has to be submitted again."""
        began, since = time.monotonic(), dict[Client, float]()
        while True:
            status = str(self._asked(lambda opened: opened.get_job_meta(job)).get("status", ""))
            if status == "FINISHED:COMPLETED":
                return ""
            if status.startswith("FINISHED"):
                return f"its job has ended as {status.partition(':')[2]}"
            now = time.monotonic()
            missing = set(self.sites) - self._asked(lambda opened: taking_part(opened, job))
            since = {who: since.get(who, now) for who in missing}
            gone = sorted(who for who, first in since.items() if now - first > MISSING)
            back = set(gone) & set(self._asked(connected))
            # A site that is not even connected is waited for: without it the run goes on.
            if now - began > START and (back or len(missing) == len(self.sites)):
                self._abort(job)
                return f"{', '.join(sorted(back)) or 'nobody'} is in its job no more and back again"
            self._pause()

    def _abort(self, job: str) -> None:
        # Once: what a server that was started anew still lists as running it refuses to end.
        with suppress(Exception), session(self.kit) as opened:
            opened.abort_job(job)
        time.sleep(LOOK)

    def _pause(self) -> None:
        self.watch()
        time.sleep(LOOK)

    def _asked(self, what: Callable[..., Any], *given: Any) -> Any:
        """An answer of the server, in a session of its own: it may have been started anew meanwhile."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with ExitStack() as stack:
                    return what(stack.enter_context(session(self.kit)), *given)
            except Exception as error:
                if time.monotonic() > until:
                    raise
                self.say(f"the server does not answer ({type(error).__name__}); trying again")
                self._pause()


def taking_part(opened: Any, job: str) -> set[Client]:
    """The sites that have a process for a job."""
    told = opened.get_client_job_status() or []
    return {Client(one["client_name"]) for one in told if str(one.get("job_id")) == job}
