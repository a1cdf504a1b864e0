"""A keeper against a server that is acted out: for what it submits a run again, and when it gives up."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from deployed import spec_of

from kinfolk.deploy import carrier, keep, line, supervise
from kinfolk.deploy.keep import Keeper
from kinfolk.errors import KinfolkError
from kinfolk.types import Client

SITES = [Client("north"), Client("south")]


class Server:
    """What a session of NVFlare answers, look by look: `acts` say what happens at which look of which job."""

    def __init__(self, acts: dict[tuple[int, int], str]) -> None:
        self.acts, self.jobs, self.look = acts, 0, 0
        self.began, self.status = 1.0, ""
        self.inside: set[str] = set()  # who has a process for the job
        self.silent: set[str] = set()
        self.slow = 0.0  # seconds from a job's start until the first site has its process
        self.aborted: list[int] = []
        self.now = 0.0

    def submit(self) -> str:
        self.jobs, self.look, self.status, self.inside = self.jobs + 1, 0, "RUNNING", set(SITES)
        self.inside -= {SITES[0]} if self.slow else set()
        return f"job{self.jobs}"

    def tick(self) -> None:
        """A second later."""
        self.now, self.look = self.now + 1.0, self.look + 1
        if self.slow and self.look == self.slow:
            self.inside.add(SITES[0])
        assert self.now < 5000, "nothing ends this run"
        what, _, who = self.acts.get((self.jobs, self.look), "").partition(" ")
        if what == "kill":
            self.inside.discard(who)
        elif what == "silence":
            self.silent.add(who)
        elif what == "return":
            self.silent.discard(who)
        elif what == "restart":
            self.began, self.inside = self.began + 1.0, set()
        elif what == "end":
            self.status = f"FINISHED:{who}"

    def get_job_meta(self, job: str) -> dict[str, str]:
        return {"status": self.status}

    def get_system_info(self) -> Any:
        return SimpleNamespace(server_info=SimpleNamespace(start_time=self.began))

    def get_client_job_status(self) -> list[dict[str, str]]:
        return [
            {"client_name": who, "status": "no_reply"}
            if who in self.silent
            else {"client_name": who, "job_id": f"job{self.jobs}"}
            if who in self.inside
            else {"client_name": who, "status": "no_jobs"}
            for who in SITES
        ]

    def abort_job(self, job: str) -> None:
        self.aborted.append(self.jobs)
        self.status = "FINISHED:ABORTED"


def kept(
    acts: dict[tuple[int, int], str], monkeypatch: pytest.MonkeyPatch, slow: float = 0.0
) -> tuple[Server, list[bool], list[str]]:
    """A run that is kept to its end: the server, which jobs resumed, what was said."""
    server, resumed, told = Server(acts), list[bool](), list[str]()
    server.slow = slow

    @contextmanager
    def opened(kit: Path) -> Iterator[Server]:
        yield server

    def submitted(opened: Server, spec: Any, run: str, sites: Any, resume: bool, seconds: float) -> str:
        resumed.append(resume)
        return opened.submit()

    clock = SimpleNamespace(monotonic=lambda: server.now, sleep=lambda seconds: server.tick())
    monkeypatch.setattr(line, "session", opened)
    monkeypatch.setattr(keep, "submit", submitted)
    monkeypatch.setattr(keep, "time", clock)
    Keeper(Path("kit"), spec_of("fedavg"), "run", SITES, say=told.append).keep()
    return server, resumed, told


def test_a_run_that_ends_is_submitted_once(monkeypatch: pytest.MonkeyPatch):
    server, resumed, _ = kept({(1, 9): "end COMPLETED"}, monkeypatch)
    assert (server.jobs, resumed, server.aborted) == (1, [False], [])


def test_a_site_whose_process_is_gone_ends_the_job_at_once(monkeypatch: pytest.MonkeyPatch):
    server, resumed, told = kept({(1, 5): "kill south", (2, 5): "end COMPLETED"}, monkeypatch)
    assert (server.jobs, resumed, server.aborted) == (2, [False, True], [1])
    assert told[1] == "south is in its job no more: the run goes on from its last checkpoint"
    assert server.now <= 5 + keep.MISSING + 2 + 5


def test_a_site_that_is_silent_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    """Its line may be cut, and its process be in the job as before."""
    acts = {(1, 5): "silence south", (1, 90): "return south", (1, 95): "end COMPLETED"}
    server, _, _ = kept(acts, monkeypatch)
    assert (server.jobs, server.aborted) == (1, [])


def test_a_site_that_comes_back_without_its_process_is_taken_back_by_another_job(
    monkeypatch: pytest.MonkeyPatch,
):
    acts = {(1, 5): "silence south", (1, 6): "kill south", (1, 20): "return south", (2, 3): "end COMPLETED"}
    server, _, _ = kept(acts, monkeypatch)
    assert (server.jobs, server.aborted) == (2, [1])


def test_a_server_that_was_started_anew_is_not_asked_to_end_what_it_only_lists(
    monkeypatch: pytest.MonkeyPatch,
):
    server, resumed, told = kept({(1, 5): "restart", (2, 5): "end COMPLETED"}, monkeypatch)
    assert (server.jobs, resumed, server.aborted) == (2, [False, True], [])
    assert "started anew" in told[1]


def test_the_next_job_waits_until_everybody_answers(monkeypatch: pytest.MonkeyPatch):
    acts = {(1, 5): "silence south", (1, 6): "restart", (1, 30): "return south", (2, 5): "end COMPLETED"}
    server, _, told = kept(acts, monkeypatch)
    assert server.jobs == 2
    assert told[2] == "waiting for south"


def test_what_fails_at_once_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch):
    acts = {(job, 3): "end EXECUTION_EXCEPTION" for job in range(1, 99)}
    with pytest.raises(KinfolkError, match=f"{keep.MOST} jobs in a row have ended at once"):
        kept(acts, monkeypatch)


def test_jobs_that_were_killed_late_are_no_failures(monkeypatch: pytest.MonkeyPatch):
    late = int(keep.SHORT) + 5
    acts = {(job, late): "end EXECUTION_EXCEPTION" for job in range(1, 9)} | {(9, 3): "end COMPLETED"}
    assert kept(acts, monkeypatch)[0].jobs == 9


def test_a_line_opens_another_session_where_one_has_failed(monkeypatch: pytest.MonkeyPatch):
    opened: list[int] = []

    @contextmanager
    def session(kit: Path) -> Iterator[int]:
        opened.append(len(opened))
        yield opened[-1]

    def asked(number: int) -> int:
        if number < 2:
            raise ConnectionError(number)
        return number

    told: list[str] = []
    monkeypatch.setattr(line, "session", session)
    with line.Line(Path("kit"), 60.0, told.append, lambda: None) as held:
        assert [held.ask(asked), held.ask(asked)] == [2, 2]
        with pytest.raises(ZeroDivisionError):
            held.ask(lambda number: 1 // 0, patience=0.0)
    assert opened == [0, 1, 2]
    assert told == ["the server does not answer (ConnectionError); trying again"]


def test_a_message_that_is_lost_without_a_word_is_sent_again(monkeypatch: pytest.MonkeyPatch):
    """Each try takes twice as long as the one before, as a site may be at work."""
    given: list[float] = []

    class Silent:
        def ask(self, requests: Any, seconds: float) -> Any:
            given.append(seconds)
            clock.now += seconds
            if len(given) == 3:
                yield from ((who, b"yes") for who in requests)

    clock = SimpleNamespace(now=0.0, sleep=lambda seconds: None)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(carrier, "time", clock)
    assert dict(carrier.patiently(Silent(), {SITES[0]: b"?"}, 600.0)) == {SITES[0]: b"yes"}
    assert given == [carrier.TRY, 2 * carrier.TRY, 4 * carrier.TRY]


def test_what_is_left_of_a_kit_ends_and_nothing_else(tmp_path: Path):
    """A job process has a session of its own, and a parent that was killed."""
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    kit, other = tmp_path / "kit", tmp_path / "kit2"
    words = [["nvflare.job", "-m", str(kit)], ["nvflare.job", "-m", str(other)], ["less", str(kit)]]
    running = [subprocess.Popen([*sleep, *more], start_new_session=True) for more in words]
    try:
        assert supervise.processes_of(kit) == {running[0].pid: "nvflare.job"}
        supervise.end_leftovers(kit)
        assert running[0].wait(10) == -9
        assert [one.poll() for one in running[1:]] == [None, None]
    finally:
        for one in running:
            one.kill()
            one.wait()


def test_a_kit_that_runs_is_not_run_twice(tmp_path: Path):
    """The second would end the first one's processes, taking them for left-overs."""
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "sub_start.sh").write_text("exit 0")
    stop = Event()
    stop.set()
    with open(tmp_path / ".running", "ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(KinfolkError, match="running already"):
            supervise.keep_running(tmp_path, {}, stop, print)


def test_a_site_that_starts_slowly_is_given_more_time_with_every_job(monkeypatch: pytest.MonkeyPatch):
    """With one limit for all jobs a busy machine would submit for ever."""
    acts = {(job, 70): "end COMPLETED" for job in range(1, 9)} | {(9, 3): "end COMPLETED"}
    server, _, _ = kept(acts, monkeypatch, slow=60.0)
    assert (server.jobs, server.aborted) == (4, [1, 2, 3])
