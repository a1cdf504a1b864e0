"""Sites that connect while a run goes on without them: each is given a model of it, by a job of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kinfolk.deploy.submit import connected, session, submit
from kinfolk.deploy.supervise import Say
from kinfolk.errors import KinfolkError
from kinfolk.types import Client

# Seconds between two looks, and jobs for one site: what fails three times is for a person to see.
LOOK, MOST = 10.0, 3


class Arrivals:
    """Whoever comes later to a run; `look` is called now and then."""

    def __init__(
        self, kit: Path, run: str, sites: Sequence[Client], seconds: float, say: Say = print
    ) -> None:
        self.kit, self.run, self.sites, self.seconds, self.say = kit, run, set(sites), seconds, say
        self._jobs: dict[Client, list[str]] = {}
        self._done: set[Client] = set()
        self._last = time.monotonic()

    def look(self) -> None:
        """See who is new, unless the last look was just now; a server that does not answer is asked later."""
        if time.monotonic() - self._last < LOOK:
            return
        self._last = time.monotonic()
        with suppress(KinfolkError), session(self.kit) as opened:
            for who in sorted(set(connected(opened)) - self.sites - self._done):
                jobs = self._jobs.setdefault(who, [])
                state = str(opened.get_job_meta(jobs[-1]).get("status", "")) if jobs else "FINISHED"
                if state == "FINISHED:COMPLETED":
                    self._done.add(who)
                    self.say(f"{who} has come later and has a model of {self.run}")
                elif state.startswith("FINISHED") and len(jobs) < MOST:
                    jobs.append(submit(opened, None, self.run, [who], False, self.seconds, newcomers=True))
                elif state.startswith("FINISHED"):
                    self._done.add(who)
                    self.say(f"{who} has come later and has no model; see the log of the server")
