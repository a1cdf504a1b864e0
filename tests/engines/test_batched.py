"""Many clients in one call: what each gets does not depend on whom it shares the call with."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probing import probe
from torch import Tensor, nn
from toys import (
    ROUNDING,
    SIZES,
    context,
    counted,
    empty,
    federation,
    largest_difference,
    learner,
    remembering,
    together,
)

from kinfolk.algorithms.slfed.gan import Gan
from kinfolk.engines.batched import Batched
from kinfolk.engines.coordinator import Coordinator
from kinfolk.engines.fast import steps, trace
from kinfolk.engines.fast.lanes import CudaLane
from kinfolk.engines.loop import Loop
from kinfolk.engines.one import opens_models
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.optim import SGD, Adam
from kinfolk.script import Ask
from kinfolk.streams import Seed
from kinfolk.task import Batch, Carry, Fit, Plan, Scan, Task
from kinfolk.types import Client, Stack, map_leaves

DATA = federation()
LEARNERS = {
    "plain": learner(),
    "norm": learner(nn.BatchNorm1d(5)),
    "adam": replace(learner(plan=Plan(5, 2)), optimiser=Adam(weight_decay=0.01), lr=0.01),
    "clipped": learner(clip=0.1, lr=0.5),
    "steps": learner(plan=Plan(6, steps=11)),
}


@cache
def by_loop(name: str) -> list[tuple[Task, Stack]]:
    one = LEARNERS[name]
    request = Ask("t", DATA.clients, {"model": one.first})
    tasks = one.train(), one.score(tune=one.tuning(1))
    return [(task, together(Loop(DATA, {"t": task}, empty()), request, context(DATA))) for task in tasks]


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_the_size_of_a_chunk_changes_nothing(name, chunk):
    for task, loop in by_loop(name):
        request = Ask("t", DATA.clients, {"model": LEARNERS[name].first})
        engine = Batched(DATA, {"t": task}, empty(), chunk)
        chunks = list(engine.replies(request, context(DATA)))
        assert [len(c) for c in chunks] == {1: [1, 1, 1, 1], 2: [2, 2], 3: [2, 2], 4: [4]}.get(chunk, [4])
        assert all(c.clients == tuple(sorted(c.clients)) for c in chunks)
        assert largest_difference(Stack.join(chunks), loop) < ROUNDING


def test_every_round_has_an_order_of_rows_of_its_own():
    one = LEARNERS["plain"]
    request, table = Ask("t", DATA.clients, {"model": one.first}), {"t": one.train()}
    engine, loop = Batched(DATA, table, empty()), Loop(DATA, table, empty())
    rounds = [together(engine, request, context(DATA, number)) for number in (0, 1, 2, 7)]
    for number, got in zip((0, 1, 2, 7), rounds, strict=True):
        assert largest_difference(got, together(loop, request, context(DATA, number))) < ROUNDING
    assert largest_difference(rounds[0], rounds[1]) > 100 * ROUNDING


@pytest.mark.parametrize("sizes", [SIZES, {"a": 16, "b": 16, "c": 24}])
@pytest.mark.parametrize("bias", [True, False])
def test_weights_that_products_move_equal_the_loop(bias, sizes, monkeypatch):
    monkeypatch.setattr(trace, "WORTH_MOVING", 1)
    with Seed(1).borrowed("init"):
        network = nn.Sequential(nn.Linear(4, 5, bias=bias), nn.Tanh(), nn.Linear(5, 3, bias=bias))
    one = replace(learner(plan=Plan(8, 3)), module=network, optimiser=SGD())
    data = federation(sizes)
    request = Ask("t", data.clients, {"model": one.first})
    first = {n: t.clone() for n, t in one.first.items()}
    loop = together(Loop(data, {"t": one.train()}, empty()), request, context(data))
    for chunk in (2, 9):
        got = together(Batched(data, {"t": one.train()}, empty(), chunk), request, context(data))
        assert largest_difference(got, loop) < ROUNDING
    assert all(torch.equal(request.shared["model"][n], t) for n, t in first.items()), "the server's own"


@settings(deadline=None, max_examples=12)
@given(
    sizes=st.lists(st.integers(1, 23), min_size=1, max_size=6),
    batch=st.integers(1, 9),
    chunk=st.integers(1, 6),
    steps=st.sampled_from([0, 4]),
)
def test_any_federation_equals_the_loop(sizes, batch, chunk, steps):
    data = federation({f"c{i}": n for i, n in enumerate(sizes)})
    # A small rate: many steps amplify the last bit.
    one = replace(LEARNERS["plain"], plan=Plan(batch, 1, steps), lr=0.02)
    request = Ask("t", data.clients, {"model": one.first})
    loop = together(Loop(data, {"t": one.train()}, empty()), request, context(data))
    got = together(Batched(data, {"t": one.train()}, empty(), chunk), request, context(data))
    assert largest_difference(got, loop) < ROUNDING


def test_one_row_and_three_thousand_in_one_call():
    data = federation({"small": 1, "large": 3000, "middle": 50})
    one = learner(nn.BatchNorm1d(5), plan=Plan(64))
    for task in (one.train(), one.score()):
        request = Ask("t", data.clients, {"model": one.first})
        loop = together(Loop(data, {"t": task}, empty()), request, context(data))
        got = together(Batched(data, {"t": task}, empty(), 3), request, context(data))
        assert largest_difference(got, loop) < ROUNDING
    assert got.size.tolist() == [3000, 50, 1]


def test_a_client_with_wild_rows_does_not_harm_its_neighbours():
    draw = np.random.default_rng(0)
    rows = {
        w: (draw.normal(size=(n, 4)).astype(np.float32), draw.integers(0, 3, n))
        for w, n in (("a-wild", 6), ("b", 3), ("c", 5), ("d", 9))
    }
    rows["a-wild"][0][:] = 3e38
    data = from_arrays(rows, test={w: (x[:2], y[:2]) for w, (x, y) in rows.items()}, classes=3)
    one = learner(nn.BatchNorm1d(5), plan=Plan(4, 2))
    request = Ask("t", data.clients, {"model": one.first})
    calm = ("b", "c", "d")
    loop = together(Loop(data, {"t": one.train()}, empty()), request, context(data)).at(calm)
    got = together(Batched(data, {"t": one.train()}, empty()), request, context(data)).at(calm)
    assert all(t.isfinite().all() for t in loop.tree("model").values())
    assert largest_difference(got, loop) < ROUNDING


def test_padding_is_never_a_row_of_somebody_else():
    """A task that looks at all it is given, padding too, sees the client's own rows only."""

    def step(carry: Carry, batch: Batch) -> Carry:
        return {
            "most": torch.maximum(carry["most"], batch.x.amax()),
            "last": torch.maximum(carry["last"], batch.row.amax()),
        }

    task = Task(
        lambda message, memory, facts: {"most": message["low"], "last": facts.rows * 0},
        lambda carry: (carry, None),
        (Scan(step, Plan(4)),),
    )
    for first in (-1e3, 1e3):  # the row that would be taken were padding to come from the pool's beginning
        data = replace(DATA, x=torch.cat([torch.full((1, 4), first), DATA.x[1:]]))
        request = Ask("t", data.clients, {"low": torch.tensor(-1e9)})
        got = together(Batched(data, {"t": task}, empty()), request, context(data))
        for i, who in enumerate(data.clients):
            own = data.x[data.splits["train"].rows(data.place(who))]
            assert got.tensor("most")[i] == own.max()
            assert got.tensor("last")[i] == len(own) - 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_memories_may_lie_on_the_host_and_on_the_device():
    memories = remembering()
    memories[Client("bob")] = {"times": torch.tensor(4, device="cuda")}
    engine = Batched(DATA, {"t": counted()}, memories, device="cuda")
    got = together(engine, Ask("t", DATA.clients, {"by": torch.tensor(1.0)}), context(DATA))
    assert got.tensor("times").tolist() == [1, 5, 1, 1]


