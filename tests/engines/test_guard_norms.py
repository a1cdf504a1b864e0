"""Models that are finite but absurd: seen by their norm, beside what was sent and beside the cohort."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from toys import context, federation, learner

from kinfolk.contract.spoil import Passing
from kinfolk.engines.batched import Batched
from kinfolk.engines.coordinator import Coordinator, fold_part
from kinfolk.engines.guard import FAR, Cohort, norms
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.engines.rpc import pack_part, unpack_part
from kinfolk.engines.wire import Wire
from kinfolk.engines.workers import Workers
from kinfolk.fold import Mean
from kinfolk.script import Ask
from kinfolk.task import Table
from kinfolk.types import Client, IndexedMessages, Stack

DATA = federation({name: 5 + i for i, name in enumerate("abcdefgh")})
ONE = learner()
TABLE: Table = {"train": ONE.train()}


def scaled(by: dict[str, float]) -> Any:
    """An engine whose chosen clients reply with their model times a number."""

    def change(request: Ask[Any], reply: Stack) -> Stack:
        factor = torch.tensor([by.get(c, 1.0) for c in reply.clients])
        model = {n: t * factor.reshape(-1, *[1] * (t.dim() - 1)) for n, t in reply.tree("model").items()}
        return Stack(reply.clients, reply.size, {"model": model})

    return lambda engine: Passing(engine, change)


def mean_of(engine: Any, who: tuple[Client, ...]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The mean of what they reply, and who was refused for what."""
    bad: dict[str, str] = {}
    coordinator = Coordinator(
        engine, lambda event, **facts: bad.update({facts["client"]: facts.get("reason", event)})
    )
    try:
        fold = Mean("model", ONE.first)
        return coordinator.perform(Ask("train", who, {"model": ONE.first}, fold=fold), context(DATA)), bad
    finally:
        engine.close()


def engine_of(kind: Any, by: dict[str, float]) -> Any:
    def inner(memories: Memories) -> Any:
        return scaled(by)(Loop(DATA, TABLE, memories))

    memories = Memories(lambda who: {})
    if kind is Workers:  # folds where the replies are made: the absurd one is found there
        return Workers(DATA, TABLE, memories, processes=2, inner=inner)
    return scaled(by)(kind(DATA, TABLE, memories))


