"""The stage counts every byte and every phase, tells who answered, and lets nothing bad through."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from toys import SIZES, context, counted, federation, learner, remembering, ring

from kinfolk.engines.batched import Batched
from kinfolk.engines.coordinator import Coordinator, drop_outs
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.engines.wire import Wire
from kinfolk.engines.workers import Workers
from kinfolk.fold import Mean
from kinfolk.script import Ask, Exchange
from kinfolk.streams import RoundContext
from kinfolk.task import FloatSpec, IntSpec, PeerTask, Table, Task
from kinfolk.types import Client, Stack, nbytes

DATA = federation()
ENGINES = [Loop, Batched, Wire, Workers]
ANN, BOB, CAT, DAN = DATA.clients


class Scripted:
    """An engine that answers what it is told to, in the order it is told to."""

    name, note, device = "scripted", "", torch.device("cpu")

    def __init__(self, answers: list[dict[str, tuple[int, Any]]], table: Table, pause: float = 0.0) -> None:
        self.answers, self.table, self.pause = answers, table, pause
        self.memories = Memories(lambda who: {})
        self.seen: list[Ask[Any]] = []

    def replies(self, request: Ask[Any], at: RoundContext) -> Iterator[Stack]:
        self.seen.append(request)
        time.sleep(self.pause)
        for chunk in self.answers:
            yield Stack.of({Client(c): reply for c, reply in chunk.items() if c in request.to})

    def swap(
        self, swap: PeerTask, among: tuple[Client, ...], at: RoundContext
    ) -> dict[tuple[Client, Client], int]:
        time.sleep(self.pause)
        return {(a, b): 8 for a in among for b in among if a != b}

    def close(self) -> None:
        pass


def number() -> Task:
    return Task(lambda *_: {}, lambda carry: (carry, None), reply={"v": FloatSpec((), 0, 9)})


def says(value: float, rows: int = 1) -> tuple[int, Any]:
    return rows, {"v": torch.tensor(float(value))}


class Log(list[dict[str, Any]]):
    def __call__(self, event: str, **facts: Any) -> None:
        self.append({"event": event, **facts})


@pytest.mark.parametrize("kind", ENGINES, ids=lambda k: k.name)
def test_bytes_are_exact_for_asks_and_exchanges(kind):
    memories = Memories(lambda who: {"times": torch.tensor(0), "note": torch.ones(3)})
    one = learner()
    table: Table = {"count": counted(), "train": one.train(), "ring": ring()}
    engine = kind(DATA, table, memories)
    coordinator = Coordinator(engine)
    try:
        each = Stack.of({c: (1, {"by": torch.tensor(float(len(c)))}) for c in DATA.clients})
        coordinator.perform(Ask("count", DATA.clients, {}, each), context(DATA))
        assert coordinator.ledger.bytes == {"count": {"down": 4 * 4, "up": 4 * (4 + 8)}}
        # To two of the four: only their rows of `each` travel, and the shared part once for each of them.
        coordinator.perform(Ask("count", (ANN, DAN), {"more": torch.zeros(10)}, each), context(DATA))
        assert coordinator.ledger.bytes["count"] == {"down": 16 + 2 * 40 + 2 * 4, "up": 48 + 2 * 12}
        model = one.first
        mean = Mean("model", keep=model)
        got = coordinator.perform(Ask("train", DATA.clients, {"model": model}, None, mean), context(DATA))
        assert list(got) == list(model)
        assert coordinator.ledger.bytes["train"] == {
            "down": 4 * nbytes({"m": model}),
            "up": 4 * nbytes({"m": model}),
        }
        memories.update({c: {"note": torch.ones(3), "times": torch.tensor(1)} for c in DATA.clients})
        coordinator.perform(Exchange("ring", DATA.clients), context(DATA))
        assert coordinator.ledger.bytes["ring"] == {"across": 4 * 12}
    finally:
        engine.close()
    sent, seconds = coordinator.ledger.take()
    assert set(sent) == set(seconds) == {"count", "train", "ring"}
    assert coordinator.ledger.take() == ({}, {}), "taken is taken"


def test_the_bytes_of_a_model_by_hand():
    # 4 x 5 + 5 and 5 x 3 + 3 float32 numbers.
    assert nbytes({"m": learner().first}) == 4 * (25 + 18)


def test_seconds_are_counted_by_phase():
    coordinator = Coordinator(Scripted([{"ann": says(1)}], {"slow": number(), "talk": ring()}, pause=0.03))
    for _ in range(2):
        coordinator.perform(Ask("slow", (ANN,)), context(DATA))
    coordinator.perform(Exchange("talk", (ANN, BOB)), context(DATA))
    assert coordinator.ledger.seconds["slow"] >= 0.06
    assert coordinator.ledger.seconds["talk"] >= 0.03


def test_what_is_made_of_replies_is_not_counted_as_their_time():
    class Slow:
        """A fold that takes its time."""

        def begin(self) -> int:
            return 0

        def add(self, total: int, chunk: Stack) -> int:
            time.sleep(0.05)
            return total + len(chunk)

        def end(self, total: int) -> int:
            time.sleep(0.05)
            return total

    coordinator = Coordinator(Scripted([{"ann": says(1)}, {"bob": says(2)}], {"t": number()}, pause=0.02))
    began = time.perf_counter()
    assert coordinator.perform(Ask("t", (ANN, BOB), fold=Slow()), context(DATA)) == 2
    took = time.perf_counter() - began
    assert 0.02 <= coordinator.ledger.seconds["t"] <= took - 0.15


def test_who_says_nothing_is_logged_once_by_name():
    log = Log()
    coordinator = Coordinator(Scripted([{"ann": says(1), "bob": says(99)}], {"t": number()}), log)
    coordinator.perform(Ask("t", (ANN, BOB, CAT)), context(DATA, round=2))
    told = [(e["event"], e["client"], e["round"], e["task"]) for e in log]
    assert told == [("rejected", BOB, 2, "t"), ("silent", CAT, 2, "t")]
    assert coordinator.answered == {ANN}


def test_seconds_are_counted_even_when_it_fails():
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError

    coordinator = Coordinator(Loop(DATA, {"bad": Task(fail, fail)}, Memories(lambda who: {})))
    with pytest.raises(ZeroDivisionError):
        coordinator.perform(Ask("bad", (ANN,)), context(DATA))
    assert "bad" in coordinator.ledger.seconds


def test_replies_are_sorted_however_they_arrive():
    answers = [{"dan": says(4)}, {"bob": says(2), "ann": says(1)}, {"cat": says(3)}]
    got = Coordinator(Scripted(answers, {"t": number()})).perform(
        Ask("t", (DAN, ANN, CAT, BOB)), context(DATA)
    )
    assert got.clients == DATA.clients
    assert got.tensor("v").tolist() == [1, 2, 3, 4]


def test_bad_replies_are_left_out_logged_and_counted_as_sent():
    log = Log()
    answers = [{"ann": says(1), "bob": says(99)}, {"cat": says(float("nan"))}, {"dan": says(4, rows=0)}]
    coordinator = Coordinator(Scripted(answers, {"t": number()}), log)
    got = coordinator.perform(Ask("t", DATA.clients), context(DATA, round=6))
    assert got.clients == ("ann",)
    assert {(e["event"], e["client"], e["round"], e["task"]) for e in log} == {
        ("rejected", who, 6, "t") for who in ("bob", "cat", "dan")
    }
    assert {e["reason"] for e in log} == {
        "v is not within [0, 9]",
        "v is not finite",
        "row count is not in 1..1000000000",
    }
    assert coordinator.ledger.bytes["t"]["up"] == 16
    assert coordinator.asked == set(DATA.clients)
    assert coordinator.answered == {"ann"}
    assert coordinator.failed == {"bob", "cat", "dan"}


def test_a_fold_sees_only_what_passed():
    class Collect:
        def begin(self) -> list[Any]:
            return []

        def add(self, total: list[Any], chunk: Stack) -> list[Any]:
            return [*total, *chunk.tensor("v").tolist()]

        def end(self, total: list[Any]) -> list[Any]:
            return total

    answers = [{"ann": says(99), "bob": says(2)}, {"cat": says(77)}, {"dan": says(4)}]
    coordinator = Coordinator(Scripted(answers, {"t": number()}))
    assert coordinator.perform(Ask("t", DATA.clients, fold=Collect()), context(DATA)) == [2, 4]
    nobody = Coordinator(Scripted([{"ann": says(99)}], {"t": number()}))
    assert nobody.perform(Ask("t", (ANN,), fold=Collect()), context(DATA)) == []


def test_who_fails_once_has_not_taken_part():
    coordinator = Coordinator(Scripted([{"ann": says(1), "bob": says(2), "cat": says(3)}], {"t": number()}))
    coordinator.perform(Ask("t", DATA.clients), context(DATA))
    assert coordinator.answered == {"ann", "bob", "cat"}, "dan sent nothing"
    coordinator.engine.answers = [{"ann": says(99), "bob": says(2), "dan": says(1)}]
    coordinator.perform(Ask("t", (ANN, BOB, DAN)), context(DATA))
    assert coordinator.answered == {"bob", "cat"}, "the first answer does not make up for the second"
    coordinator.begin()
    assert coordinator.asked == coordinator.answered == coordinator.failed == set()


def test_absent_clients_are_asked_nothing_and_the_rest_answer():
    log = Log()
    engine = Scripted([{c: says(1) for c in SIZES}], {"t": number(), "ring": ring()})
    coordinator = Coordinator(engine, log, absent=lambda at, who: who in ("bob", "dan"))
    each = Stack.of({c: (1, {"x": torch.zeros(5)}) for c in DATA.clients})
    got = coordinator.perform(Ask("t", DATA.clients, {"s": torch.zeros(2)}, each), context(DATA, round=3))
    assert got.clients == engine.seen[0].to == ("ann", "cat")
    assert coordinator.ledger.bytes["t"]["down"] == 2 * (8 + 20)
    assert coordinator.asked == set(DATA.clients)
    assert coordinator.answered == {"ann", "cat"}
    assert log == [{"event": "absent", "round": 3, "client": who} for who in ("bob", "dan")]
    coordinator.perform(Exchange("ring", DATA.clients), context(DATA))
    assert coordinator.ledger.bytes["ring"]["across"] == 2 * 8
    everyone = coordinator.perform(Ask("t", DATA.clients), context(DATA), rehearse=False)
    assert everyone.clients == DATA.clients, "scores are of everyone, drop-outs or not"


def test_if_all_are_absent_nobody_is_asked():
    engine = Scripted([], {"t": number()})
    coordinator = Coordinator(engine, absent=lambda at, who: True)
    assert coordinator.perform(Ask("t", DATA.clients), context(DATA)).clients == ()
    keep = {"w": torch.ones(1)}
    assert coordinator.perform(Ask("t", DATA.clients, fold=Mean("model", keep)), context(DATA)) is keep
    assert engine.seen == []
    assert coordinator.answered == set()
    assert coordinator.ledger.bytes == {"t": {"down": 0}}


def test_nobody_answers_in_the_shapes_that_were_declared():
    reply = {"model": learner().first, "law": FloatSpec((3,)), "group": IntSpec(0, 2), "n": torch.zeros(2, 2)}
    task = Task(lambda *_: {}, lambda carry: (carry, None), reply=reply)
    got = Coordinator(Loop(DATA, {"t": task}, Memories(lambda who: {}))).perform(Ask("t", ()), context(DATA))
    assert got.clients == ()
    assert [tuple(got.tensor(key).shape) for key in ("law", "group", "n")] == [(0, 3), (0,), (0, 2, 2)]
    assert got.tensor("group").dtype == torch.int64
    assert {n: tuple(t.shape[1:]) for n, t in got.tree("model").items()} == {
        n: tuple(t.shape) for n, t in learner().first.items()
    }


def test_tasks_and_exchanges_are_not_confused():
    coordinator = Coordinator(Loop(DATA, {"t": number(), "ring": ring()}, Memories(lambda who: {})))
    with pytest.raises(AssertionError, match="not a task"):
        coordinator.perform(Ask("ring", (ANN,)), context(DATA))
    with pytest.raises(AssertionError, match="not an exchange"):
        coordinator.perform(Exchange("t", (ANN,)), context(DATA))
    with pytest.raises(KeyError):
        coordinator.perform(Ask("unknown", (ANN,)), context(DATA))


def test_drop_outs_follow_from_the_seed_and_have_their_rate():
    rule = drop_outs(0.3)
    assert rule is not None
    clients = [Client(f"c{i}") for i in range(50)]
    gone = [[rule(context(DATA, r, run=1), c) for c in clients] for r in range(40)]
    assert gone == [[rule(context(DATA, r, run=1), c) for c in clients] for r in range(40)]
    assert gone != [[rule(context(DATA, r, run=2), c) for c in clients] for r in range(40)]
    share = sum(map(sum, gone)) / 2000
    assert abs(share - 0.3) < 0.04
    assert len({tuple(g) for g in gone}) == 40, "another set every round"


@pytest.mark.parametrize("kind", ENGINES, ids=lambda k: k.name)
def test_an_exchange_is_simultaneous_in_every_engine(kind):
    memories = Memories(lambda who: {"note": torch.tensor(float(SIZES[who]))})
    engine = kind(DATA, {"ring": ring()}, memories)
    sent = engine.swap(ring(), DATA.clients, context(DATA))
    assert sent == {(ANN, BOB): 4, (BOB, CAT): 4, (CAT, DAN): 4, (DAN, ANN): 4}
    assert {c: float(memories[c]["note"]) for c in DATA.clients} == {
        "ann": 42,
        "bob": 8,
        "cat": 27,
        "dan": 61,
    }
    # Among three, the letters to the fourth are sent and lost; it hears nothing and keeps what it had.
    sent = engine.swap(ring(), (ANN, BOB, CAT), context(DATA))
    assert (CAT, DAN) in sent
    assert {c: float(memories[c]["note"]) for c in DATA.clients} == {
        "ann": 42,
        "bob": 50,
        "cat": 35,
        "dan": 61,
    }
    engine.close()


@pytest.mark.parametrize("kind", ENGINES, ids=lambda k: k.name)
def test_memories_are_kept_between_requests(kind):
    memories = remembering()
    engine = kind(DATA, {"count": counted()}, memories)
    coordinator = Coordinator(engine)
    try:
        for times, who in ((1, DATA.clients), (2, (BOB, DAN)), (3, (DAN,))):
            got = coordinator.perform(Ask("count", who, {"by": torch.tensor(2.0)}), context(DATA))
            assert got.tensor("times").tolist() == [times] * len(who)
        for i, c in enumerate(DATA.clients):
            assert memories[c]["times"] == (1, 2, 1, 3)[i]
        rows = DATA.x[DATA.splits["train"].rows(DATA.place("dan"))]
        torch.testing.assert_close(got.row("dan")["sum"], 2 * rows.sum(), rtol=1e-4, atol=1e-4)
    finally:
        engine.close()


def test_replies_of_strangers_and_second_replies_are_refused():
    import torch

    from kinfolk.algorithms.fedavg import FedAvg
    from kinfolk.contract import toy
    from kinfolk.script import Ask
    from kinfolk.streams import RoundContext, Seed

    federation = toy.ragged()
    algorithm = FedAvg(toy.learner("mlp", federation))
    log = []
    with toy.coordinated(
        algorithm, federation, log=lambda event, **facts: log.append((event, facts))
    ) as coordinator:
        asked = federation.clients[:2]
        honest = coordinator.engine.replies

        def forged(request, context):
            yield from honest(request, context)
            yield from honest(Ask(request.task, federation.clients[1:3], request.shared), context)

        coordinator.engine.replies = forged
        context = RoundContext(Seed(0), 0, federation.clients)
        got = coordinator.perform(Ask("update", asked, {"model": toy.first_model(algorithm)}), context)
    assert got.clients == asked
    assert torch.isfinite(got.tree("model")["head.weight"]).all()
    assert {(facts["client"], facts["reason"]) for event, facts in log if event == "rejected"} == {
        (federation.clients[1], "answered twice"),
        (federation.clients[2], "was not asked"),
    }
