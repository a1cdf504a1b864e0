"""Worker processes: the bits of the loop, errors with the client's name, and never a hang or a zombie."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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
    together,
)

from kinfolk.engines import workers
from kinfolk.engines.batched import Batched
from kinfolk.engines.choose import arithmetic
from kinfolk.engines.cohort import Limits
from kinfolk.engines.coordinator import Coordinator
from kinfolk.engines.heartbeat import Heartbeat
from kinfolk.engines.held_back import held_back
from kinfolk.engines.loop import Loop
from kinfolk.engines.spec import EngineSpec
from kinfolk.engines.workers import Workers
from kinfolk.errors import KinfolkError
from kinfolk.fold import Mean
from kinfolk.script import Ask
from kinfolk.task import Task
from kinfolk.types import Client, Message, Stack, leaves

DATA = federation()


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail instead of hanging."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"still waiting after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def engine(table: Any, memories: Any = None, processes: int = 2, **more: Any) -> Iterator[Workers]:
    made = Workers(DATA, table, empty() if memories is None else memories, processes, **more)
    try:
        with at_most(300):
            yield made
    finally:
        made.close()


def children() -> set[int]:
    """Processes that this one has started and not reaped, zombies among them."""
    tasks = Path(f"/proc/{os.getpid()}/task")
    return {int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()}


def pids(made: Workers) -> list[int]:
    return [channel.process.pid for channel in made._channels]


def doing(act: Any, value: float = 1.0) -> Task:
    """Does something strange when the client is cat, whose rows are 20."""

    def start(message: Message, memory: Message, facts: Any) -> Message:
        if int(facts.rows) == SIZES["cat"]:
            act()
        return {"v": facts.rows * value}

    return Task(start, lambda carry: (carry, None))


def sleeping(seconds: float) -> Task:
    """Everybody takes so long over what they are told."""

    def start(message: Message, memory: Message, facts: Any) -> Message:
        time.sleep(seconds)
        return {"v": facts.rows * message["v"].sum() if message else facts.rows}

    return Task(start, lambda carry: (carry, None))


@pytest.mark.parametrize("processes", [1, 2, 3, 16])
def test_the_bits_are_those_of_the_loop(processes):
    one = learner(nn.BatchNorm1d(5), nn.Dropout(0.3))
    table = {"train": one.train(), "count": counted(), "score": one.score(tune=one.tuning(1))}
    sent = {"model": one.first}
    ours, theirs = remembering(), remembering()
    loop = Loop(DATA, table, theirs)
    # A run gives every engine one thread: the order of sums inside a kernel follows from their number.
    with arithmetic(torch.device("cpu"), "float32"), engine(table, ours, processes) as made:
        for round in range(2):
            for request in (
                Ask("train", DATA.clients, sent),
                Ask("count", DATA.clients[1:], {"by": torch.tensor(0.1)}),
                Ask("score", DATA.clients[::-1], sent),
            ):
                replies = list(made.replies(request, context(DATA, round)))
                assert [s.clients for s in replies] == [(c,) for c in sorted(request.to)]
                expected = together(loop, request, context(DATA, round))
                assert largest_difference(Stack.join(replies), expected) == 0
    assert set(ours) == set(theirs) == set(DATA.clients[1:])
    assert all(torch.equal(ours[c]["times"], theirs[c]["times"]) for c in ours)
    assert not any(leaf.requires_grad for memory in ours.values() for _, _, leaf in leaves(memory))


@pytest.mark.parametrize(
    ("clients", "processes", "chunk", "expected"),
    [(24, 2, 32, [12, 12]), (24, 3, 32, [8, 8, 8]), (40, 2, 32, [20, 20]), (3, 8, 32, [1, 1, 1])],
)
def test_no_process_is_idle_while_another_has_more_clients(clients, processes, chunk, expected):
    data = federation({f"c{i:02}": 1 for i in range(clients)})
    task = Task(
        lambda message, memory, facts: {"v": facts.rows * 0 + os.getpid()}, lambda carry: (carry, None)
    )
    made = Workers.make(EngineSpec("workers", "cpu", chunk, 1, processes), data, {"t": task}, empty())
    try:
        stacks = list(made.replies(Ask("t", data.clients), context(data)))
    finally:
        made.close()
    assert [len(stack) for stack in stacks] == expected
    assert sorted(Counter(Stack.join(stacks).tensor("v").tolist()).values()) == expected, "a job for each"


@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 9))
def test_jobs_hold_everyone_once_and_are_as_many_for_each_process(clients, least, processes):
    who = [Client(f"c{i:02}") for i in range(clients)]
    some = workers.jobs(who, least, processes)
    assert [c for job in some for c in job] == who
    sizes = [len(job) for job in some]
    assert max(sizes) - min(sizes) <= 1
    assert len(some) == clients or (len(some) >= least and len(some) % processes == 0)
    assert len(some) < least + processes


def test_folds_have_the_same_parts_by_one_two_and_four_processes():
    who = [Client(f"c{i:02}") for i in range(24)]
    assert workers.jobs(who, workers.PARTS, 1) == workers.jobs(who, workers.PARTS, 2)
    assert workers.jobs(who, workers.PARTS, 1) == workers.jobs(who, workers.PARTS, 4)
    assert len(workers.jobs(who, workers.PARTS, 8)) == 8, "and none of eight is idle"


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_a_fold_comes_in_four_parts_whatever_the_number_of_processes(processes):
    one, data = learner(), federation({f"c{i:02}": 3 for i in range(8)})
    request = Ask("train", data.clients, {"model": one.first}, fold=Mean("model", one.first))
    made = workers.Workers(data, {"train": one.train()}, empty(), processes)
    try:
        heard = [part.heard for part in made.parts(request, context(data), Limits())]
    finally:
        made.close()
    assert [len(who) for who in heard] == [2, 2, 2, 2]
    assert tuple(c for who in heard for c in who) == data.clients


def test_what_is_shared_is_read_by_all_before_the_next_takes_its_place():
    task = Task(lambda message, memory, facts: {"v": message["x"].sum() + facts.rows}, lambda c: (c, None))
    large = workers._SMALL  # numbers, four bytes each: more than a pipe holds
    with engine({"t": task}, processes=3) as made:
        for value in (1.0, 2.0, 0.0):
            asked = Ask("t", DATA.clients, {"x": torch.full((large,), value)})
            got = together(made, asked, context(DATA)).tensor("v").tolist()
            assert got == [value * large + SIZES[c] for c in sorted(DATA.clients)]
        nothing = Task(lambda message, memory, facts: {"v": facts.rows + len(message)}, lambda c: (c, None))
        made.close()
        made.table["n"] = nothing
        together(made, Ask("t", DATA.clients, {"x": torch.ones(3)}), context(DATA))
        got = together(made, Ask("n", DATA.clients), context(DATA)).tensor("v").tolist()
        assert got == [SIZES[c] for c in sorted(DATA.clients)], "nothing of the request before"


def test_an_error_names_the_client_and_what_happened():
    def fail() -> None:
        raise ZeroDivisionError("by nought")

    before = children()
    with engine({"t": doing(fail)}) as made:
        with pytest.raises(RuntimeError, match=r"process failed at client cat: Zero[\s\S]*by nought"):
            together(made, Ask("t", DATA.clients), context(DATA))
        assert children() == before, "no process is left behind"
        # And it can be used again.
        made.table = {"t": doing(lambda: None)}
        assert together(made, Ask("t", DATA.clients), context(DATA)).tensor("v").tolist() == [1, 7, 20, 41]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_second_worker_that_is_killed_is_an_error_and_no_hang(processes):
    before = children()
    with engine({"t": doing(lambda: os.kill(os.getpid(), signal.SIGKILL))}, processes=processes) as made:
        with pytest.raises(KinfolkError, match=r"worker process \d+ was killed \(signal 9\)") as caught:
            together(made, Ask("t", DATA.clients), context(DATA))
        assert "\n" not in str(caught.value)
        assert children() == before


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("busy", [False, True])
def test_one_worker_that_is_lost_is_named_and_replaced_and_the_bits_stay(busy, way, large):
    """Stopped or killed, idle or at work, after a message in a pipe or in memory that all share."""
    shared = {"v": torch.ones(20_000 if large else 2)}
    before = children()

    slow = sleeping(0.3 if busy else 0.0)
    watch = lambda: Heartbeat(600, beat=0.1, missed=30)  # noqa: E731
    with engine({"t": slow}, heartbeat=watch) as made:
        made._start()
        whole = together(made, Ask("t", DATA.clients, shared), context(DATA))
        assert made.take_warnings() == []
        lost = pids(made)[0]
        harm = threading.Timer(0.1 if busy else 0.0, lambda: os.kill(lost, way))
        harm.start()
        if not busy:
            harm.join()
        again = together(made, Ask("t", DATA.clients, shared), context(DATA))
        assert again.clients == whole.clients
        assert again.tensor("v").equal(whole.tensor("v"))
        (line,) = made.take_warnings()
        assert line.startswith(f"worker process {lost} ")
        told = "no processor time for 3 s" if way == signal.SIGSTOP else "was killed (signal 9)"
        assert told in line
        assert lost not in pids(made)
        assert len(pids(made)) == 2
    assert children() == before


def test_a_worker_whose_task_never_ends_is_ended_at_its_deadline():
    def forever():
        while True:
            pass

    watch = lambda: Heartbeat(0.3, beat=0.05, missed=1000)  # noqa: E731
    with (
        engine({"t": doing(forever)}, heartbeat=watch) as made,
        pytest.raises(KinfolkError, match=r"worked for more than 0.3 s on a client \(see engine.timeout\)"),
    ):
        together(made, Ask("t", DATA.clients), context(DATA))


def test_memory_that_runs_out_in_a_worker_is_one_line():
    def large():
        raise MemoryError

    with (
        engine({"t": doing(large)}) as made,
        pytest.raises(KinfolkError, match="ran out of memory") as caught,
    ):
        together(made, Ask("t", DATA.clients), context(DATA))
    assert "smaller engine.chunk" in str(caught.value)


def test_workers_killed_from_outside_while_they_work():
    with engine({"t": sleeping(600)}) as made:
        made._start()
        everyone = pids(made)
        threading.Timer(0.2, lambda: [os.kill(pid, signal.SIGKILL) for pid in everyone]).start()
        with pytest.raises(KinfolkError, match=r"was killed \(signal 9\)"):
            together(made, Ask("t", DATA.clients), context(DATA))


def test_close_ends_even_a_busy_worker_at_once_and_leaves_no_zombie():
    before = children()
    with engine({"t": doing(lambda: time.sleep(600))}) as made:
        replies = made.replies(Ask("t", DATA.clients), context(DATA))
        assert next(replies).clients == ("ann",)
        assert len(children() - before) == 2
        made.close()  # the rest of their ten minutes would be too long for `at_most`
        made.close()
        assert children() == before


def test_answers_to_a_request_that_was_given_up_are_not_taken_for_later_ones():
    with engine({"one": doing(lambda: None, 1.0), "ten": doing(lambda: None, 10.0)}) as made:
        half = made.replies(Ask("one", DATA.clients), context(DATA))
        next(half)
        half.close()
        assert together(made, Ask("ten", DATA.clients), context(DATA)).tensor("v").tolist() == [
            10,
            70,
            200,
            410,
        ]


def test_workers_ignore_ctrl_c_and_obey_the_parent():
    with engine({"t": doing(lambda: None)}) as made:
        together(made, Ask("t", DATA.clients), context(DATA))
        for pid in pids(made):
            os.kill(pid, signal.SIGINT)
        time.sleep(0.05)
        assert together(made, Ask("t", DATA.clients), context(DATA)).clients == DATA.clients


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path):
    note = tmp_path / "pids"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        parent = os.fork()
    if parent == 0:
        try:
            made = Workers(DATA, {"t": doing(lambda: None)}, empty(), 2)
            together(made, Ask("t", DATA.clients), context(DATA))
            note.with_suffix(".part").write_text(" ".join(map(str, pids(made))))
            note.with_suffix(".part").rename(note)
            time.sleep(600)
        finally:
            os._exit(1)
    with at_most(300):
        while not note.exists():
            time.sleep(0.01)
        orphans = list(map(int, note.read_text().split()))
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        assert len(orphans) == 2
        while any(map(alive, orphans)):
            time.sleep(0.01)


def test_only_bytes_cross(monkeypatch):
    """Neither side's pipe pickles anything."""

    def refuse(*_: Any) -> None:
        raise AssertionError("an object was pickled")

    monkeypatch.setattr("multiprocessing.connection._ForkingPickler.dumps", refuse)
    monkeypatch.setattr("multiprocessing.connection._ForkingPickler.loads", refuse)
    with engine({"t": doing(lambda: None)}) as made:
        assert together(made, Ask("t", DATA.clients), context(DATA)).clients == DATA.clients


