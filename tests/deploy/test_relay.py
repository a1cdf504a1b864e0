"""The relay, acted out: whoever carries SLFed's messages reads, forges, replays and reorders nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deployed import all_equal, federated, sites_of, spec_of
from relay import Relay

from kinfolk.deploy.carrier import Threads
from kinfolk.deploy.lead import lead
from kinfolk.deploy.letters import Identity, Place
from kinfolk.experiment.record import read_audit, read_rounds
from kinfolk.experiment.run import run
from kinfolk.experiment.state import to_message


@pytest.mark.slow
def test_a_hostile_relay_learns_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    texts = list[bytes]()
    seal = Identity.seal

    def listening(self: Identity, text: bytes, to: str, place: Place, alike: Any = None) -> bytes:
        texts.append(text)
        return seal(self, text, to, place, alike)

    monkeypatch.setattr(Identity, "seal", listening)
    spec = spec_of("slfed")
    rows = federated(spec)
    relay = Relay(Threads({who: site.answer for who, site in sites_of(rows).items()}))
    result = lead(spec, tmp_path / "run", relay, list(rows.clients), seconds=120)
    assert result.rounds == 8
    assert sorted(relay.changed) == ["forged", "reordered", "replayed", "swapped", "torn"]
    assert relay.changed["reordered"] == 0  # another order is no other letter
    # It reads nothing: no piece of any model, share or opinion is in what it has carried.
    carried, numbers = b"\0".join(relay.seen), [text[-32:] for text in texts if len(text) > 2000]
    assert len(numbers) > 100
    assert not [piece for piece in numbers if len(set(piece)) > 8 and piece in carried]
    # It changes nothing: every letter that it touched is named as one that did not arrive.
    audit = [json.loads(line) for line in (tmp_path / "run" / "audit.jsonl").read_text().splitlines()]
    named = [line["reason"] for line in audit if "its letter to" in line.get("reason", "")]
    told = sum(reason.count("is not sealed for this place") for reason in named)
    assert told == sum(relay.changed.values())
    assert all(not line.get("void") for line in read_rounds(tmp_path / "run"))


class Died(BaseException):
    """The lead's process has ended."""


def test_letters_of_an_earlier_attempt_at_the_run_are_not_taken(tmp_path: Path):
    """The lead dies; in its next attempt the relay hands out letters of the first, round for round."""
    spec = spec_of("slfed", rounds=4)
    rows = federated(spec)
    relay = Relay(Threads({who: site.answer for who, site in sites_of(rows).items()}), kinds=("replayed",))
    first: dict[tuple[str, str], Any] = {}
    meddled = relay.meddled
    relay.meddled = lambda who, data: data  # type: ignore[method-assign]
    died = list[int]()

    def keeps(who: Any, data: bytes) -> bytes:
        meddled(who, data)
        return data

    def dies(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == 2 and not died:
            died.append(2)
            raise Died

    relay.meddled = keeps  # type: ignore[method-assign]
    with pytest.raises(Died):
        lead(spec, tmp_path / "run", relay, list(rows.clients), seconds=60, watch=dies)
    first.update(relay.kept)
    assert any(len(letters) > 1 for letters in first.values())
    relay.changed.clear()
    relay.meddled = meddled  # type: ignore[method-assign]
    lead(spec, tmp_path / "run", relay, list(rows.clients), resume=True, seconds=60)
    refused = [
        line["reason"] for line in read_audit(tmp_path / "run") if "its letter to" in line.get("reason", "")
    ]
    assert relay.changed["replayed"] > 5
    assert (
        sum(reason.count("is not sealed for this place") for reason in refused) >= relay.changed["replayed"]
    )


def test_another_order_changes_nothing(tmp_path: Path):
    spec = spec_of("slfed", rounds=3)
    rows = federated(spec)
    theirs = run(spec, tmp_path / "loop")
    relay = Relay(Threads({who: site.answer for who, site in sites_of(rows).items()}), kinds=("reordered",))
    ours = lead(spec, tmp_path / "run", relay, list(rows.clients), seconds=60)
    assert relay.turn > 10
    assert all_equal(to_message(ours.state)[0], to_message(theirs.state)[0])
    assert ours.summary == theirs.summary
