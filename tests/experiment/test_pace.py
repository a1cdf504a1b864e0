"""Checkpoints as often as their cost allows: what they take, what a kill can lose, and the same end."""

from __future__ import annotations

import pytest
from small_runs import assert_same_end, go

from kinfolk.errors import KinfolkError
from kinfolk.experiment import pace
from kinfolk.experiment.pace import Pace
from kinfolk.experiment.record import read_rounds


@pytest.mark.parametrize(("training", "cost"), [(7.0, 2.6), (0.1, 3.0), (50.0, 1.0), (0.01, 0.002)])
def test_they_take_a_twentieth_and_a_kill_loses_twenty_times_their_cost(training, cost):
    clock, paid, since, lost = 0.0, 0.0, 0.0, 0.0
    plan = Pace(0, now=clock)
    for done in range(4000):
        clock, since = clock + training, since + training
        lost = max(lost, since)
        if plan.is_due(done, clock):
            clock, paid, since = clock + cost, paid + cost, 0.0
            plan.note(cost)
        assert paid <= 5 + clock / 20
    assert paid >= min(0.9 * clock / 20, 0.99 * 4000 * cost)  # as many as the time allows
    assert lost <= 20 * cost + training + 1e-6


def test_as_many_rounds_as_were_asked_for_whatever_it_costs():
    plan = Pace(3, now=0.0)
    plan.note(1e9)
    assert [done for done in range(10) if plan.is_due(done, now=1.0)] == [0, 3, 6, 9]


def saved_at(folder, *words):
    rounds = []
    go(folder, "run.rounds=6", *words, watch=lambda event, facts: note(rounds, event, facts))
    return rounds


def note(rounds, event, facts):
    if event == "checkpoint":
        rounds.append(facts["round"])


def test_a_run_that_cannot_afford_them_ends_the_same(tmp_path, monkeypatch):
    assert saved_at(tmp_path / "every", "run.checkpoint_every=1") == list(range(7))
    monkeypatch.setattr(pace, "ALLOWANCE", 0.0)
    monkeypatch.setattr(pace, "SHARE", 0.0)
    assert saved_at(tmp_path / "few") == [0, 6]  # the first is free, the last must be
    assert saved_at(tmp_path / "all", "run.keep=all") == list(range(7))
    assert_same_end(tmp_path / "few", tmp_path / "every")

    def dies(event, facts):
        if event == "round" and facts["round"] == 4:
            raise OSError("pulled out")

    with pytest.raises(OSError, match="pulled out"):
        go(tmp_path / "killed", "run.rounds=6", watch=dies)
    go(tmp_path / "killed", "run.rounds=6", resume=True)  # from round 0
    assert_same_end(tmp_path / "killed", tmp_path / "every")
    assert [line["round"] for line in read_rounds(tmp_path / "killed")] == list(range(7))


def test_less_than_never_is_refused(tmp_path):
    with pytest.raises(KinfolkError, match=r"run\.checkpoint_every = -1"):
        go(tmp_path, "run.checkpoint_every=-1")
