"""Books of many peers are closed between steps: smaller, and nothing of any round changes by a bit."""

from __future__ import annotations

import pytest
import torch
from film import EASY, Film, learner, nine, past, slfed

from kinfolk.algorithms.slfed.slfed import BOOKS
from kinfolk.shares import books
from kinfolk.shares.books import closed, opened
from kinfolk.types import leaves, nbytes


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
    from kinfolk.streams import RoundContext, Seed

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
    from kinfolk.shares.messages import nothing_open
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
    asking = nothing_open(500)
    asking["mask"][3, 4] = True
    assert nbytes(closed({"open": asking}, BOOKS, 500)) == 8 + 500 * 10 + 1