@pytest.mark.parametrize("kind", [Loop, Batched, Wire, Workers], ids=lambda k: k.name)
@pytest.mark.parametrize("factor", [1e5, 1e12])
def test_an_absurd_model_is_refused_by_name_and_the_mean_is_that_of_the_others(kind, factor):
    got, bad = mean_of(engine_of(kind, {"c": factor}), DATA.clients)
    assert set(bad) == {"c"}
    assert "over 1000 times what was sent and the cohort's median" in bad["c"]
    others = tuple(c for c in DATA.clients if c != "c")
    want, none = mean_of(engine_of(Loop, {}), others)
    assert none == {}
    for name in want:
        assert torch.allclose(got[name], want[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [Loop, Batched, Workers], ids=lambda k: k.name)
def test_where_most_of_the_cohort_grow_so_nobody_is_refused(kind):
    """As after a first round on targets in the hundred thousands: large, but it is what the data say."""
    everybody = dict.fromkeys(DATA.clients, 100000.0)
    got, bad = mean_of(engine_of(kind, everybody), DATA.clients)
    want, _ = mean_of(engine_of(Loop, {}), DATA.clients)
    assert bad == {}
    for name in want:
        assert torch.allclose(got[name], 1e5 * want[name], rtol=1e-4, atol=1)


def test_a_large_but_possible_model_passes():
    _, bad = mean_of(engine_of(Loop, {"c": 100.0}), DATA.clients)
    assert bad == {}


def test_the_verdict_does_not_depend_on_chunks():
    """The absurd one first, last, alone in a chunk, or all in one."""
    sent = {"w": torch.ones(4)}
    replies = {Client(c): (1, {"model": {"w": torch.ones(4) * (i + 1)}}) for i, c in enumerate("abcde")}
    for who in "ae":
        changed = {**replies, Client(who): (1, {"model": {"w": torch.full((4,), 1e7)}})}
        for cuts in ([5], [1, 1, 1, 1, 1], [2, 3], [4, 1]):
            cohort = Cohort(Ask("t", tuple(changed), {"model": sent}), {"model": sent})
            names, passed = sorted(changed), []
            for cut in cuts:
                now, names = names[:cut], names[cut:]
                passed += cohort.pass_on(Stack.of({c: changed[c] for c in now})).clients
            good, bad = cohort.judge()
            assert set(bad) == {who}
            assert good.clients == ()
            assert sorted(passed) == [c for c in "abcde" if c != who]


def test_each_client_is_held_to_what_it_was_sent_itself():
    """A model in the thousands is ordinary for the group that was sent one, and absurd for the other."""
    table = {"model": {"w": torch.stack([torch.ones(4), torch.full((4,), 1e4)])}}
    who = tuple(map(Client, "abcdef"))
    each = IndexedMessages(who, torch.tensor([0, 0, 0, 0, 1, 1]), table)
    first = {"w": torch.ones(4)}
    values = dict(zip(who, [1.0, 1.0, 1.0, 1e4, 1e4, 1e4], strict=True))
    cohort = Cohort(Ask("t", who, {}, each), {"model": first})
    chunk = Stack.of({c: (1, {"model": {"w": torch.full((4,), v)}}) for c, v in values.items()})
    assert cohort.pass_on(chunk).clients == tuple("abcef")
    assert set(cohort.judge()[1]) == {"d"}
    assert FAR == 1e3


def test_replies_without_a_model_have_no_part_in_the_median():
    """Else many counts or losses in a round would make every model that grows look absurd."""
    who, sent, seen = tuple(map(Client, "abc")), {"w": torch.ones(4)}, []
    told = Cohort(Ask("count", who), {"n": torch.zeros(())}, seen)
    assert told.pass_on(Stack.of({c: (1, {"n": torch.tensor(1.0)}) for c in who})).clients == who
    grown = Cohort(Ask("t", who, {"model": sent}), {"model": sent}, seen)
    assert (
        grown.pass_on(Stack.of({c: (1, {"model": {"w": torch.full((4,), 1e5)}}) for c in who})).clients == ()
    )
    good, bad = grown.judge()
    assert (good.clients, bad) == (who, {})


def test_norms_are_those_of_whole_trees_in_doubles():
    draw = torch.Generator().manual_seed(3)
    tree = {"w": torch.randn(3, 4, 5, generator=draw), "b": torch.randn(3, 7, generator=draw)}
    got = norms({"model": tree, "n": torch.ones(3)}, 3)
    for i in range(3):
        want = sum(float((t[i].double() ** 2).sum()) for t in tree.values()) ** 0.5
        assert float(got[i]) == pytest.approx(want, rel=1e-5)


def test_a_part_comes_back_from_bytes_with_the_replies_that_wait():
    from kinfolk.codec import decode, encode

    engine = scaled({"c": 1e9})(Loop(DATA, TABLE, Memories(lambda who: {})))
    request: Ask[Any] = Ask("train", DATA.clients, {"model": ONE.first})
    part = fold_part(engine, request, Mean("model", {}), context(DATA))
    back = unpack_part(*decode(encode(*pack_part(part))))
    assert back.waiting.clients == part.waiting.clients == ("c",)
    assert back.heard == part.heard == DATA.clients
    assert torch.equal(back.norms, part.norms)
    assert len(part.norms) == len(DATA.clients)
    assert torch.equal(back.waiting.tree("model")["0.weight"], part.waiting.tree("model")["0.weight"])
    assert set(back.total) == set(part.total)
