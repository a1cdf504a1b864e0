"""Over NVFlare 2.9.0: every kind of method has the bits of the loop, and its known traits are as we think.

One federation of a server and eight sites is started for all of it: real certificates, real processes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from deployed import federated, memory_file, spec_of
from small_runs import equal, saved

from kinfolk.experiment.record import read_rounds, read_scores
from kinfolk.experiment.run import run
from kinfolk.types import Client

pytest.importorskip("nvflare", reason="NVFlare is not installed: make test-deploy installs it")
from nvflare.collab.api.call_opt import CallOption
from nvflare.collab.api.exceptions import RunAborted

from kinfolk.deploy import kits, nvflare_lead
from kinfolk.deploy.keep import jobs_of_sites
from kinfolk.deploy.local import Trial, trial
from kinfolk.deploy.submit import session, write_job
from kinfolk.deploy.supervise import processes_of

pytestmark = pytest.mark.deploy
HELPERS = Path(__file__).parents[1] / "helpers"
SITE_JOB = "nvflare.private.fed.app.client.worker_process"


def test_these_are_the_traits_of_2_9_0():
    """Whoever moves to another version reads what follows again."""
    assert version("nvflare") == "2.9.0"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    spec = spec_of("fedavg")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            kits, "ALLOWED", (*kits.ALLOWED, *(f"traits_job.{c}" for c in ("Bare", "Guarded", "Traits")))
        )
        patch.setenv("PYTHONPATH", f"{HELPERS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        with trial(spec, federated(spec).clients, tmp_path_factory.mktemp("trial")) as started:
            yield started


METHODS = (
    "fedavg",
    "ifca,k=2",
    "fesem,k=2",
    "mdicfl,k=2",
    "mdicfl,k=2,privacy='strong'",
    "slfed,shares.scheme='plain'",
    "slfed,shares.scheme='additive64'",
)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_over_nvflare_has_the_bits_of_the_loop(method: str, opened: Trial, tmp_path: Path):
    spec = spec_of(method)
    loop = run(spec, tmp_path / "loop")
    ours = opened.play(spec, f"run{METHODS.index(method)}", seconds=120)
    assert equal(saved(loop.folder)[1]["state"], saved(ours)[1]["state"])
    assert read_scores(loop.folder).equals(read_scores(ours))
    for one, other in zip(read_rounds(loop.folder), read_rounds(ours), strict=True):
        assert (one["summary"], one.get("answered")) == (other["summary"], other.get("answered"))
    for who, theirs in loop.memories.items():
        files = sorted(
            (opened.folder / "kits" / who / "memory").glob("*/memory.safetensors"), key=os.path.getmtime
        )
        if files:
            assert equal(memory_file(files[-1]), theirs), who


@pytest.fixture(scope="module")
def guarded(opened: Trial) -> Iterator[tuple[str, dict[str, Any]]]:
    """A job that has noted what NVFlare does, and goes on."""
    yield from _noted(opened, "guarded", "traits_job.Guarded")


def test_a_group_call_raises_nothing_and_says_who_failed(opened: Trial, guarded: tuple[str, dict[str, Any]]):
    seen = guarded[1]
    assert (seen["answers"], seen["failures"], seen["kinds"]) == (0, list(opened.sites), ["ValueError"])


def test_a_client_serves_calls_at_once_and_a_site_locks_for_that(guarded: tuple[str, dict[str, Any]]):
    assert guarded[1]["met"] == [True] * 3


def test_answers_come_in_any_order(opened: Trial, guarded: tuple[str, dict[str, Any]]):
    order = guarded[1]["order"]
    assert set(order) == set(opened.sites)
    assert order[0] != opened.sites[0]  # who came first by name was slow


def test_a_job_goes_on_without_a_killed_process_only_with_the_file(
    opened: Trial, guarded: tuple[str, dict[str, Any]]
):
    """`_process_rc.txt` with a 0 is what `Pipe.begin` writes; without it the whole job ends."""
    job, who = guarded[0], opened.sites[0]
    _kill_job_process(opened, str(who))
    with session(opened.kit) as person:
        _wait(lambda: job not in jobs_of_sites(person).get(who, {job}))
        time.sleep(3.0)  # in which a job without the file has ended
        assert person.get_job_meta(job)["status"] == "RUNNING"
    (opened.folder / "runs" / "guarded" / "go").touch()
    for bare, _ in _noted(opened, "bare", "traits_job.Bare"):
        _kill_job_process(opened, str(who))
        with session(opened.kit) as person:
            _wait(lambda: str(person.get_job_meta(bare)["status"]).startswith("FINISHED"))  # noqa: B023
            assert person.get_job_meta(bare)["status"] == "FINISHED:EXECUTION_EXCEPTION"


def _noted(opened: Trial, name: str, client: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A job of tests/helpers/traits_job.py: its id, and what it has seen."""
    with tempfile.TemporaryDirectory() as folder:
        job = write_job(Path(folder), spec_of("fedavg"), name, opened.sites, False, 60.0)
        for config in job.rglob("config_fed_*.json"):
            told = json.loads(config.read_text())
            for one in told["components"]:
                one["path"] = client if one["path"].endswith("Pipe") else "traits_job.Traits"
                one["args"] = {k: v for k, v in one["args"].items() if k in ("run", "sites")}
            config.write_text(json.dumps(told))
        with session(opened.kit) as person:
            number = str(person.submit_job(str(job)))
    seen = opened.folder / "runs" / name / "seen.json"
    _wait(lambda: seen.exists() and seen.stat().st_size > 0)
    yield number, json.loads(seen.read_text())
    (seen.parent / "go").touch()


