"""A run that is told to stop goes back to its last finished round, and resumed it ends as if left alone."""

from __future__ import annotations

import json
import signal
import threading

import pytest
from small_runs import assert_same_end, go, saved

from kinfolk.engines.batched import Batched
from kinfolk.engines.loop import Loop
from kinfolk.experiment.record import read_audit, read_rounds
from kinfolk.experiment.stopping import Stop, Stopped

EVERY = ("run.checkpoint_every=50", "run.rounds=6", "run.evaluate_every=2")


@pytest.fixture
def signal_at(monkeypatch):
    """Send this process a signal when a task has had so many replies."""

    def arm(task, count, number=signal.SIGINT):
        replies, left = Loop.replies, [count]

        def telling(self, request, context):
            for chunk in replies(self, request, context):
                left[0] -= request.task.startswith(task)
                if left[0] == 0:
                    left[0] = -1
                    signal.raise_signal(number)
                yield chunk

        monkeypatch.setattr(Loop, "replies", telling)

    return arm


def status(folder):
    facts = json.loads((folder / "run.json").read_text())
    return facts["status"], facts["rounds"]


# In training, and while everybody is scored (or chooses before that) after the second round.
@pytest.mark.parametrize(
    ("algorithm", "task", "count", "stands"),
    [
        ("fedavg", "update", 11, 2),
        ("fedavg", "score", 4, 1),
        ("local", "practise", 7, 1),
        ("local", "score", 7, 1),
        ("ifca", "choose", 6, 1),
        ("ifca", "score", 6, 1),
    ],
)
def test_stopped_at_any_moment_and_resumed_it_ends_the_same(
    algorithm, task, count, stands, tmp_path, signal_at
):
    words = (*EVERY, f"algorithm.name={algorithm}")
    go(tmp_path / "whole", *words)
    signal_at(task, count)
    with pytest.raises(Stopped) as stop:
        go(tmp_path / "r", *words)
    assert str(stop.value) == f"stopped at round {stands}; continue with resume=True"
    assert status(tmp_path / "r") == ("stopped", stands)
    assert saved(tmp_path / "r")[0] == stands, "between two checkpoints, one is written"
    assert [fact["round"] for fact in read_rounds(tmp_path / "r")] == list(range(stands + 1))
    assert read_audit(tmp_path / "r")[-1]["event"] == "stopped"
    go(tmp_path / "r", *words, resume=True)
    assert_same_end(tmp_path / "r", tmp_path / "whole")
    assert status(tmp_path / "r") == ("finished", 6)


def test_before_the_first_round_there_is_nothing_to_save(tmp_path, signal_at):
    signal_at("score", 2)
    with pytest.raises(Stopped, match="stopped at round 0"):
        go(tmp_path / "r")
    assert status(tmp_path / "r") == ("stopped", 0)
    go(tmp_path / "r", resume=True)
    assert status(tmp_path / "r") == ("finished", 3)


def test_sigterm_is_heard_and_handlers_are_put_back(tmp_path, signal_at):
    signal_at("update", 2, signal.SIGTERM)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped) as stop:
        go(tmp_path / "r")
    assert stop.value.signal == signal.SIGTERM
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_signal_while_files_are_written_waits_and_a_second_does_not(tmp_path):
    def watch(event, facts):
        if event == "round" and facts["round"] == 2:
            signal.raise_signal(signal.SIGINT)
            heard.append(facts["round"])

    heard = []
    with pytest.raises(Stopped, match="stopped at round 2"):
        go(tmp_path / "r", *EVERY, watch=watch)
    assert heard == [2]
    stop = Stop()
    with stop.listening():
        signal.raise_signal(signal.SIGINT)  # noted: nothing may be interrupted here
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_ranks_are_not_left_in_the_middle_of_a_round():
    stop = Stop(patient=True)
    with stop.listening():
        with stop.at_once():
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            stop.check()


def test_what_a_program_makes_of_signals_is_left_alone(tmp_path, signal_at):
    heard = []
    signal_at("update", 2)
    before = signal.signal(signal.SIGINT, lambda *_: heard.append("mine"))
    try:
        go(tmp_path / "r")
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == ["mine"]
    assert status(tmp_path / "r") == ("finished", 3)


def test_a_run_in_another_thread_runs(tmp_path):
    other = threading.Thread(target=go, args=(tmp_path / "r",))
    other.start()
    other.join()
    assert status(tmp_path / "r") == ("finished", 3)


def test_a_batched_round_is_finished_before_a_stop(tmp_path, monkeypatch):
    """An exception inside Python code that autograd calls may abort the process."""
    replies, sent = Batched.replies, []

    def telling(self, request, context):
        for chunk in replies(self, request, context):
            if request.task == "update" and context.round == 2 and not sent:
                sent.append(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            yield chunk

    monkeypatch.setattr(Batched, "replies", telling)
    words = (*EVERY, "engine.name=batched")
    with pytest.raises(Stopped, match="stopped at round 3"):
        go(tmp_path / "r", *words)
    assert status(tmp_path / "r") == ("stopped", 3)
    go(tmp_path / "r", *words, resume=True)
    go(tmp_path / "whole", *words)
    assert_same_end(tmp_path / "r", tmp_path / "whole")