def test_a_client_that_has_finished_stays_as_it_was():
    """Momentum and Adam would go on moving a client whose gradient is zero."""
    data = federation({"a": 2, "b": 60})
    for name in ("plain", "adam"):
        one = replace(LEARNERS[name], plan=Plan(2, 3))
        seen = Task(
            lambda message, memory, facts: {"model": message["model"]},
            lambda carry: (
                {"model": carry["model"], **{k: v for k, v in carry.items() if "optimiser" in k}},
                None,
            ),
            (Fit((one.descent(),), one.plan),),
        )
        request = Ask("t", data.clients, {"model": one.first})
        alone = together(Loop(data, {"t": seen}, empty()), request, context(data))
        got = together(Batched(data, {"t": seen}, empty()), request, context(data))
        assert largest_difference(got.at(["a"]), alone.at(["a"])) < ROUNDING
        assert any(key.startswith("optimiser.0.") for key in got.body)


def test_messages_of_ones_own_and_memories_reach_the_right_client():
    each = Stack.of({Client(c): (1, {"by": torch.tensor(float(i))}) for i, c in enumerate(DATA.clients)})
    request = Ask("t", DATA.clients[::-1], {}, each)
    ours, theirs = remembering(), remembering()
    ours[Client("bob")] = theirs[Client("bob")] = {"times": torch.tensor(40)}
    got = together(Batched(DATA, {"t": counted()}, ours, 3), request, context(DATA))
    expected = together(Loop(DATA, {"t": counted()}, theirs), request, context(DATA))
    assert largest_difference(got, expected) < ROUNDING
    assert got.tensor("times").tolist() == [1, 41, 1, 1]
    assert {c: int(m["times"]) for c, m in ours.items()} == {"ann": 1, "bob": 41, "cat": 1, "dan": 1}
    # Each memory is its own piece of storage, not a window into the chunk.
    places = {m["times"].untyped_storage().data_ptr() for m in ours.values()}
    assert len(places) == 4
    assert all(m["times"].untyped_storage().nbytes() == 8 for m in ours.values())


