"""What runs in NVFlare's job process at the server: the lead of one run, over NVFlare's calls.

The job names the run and holds its spec; where run folders are is the server's own business.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

from kinfolk.deploy.lead import lead
from kinfolk.deploy.observe import Endpoint, Observed
from kinfolk.errors import KinfolkError
from kinfolk.experiment.spec import parse
from kinfolk.types import Client

# Where run folders are: in the environment of the server's start script.
VARIABLE = "KINFOLK_RUNS"
# Where the run that goes on is shown to machines; 0: nowhere.
PORT = "KINFOLK_STATUS_PORT"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Lead:
    """Plays one run. Its arguments stand in the job, as NVFlare wants them: plain values."""

    def __init__(self, run: str, spec: str, sites: list[str], resume: bool = False, seconds: float = 600.0):
        self.run, self.spec, self.sites = run, spec, sites
        self.resume, self.seconds = resume, seconds

    @collab.main
    def play(self) -> str:
        """The run, from its first round or its last checkpoint to its end; why it ended."""
        folder = run_folder(self.run)
        sites = [Client(site) for site in self.sites]
        seen, port = Observed(self.run, sites), int(os.environ.get(PORT, "0"))
        with Endpoint(seen, port) if port else nullcontext():
            spec, resume, seconds = parse(self.spec), self.resume, self.seconds
            done = lead(spec, folder, Calls(), sites, resume=resume, seconds=seconds, watch=seen.watch)
        return done.reason


class Calls:
    """A carrier by NVFlare's calls: one for each site, as a call for several sends the same to all."""

    def ask(
        self, requests: Mapping[Client, bytes], seconds: float
    ) -> Iterator[tuple[Client, bytes | Exception]]:
        """As `Carrier.ask`: all are asked at once, and answers are read in order of names."""
        if (
            collab.is_aborted
        ):  # else every call fails at once, and is made again until NVFlare kills this process
            raise RunAborted("this job has been told to end")
        asked: dict[Client, Any] = {}
        for who, data in requests.items():
            try:
                asked[who] = collab.get_clients([who])(blocking=False, timeout=seconds).ask(data)
            except Exception as error:  # whatever NVFlare raises, it is about this site alone
                yield who, error
        for who, answers in asked.items():
            # A live queue: read once. A call that fails is in `failures` and raises nothing.
            for _, answer in answers:
                yield who, answer
            for failure in answers.failures.values():
                yield who, failure


def run_folder(name: str) -> Path:
    """The folder of a run on the server; its name comes from whoever has submitted the job.

    >>> run_folder("../elsewhere")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run = '../elsewhere': use letters, digits, _, - and .
    """
    if not _NAME.fullmatch(name):
        raise KinfolkError("run", name, "use letters, digits, _, - and .")
    base = os.environ.get(VARIABLE)
    if not base:
        raise KinfolkError(VARIABLE, None, "is not set where the server was started; name a folder for runs")
    return Path(base) / name
