"""Updates that are finite but absurd: seen by their length, beside those of the cohort and those before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from toys import context, federation, learner

from kinfolk.contract.spoil import Passing
from kinfolk.engines.batched import Batched
from kinfolk.engines.cohort import FEW, FIRST, Cohort, GuardSpec, Limits, Usual, norms
from kinfolk.engines.coordinator import Coordinator, fold_part
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
@pytest.mark.parametrize("factor", [200.0, 1e5, 1e12, 9e17])
def test_an_absurd_model_is_refused_by_name_and_the_mean_is_that_of_the_others(kind, factor):
    got, bad = mean_of(engine_of(kind, {"c": factor}), DATA.clients)
    assert set(bad) == {"c"}
    assert "is over 100 times the cohort's median" in bad["c"] or "is not finite" in bad["c"]
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
    _, bad = mean_of(engine_of(Loop, {"c": FIRST}), DATA.clients)
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


def test_replies_without_a_model_have_no_part_in_the_median():
    """Else many counts or losses in a round would make every model that grows look absurd."""
    who, sent, seen = tuple(map(Client, "abc")), {"w": torch.ones(4)}, []
    told = Cohort(Ask("count", who), {"n": torch.zeros(())}, seen=seen)
    assert told.pass_on(Stack.of({c: (1, {"n": torch.tensor(1.0)}) for c in who})).clients == who
    assert seen == []
    grown = Cohort(Ask("t", who, {"model": sent}), {"model": sent}, seen=seen)
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
    part = fold_part(engine, request, Mean("model", {}), context(DATA), Limits())
    back = unpack_part(*decode(encode(*pack_part(part))))
    assert back.waiting.clients == part.waiting.clients == ("c",)
    assert back.heard == part.heard == DATA.clients
    assert torch.equal(back.norms, part.norms)
    assert list(back.lengths) == ["model"]
    assert torch.equal(back.lengths["model"], part.lengths["model"])
    assert len(part.norms) == len(DATA.clients)
    assert torch.equal(back.waiting.tree("model")["0.weight"], part.waiting.tree("model")["0.weight"])
    assert set(back.total) == set(part.total)


def replying(values: dict[str, float]) -> Stack:
    return Stack.of({Client(c): (1, {"model": {"w": torch.full((4,), v)}}) for c, v in values.items()})


def judged(
    request: Ask[Any], values: dict[str, float], usual: Usual | None = None, norm: float = 100.0
) -> set[str]:
    """Who is refused, of replies that come one by one."""
    usual = usual or Usual()
    cohort = Cohort(request, {"model": {"w": torch.zeros(4)}}, Limits(norm=norm, usual=usual.of("t")), usual)
    for client, value in values.items():
        cohort.pass_on(replying({client: value}))
    return set(cohort.judge()[1])


def request(who: str, value: float = 1.0) -> Ask[Any]:
    return Ask("t", tuple(map(Client, who)), {"model": {"w": torch.full((4,), value)}})


def test_it_is_the_update_that_counts_and_not_the_model():
    """Models of norm 2000 that move by 2 are ordinary; a smaller one that has moved by 400 is not."""
    usual = Usual()
    usual.note("t", {"model": torch.full((FEW,), 2.0)})
    moved = dict.fromkeys("abcdefg", 1001.0)
    assert judged(request("abcdefgh", 1000.0), {**moved, "h": 800.0}, usual) == {"h"}
    usual.note("t", {"model": torch.full((FEW,), 2.0)})
    assert judged(request("abcdefgh", 1000.0), {**moved, "h": 950.0}, usual) == set()


def test_a_client_that_is_asked_alone_is_held_to_what_was_usual_before():
    usual = Usual()
    for value in (1.5, 1.4, 1.6):
        assert judged(request("a"), {"a": value}, usual) == set()
    assert judged(request("b"), {"b": 101.0}, usual) == {"b"}
    assert judged(request("a"), {"a": 1.5}, usual) == set(), "one absurd reply does not become what is usual"


def test_where_nothing_is_known_and_nobody_else_answers_a_reply_passes():
    assert judged(request("a"), {"a": 9e9}) == set()


def test_where_all_grow_at_once_the_next_are_judged_by_that():
    usual = Usual()
    usual.note("t", {"model": torch.full((FEW,), 1e-3)})
    grown = dict.fromkeys("abcdefgh", 9.0)
    assert judged(request("abcdefgh"), grown, usual) == set()
    assert usual.of("t") == {"model": 16.0}


def test_who_does_not_move_says_nothing_of_how_far_others_may():
    """Most have too few rows for a step; who has more moves."""
    still, usual = dict.fromkeys("abcdef", 1.0), Usual()
    assert judged(request("abcdefgh"), {**still, "g": 2.0, "h": 3.0}, usual) == set()
    assert judged(request("abcdefgh"), {**still, "g": 50.0, "h": 101.0}, usual) == set()
    assert judged(request("abcdefgh"), {**still, "g": 50.0, "h": 105.0}) == {"g", "h"}, "nothing is known"


ROUNDING = 1.0 + 2.0**-23  # the next number after one: what comes back is what was sent but for rounding


@pytest.mark.parametrize("known", [False, True])
def test_free_riders_do_not_make_honest_updates_look_long(known):
    """Half of the clients send back what they were sent, all but the last bit of it."""
    who = "abcdefghijklmnopqrstuvwx"
    usual = Usual()
    if known:
        usual.note("t", {"model": torch.full((FEW,), 0.1)})
    riders = dict.fromkeys(who[:12], ROUNDING)
    honest = {c: 1.05 + 0.001 * i for i, c in enumerate(who[12:])}
    for _ in range(3):
        assert judged(request(who), {**riders, **honest}, usual) == set()
    assert 0.05 < usual.of("t")["model"] < 0.2
    assert judged(request(who), {**riders, **honest, "x": 1.0 + 100}, usual) == {"x"}


@pytest.mark.parametrize("riders", [0, 3, 6, 9, 11])
@pytest.mark.parametrize("value", [15.0, 1e4, 9e17])
def test_fewer_than_half_do_not_open_a_way_whether_they_ride_or_scale(riders, value):
    """Of 24, eleven attack: some stand still, so that the others' absurd updates are nearer to the middle."""
    who = "abcdefghijklmnopqrstuvwx"
    sent = {c: ROUNDING if i < riders else value for i, c in enumerate(who[:11])}
    honest = {c: 1.05 + 0.001 * i for i, c in enumerate(who[11:])}
    usual = Usual()
    for _ in range(3):
        assert judged(request(who), {**sent, **honest}, usual) == set(who[riders:11])
        assert 0.05 < usual.of("t")["model"] < 0.2


