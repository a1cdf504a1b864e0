"""One run at the server, whatever carries its messages: its folder, its lead, and what machines see of it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from kinfolk.deploy.carrier import Carrier
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


def play(
    run: str, spec: str, sites: Sequence[str], carrier: Carrier, resume: bool = False, seconds: float = 600.0
) -> str:
    """The run, from its first round or its last checkpoint to its end; why it ended."""
    folder, names = run_folder(run), [Client(site) for site in sites]
    seen, port = Observed(run, names), int(os.environ.get(PORT, "0"))
    with Endpoint(seen, port) if port else nullcontext():
        done = lead(parse(spec), folder, carrier, names, resume=resume, seconds=seconds, watch=seen.watch)
    return done.reason


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
