"""One run at the server, whatever carries its messages: its folder, its lead, and what machines see of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from kinfolk.deploy.carrier import Carrier
from kinfolk.deploy.control import Control
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


def play(
    run: str,
    spec: str,
    sites: Sequence[str],
    carrier: Carrier,
    resume: bool = False,
    seconds: float = 600.0,
    newcomers: bool = False,
    begun: Callable[[Control], None] = lambda control: None,
) -> str:
    """The run, from its first round or its last checkpoint to its end; why it ended.

    Without a spec it is that of the run's folder; with `newcomers` the sites get a model of the run, no more.
    `begun` is given what answers for the run, for engines that let people ask it.
    """
    folder, log = run_folder(run), log_to(os.environ.get(LOG))
    names = [Client(site) for site in sites]
    if newcomers:
        found = welcome(folder, carrier, names, seconds)
        log("welcomed", run=run, sites=sorted(found))
        return f"{len(found)} newcomers have a model"
    seen, port = Observed(run, names, events(run, log)), int(os.environ.get(PORT, "0"))
    control = Control(seen, folder)
    begun(control)
    with Endpoint(seen, port) if port else nullcontext():
        experiment = parse(spec) if spec else load(folder / "spec.toml")
        try:
            how: dict[str, Any] = {"resume": resume, "seconds": seconds, "watch": control.watch}
            return lead(experiment, folder, carrier, names, **how).reason
        except Stopped as stopped:
            return str(stopped)


def run_folder(name: str) -> Path:
    """The folder of a run on the server; its name comes from whoever has submitted the run.

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
