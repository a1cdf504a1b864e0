"""What clients say of their rows: held to what they said at first, and to what most of them have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from toys import context, federation, learner

from kinfolk.contract.spoil import Passing
from kinfolk.engines.batched import Batched
from kinfolk.engines.cohort import GuardSpec
from kinfolk.engines.coordinator import Coordinator
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.engines.wire import Wire
from kinfolk.engines.workers import Workers
from kinfolk.fold import Mean
from kinfolk.script import Ask
from kinfolk.task import Table
from kinfolk.types import Client, Stack

# The median is 4; one has a hundred and more times as many.
SIZES = {"a": 4, "b": 3, "c": 500, "d": 5, "e": 4}
DATA, ONE = federation(SIZES), learner()
TABLE: Table = {"train": ONE.train()}
ENGINES = [Loop, Batched, Wire, Workers]


class Lying(Passing):
    """Some clients say that they have more rows: in their replies, or from the beginning."""

    def __init__(self, engine: Any, lies: Mapping[str, int], always: bool) -> None:
        super().__init__(engine, self._lie)
        self.lies, self.always = lies, always

    def _lie(self, request: Ask[Any], reply: Stack) -> Stack:
        size = torch.tensor(
            [self.lies.get(c, int(n)) for c, n in zip(reply.clients, reply.size, strict=True)]
        )
        return Stack(reply.clients, size, reply.body)

    def claims(self, who: Sequence[Client]) -> Mapping[Client, int]:
        honest = super().claims(who)
        return {c: self.lies.get(c, n) if self.always else n for c, n in honest.items()}


def engine_of(kind: Any, lies: Mapping[str, int], always: bool) -> Any:
    def wrapped(memories: Memories) -> Any:
        return Lying(Loop(DATA, TABLE, memories), lies, always)

    memories = Memories(lambda who: {})
    if kind is Workers:  # folds where the replies are made
        made = Workers(DATA, TABLE, memories, processes=2, inner=wrapped)
        made.claims = wrapped(memories).claims  # type: ignore[method-assign]
        return made
    return Lying(kind(DATA, TABLE, memories), lies, always)


def mean_of(engine: Any, who: Sequence[Client] = DATA.clients, **guard: float) -> tuple[Any, list[Any]]:
    """The mean of what clients reply by their rows, and what the log says."""
    log: list[Any] = []
    limits = GuardSpec(**{"norm": 0.0, "share": 0.0, **guard})
    coordinator = Coordinator(
        engine, lambda event, **facts: log.append((event, facts["client"], facts["reason"])), guard=limits
    )
    try:
        fold = Mean("model", ONE.first)
        ask: Ask[Any] = Ask("train", tuple(who), {"model": ONE.first}, fold=fold)
        return coordinator.perform(ask, context(DATA)), log
    finally:
        engine.close()


def by_hand(weights: Mapping[str, int]) -> Any:
    """The mean by these weights, from the replies one by one."""
    got = Coordinator(Loop(DATA, TABLE, Memories(lambda who: {}))).perform(
        Ask("train", tuple(map(Client, sorted(weights))), {"model": ONE.first}), context(DATA)
    )
    share = torch.tensor([float(weights[c]) for c in got.clients], dtype=torch.float64)
    share /= share.sum()
    return {n: torch.tensordot(share, t.double(), 1) for n, t in got.tree("model").items()}


def assert_close(got: Any, want: Any) -> None:
    for name in want:
        assert torch.allclose(got[name].double(), want[name], rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("kind", ENGINES, ids=lambda k: k.name)
def test_who_changes_its_count_is_refused_by_name(kind):
    got, log = mean_of(engine_of(kind, {"d": 10**9}, always=False))
    assert ("rejected", "d", "row count 1000000000 is not the 5 it said at first") in log
    assert_close(got, by_hand({"a": 4, "b": 3, "c": 200, "e": 4}))


@pytest.mark.parametrize("kind", ENGINES, ids=lambda k: k.name)
def test_who_says_from_the_beginning_that_it_has_more_counts_as_fifty_medians(kind):
    got, log = mean_of(engine_of(kind, {"d": 10**9}, always=True))
    assert [(event, who) for event, who, _ in log] == [("capped", "c"), ("capped", "d")]
    assert log[1][2] == "its 1000000000 rows count as 200, 50 times the median"
    assert_close(got, by_hand({"a": 4, "b": 3, "c": 200, "d": 200, "e": 4}))


@pytest.mark.parametrize(
    ("rows", "counts"), [(0.0, 500), (1000.0, 500), (125.0, 500), (124.0, 496), (1.0, 4)]
)
def test_the_limit_is_ours_to_set(rows, counts):
    got, log = mean_of(engine_of(Loop, {}, False), rows=rows)
    small = {c: min(n, int(rows) * 4) if rows else n for c, n in SIZES.items()}
    assert_close(got, by_hand({**small, "c": counts}))
    assert [who for _, who, _ in log] == [c for c in SIZES if small[c] < SIZES[c]]


@pytest.mark.parametrize("kind", ENGINES, ids=lambda k: k.name)
def test_of_few_clients_nobody_counts_for_more_than_ten_medians(kind):
    got, log = mean_of(engine_of(kind, {"d": 10**9}, always=True), share=0.5)
    assert log[1] == ("capped", "d", "its 1000000000 rows count as 40, 10 times the median")
    assert_close(got, by_hand({"a": 4, "b": 3, "c": 40, "d": 40, "e": 4}))


@pytest.mark.parametrize(("clients", "share", "rows", "times"), [
    (5, 0.5, 50, 10), (20, 0.5, 50, 10), (24, 0.5, 50, 12), (60, 0.5, 50, 30), (99, 0.5, 50, 49.5),
    (300, 0.5, 50, 50),
    (60, 0.25, 50, 15), (60, 1.0, 50, 50), (60, 0.0, 50, 50), (24, 0.5, 7, 7), (24, 0.5, 0, 0),
])  # fmt: skip
def test_the_more_clients_the_more_medians_one_counts_for(clients, share, rows, times):
    assert GuardSpec(rows=rows, share=share).cap(clients) == times


@pytest.mark.parametrize("clients", [20, 24, 47, 100, 1000])
def test_one_liar_has_a_third_of_the_weight_at_most(clients):
    """And of few clients not much less, or honest large ones would be cut."""
    most = GuardSpec().cap(clients)
    weight = most / (most + clients - 1)
    assert min(0.3, 45 / clients) < weight < 0.35


def test_a_large_client_is_heard_all_the_same_and_told_of_once():
    engine, log = Loop(DATA, TABLE, Memories(lambda who: {})), []
    note = lambda event, **facts: log.append((event, facts["client"]))  # noqa: E731
    coordinator = Coordinator(engine, note, guard=GuardSpec(share=0.0))
    for number in range(3):
        got = coordinator.perform(
            Ask("train", DATA.clients, {"model": ONE.first}), context(DATA, round=number)
        )
        assert got.clients == DATA.clients
        assert got.size.tolist() == [4, 3, 200, 5, 4]
    assert log == [("capped", "c")]


def test_the_median_is_that_of_all_clients_whoever_is_asked():
    got, log = mean_of(engine_of(Loop, {}, False), who=[Client("c"), Client("d")])
    assert [who for _, who, _ in log] == ["c"]
    assert_close(got, by_hand({"c": 200, "d": 5}))