def _kill_job_process(opened: Trial, who: str) -> None:
    doomed = [p for p, module in processes_of(opened.folder / "kits" / who).items() if module == SITE_JOB]
    assert doomed
    for pid in doomed:
        os.kill(pid, signal.SIGKILL)


def _wait(until: Callable[[], bool], seconds: float = 240.0) -> None:
    last = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < last
        time.sleep(0.3)


def test_calls_have_our_deadline_and_not_the_60_seconds_of_nvflare(monkeypatch: pytest.MonkeyPatch):
    told: list[dict[str, Any]] = []

    class Collab:
        is_aborted = False

        @staticmethod
        def get_clients(names: list[str]) -> Any:
            class Group:
                def __call__(self, **options: Any) -> Any:
                    told.append(options)
                    raise ConnectionError(names[0])

            return Group()

    assert CallOption().timeout == 60.0
    monkeypatch.setattr(nvflare_lead, "collab", Collab)
    answers = dict(nvflare_lead.Calls().ask({Client("ann"): b""}, 333.0))
    assert isinstance(answers["ann"], ConnectionError)  # whatever a call raises is about one site
    assert told == [{"blocking": False, "timeout": 333.0}]


def test_a_job_that_is_told_to_end_asks_nobody_again(monkeypatch: pytest.MonkeyPatch):
    """Else every call fails at once and is made again, and NVFlare waits 10 s before it kills the process."""

    class Collab:
        is_aborted = True

    monkeypatch.setattr(nvflare_lead, "collab", Collab)
    with pytest.raises(RunAborted):
        list(nvflare_lead.Calls().ask({Client("ann"): b""}, 333.0))


def test_ctrl_c_leaves_nothing_running(tmp_path: Path):
    """`deploy local` while its run goes on: one signal, as from a terminal, to it alone."""
    words = ["-m", "kinfolk", "deploy", "local", "--sites", "2", "--out", str(tmp_path)]
    words += ["--set", "data.groups=2", "--set", "run.rounds=5000"]
    running = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    rounds = tmp_path / "runs" / "run" / "rounds.jsonl"
    try:
        _wait(lambda: running.poll() is not None or (rounds.exists() and len(rounds.read_bytes()) > 5000))
        assert running.poll() is None
        assert len(_of(tmp_path)) > 6  # server, two sites, and NVFlare's of all three
        running.send_signal(signal.SIGINT)
        told = running.communicate(timeout=60)[1].decode()
    finally:
        running.kill()
    assert running.returncode == 128 + signal.SIGINT
    assert "Traceback" not in told
    _wait(lambda: _of(tmp_path) == [], 10.0)


def _of(folder: Path) -> list[str]:
    """Processes that have something to do with a folder, but this one's child."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace")
            if str(folder) in words and "local\0" not in words:
                found.append(words)
    return found