def test_without_fork_there_is_a_remedy(monkeypatch):
    monkeypatch.setattr(workers.multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with (
        engine({"t": doing(lambda: None)}) as made,
        pytest.raises(KinfolkError, match="use 'loop' or 'batched'"),
    ):
        together(made, Ask("t", DATA.clients), context(DATA))


def test_workers_have_one_thread_each_and_the_parent_keeps_its_own():
    def threads(message: Message, memory: Message, facts: Any) -> Message:
        return {"v": facts.rows * 0 + torch.get_num_threads()}

    before = torch.get_num_threads()
    with engine({"t": Task(threads, lambda carry: (carry, None))}) as made:
        assert together(made, Ask("t", DATA.clients), context(DATA)).tensor("v").tolist() == [1] * 4
    assert torch.get_num_threads() == before


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="this system has no such policy")
def test_workers_leave_what_they_inherited_and_the_parents_core_alone():
    def kept(message: Message, memory: Message, facts: Any) -> Message:
        tracked = sum(map(len, map(gc.get_objects, range(3))))
        batch = os.sched_getscheduler(0) == os.SCHED_BATCH
        return {"v": facts.rows * 0 + (gc.get_freeze_count() > 10 * tracked) + 2 * batch}

    frozen, policy = gc.get_freeze_count(), os.sched_getscheduler(0)
    with engine({"t": Task(kept, lambda carry: (carry, None))}) as made:
        assert together(made, Ask("t", DATA.clients), context(DATA)).tensor("v").tolist() == [3] * 4
    assert (gc.get_freeze_count(), os.sched_getscheduler(0)) == (frozen, policy)