def test_nothing_that_is_sent_or_kept_is_written_to():
    one = learner(nn.BatchNorm1d(5))
    sent = {"model": one.first}
    each = Stack.of({c: (1, {"extra": torch.ones(2)}) for c in DATA.clients})
    kept = map_leaves(torch.clone, sent)
    together(Batched(DATA, {"t": one.train()}, empty()), Ask("t", DATA.clients, sent, each), context(DATA))
    assert all(torch.equal(t, kept["model"][n]) for n, t in sent["model"].items())
    assert torch.equal(each.tensor("extra"), torch.ones(4, 2))


def test_a_branch_on_a_value_is_told_of():
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    one = learner(Branch())
    engine = Batched(DATA, {"t": one.train()}, empty())
    together(engine, Ask("t", DATA.clients, {"model": one.first}), context(DATA))
    (text,) = engine.take_warnings()
    assert (
        "layer Branch: vmap: It looks like you're attempting to use a Tensor in some data-dependent" in text
    )


def test_chunks_under_way_come_in_order_and_once() -> None:
    """Three lanes on a CPU are one queue in truth, but chunks wait for one another as on a device."""
    data, one = DATA, learner()
    request = Ask("t", data.clients, {"model": one.first})
    alone, beside = (Batched(data, {"t": one.train()}, empty(), 1) for _ in range(2))
    beside.lanes = [CudaLane(torch.device("cpu"), alone=True) for _ in range(3)]
    want, got = together(alone, request, context(data)), together(beside, request, context(data))
    assert got.clients == want.clients == data.clients
    for name, leaf in want.tree("model").items():
        assert torch.equal(got.tree("model")[name], leaf)


def test_a_task_without_the_large_network_shares_calls_where_others_have_lanes() -> None:
    """Whether it does is found out: by whether its passes look into a model that it began with."""
    data, one = DATA, learner()
    count = Scan(lambda carry, batch: {**carry, "n": carry["n"] + batch.sum(batch.y)}, Plan(3))
    start = lambda message, memory, facts: {"model": message["model"], "n": facts.rows}  # noqa: E731
    light = Task(start, lambda carry: ({"n": carry["n"]}, None), (count,), {})
    look = Scan(lambda carry, batch: {**carry, "n": carry["n"] + len(carry["model"]["0.bias"])}, Plan(3))
    table = {"t": one.train(), "light": light, "looks": replace(light, passes=(count, look))}

    def sizes(task: str, lanes: int) -> list[int]:
        engine = Batched(data, table, empty(), 1)
        engine.lanes = [CudaLane(torch.device("cpu"), alone=True) for _ in range(lanes)]
        return [
            len(s.clients)
            for s in engine.replies(Ask(task, data.clients, {"model": one.first}), context(data))
        ]

    each = [1] * len(data.clients)
    assert sizes("t", 3) == sizes("t", 1) == sizes("light", 1) == sizes("looks", 3) == each, "as asked"
    assert sizes("light", 3) == [len(data.clients)]


