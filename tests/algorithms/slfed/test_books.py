"""Books of many peers are closed between steps: smaller, and nothing of any round changes by a bit."""

from __future__ import annotations

import pytest
import torch
from film import EASY, Film, learner, nine, past, slfed

from kinfolk.algorithms.slfed.slfed import BOOKS
from kinfolk.shares import books
from kinfolk.shares.books import booked, closed, opened
from kinfolk.shares.open_requests import OpenRequests, none_open
from kinfolk.shares.rejections import Rejections, no_rejections
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Peer, PeerTask
from kinfolk.types import Client, leaves, nbytes


def bits(message):
    return {
        (key, name): (leaf.dtype, leaf.shape, leaf.reshape(-1).view(torch.uint8).tolist())
        for key, name, leaf in leaves(message)
    }


def of_all(film, peers):
    return {who: bits(opened(memory, BOOKS, peers)) for who, memory in film.memories.items()}


@pytest.mark.parametrize("least", [1, 4])
@pytest.mark.parametrize("scheme", ["plain", "shamir61"])
@pytest.mark.parametrize("tell", ["all", "direct"])
def test_rounds_with_closed_books_are_those_with_open_ones(monkeypatch, least, scheme, tell):
    method = slfed(learner(), shares__scheme=scheme, shares__entropy="stream", trust__tell=tell, **EASY)

    def lies(sent, memory, me):
        """Somebody whose messages are refused."""
        return {
            to: {"opinions": torch.ones(3)} if me.name == "b" else message for to, message in sent.items()
        }

    open_ones = Film(method, nine(), 4, tamper={"opinions": lies})
    monkeypatch.setattr(books, "LEAST", least)
    monkeypatch.setattr(books, "WIDE", 0)
    shut = Film(method, nine(), 4, tamper={"opinions": lies})
    assert any(
        "of" in leaf
        for memory in shut.memories.values()
        for leaf in memory.values()
        if isinstance(leaf, dict)
    )
    assert of_all(shut, 9) == of_all(open_ones, 9)
    assert shut.bytes == open_ones.bytes
    told = [
        [method.complaints(film.memories[who], nine().clients) for who in nine().clients]
        for film in (shut, open_ones)
    ]
    assert told[0] == told[1]
    assert any(told[0])


def test_what_is_shown_of_closed_books_is_the_same(monkeypatch):
    film, method = past(), slfed(learner(), **EASY)
    context = RoundContext(Seed(0), film.rounds - 1, nine().clients)
    seen = method.look(film.memories, context)
    monkeypatch.setattr(books, "LEAST", 1)
    shut = {who: closed(memory, BOOKS, 9) for who, memory in film.memories.items()}
    again = method.look(shut, context)
    assert all(torch.equal(seen[key], again[key]) for key in seen)


def test_any_book_comes_back_with_its_bits():
    made = torch.zeros(300, 2, dtype=torch.float64)
    made[7], made[8, 1], made[299, 0] = -0.0, float("nan"), 1e-320  # of bits, not of values
    flags = torch.zeros(300, dtype=torch.bool)
    flags[250] = True
    memory = {"trust": {"a": made, "met": flags}, "rejected": flags.long(), "model": {"of": made}}
    shut = closed(memory, BOOKS, 300)
    assert shut["trust"]["of"][:4].tolist() == [7, 8, 250, 299]
    assert list(shut) == list(memory)
    assert bits(opened(shut, BOOKS, 300)) == bits(memory)
    assert closed(shut, BOOKS, 300)["trust"] is shut["trust"]  # what no step has opened
    full = {"rejected": torch.arange(1, 301)}
    assert closed(full, BOOKS, 300)["rejected"] is full["rejected"]
    few = {"rejected": torch.zeros(64, dtype=torch.int64)}
    assert closed(few, BOOKS, 64) is few


