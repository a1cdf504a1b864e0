"""What carries the lead's bytes over Flower, on a grid that does what Flower's may do, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinfolk.deploy.flower_kits import Card
from kinfolk.types import Client

pytest.importorskip("flwr", reason="Flower is not installed: make test-deploy installs it")

# Flower 1.41.0 imports what its newer dependencies call old.
pytestmark = [pytest.mark.deploy, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ANN, BOB, EVE = Client("ann"), Client("bob"), Client("eve")
Answer = Callable[[bytes], bytes | None]


class Grid:
    """Nodes by key, each with an answer; None is none."""

    def __init__(self, **answers: Answer) -> None:
        self.answers, self.sent = answers, dict[str, tuple[str, bytes, float]]()
        self.starts = dict.fromkeys(answers, "today")
        self.pulls = 0

    def get_nodes(self) -> list[Any]:
        return [
            SimpleNamespace(public_key=f"key of {who}\n".encode(), node_id=number, last_activated_at=start)
            for number, (who, start) in enumerate(self.starts.items(), 2)
        ]

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        from kinfolk.deploy.flower_site import unpacked

        names = list(self.answers)
        found = []
        for message in messages:
            number, who = f"message {len(self.sent)}", names[message.metadata.dst_node_id - 2]
            self.sent[number] = who, unpacked(message), message.metadata.ttl
            found.append(number)
        return found

    def pull_messages(self, numbers: list[str]) -> list[Any]:
        from kinfolk.deploy.flower_site import packed

        self.pulls += 1
        found = []
        for number in numbers:
            who, data, _ = self.sent[number]
            told = SimpleNamespace(reply_to_message_id=number, src_node_id=1)
            try:
                answer = self.answers[who](data)
            except OSError as error:
                why = SimpleNamespace(reason=str(error))
                found.append(SimpleNamespace(metadata=told, has_error=lambda: True, error=why))
                continue
            if answer is not None:
                content = packed(answer)
                found.append(SimpleNamespace(metadata=told, has_error=lambda: False, content=content))
        return found


@pytest.fixture
def lead(monkeypatch: pytest.MonkeyPatch) -> Any:
    from flwr.supercore.task_identity import TaskIdentity

    from kinfolk.deploy import flower_lead

    for name in ("_run_id", "_task_id", "_node_id"):  # what a message is written in the name of
        monkeypatch.setattr(TaskIdentity, name, 1)
    for name in ("POLL", "NODES", "LEAST"):
        monkeypatch.setattr(flower_lead, name, 0.0)
    return flower_lead


def card(*names: str) -> Card:
    nodes = {name: f"key of {name}\n" for name in names}
    return Card(Path(), "server", "here", "trial", "here", 1, "", nodes=nodes)


def broken(data: bytes) -> bytes:
    raise OSError("Node Unavailable")


def test_an_error_is_told_of_the_site_that_was_asked_and_a_late_one_is_left_out(lead: Any):
    grid = Grid(ann=bytes.upper, bob=broken, eve=lambda data: None)
    calls = lead.Calls(grid, card("ann", "bob", "eve"))
    told = dict(calls.ask({ANN: b"a", BOB: b"b", EVE: b"c"}, 0.3))
    assert (told[ANN], str(told[BOB]), EVE in told) == (b"A", "Node Unavailable", False)
    # What is left out now is not answered later: Flower would keep it for 12 hours.
    assert {ttl for _, _, ttl in grid.sent.values()} == {0.3}


def test_nothing_is_sent_to_a_node_whose_key_the_kit_does_not_have(lead: Any):
    grid = Grid(ann=bytes.upper, eve=bytes.upper)
    told = dict(lead.Calls(grid, card("ann", "bob")).ask({ANN: b"a", BOB: b"b", EVE: b"c"}, 0.3))
    assert told[ANN] == b"A"
    assert [type(told[who]) for who in (BOB, EVE)] == [ConnectionError, ConnectionError]
    assert {who for who, _, _ in grid.sent.values()} == {"ann"}


def test_a_node_that_was_started_anew_is_given_up_at_once(lead: Any):
    """It has lost the message, and no error comes of that: Flower thinks that it is at work."""
    grid = Grid(ann=bytes.upper, bob=lambda data: grid.starts.update(bob="again"))
    began = time.monotonic()
    told = dict(lead.Calls(grid, card("ann", "bob")).ask({ANN: b"a", BOB: b"b"}, 60.0))
    assert (told[ANN], str(told[BOB])) == (b"A", "its node was started anew")
    assert time.monotonic() - began < 30


def test_a_site_that_is_away_is_looked_for_as_long_as_a_node_may_take(lead: Any, monkeypatch: Any):
    """The lead gives such a look 2 seconds; a node asks for messages every 3."""
    monkeypatch.setattr(lead, "LEAST", 0.4)
    until = time.monotonic() + 0.2
    grid = Grid(ann=lambda data: data.upper() if time.monotonic() > until else None)
    assert dict(lead.Calls(grid, card("ann")).ask({ANN: b"a"}, 0.01)) == {ANN: b"A"}