@pytest.mark.parametrize("kind", ["gan", "noise", "means", "back_search"])
def test_only_a_search_backwards_looks_into_the_clients_model_for_images(kind: str) -> None:
    data, one = DATA, learner()
    task, who = probe(one, kind, 4, Gan(width=0.125, steps=2)).task(), data.clients[-1]
    memory = {"model": one.first, "pam": one.first, "key": torch.tensor(7)}
    before = {name: leaf.clone() for name, leaf in one.first.items()}
    assert opens_models(task, {}, memory, data, who, context(data)) == (kind == "back_search")
    assert all(torch.equal(memory["model"][name], leaf) for name, leaf in before.items())


def test_a_caller_who_leaves_early_waits_for_what_is_under_way() -> None:
    joined = []

    class Watched(CudaLane):
        def join(self) -> None:
            joined.append(self)

    one = learner()
    engine = Batched(DATA, {"t": one.train()}, empty(), 1)
    engine.lanes = [Watched(torch.device("cpu"), alone=True) for _ in range(3)]
    replies = engine.replies(Ask("t", DATA.clients, {"model": one.first}), context(DATA))
    next(replies)
    assert len(joined) == 1
    replies.close()
    assert len(joined) == 3


@pytest.mark.parametrize("name", LEARNERS)
def test_one_client_outside_vmap_is_one_client_in_it(name, monkeypatch):
    """As on a GPU: buffers are written through views, parameters the same, scores too."""
    monkeypatch.setattr(trace, "WORTH_TRACING", 10**9)
    monkeypatch.setattr(trace, "WORTH_MOVING", 10**9)
    monkeypatch.setattr(steps, "single", lambda rows: len(rows[0]) == 1)
    for task, loop in by_loop(name):
        request = Ask("t", DATA.clients, {"model": LEARNERS[name].first})
        assert (
            largest_difference(together(Batched(DATA, {"t": task}, empty(), 1), request, context(DATA)), loop)
            < ROUNDING
        )


class Breaks(nn.Module):
    """Fails within a call for many clients, from its second one on."""

    times = 0

    def forward(self, x: Tensor) -> Tensor:
        if torch._C._functorch.is_batchedtensor(x):
            Breaks.times += 1
            if Breaks.times > 1:
                raise RuntimeError("LSE is not correctly aligned\nand more")
        return x


@pytest.mark.parametrize("chunk", [2, 9])
def test_a_task_that_fails_for_many_clients_is_done_one_by_one(chunk):
    Breaks.times = 0
    one = learner(Breaks(), plan=Plan(8))
    table = {"t": one.train(), "other": counted()}
    request = Ask("t", DATA.clients, {"model": one.first})
    loop = together(Loop(DATA, table, empty()), request, context(DATA))
    engine = Batched(DATA, table, remembering(), chunk)
    told = list[str]()
    coordinator = Coordinator(engine, warn=told.append)
    for _ in range(2):
        got = coordinator.perform(request, context(DATA))
        assert largest_difference(got, loop) < ROUNDING
    assert told == [
        "'t' cannot be done for many clients in one call (layer Breaks: LSE is not correctly aligned); "
        "it goes on one client after another"
    ], "once, and by its first line"
    assert "t one client after another" in engine.note
    again = coordinator.perform(Ask("other", DATA.clients, {"by": torch.tensor(1.0)}), context(DATA))
    assert again.clients == DATA.clients, "other tasks still share calls"
    assert len(told) == 1


def test_what_fails_one_by_one_too_is_an_error():
    def step(carry: Carry, batch: Batch) -> Carry:
        raise TypeError("a mistake")

    task = Task(lambda message, memory, facts: {}, lambda carry: ({}, None), (Scan(step, Plan(3)),))
    with pytest.raises(TypeError, match="a mistake"):
        together(Batched(DATA, {"t": task}, empty()), Ask("t", DATA.clients, {}), context(DATA))