def test_a_memory_grows_with_the_peers_it_holds_something_of_and_not_with_all():
    from kinfolk.algorithms.slfed.trust import add_contacts, no_evidence
    from kinfolk.shares.secure_sum import first_memory

    def held(peers, met):
        contacts = {i * (peers // met): torch.tensor(0.5) for i in range(met)}
        memory = {"trust": add_contacts(no_evidence(peers), contacts), **first_memory(peers)}
        return closed(memory, BOOKS, peers), memory

    sizes = {peers: nbytes(held(peers, 20)[0]) for peers in (500, 2000, 8000)}
    assert len(set(sizes.values())) == 1
    assert nbytes(held(2000, 20)[1]) == 2000 * (7 * 8 + 160 + 8 + 3 * 8 + 32)
    assert sizes[8000] == 64 * (
        8 + 7 * 8
    )  # room for 64, of each its place and seven numbers; nobody is blamed
    assert nbytes(held(2000, 200)[0]) == 256 * (8 + 7 * 8)


def test_what_a_step_leaves_alone_stays_closed_and_no_memory_is_written_to():
    seen = torch.zeros(300, 2)
    seen[7] = 1.0
    before = closed({"seen": seen, "none": torch.zeros(300), "n": torch.tensor(0)}, ["seen", "none"], 300)
    held = bits(before)

    def receive(inbox, memory, me):
        assert torch.equal(memory["seen"], seen)
        return {**memory, "none": memory["none"].index_fill(0, torch.tensor([299]), 2.0)}

    context = RoundContext(Seed(0), 0, tuple(Client(f"c{i:03d}") for i in range(300)))
    task = booked(PeerTask(lambda memory, me: {}, receive), ["seen", "none"])
    after = task.receive({}, before, Peer(context.clients[0], context))
    assert after["seen"] is before["seen"]
    assert opened(after, ["none"], 300)["none"].nonzero().tolist() == [[299]]
    assert bits(before) == held
    assert not opened(before, ["none"], 300)["none"].any()  # of which all who hold nothing share one


@pytest.mark.parametrize("peers", [200, 800])
def test_a_request_takes_the_room_of_its_members_and_not_of_all_peers(peers):
    taken = OpenRequests(none_open()).admitted(peers - 1, [3, 5, 8], (0.5, 0.25, 0.125))
    assert nbytes({"open": taken.tree}) == 3 * (8 + 8 + 8 + 1 + 1)


def test_open_requests_are_kept_apart():
    none = OpenRequests(none_open())
    both = none.admitted(4, [1, 2], (0.5, 0.25)).admitted(0, [2, 3], (1.0, 0.0))
    assert (none.requesters, both.requesters) == ([], [0, 4])
    assert (both.of(0), both.of(4), both.of(1)) == (([2, 3], (1.0, 0.0)), ([1, 2], (0.5, 0.25)), ([], ()))
    go = both.going(4, True)
    assert [go.may_go(i) for i in (0, 1, 4)] == [False, False, True]
    assert not go.going(4, False).may_go(4)
    lost = both.losing(0, [2])
    assert (lost.lost(0, 5).tolist(), lost.lost(4, 5).any()) == ([False, False, True, False, False], False)
    assert not lost.losing(0, []).lost(0, 5).any()
    left = lost.going(0, True).without(0)
    assert (left.requesters, left.of(4)) == ([4], ([1, 2], (0.5, 0.25)))
    again = left.admitted(0, [1], (0.5,))
    assert not again.may_go(0)
    assert not again.lost(0, 5).any()


def test_what_is_refused_changes_no_tensor_of_the_memory_it_came_from():
    before = no_rejections(2)
    rejections = Rejections((Client("ann"), Client("bob")), before)
    rejections.add(Client("bob"), "says nothing")
    rejections.add(Client("bob"), "says nothing again")
    assert rejections.noted()["rejected"].tolist() == [0, 2]
    assert not before["rejected"].any()
    assert not before["reasons"].any()
