"""Participants as processes: kept running, healthy while the engine is up, and gone after a goodbye.

In the place of NVFlare's start script is one that waits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from certified import certify, serving
from deployed import federated, spec_of

from kinfolk.codec import decode, encode
from kinfolk.deploy import arrivals, supervise
from kinfolk.deploy.agent import ask, socket_of
from kinfolk.deploy.arrivals import Arrivals
from kinfolk.deploy.kits import Kit
from kinfolk.deploy.letters import Identity, Trust, bond
from kinfolk.deploy.local import free_port
from kinfolk.deploy.logs import log_to
from kinfolk.deploy.observe import Endpoint
from kinfolk.errors import KinfolkError


def kit_of(folder: Path, script: str) -> Kit:
    (folder / "startup").mkdir(parents=True)
    (folder / "startup" / "sub_start.sh").write_text(script)
    authority, own = Identity.new(), Identity.new()
    site = federated(spec_of("fedavg")).clients[0]
    certify(folder, site)
    serving(folder, free_port())
    trust = Trust("trial", authority.public, bond(authority, "trial", site, own.public))
    return Kit(folder, site, trust, own)


def until(what: Callable[[], Any]) -> Any:
    for _ in range(600):
        found = what()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("has not come within half a minute")


def test_a_site_that_is_told_to_leave_ends_with_its_engine_and_says_so_in_its_log(tmp_path: Path):
    kit, log = kit_of(tmp_path / "kit", "exec sleep 600"), tmp_path / "log"
    rows = federated(spec_of("fedavg")).only(kit.site)
    given: Any = (kit, rows, Event(), lambda text: None, 30.0, log_to(log))
    site = Thread(target=supervise.join, args=given)
    site.start()
    until(socket_of(kit.folder).exists)
    told = decode(ask(socket_of(kit.folder), encode({}, {"do": "introduce", "to": kit.site}), 10))[1]
    assert "introduction" in told
    supervise.leave(kit.folder, 30.0)
    site.join(30)
    assert not site.is_alive()
    assert not (kit.folder / supervise.LEAVE).exists()
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert [event for event in events if event != "engine started"] == [
        "joined",
        "request",
        "leaving",
        "left",
    ]


def test_a_server_is_healthy_while_its_engine_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(supervise, "SOON", 600.0)  # an engine that has ended stays down
    kit = kit_of(tmp_path / "kit", "while [ ! -e fall ]; do sleep 0.05; done")
    stop, port = Event(), free_port()
    server = Thread(
        target=lambda: supervise.serve(
            kit.folder, tmp_path / "runs", stop, lambda text: None, health_port=port
        )
    )
    server.start()

    def health() -> int:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code
        except URLError:
            return 0

    try:
        until(lambda: health() == 200)
        (tmp_path / "fall").touch()
        until(lambda: health() == 503)
    finally:
        stop.set()
        server.join(30)
    assert health() == 0


def test_a_page_without_a_text_is_not_to_be_had():
    with Endpoint(None, 0, given={"/health": lambda: ("text/plain", "")}) as endpoint:
        with pytest.raises(HTTPError, match="503"):
            urlopen(f"http://127.0.0.1:{endpoint.port}/health", timeout=5)
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"http://127.0.0.1:{endpoint.port}/status", timeout=5)


class Server:
    """What a session tells of sites and jobs."""

    def __init__(self) -> None:
        self.here, self.states, self.asked = {"north"}, dict[str, str](), list[tuple[str, list[str]]]()

    def get_job_meta(self, job: str) -> dict[str, str]:
        """How a job stands."""
        return {"status": self.states[job]}

    def submit(self, opened: Any, spec: Any, run: str, sites: list[str], *more: Any, **how: Any) -> str:
        """Take a job."""
        assert (spec, how) == (None, {"newcomers": True})
        self.asked.append((run, sites))
        self.states[job := f"job-{len(self.asked)}"] = "RUNNING"
        return job


def test_whoever_connects_later_is_welcomed_once_and_at_most_three_times(monkeypatch: pytest.MonkeyPatch):
    server, said = Server(), list[str]()

    @contextmanager
    def session(kit: Path) -> Any:
        if not server.here:
            raise KinfolkError("kit", str(kit), "the server cannot be reached")
        yield server

    monkeypatch.setattr(arrivals, "session", session)
    monkeypatch.setattr(arrivals, "connected", lambda opened: dict.fromkeys(server.here, 0.0))
    monkeypatch.setattr(arrivals, "submit", server.submit)
    monkeypatch.setattr(arrivals, "LOOK", 0.0)
    late = Arrivals(Path("kit"), "first", ["north"], 60.0, said.append)
    late.look()
    assert server.asked == []
    server.here = {"north", "west"}
    late.look()
    late.look()  # its job goes on
    assert server.asked == [("first", ["west"])]
    server.states["job-1"] = "FINISHED:COMPLETED"
    late.look()
    late.look()
    assert (len(server.asked), said) == (1, ["west has come later and has a model of first"])
    server.here = {"north", "west", "east"}
    for number in range(2, 8):
        late.look()
        server.states |= {job: "FINISHED:ABNORMAL" for job in server.states if job != "job-1"}
        assert len(server.asked) == min(number, 4)
    assert said[1:] == ["east has come later and has no model; see the log of the server"]
    server.here = set()
    late.look()  # the server does not answer: the run is not ended by that