def test_workers_work_where_their_policy_can_not_be_changed(monkeypatch):
    def refuse(*_: Any) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(workers.os, "sched_setscheduler", refuse, raising=False)
    with engine({"t": doing(lambda: None)}) as made:
        assert together(made, Ask("t", DATA.clients), context(DATA)).clients == DATA.clients


class OneByOne(nn.Module):
    """Looks at a number, which clients in one call cannot share."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize("folded", [False, True])
def test_what_a_process_falls_back_to_is_told_here_once(folded):
    one = learner(OneByOne())
    table = {"train": one.train()}
    inner = lambda held: Batched(DATA, table, held, 2)  # noqa: E731
    made = Workers(DATA, table, empty(), 2, inner, 2)
    fold = Mean("model", one.first) if folded else None
    request = Ask("train", DATA.clients, {"model": one.first}, fold=fold)
    told: list[str] = []
    try:
        with at_most(300):
            coordinator = Coordinator(made, warn=told.append)
            got = coordinator.perform(request, context(DATA))
            again = coordinator.perform(request, context(DATA))
    finally:
        made.close()
    (text,) = told
    assert "'train' cannot be done for many clients in one call (layer OneByOne: " in text
    assert text.endswith("it goes on one client after another")
    alone = Coordinator(Loop(DATA, table, empty())).perform(request, context(DATA))
    for reply in (got, again):
        same = zip(
            leaves(reply if folded else reply.body), leaves(alone if folded else alone.body), strict=True
        )
        assert all(torch.allclose(a[2], b[2], rtol=1e-6, atol=1e-6) for a, b in same)


@contextmanager
def interruptible() -> Iterator[None]:
    """As a run that is told to stop: SIGTERM raises wherever it is heard."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_stop_between_a_fork_and_the_note_of_it_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made, begun = Workers(DATA, {"update": learner().train()}, empty(), processes=2), list[Any]()
    fork = made._fork

    def told_to_stop() -> workers.Channel:
        channel = fork()
        begun.append(channel.process)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)  # a handler has its turn between two lines
        return channel

    monkeypatch.setattr(made, "_fork", told_to_stop)
    with at_most(60), interruptible(), pytest.raises(KeyboardInterrupt):
        together(made, Ask("update", DATA.clients, {"model": learner().first}), context(DATA))
    assert len(begun) == 1, "it stopped at once"
    with pytest.raises(ValueError, match="closed"):  # it was ended, and waited for
        begun[0].is_alive()


