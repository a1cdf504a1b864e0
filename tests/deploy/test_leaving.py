"""Sites say goodbye, runs are drained and go on: nobody waits for a deadline, and no bit changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from deployed import all_equal, federated, memory_of, sites_of, spec_of

from kinfolk.codec import decode, encode
from kinfolk.deploy import carrier as carriers
from kinfolk.deploy import remote
from kinfolk.deploy.control import Control, drain
from kinfolk.deploy.lead import lead
from kinfolk.deploy.observe import Observed
from kinfolk.deploy.site import LEFT, Site
from kinfolk.experiment.record import read_audit, read_rounds
from kinfolk.experiment.run import run
from kinfolk.experiment.state import to_message
from kinfolk.experiment.stopping import Stopped
from kinfolk.types import Client


class Clock:
    """Time that passes by waiting alone."""

    now = 0.0

    def monotonic(self) -> float:
        """Seconds that were waited."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Wait, in no time."""
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(carriers, "time", clock)
    return clock


class Straight:
    """A carrier to sites of this process; who is `gone` answers nothing."""

    def __init__(self, sites: dict[Client, Site]) -> None:
        self.sites, self.gone, self.asked = sites, set[Client](), list[tuple[Client, str]]()

    def ask(
        self, requests: Mapping[Client, bytes], seconds: float
    ) -> Iterator[tuple[Client, bytes | Exception]]:
        """As `Carrier.ask`."""
        for who, data in requests.items():
            self.asked.append((who, decode(data)[1]["do"]))
            yield who, ConnectionError("gone") if who in self.gone else self.sites[who].answer(data)


def test_who_says_goodbye_is_waited_for_by_nobody_and_taken_back(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(remote, "LOOK", 0.0)
    spec = spec_of("fedavg", rounds=6)
    sites = sites_of(federated(spec))
    carrier, leaver = Straight(sites), list(sites)[2]
    seen = Observed("first", list(sites))
    stood = list[str]()

    def watch(event: str, facts: dict[str, Any]) -> None:
        seen.watch(event, facts)
        if event != "round":
            return
        stood.append(seen.status()["sites"][leaver])
        if facts["round"] == 1:
            sites[leaver].leave(0.0)
        if facts["round"] == 3:
            old = sites[leaver]
            sites[leaver] = Site(leaver, old.rows, old.folder, old.identity)

    result = lead(spec, tmp_path / "run", carrier, list(sites), seconds=600, watch=watch)
    answered = [line["answered"] for line in read_rounds(tmp_path / "run") if "answered" in line]
    assert (result.rounds, answered) == (6, [8, 7, 7, 8, 8, 8])
    assert stood == ["here", "here", "left", "left", "here", "here", "here"]
    assert clock.now < 600  # a deadline was never waited for
    audit = [line for line in read_audit(tmp_path / "run") if line.get("client") == leaver]
    assert LEFT in audit[0]["reason"]


def test_a_site_that_leaves_finishes_and_gives_again_what_it_has_answered(tmp_path: Path):
    spec = spec_of("local", rounds=2)
    rows = federated(spec)
    sites = sites_of(rows)
    who = rows.clients[0]
    kept: dict[str, bytes] = {}

    class Noting(Straight):
        def ask(self, requests: Mapping[Client, bytes], seconds: float) -> Any:
            if who in requests and decode(requests[who])[1]["do"] == "ask":
                kept["asked"] = requests[who]
            for c, answer in super().ask(requests, seconds):
                if c == who and "asked" in kept:
                    kept["answer"] = answer  # type: ignore[assignment]
                yield c, answer

    def watch(event: str, facts: dict[str, Any]) -> Any:
        return "pause" if event == "round" and facts["round"] == 1 else None

    with pytest.raises(Stopped):
        lead(spec, tmp_path / "run", Noting(sites), list(sites), seconds=60, watch=watch)
    site, told = sites[who], threading.Event()
    waiting = threading.Thread(target=lambda: told.set() if site.leave(60.0) else None)
    waiting.start()
    while not site._leaving.is_set():
        pass
    assert site.answer(kept["asked"]) == kept["answer"]
    assert not told.is_set()
    later = decode(kept["asked"])[1]
    later["number"] = str(int(later["number"]) + 1)
    message = decode(kept["asked"])[0]
    before = memory_of(site)
    assert decode(site.answer(encode(message, later)))[1]["error"] == LEFT
    waiting.join(60)
    assert told.is_set()
    assert all_equal(memory_of(site), before)


def test_a_site_without_a_run_or_whose_run_has_ended_leaves_at_once(tmp_path: Path):
    spec = spec_of("fedavg", rounds=1)
    sites = sites_of(federated(spec))
    first = next(iter(sites.values()))
    assert Site(first.who, first.rows).leave(0.0)
    lead(spec, tmp_path / "run", Straight(sites), list(sites), seconds=60)
    assert first.leave(0.0)


@pytest.mark.parametrize("method", ["fedavg", "feddc", "ifca,k=2"])
@pytest.mark.parametrize("by", ["kit", "file"])
def test_a_run_that_is_drained_and_resumed_has_the_bits_of_one_left_alone(
    by: str, method: str, tmp_path: Path
):
    spec = spec_of(method, rounds=5, checkpoint_every=3)
    rows = federated(spec)
    theirs = run(spec, tmp_path / "loop")
    carrier, folder = Straight(sites_of(rows, tmp_path / "sites")), tmp_path / "first"

    def attempt(resume: bool, drained_at: int) -> Any:
        control = Control(Observed("first", list(rows.clients)), folder)

        def watch(event: str, facts: dict[str, Any]) -> Any:
            if event == "round" and facts["round"] == drained_at:
                assert (control.answer({"do": "drain"})["draining"] if by == "kit" else drain(folder)) in (
                    True,
                    None,
                )
            return control.watch(event, facts)

        return lead(spec, folder, carrier, list(rows.clients), resume=resume, seconds=60, watch=watch)

    for resume, at in ((False, 2), (True, 4)):
        with pytest.raises(Stopped):
            attempt(resume, at)
        facts = json.loads((folder / "run.json").read_text())
        assert (facts["status"], facts["rounds"]) == ("stopped", at)
        assert (folder / "checkpoints" / f"round-{at:06d}").exists()
        assert not (folder / "delivered.json").exists()
    ours = attempt(True, 99)
    assert all_equal(to_message(ours.state)[0], to_message(theirs.state)[0])
    assert ours.summary == theirs.summary
    assert [line["round"] for line in read_rounds(folder)] == list(range(6))


def test_a_resumed_run_does_not_end_because_somebody_is_not_back_yet(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(remote, "LOOK", 0.0)
    monkeypatch.setattr(remote, "GLANCE", 0.1)
    spec = spec_of("fedavg", rounds=4)
    rows = federated(spec)
    carrier, gone = Straight(sites_of(rows, tmp_path / "sites")), rows.clients[1]

    def watch(event: str, facts: dict[str, Any]) -> Any:
        if facts.get("round") == 3:
            carrier.gone = set()
        return "pause" if event == "round" and facts["round"] == 2 else None

    with pytest.raises(Stopped):
        lead(spec, tmp_path / "first", carrier, list(rows.clients), seconds=5, watch=watch)
    carrier.gone = {gone}
    lead(spec, tmp_path / "first", carrier, list(rows.clients), resume=True, seconds=5, watch=watch)
    answered = [line["answered"] for line in read_rounds(tmp_path / "first") if "answered" in line]
    assert answered == [8, 8, 7, 8]
