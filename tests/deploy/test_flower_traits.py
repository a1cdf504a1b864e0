"""What Flower 1.41.0 does that we live with, seen in real processes; a newer one may do otherwise.

The run that looks at it is one that a stranger might start: its app brings code, which nobody must run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from kinfolk.deploy import flower_start
from kinfolk.deploy.agent import VARIABLE as SITE
from kinfolk.deploy.agent import Agent
from kinfolk.deploy.flower_kits import Card
from kinfolk.deploy.kits import Project, provision
from kinfolk.deploy.local import ADMIN, free_port
from kinfolk.deploy.submit import session
from kinfolk.deploy.supervise import end

flwr = pytest.importorskip("flwr", reason="Flower is not installed: make test-deploy installs it")

# Flower 1.41.0 imports what its newer dependencies call old.
pytestmark = [pytest.mark.deploy, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

EVIL = """
from pathlib import Path
Path({mark!r}).write_text("was run")
"""
APP = """
[project]
name = "evil"
version = "1.0.0"
[tool.flwr.app]
publisher = "stranger"
[tool.flwr.app.components]
serverapp = "evil:app"
clientapp = "evil:app"
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the probe has written down, how its run has ended, and the kits' folder."""
    from flwr.cli.build import build_fab_from_files
    from flwr.common.serde import fab_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.fab import Fab

    folder = tmp_path_factory.mktemp("traits")
    names = ("quick", "slow", "gone")
    kits = provision(
        Project("trial", "localhost", free_port(), names, (ADMIN,), engine="flower"), folder / "kits"
    )
    helpers, mark = Path(__file__).parents[1] / "helpers", folder / "mark"
    evil = EVIL.format(mark=str(mark)).encode()
    data = build_fab_from_files({"pyproject.toml": APP.encode(), "evil.py": evil})[0]
    with ExitStack() as stack:
        _server(stack, kits["localhost"], {"KINFOLK_PROBE": str(folder / "told"), "HELPERS": str(helpers)})
        for name, answer in (("quick", bytes.upper), ("slow", _slowly)):
            stack.enter_context(Agent(answer, folder / name / "site.sock"))
        for name in names:
            _started(
                stack,
                ["bash", str(kits[name] / "startup" / "sub_start.sh")],
                {SITE: str(folder / name / "site.sock")},
                kits[name],
            )
        opened = stack.enter_context(_patiently(kits[ADMIN]))
        job = opened.client.StartRun(
            StartRunRequest(fab=fab_to_proto(Fab(sha256(data).hexdigest(), data, {})))
        ).run_id
        until = time.monotonic() + 180
        while not (status := opened.get_job_meta(str(job))["status"]).startswith("FINISHED"):
            assert time.monotonic() < until, status
            time.sleep(0.5)
        yield {**json.loads((folder / "told").read_text()), "status": status, "folder": folder}


def _slowly(data: bytes) -> bytes:
    time.sleep(30)
    return data


def _server(stack: ExitStack, kit: Path, more: dict[str, str]) -> None:
    """A SuperLink, and a worker that plays the probe instead of the lead."""
    card = Card.read(kit)
    _started(stack, flower_start.commands(card, card.port)["superlink"], more, kit)
    told = f"import sys; sys.path.append({more['HELPERS']!r}); from kinfolk.deploy.flower_worker import main"
    worker = [sys.executable, "-c", f"{told}; main('flower_probe')", str(os.getpid())]
    own = {flower_start.KIT: str(kit), flower_start.RUNTIME: str(card.port)}
    _started(stack, worker, {**more, **own}, kit)


def _started(stack: ExitStack, command: list[str], more: dict[str, str], kit: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    home = {"FLWR_HOME": str(kit / "flwr"), "PATH": path, **flower_start.QUIET}
    with open(kit / "engine.log", "ab") as log:
        running = subprocess.Popen(
            command, env={**os.environ, **home, **more}, stdout=log, stderr=log, start_new_session=True
        )
    stack.callback(end, running)


def _patiently(kit: Path) -> Any:
    """A session, as soon as the server is there."""
    from kinfolk.errors import KinfolkError

    until = time.monotonic() + 60
    while True:
        try:
            with session(kit):
                return session(kit)
        except KinfolkError:
            if time.monotonic() > until:
                raise
            time.sleep(1)


def test_it_is_the_version_that_was_looked_at():
    assert flwr.__version__ == "1.41.0" == flower_start.VERSION


def test_1_41_0_leaves_out_who_is_late_and_raises_nothing(seen: dict[str, Any]):
    own, _, code = seen["quick"]
    assert (own, code) == (True, 0)
    assert seen["slow"] is None
    assert seen["seconds"] < 30


def test_1_41_0_tells_of_a_message_that_was_too_old_from_node_1(seen: dict[str, Any]):
    assert seen["short"] == [[False, 1, 3]]


def test_a_site_that_is_gone_is_told_by_its_node_and_by_no_more_than_the_kind_of_error(seen: dict[str, Any]):
    own, _, code = seen["gone"]
    assert (own, code) == (True, 2)


def test_1_41_0_keeps_a_message_without_a_ttl_for_12_hours(seen: dict[str, Any]):
    assert seen["ttl"] == 12 * 3600


def test_1_41_0_calls_a_run_completed_whatever_its_replies_were(seen: dict[str, Any]):
    assert seen["status"] == "FINISHED:COMPLETED"


def test_code_that_comes_with_a_run_is_run_and_unpacked_nowhere(seen: dict[str, Any]):
    """Messages of this run were answered, at the server and at the sites, by what is installed there."""
    assert not (seen["folder"] / "mark").exists()
    assert not [path for path in seen["folder"].rglob("*") if path.name == "evil.py"]
