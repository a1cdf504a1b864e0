"""A federation over NVFlare: looked at, joined later, left, drained, resumed; make test-deploy."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from deployed import all_equal, spec_of

from kinfolk.experiment.checkpoint import load_latest
from kinfolk.experiment.record import write_text
from kinfolk.experiment.spec import dump, load, override
from kinfolk.federation.sources import build
from kinfolk.streams import Seed

pytest.importorskip("nvflare", reason="NVFlare is not installed: make test-deploy installs it")

from kinfolk.deploy import supervise
from kinfolk.deploy.carrier import Threads
from kinfolk.deploy.kits import Kit, Project, add_site, provision
from kinfolk.deploy.lead import lead
from kinfolk.deploy.local import _started as started
from kinfolk.deploy.local import free_port
from kinfolk.deploy.own_model import export_own
from kinfolk.deploy.own_rows import simulated_rows
from kinfolk.deploy.site import Site
from kinfolk.deploy.standing import of_kit
from kinfolk.deploy.submit import session, submit
from kinfolk.errors import KinfolkError
from kinfolk.experiment.state import to_message
from kinfolk.types import Client

pytestmark = pytest.mark.deploy
# More than there is time for: runs end because they are drained.
ROUNDS = 5000


class Life:
    """A server, three sites and one run, in processes of their own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack, self.spec = (
            folder,
            stack,
            override(spec_of("fedavg"), [f"run.rounds={ROUNDS}", "data.clients=3", "data.groups=2"]),
        )
        self.names = [str(who) for who in build(self.spec.data, Seed(3)).clients]
        project = Project("trial", "localhost", free_port(), tuple(self.names[:2]), ("lead@trial.org",))
        self.kits, self.runs = provision(project, folder / "kits"), folder / "runs"
        self.kit, self.log = self.kits["lead@trial.org"], folder / "events.jsonl"
        write_text(folder / "spec.toml", dump(self.spec))
        more = ("--runs", str(self.runs), "--log-json", str(self.log))
        started(stack, folder, "deploy", "serve", str(self.kits["localhost"]), *more)
        for name in self.names[:2]:
            self.join(name)

    def join(self, name: str) -> subprocess.Popen[bytes]:
        """Start a site."""
        own = (
            "--simulated",
            str(self.folder / "spec.toml"),
            "--log-json",
            str(self.folder / f"{name}.jsonl"),
        )
        return started(self.stack, self.folder, "site", "join", str(self.kits[name]), *own)

    def until(self, what: Callable[[Any], Any], seconds: float = 120.0) -> Any:
        """What a look at the federation gives once it is something."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(KinfolkError):
                found = what(of_kit(self.kit))
                if found:
                    return found
            time.sleep(0.5)
        raise AssertionError((self.folder / "localhost.log").read_text()[-2000:])

    def submitted(self, *given: Any, **more: Any) -> str:
        """The id of a job."""
        with session(self.kit) as opened:
            return submit(opened, *given, **more)

    def ended(self, job: str) -> Callable[[Any], Any]:
        """How a job has ended, once it has."""

        def look(told: Any) -> Any:
            state = next(str(one["status"]) for one in told["jobs"] if one["job_id"] == job)
            return state if state.startswith("FINISHED") else ""

        return look


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    with ExitStack() as stack:
        yield Life(tmp_path, stack)


def test_a_run_is_looked_at_joined_left_drained_and_resumed_to_the_bits_of_one_process(
    life: Life, tmp_path: Path
):
    life.until(lambda told: len(told["sites"]) == 2)
    job = life.submitted(life.spec, "first", life.names[:2], False, 60.0)
    seen = life.until(lambda told: [one for one in told["runs"] if one["round"] >= 2])[0]
    assert seen["sites"] == dict.fromkeys(life.names[:2], "here")
    assert seen["bytes"]["update.up"] > 0
    # Somebody comes later.
    late = life.names[2]
    life.kits[late] = add_site(tmp_path / "kits", late)
    life.join(late)
    life.until(lambda told: late in told["sites"])
    second = life.submitted(None, "first", [late], False, 60.0, newcomers=True)
    assert life.until(life.ended(second)) == "FINISHED:COMPLETED"
    assert export_own(life.kits[late] / "memory", Kit.open(life.kits[late]).site, "first", tmp_path / "late")
    # The run is told to stop, and is resumed with what lies on the server.
    assert life.until(lambda told: told["runs"])[0]["state"] == "running"
    assert of_kit(life.kit, "drain", "first")["runs"][0]["draining"]
    assert life.until(life.ended(job)) == "FINISHED:COMPLETED"
    facts = json.loads((life.runs / "first" / "run.json").read_text())
    assert facts["status"] == "stopped"
    rounds = facts["rounds"] + 4
    shorter = override(life.spec, [f"run.rounds={rounds}"])
    write_text(life.runs / "first" / "spec.toml", dump(shorter))
    near = {c: Site(c, simulated_rows(shorter, c)).answer for c in map(Client, life.names[:2])}
    theirs = lead(shorter, tmp_path / "near", Threads(near), list(near))
    job = life.submitted(None, "first", life.names[:2], True, 60.0)
    assert life.until(life.ended(job)) == "FINISHED:COMPLETED"
    folder = life.runs / "first"
    loaded, _ = load_latest(folder / "checkpoints", dump(load(folder / "spec.toml")))
    assert loaded is not None
    assert all_equal(loaded.tensors["state"], to_message(theirs.state)[0])
    for name in life.names[:2]:
        assert export_own(
            life.kits[name] / "memory", Kit.open(life.kits[name]).site, "first", tmp_path / name
        )
    events = [json.loads(line)["event"] for line in life.log.read_text().splitlines()]
    assert {"engine started", "round", "welcomed", "delivered", "end"} <= set(events)


def test_a_site_that_leaves_is_known_to_have_left_at_once(life: Life):
    life.until(lambda told: len(told["sites"]) == 2)
    life.submitted(life.spec, "first", life.names[:2], False, 600.0)
    life.until(lambda told: [one for one in told["runs"] if one["round"] >= 2])
    gone = life.names[1]
    supervise.leave(life.kits[gone], 60.0)
    seen = life.until(lambda told: [one for one in told["runs"] if one["sites"][gone] == "left"], 30.0)[0]
    assert seen["late"] == {}
    life.until(lambda told: [one for one in told["runs"] if one["round"] > seen["round"] + 2], 60.0)
    assert of_kit(life.kit, "drain", "first")["runs"][0]["draining"]
    events = [json.loads(line) for line in (life.folder / f"{gone}.jsonl").read_text().splitlines()]
    assert [one["event"] for one in events[-2:]] == ["leaving", "left"]
    assert events[-2]["heard"]
