"""Over the wire only bytes cross; a site answers to its own name and for its own tasks only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from toys import (
    SIZES,
    context,
    counted,
    empty,
    federation,
    largest_difference,
    learner,
    remembering,
    ring,
    together,
)

from kinfolk.codec import decode, encode
from kinfolk.engines import wire
from kinfolk.engines.choose import arithmetic
from kinfolk.engines.coordinator import Coordinator
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.engines.wire import Wire
from kinfolk.errors import KinfolkError
from kinfolk.fold import Mean
from kinfolk.script import Ask, Exchange
from kinfolk.task import Task
from kinfolk.types import Client, Message, Stack, leaves

DATA = federation()


def test_the_bits_are_those_of_the_loop():
    one = learner(nn.BatchNorm1d(5), nn.Dropout(0.2))
    table = {"train": one.train(), "count": counted()}
    ours, theirs = remembering(), remembering()
    with arithmetic(torch.device("cpu"), "float32"):
        for request in (
            Ask("train", DATA.clients, {"model": one.first}),
            Ask("count", DATA.clients, {"by": torch.tensor(0.3)}),
        ):
            got = together(Wire(DATA, table, ours), request, context(DATA, 2))
            assert (
                largest_difference(got, together(Loop(DATA, table, theirs), request, context(DATA, 2))) == 0
            )
    assert {c: int(m["times"]) for c, m in ours.items()} == {c: int(m["times"]) for c, m in theirs.items()}


def test_only_bytes_cross(monkeypatch):
    """What a site works on shares no storage and no object with what the server holds, and the reverse."""
    crossing: list[Any] = []
    answer = wire.Site.answer

    def watched(self: wire.Site, data: bytes, clients: tuple[Client, ...]) -> bytes:
        crossing.append(data)
        back = answer(self, data, clients)
        crossing.append(back)
        return back

    monkeypatch.setattr(wire.Site, "answer", watched)
    inside: list[Message] = []

    def start(message: Message, memory: Message, facts: Any) -> Message:
        inside.append(message)
        return {**message, "v": message["v"]}

    def finish(carry: Message) -> tuple[Message, Message]:
        inside.append(carry)
        return {"v": carry["v"]}, {"kept": carry["v"]}

    sent = {"v": torch.ones(3), "model": {"w": torch.ones(2)}}
    each = Stack.of({c: (1, {"own": torch.full((2,), float(SIZES[c]))}) for c in DATA.clients})
    memories = empty()
    made = Wire(DATA, {"t": Task(start, finish)}, memories)
    got = together(made, Ask("t", DATA.clients, sent, each), context(DATA))
    assert len(crossing) == 2 * len(DATA.clients)
    assert all(type(data) is bytes for data in crossing)
    outside = {t.untyped_storage().data_ptr() for m in (sent, each.body, got.body) for _, _, t in leaves(m)}
    within = {t.untyped_storage().data_ptr() for m in [*inside, *memories.values()] for _, _, t in leaves(m)}
    assert not outside & within
    # Mischief on one side is not seen on the other.
    for message in inside:
        for _, _, leaf in leaves(message):
            leaf.fill_(-1)
    assert torch.equal(sent["v"], torch.ones(3))
    assert torch.equal(sent["model"]["w"], torch.ones(2))
    assert torch.equal(got.tensor("v"), torch.ones(4, 3))
    # A request names the task, the client and where the run stands, and carries the client's own row only.
    message, header = decode(crossing[0])
    assert header == {"to": "ann", "task": "t", "run": "3", "round": "0", "request": "1"}
    assert message["own"].tolist() == [SIZES["ann"]] * 2
    assert decode(crossing[1])[1] == {"from": "ann", "run": "3", "round": "0", "request": "1", "rows": "1"}


def test_a_site_holds_its_own_rows_and_nothing_else():
    made = Wire(DATA, {}, empty())
    for who, site in made.sites.items():
        assert site.rows.clients == (who,)
        assert len(site.rows.x) == SIZES[who] + 3
        assert site.rows.truth is None
        own = DATA.x[DATA.splits["train"].rows(DATA.place(who))]
        assert torch.equal(site.rows.x[site.rows.splits["train"].rows(0)], own)


@pytest.mark.parametrize(
    "header",
    [
        {"to": "ann", "task": "unknown", "run": "1", "round": "0"},
        {"to": "bob", "task": "t", "run": "1", "round": "0"},
        {"to": "ann", "task": "ring", "run": "1", "round": "0"},
        {"task": "t", "run": "1", "round": "0"},
        {"to": "ann", "run": "1", "round": "0"},
        {},
    ],
    ids=["unknown task", "another client", "an exchange", "nobody", "nothing", "empty"],
)
def test_requests_that_are_refused(header):
    memories = remembering()
    ran: list[int] = []
    task = Task(lambda *_: ran.append(1) or {}, lambda carry: (carry, None))
    site = Wire(DATA, {"t": task, "ring": ring()}, memories).sites[Client("ann")]
    with pytest.raises(KinfolkError, match="no such task or is not addressed"):
        site.answer(encode({"by": torch.tensor(1.0)}, header), DATA.clients)
    assert ran == []
    assert dict(memories) == {}


def test_bytes_that_are_no_message_are_refused():
    site = Wire(DATA, {"t": counted()}, remembering()).sites[Client("ann")]
    for data in (b"", b"\x80\x04K\x01.", bytes(50)):
        with pytest.raises(KinfolkError):
            site.answer(data, DATA.clients)


def test_messages_between_sites_cross_as_bytes():
    held = Memories(lambda who: {"note": torch.tensor([float(SIZES[who])])})
    before = {c: held[c] for c in DATA.clients}
    held.update(before)
    letters: list[int] = []

    swap = ring()
    made = Wire(DATA, {"ring": swap}, held)

    def receive(inbox: dict[Client, Message], memory: Message, me: Any) -> Message:
        letters.extend(m["note"].untyped_storage().data_ptr() for m in inbox.values())
        return swap.receive(inbox, memory, me)

    sent = made.swap(type(swap)(swap.send, receive), DATA.clients, context(DATA))
    assert sum(sent.values()) == 16
    assert len(letters) == 4
    assert not set(letters) & {m["note"].untyped_storage().data_ptr() for m in before.values()}
    assert float(held[Client("bob")]["note"]) == SIZES["ann"] + SIZES["bob"]


GOOD = {"from": "bob", "run": "3", "round": "2", "request": "1", "rows": str(SIZES["bob"])}


def edited(**changes: str) -> Any:
    """The reply with another header; an empty value takes the entry out."""

    def change(data: bytes) -> bytes:
        message, header = decode(data)
        return encode(message, {key: value for key, value in {**header, **changes}.items() if value})

    return change


BAD = {
    "nothing": lambda data: b"",
    "a pickle": lambda data: b"\x80\x04K\x01.",
    "torn": lambda data: data[: len(data) // 2],
    "a header longer than the message": lambda data: (2**62).to_bytes(8, "little") + data[8:],
    "deep JSON": lambda data: (10**4).to_bytes(8, "little") + b"[" * 10**4,
    "far too much": lambda data: encode({"v": torch.zeros(1 << 20)}, decode(data)[1]),
    "another sender": edited(**{"from": "ann"}),
    "nobody's": edited(**{"from": ""}),
    "an earlier round": edited(round="1"),
    "another request": edited(request="7"),
    "another run": edited(run="4"),
    "no count": edited(rows=""),
    "a count of letters": edited(rows="many"),
    "a negative count": edited(rows="-7"),
    "a count of other digits": edited(rows="\u0667"),
    "a count without end": edited(rows="9" * 4000),
    "another count": edited(rows="8"),
    "what was not asked for": lambda data: encode({"stray": torch.zeros(1)}, decode(data)[1]),
}


@pytest.mark.parametrize("how", BAD)
def test_a_malformed_reply_costs_one_contribution_and_not_the_run(monkeypatch, how):
    answer, log = wire.Site.answer, []

    def answered(self: wire.Site, data: bytes, clients: tuple[Client, ...]) -> bytes:
        back = answer(self, data, clients)
        return BAD[how](back) if self.who == "bob" else back

    one = learner()
    request: Ask[Any] = Ask("train", DATA.clients, {"model": one.first}, fold=Mean("model", one.first))
    others = Ask("train", ("ann", "cat", "dan"), {"model": one.first}, fold=Mean("model", one.first))
    want = Coordinator(Wire(DATA, {"train": one.train()}, empty())).perform(others, context(DATA, 2))
    monkeypatch.setattr(wire.Site, "answer", answered)
    engine = Wire(DATA, {"train": one.train()}, empty())
    stage = Coordinator(engine, lambda event, **facts: log.append((event, facts["client"], facts["reason"])))
    got = stage.perform(request, context(DATA, 2))
    assert all(torch.equal(got[n], want[n]) for n in want)
    assert [entry[:2] for entry in log] == [("rejected", "bob")], log
    assert len(log[0][2]) < 300
    assert stage.answered == {"ann", "cat", "dan"}
    # The next round is as any other.
    monkeypatch.setattr(wire.Site, "answer", answer)
    assert len(stage.perform(Ask("train", DATA.clients, {"model": one.first}), context(DATA, 3))) == 4


def test_a_reply_of_an_earlier_request_is_not_taken_for_one_of_now(monkeypatch):
    answer, seen = wire.Site.answer, []

    def replayed(self: wire.Site, data: bytes, clients: tuple[Client, ...]) -> bytes:
        seen.append(answer(self, data, clients))
        return seen[0]

    monkeypatch.setattr(wire.Site, "answer", replayed)
    engine = Wire(DATA, {"t": counted()}, remembering())
    request = Ask("t", (Client("ann"),), {"by": torch.tensor(1.0)})
    assert len(together(engine, request, context(DATA))) == 1
    assert len(list(engine.replies(request, context(DATA)))) == 0
    assert engine.take_rejected() == {"ann": "message.request = '1': is not the '2' that was asked"}
    assert engine.take_rejected() == {}


def test_nothing_is_decoded_of_what_is_not_a_reply_to_the_request(monkeypatch):
    def never(data: bytes, limit: int | None = None) -> Any:
        raise AssertionError("decoded")

    engine = Wire(DATA, {"t": counted()}, remembering())
    request = Ask("t", (Client("ann"),), {"by": torch.tensor(1.0)})
    wrong = encode({}, {**GOOD, "from": "ann", "round": "9"})
    monkeypatch.setattr(wire.Site, "answer", lambda self, *given: wrong)
    monkeypatch.setattr(wire, "decode", never)
    assert list(engine.replies(request, context(DATA))) == []
    assert "message.round" in engine.take_rejected()["ann"]


def test_who_joins_with_no_message_is_not_heard(monkeypatch):
    join = wire.Site.join
    monkeypatch.setattr(wire.Site, "join", lambda self: b"?" if self.who == "bob" else join(self))
    log: list[Any] = []
    stage = Coordinator(
        Wire(DATA, {"t": counted()}, remembering()),
        lambda event, **facts: log.append((event, facts["client"])),
    )
    got = stage.perform(Ask("t", DATA.clients, {"by": torch.tensor(1.0)}), context(DATA))
    assert got.clients == ("ann", "cat", "dan")
    assert set(log) == {("rejected", "bob")}


def test_a_letter_that_cannot_be_read_does_not_arrive(monkeypatch):
    letter = wire.Site.letter
    monkeypatch.setattr(
        wire.Site, "letter", lambda self, *given: b"?" if self.who == "bob" else letter(self, *given)
    )
    held, log = Memories(lambda who: {"note": torch.tensor([float(SIZES[who])])}), []
    stage = Coordinator(
        Wire(DATA, {"ring": ring()}, held), lambda event, **facts: log.append((event, facts["client"]))
    )
    stage.perform(Exchange("ring", DATA.clients), context(DATA))
    assert log == [("rejected", "bob")]
    assert float(held[Client("cat")]["note"]) == SIZES["cat"], "nothing has come from bob"
    assert float(held[Client("bob")]["note"]) == SIZES["ann"] + SIZES["bob"]
