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

from kinfolk.deploy.control import TOPIC, Control
from kinfolk.deploy.lead import lead
from kinfolk.deploy.logs import VARIABLE as LOG
from kinfolk.deploy.logs import events, log_to
from kinfolk.deploy.newcomers import welcome
from kinfolk.deploy.observe import Endpoint, Observed
from kinfolk.errors import KinfolkError
from kinfolk.experiment.spec import load, parse
from kinfolk.experiment.stopping import Stopped
from kinfolk.types import Client

# Where run folders are: in the environment of the server's start script.
VARIABLE = "KINFOLK_RUNS"
# Where the run that goes on is shown to machines; 0: nowhere.
PORT = "KINFOLK_STATUS_PORT"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Lead:
    """Plays one run. Its arguments stand in the job, as NVFlare wants them: plain values.

    Without a spec it is that of the run's folder; with `newcomers` its sites get a model of the run, no more.
    """

    def __init__(
        self,
        run: str,
        spec: str,
        sites: list[str],
        resume: bool = False,
        seconds: float = 600.0,
        newcomers: bool = False,
    ):
        self.run, self.spec, self.sites = run, spec, sites
        self.resume, self.seconds, self.newcomers = resume, seconds, newcomers

    @collab.main
    def play(self) -> str:
        """The run, from its first round or its last checkpoint to its end; why it ended."""
        folder, log = run_folder(self.run), log_to(os.environ.get(LOG))
        sites = [Client(site) for site in self.sites]
        if self.newcomers:
            found = welcome(folder, Calls(), sites, self.seconds)
            log("welcomed", run=self.run, sites=sorted(found))
            return f"{len(found)} newcomers have a model"
        seen, port = Observed(self.run, sites, events(self.run, log)), int(os.environ.get(PORT, "0"))
        control = Control(seen, folder)
        collab.fl_ctx.get_engine().register_app_command(TOPIC, lambda topic, asked, _: control.answer(asked))
        with Endpoint(seen, port) if port else nullcontext():
            spec = parse(self.spec) if self.spec else load(folder / "spec.toml")
            how: dict[str, Any] = {"resume": self.resume, "seconds": self.seconds, "watch": control.watch}
            try:
                return lead(spec, folder, Calls(), sites, **how).reason
            except Stopped as stopped:
                return str(stopped)


class Calls:
    """A carrier by NVFlare's calls: one for each site, as a call for several sends the same to all."""

    def ask(
        self, requests: Mapping[Client, bytes], seconds: float
    ) -> Iterator[tuple[Client, bytes | Exception]]:
        """As `Carrier.ask`: all are asked at once, and answers are read in order of names."""
        # Else every call fails at once, and is made again until NVFlare kills this process.
        if collab.is_aborted:
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