def test_a_stop_that_a_worker_hears_before_it_has_its_own_ear_makes_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    here, begin = os.getpid(), workers._work

    def told_to_stop(*given: Any) -> None:
        assert os.getpid() != here
        os.kill(os.getpid(), signal.SIGTERM)
        begin(*given)

    monkeypatch.setattr(workers, "_work", told_to_stop)
    made = Workers(DATA, {"update": learner().train()}, empty(), processes=2)
    with at_most(60), interruptible():
        try:
            got = together(made, Ask("update", DATA.clients, {"model": learner().first}), context(DATA))
        finally:
            made.close()
    assert (len(got.clients), made.take_warnings()) == (len(DATA.clients), [])
    assert capfd.readouterr().err == ""


def test_what_is_heard_while_it_is_held_back_is_told_afterwards_and_in_threads_nothing_changes() -> None:
    with interruptible():
        before, done = signal.getsignal(signal.SIGTERM), []

        def stopped() -> None:
            with held_back():
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0)
                done.append("the rest")

        with pytest.raises(KeyboardInterrupt):
            stopped()
        assert (done, signal.getsignal(signal.SIGTERM)) == (["the rest"], before)

        def elsewhere() -> None:
            with held_back():
                done.append(signal.getsignal(signal.SIGTERM) is before)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert done[1:] == [True]
