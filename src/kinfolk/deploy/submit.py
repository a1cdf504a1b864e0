"""From a spec to a running job: what is submitted, and how it stands. No code is part of it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from kinfolk.deploy import flower_submit
from kinfolk.errors import KinfolkError
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import dump
from kinfolk.types import Client


@contextmanager
def session(kit: Path) -> Iterator[Any]:
    """A session of the person whose kit it is; NVFlare names the folder after them."""
    if flower_submit.for_flower(kit):
        with flower_submit.session(kit) as asked:
            yield asked
        return
    try:
        from nvflare.fuel.flare_api.flare_api import new_secure_session
    except ImportError as error:
        raise KinfolkError("nvflare", None, "is not installed; run pip install 'kinfolk[nvflare]'") from error
    if not (kit / "startup").is_dir():
        raise KinfolkError("kit", str(kit), "is no kit of a person; name the folder of an admin's kit")
    try:
        with redirect_stdout(StringIO()):  # it says that it connects, between the lines of JSON that we print
            opened = new_secure_session(kit.name, str(kit.absolute()))
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise KinfolkError(
            "kit", str(kit), f"the server cannot be reached with it ({reason}); is it up?"
        ) from error
    try:
        yield opened
    finally:
        opened.close()


def connected(opened: Any) -> dict[Client, float]:
    """The sites that are there, and when each was heard of last, in seconds since 1970."""
    return {Client(one.name): float(one.last_connect_time) for one in opened.get_system_info().client_info}


def submit(
    opened: Any,
    spec: Experiment | None,
    run: str,
    sites: Sequence[Client],
    resume: bool = False,
    seconds: float = 600.0,
    newcomers: bool = False,
) -> str:
    """Submit a run over these sites; the job's id. With `resume` the run's folder is gone on with.

    Without a spec it is that of the run's folder; with `newcomers` the sites get a model of the run, no more.
    """
    if isinstance(opened, flower_submit.Session):
        if newcomers:
            remedy = "the nodes of a Flower server are those of its kit; make kits with the site, then resume"
            raise KinfolkError("newcomers", ", ".join(sites), remedy)
        return opened.start(spec, run, sites, resume, seconds)
    with tempfile.TemporaryDirectory() as folder:
        job = write_job(Path(folder), spec, run, sites, resume, seconds, newcomers)
        return str(opened.submit_job(str(job)))


def write_job(
    folder: Path,
    spec: Experiment | None,
    run: str,
    sites: Sequence[Client],
    resume: bool,
    seconds: float,
    newcomers: bool = False,
) -> Path:
    """The folder of a job: names of installed classes and their plain arguments, and nothing to run."""
    from nvflare.collab import CollabRecipe

    from kinfolk.deploy.nvflare_lead import Lead
    from kinfolk.deploy.nvflare_site import Pipe

    lead = Lead(run, dump(spec) if spec else "", list(map(str, sites)), resume, seconds, newcomers)
    name = f"{run}-newcomers" if newcomers else run
    recipe = CollabRecipe(name, server=lead, client=Pipe(), min_clients=len(sites))
    recipe.export(str(folder))
    for code in folder.rglob("custom"):  # what it ships by itself: the files of the two classes
        shutil.rmtree(code)
    for config in folder.rglob("config_fed_*.json"):  # nor what sends logs of sites to the server
        told = json.loads(config.read_text())
        told["components"] = [one for one in told["components"] if ".logging." not in one["path"]]
        # Sites ask for the two tasks by which a job of Collab begins; NVFlare has them pause for 2 s between.
        told["server"] = {"task_request_interval": 0.2}
        for flow in told.get(
            "workflows", []
        ):  # a call that waits for a site has a thread; NVFlare has a hundred
            flow["args"]["max_outbound_call_threads"] = max(100, len(sites))
        config.write_text(json.dumps(told))
    if newcomers:  # the others are in a job of their own, and may stay there
        about = folder / name / "meta.json"
        told = json.loads(about.read_text())
        told["deploy_map"] = {app: ["server", *map(str, sites)] for app in told["deploy_map"]}
        about.write_text(json.dumps(told))
    return folder / name
