"""The user's functions: when they are called, what they are told, and what a "stop" or an error does."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small_runs import assert_same_end, go

from kinfolk.errors import KinfolkError
from kinfolk.experiment.callbacks import Callbacks, all_of
from kinfolk.experiment.record import read_rounds


def noted():
    """Three callbacks, and what they were told."""
    told = {"on_round": [], "on_evaluate": [], "on_checkpoint": []}
    return told, {name: facts.append for name, facts in told.items()}


def test_each_is_called_when_its_time_comes(tmp_path):
    told, functions = noted()
    words = ("run.rounds=5", "run.evaluate_every=2", "run.checkpoint_every=3")
    go(tmp_path / "r", *words, watch=Callbacks(**functions))
    rounds = {name: [facts["round"] for facts in told[name]] for name in told}
    assert rounds == {"on_round": [1, 2, 3, 4, 5], "on_evaluate": [0, 2, 4, 5], "on_checkpoint": [0, 3, 5]}
    for facts in (facts for some in told.values() for facts in some):
        assert (facts["title"], facts["seed"], facts["folder"]) == ("fedavg", 0, tmp_path / "r")
        assert facts["rounds"] == 5
    lines = read_rounds(tmp_path / "r")
    for facts in told["on_round"]:
        line = lines[facts["round"]]
        assert all(facts[name] == line[name] for name in ("cohort", "answered", "void", "trained", "bytes"))
        assert "memories" not in facts
    assert told["on_evaluate"][-1]["summary"] == lines[-1]["summary"]
    assert told["on_checkpoint"][0]["path"].name == "round-000000"


def test_stop_ends_the_run_cleanly_and_it_can_go_on(tmp_path):
    def enough(facts):
        return "stop" if facts["round"] == 2 else None

    words = ("run.rounds=5", "run.evaluate_every=5", "run.checkpoint_every=5")
    result = go(tmp_path / "r", *words, watch=Callbacks(on_round=enough))
    assert (result.rounds, result.reason) == (2, "2 rounds done; a callback said stop")
    assert json.loads((tmp_path / "r/run.json").read_text())["status"] == "finished"
    assert "summary" in read_rounds(tmp_path / "r")[-1], "the end is scored, whenever it comes"
    go(tmp_path / "short", *words, "run.rounds=2")
    assert_same_end(tmp_path / "r", tmp_path / "short")
    assert go(tmp_path / "r", *words, resume=True).rounds == 5


@pytest.mark.parametrize("name", ["on_evaluate", "on_checkpoint"])
def test_every_callback_can_stop(name, tmp_path):
    result = go(tmp_path / "r", watch=Callbacks(**{name: lambda facts: "stop" if facts["round"] else None}))
    assert result.rounds == 1


def test_an_error_in_a_callback_leaves_a_run_that_can_be_resumed(tmp_path):
    def broken(facts):
        if facts["round"] == 2:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError):
        go(tmp_path / "r", watch=Callbacks(on_round=broken))
    facts = json.loads((tmp_path / "r/run.json").read_text())
    assert (facts["status"], facts["reason"]) == ("stopped", "ZeroDivisionError: mine")
    go(tmp_path / "r", resume=True)
    go(tmp_path / "whole")
    assert_same_end(tmp_path / "r", tmp_path / "whole")


def test_what_is_no_function_is_refused_and_any_answer_is_taken():
    with pytest.raises(KinfolkError, match="on_round = 3: give a function"):
        Callbacks(on_round=3)
    assert all_of(lambda *_: np.zeros(3), lambda *_: "stopp")("round", {}) is None
    assert all_of(lambda *_: np.zeros(3), lambda *_: "stop")("round", {}) == "stop"
