"""Sites die, the lead dies, messages are lost: what comes out has the bits of an undisturbed run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deployed import Flaky, all_equal, federated, memory_of, sites_of, spec_of

from kinfolk.deploy import carrier as carriers
from kinfolk.deploy import remote
from kinfolk.deploy.lead import lead
from kinfolk.experiment.record import read_rounds
from kinfolk.experiment.run import run
from kinfolk.experiment.state import to_message
from kinfolk.types import Client

# One that keeps models at its clients, one that keeps corrections, one whose server chooses groups.
METHODS = ("local", "feddc", "ifca,k=2")


class Died(BaseException):
    """The lead's process has ended."""


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carriers, "PAUSE", 0.0)


@pytest.mark.parametrize("method", METHODS)
def test_lost_messages_and_dying_sites_change_no_bit(method: str, tmp_path: Path):
    spec = spec_of(method, rounds=5)
    rows = federated(spec)
    theirs = run(spec, tmp_path / "loop")
    sites = sites_of(rows, tmp_path / "sites")
    carrier = Flaky(sites, loses=0.1, dies=0.1)
    ours = lead(spec, tmp_path / "deployed", carrier, list(rows.clients), seconds=60)
    assert min(carrier.lost, carrier.died) > 10
    assert all_equal(to_message(ours.state)[0], to_message(theirs.state)[0])
    assert ours.summary == theirs.summary
    for who, memory in theirs.memories.items():
        assert all_equal(memory_of(carrier.sites[who]), memory)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("every", [1, 2])
def test_a_lead_that_died_goes_on_and_sites_go_back_with_it(method: str, every: int, tmp_path: Path):
    """It dies right after a round that no checkpoint holds, or right after one that does."""
    spec = spec_of(method, rounds=5, checkpoint_every=every)
    rows = federated(spec)
    theirs = run(spec, tmp_path / "loop")
    sites = sites_of(rows, tmp_path / "sites")
    carrier = Flaky(sites, loses=0.02, dies=0.05)
    folder, told = tmp_path / "deployed", list[int]()

    def dies_at(number: int) -> Any:
        def watch(event: str, facts: dict[str, Any]) -> None:
            if event == "round" and facts["round"] == number:
                told.append(number)
                raise Died

        return watch

    for number, resume in ((1, False), (3, True), (4, True)):
        with pytest.raises(Died):
            lead(spec, folder, carrier, list(rows.clients), resume=resume, seconds=60, watch=dies_at(number))
    ours = lead(spec, folder, carrier, list(rows.clients), resume=True, seconds=60)
    assert told == [1, 3, 4]
    assert all_equal(to_message(ours.state)[0], to_message(theirs.state)[0])
    assert ours.summary == theirs.summary
    for who, memory in theirs.memories.items():
        assert all_equal(memory_of(carrier.sites[who]), memory)


def test_a_site_that_is_gone_costs_its_part_and_is_taken_back(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(remote, "LOOK", 0.0)
    spec = spec_of("fedavg", rounds=6)
    rows = federated(spec)
    sites = sites_of(rows)
    gone = rows.clients[2]
    carrier = Gone(Flaky(sites, 0.0, 0.0), gone)

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "round":
            carrier.gone = facts["round"] in (1, 2)

    result = lead(spec, tmp_path / "run", carrier, list(rows.clients), seconds=0.5, watch=watch)
    answered = [line["answered"] for line in read_rounds(tmp_path / "run") if "answered" in line]
    assert (result.rounds, min(answered), answered[-1]) == (6, 7, 8)
    audit = [json.loads(line) for line in (tmp_path / "run" / "audit.jsonl").read_text().splitlines()]
    late = [line["client"] for line in audit if "within 0.5 s" in line.get("reason", "")]
    assert set(late) == {gone}


class Gone:
    """A carrier to one site that may be gone."""

    def __init__(self, inner: Flaky, who: Client) -> None:
        self.inner, self.who, self.gone = inner, who, False

    def ask(self, requests: Any, seconds: float) -> Any:
        there = {c: data for c, data in requests.items() if not (self.gone and c == self.who)}
        yield from self.inner.ask(there, seconds)