def test_updates_of_a_millionth_of_what_was_sent_count():
    """A cohort that is nearly done still judges one that is not."""
    usual, nearly = Usual(), dict.fromkeys("abcdefg", 1.0 + 4e-6)
    for _ in range(2):
        assert judged(request("abcdefgh"), {**nearly, "h": 1.0}, usual) == set()
    assert usual.of("t")["model"] == pytest.approx(8e-6, rel=0.1)
    assert judged(request("abcdefgh"), {**nearly, "h": 1.0 + 2e-3}, usual) == {"h"}


def test_how_long_a_refused_update_was_is_said_in_numbers():
    """The sum of the squares of 9e17 is more than float32 can hold; the length is not."""
    sent = {"w": torch.ones(2500)}
    replies = {
        c: (1, {"model": {"w": torch.full((2500,), v)}})
        for c, v in zip("abcd", (1.1, 1.2, 1.3, 9e17), strict=True)
    }
    cohort = Cohort(Ask("t", tuple(map(Client, "abcd")), {"model": sent}), {"model": sent})
    cohort.pass_on(Stack.of({Client(c): reply for c, reply in replies.items()}))
    told = "update of model of norm 4.5e+19 is over 100 times the cohort's median, 10"
    assert cohort.judge()[1] == {"d": told}
    assert float(cohort.seen[0][3]) == pytest.approx(4.5e19)


def test_an_update_that_is_short_beside_the_model_does_no_harm():
    usual = Usual()
    usual.note("t", {"model": torch.full((FEW,), 1e-9)})
    still = dict.fromkeys("abcdefg", 1.0 + 1e-7)
    assert judged(request("abcdefgh"), {**still, "h": 1.0 + 9e-4}, usual) == set()
    assert judged(request("abcdefgh"), {**still, "h": 1.0 + 1.1e-3}, usual) == {"h"}


@pytest.mark.parametrize(("norm", "refused"), [(0.0, set()), (30.0, {"h"}), (100.0, set())])
def test_the_limit_is_ours_to_set(norm, refused):
    usual = Usual()
    usual.note("t", {"model": torch.full((FEW,), 1.0)})
    moved = dict.fromkeys("abcdefg", 1.5)
    assert judged(request("abcdefgh"), {**moved, "h": 26.0}, usual, norm) == refused


def test_an_update_begins_at_the_nearest_of_the_models_to_choose_from():
    models = {"w": torch.stack([torch.full((4,), v) for v in (0.0, 1000.0)])}
    ask: Ask[Any] = Ask("t", tuple(map(Client, "abc")), {"models": models})
    usual = Usual()
    usual.note("t", {"model": torch.full((FEW,), 2.0)})
    assert judged(ask, {"a": 1.0, "b": 1001.0, "c": 500.0}, usual) == {"c"}


def test_a_gradient_begins_nowhere():
    ask: Ask[Any] = Ask("t", tuple(map(Client, "abc")), {"w": {"w": torch.full((4,), 50.0)}})
    usual = Usual()
    usual.note("t", {"model": torch.full((FEW,), 2.0)})
    assert judged(ask, {"a": 1.0, "b": 1.0, "c": 101.0}, usual) == {"c"}


def test_what_was_usual_travels_and_is_saved():
    import json

    usual = Usual()
    usual.note("t", {"model": torch.tensor([1.0, 3.0, 2.0])})
    assert usual.lately == {"t": {"model": [1.0, 2.0, 3.0]}}
    assert Usual(json.loads(json.dumps(usual.lately))).of("t") == usual.of("t") == {"model": 2.0}
    usual.note("t", {"model": torch.tensor([9.0])})
    assert usual.lately["t"]["model"] == [9.0, 1.0, 2.0, 3.0]
    usual.note("t", {"model": torch.arange(1.0, 12.0)})
    assert usual.lately["t"]["model"] == [6.0] * FEW
    limits = Limits(7, 5.0, usual.of("t"))
    assert Limits.read(limits.text()) == limits
    assert GuardSpec() == GuardSpec(rows=50.0, share=0.5, norm=100.0)
