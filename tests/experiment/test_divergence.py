"""Runs whose training goes wrong: what they say, and what they do about it, killed or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import assert_same_end, go, rounds_of

from kinfolk.contract.spoil import Passing
from kinfolk.errors import KinfolkError
from kinfolk.experiment import divergence, run
from kinfolk.experiment.record import read_audit, read_scores
from kinfolk.experiment.spec import override
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.script import Ask
from kinfolk.streams import RoundContext
from kinfolk.types import Stack

LOUD, FROM = "client-01", 3
MLP = ("model.name=mlp", "model.hidden=[8]")
HIGH = (*MLP, "local.lr=1000")


class Loud(Passing):
    """From a round on, one client's model is 500 times what it trained, in runs whose guard lets it pass."""

    def replies(self, request: Ask[Any], context: RoundContext) -> Iterator[Stack]:
        for reply in super().replies(request, context):
            loud = context.round >= FROM and reply.clients[0] == LOUD and "model" in reply.body
            model = {n: t * 500 for n, t in reply.tree("model").items()} if loud else {}
            yield Stack(reply.clients, reply.size, {**reply.body, **({"model": model} if loud else {})})


@pytest.fixture
def loud(monkeypatch):
    usual = run.make
    for place in (run, divergence):
        monkeypatch.setattr(place, "make", lambda *given: Loud(usual(*given), lambda request, reply: reply))


def events(folder: Path, event: str) -> list[dict[str, Any]]:
    return [line for line in read_audit(folder) if line["event"] == event]


def facts_of(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return facts


@pytest.mark.parametrize("name", ["fedavg", "local"])
def test_divergence_is_said_at_once_everywhere(tmp_path, name):
    said: list[str] = []
    result = go(
        tmp_path / "r",
        *HIGH,
        f"algorithm.name={name}",
        watch=lambda event, facts: said.append(facts["text"]) if event == "warning" else None,
    )
    assert "diverged at round 1" in said[0]
    assert "lower local.lr or set local.clip" in said[0]
    found = [line for line in events(tmp_path / "r", "diverged") if "model" in line]
    assert [line["round"] for line in found] == [1]
    lines = rounds_of(tmp_path / "r")
    assert "diverged" not in lines[0]
    assert all("diverged at round 1" in str(line["diverged"]) for line in lines[1:])
    assert facts_of(tmp_path / "r")["status"] == "finished"
    assert facts_of(tmp_path / "r")["diverged"]["text"] == result.diverged
    assert result.diverged.startswith("diverged at round 1")


def test_a_sound_run_says_nothing_and_writes_nothing(tmp_path):
    result = go(tmp_path / "r", *MLP)
    assert (result.diverged, result.stopped) == ("", False)
    assert events(tmp_path / "r", "diverged") == []
    assert not {"diverged", "exploded", "excluded", "events"} & set(facts_of(tmp_path / "r"))
    assert not any({"diverged", "exploded"} & set(line) for line in rounds_of(tmp_path / "r"))


@pytest.mark.parametrize("engine", ["loop", "batched", "workers", "wire"])
def test_every_engine_names_the_client_and_its_norm(tmp_path, engine):
    """Rows in the thousands: the update is over a hundred times that of the others."""
    draw = np.random.default_rng(0)
    rows = {
        f"c{i}": (draw.normal(size=(20, 5)) * (2000 if i == 3 else 1), draw.integers(0, 3, 20))
        for i in range(8)
    }
    data = from_arrays(rows)
    go(tmp_path / "r", *MLP, "data.name=own", f"engine.name={engine}", "local.lr=1", federation=data)
    named = [line for line in events(tmp_path / "r", "diverged") if "client" in line]
    assert {line["client"] for line in named} == {"c3"}
    assert "c3" in facts_of(tmp_path / "r")["exploded"]


def test_replies_that_are_all_rejected_are_divergence_and_not_a_mere_stop(tmp_path):
    with pytest.raises(KinfolkError, match="3 rounds in a row"):
        go(tmp_path / "r", *MLP, "local.lr=1e30", "local.epochs=5", "run.rounds=9")
    facts = facts_of(tmp_path / "r")
    assert facts["status"] == "diverged"
    assert "4 of 4 replies rejected" in facts["diverged"]["text"]
    assert list(facts["diverged"]["models"]) == ["centre"]


def test_stop_ends_the_run_with_its_reason(tmp_path):
    result = go(tmp_path / "r", *HIGH, "run.on_divergence=stop", "run.rounds=5")
    assert (result.rounds, result.stopped) == (1, True)
    assert result.reason.startswith("diverged at round 1")
    assert (facts_of(tmp_path / "r")["status"], facts_of(tmp_path / "r")["rounds"]) == ("diverged", 1)
    again = go(tmp_path / "r", *HIGH, "run.on_divergence=stop", "run.rounds=5", resume=True)
    assert (again.rounds, again.reason, again.stopped) == (1, result.reason, True)


def test_rollback_goes_on_from_the_last_sound_models_at_half_the_rate(tmp_path):
    """At most three times; 1000 / 8 is still far too much."""
    result = go(tmp_path / "r", *HIGH, "run.on_divergence=rollback", "run.rounds=9")
    done = events(tmp_path / "r", "rollback")
    assert [line.get("lr") for line in done] == [500, 250, 125, None]
    assert [line.get("to") for line in done[:3]] == [0, 1, 2]
    assert (result.rounds, result.stopped) == (4, True)
    assert "after 3 rollbacks" in result.reason
    assert [line["round"] for line in rounds_of(tmp_path / "r")] == list(range(5)), "no number twice"


def test_a_round_after_a_rollback_trains_at_the_smaller_rate(tmp_path):
    """The same as a run that began with it: the models were those before training."""
    go(tmp_path / "back", *MLP, "local.lr=40", "run.on_divergence=rollback", "run.rounds=2")
    lines = rounds_of(tmp_path / "back")
    assert (lines[1]["rollback"]["to"], lines[1]["rollback"]["lr"]) == (0, 20)
    assert facts_of(tmp_path / "back")["events"][0]["did"] == "back to the models of round 0, local.lr 20"


def test_a_rate_that_is_halved_is_the_rate_of_the_spec(tmp_path):
    parts = run.build_parts(run.Experiment())
    half = divergence.slower(parts, 2)
    assert (half.learner.lr, half.algorithm.learner.lr, parts.learner.lr) == (0.025, 0.025, 0.1)
    steps = half.algorithm.tasks()["update"].passes[0].descents
    assert [step.rate(0) for step in steps] == [0.025]


def test_exclude_leaves_the_client_out_and_goes_on(tmp_path, loud):
    changes = [*MLP, "data.clients=8", "run.rounds=6", "run.on_divergence=exclude", "guard.norm=0"]
    result = go(tmp_path / "r", *changes)
    done = events(tmp_path / "r", "exclude")
    assert [(line["round"], line["to"], line["clients"]) for line in done] == [(FROM + 1, FROM, [LOUD])]
    assert [line.get("cohort") for line in rounds_of(tmp_path / "r")[1:]] == [8, 8, 8, 8, 7, 7]
    scores = read_scores(tmp_path / "r")
    assert scores.groupby("round")["client"].nunique().eq(8).all(), "who is left out is still scored"
    assert (result.diverged, result.rounds) == ("", 6)
    assert facts_of(tmp_path / "r")["excluded"] == [LOUD]
    assert result.summary["centre"]["loss"]["macro"] < 2.4


def test_without_an_answer_the_same_run_is_lost(tmp_path, loud):
    result = go(tmp_path / "r", *MLP, "data.clients=8", "run.rounds=6", "guard.norm=0")
    assert f"round {FROM + 1}" in result.diverged
    assert f"client {LOUD}'s norm" in result.diverged
    assert result.summary["centre"]["loss"]["macro"] > 100


def test_who_is_not_to_blame_is_not_left_out(tmp_path):
    """All of them diverge: there is nobody to leave out."""
    result = go(tmp_path / "r", *HIGH, "run.on_divergence=exclude", "run.rounds=5")
    assert result.stopped
    assert "not the doing of a few clients" in result.reason


class Killed(Exception):
    """The end of the process, for a test."""


@pytest.mark.parametrize("answer", ["warn", "stop", "rollback", "exclude"])
@pytest.mark.parametrize("every", [1, 2])
def test_a_killed_run_does_the_same_again(tmp_path, loud, answer, every):
    changes = [*MLP, "data.clients=8", "run.rounds=8", f"run.on_divergence={answer}", "guard.norm=0"]
    changes += [f"run.evaluate_every={every}", f"run.checkpoint_every={3 - every}"]
    go(tmp_path / "whole", *changes)
    for last in range(1, 8):

        def watch(event: str, facts: Any, last: int = last) -> None:
            if event == "round" and facts["round"] == last:
                raise Killed

        try:
            go(tmp_path / "r", *changes, watch=watch, resume=last > 1)
        except Killed:
            continue
        break
    go(tmp_path / "r", *changes, resume=True)
    assert_same_end(tmp_path / "r", tmp_path / "whole")
    assert facts_of(tmp_path / "r") == facts_of(tmp_path / "whole")


def test_the_distributed_engine_refuses_to_roll_back():
    parts = run.build_parts(override(run.Experiment(), ["run.on_divergence=rollback"]))
    divergence.check_answer(parts, False)
    with pytest.raises(KinfolkError, match=r"run\.on_divergence = 'rollback': ranks of the distributed"):
        divergence.check_answer(parts, True)


def test_the_loss_of_a_constant_answer_is_the_variance_of_the_training_targets():
    rows = [(torch.zeros(6, 2), torch.tensor([1.0, 3.0, 5.0, 7.0, 9.0, 11.0]) * (i + 1)) for i in range(3)]
    data = from_arrays(rows, test=[(torch.zeros(1, 2), torch.tensor([1e6]))] * 3)
    parts = run.build_parts(run.Experiment(), federation=data)
    whole = np.concatenate([y.numpy() for _, y in rows])
    assert divergence.constant_loss(parts) == pytest.approx(whole.var())


def test_fine_tuned_models_are_compared_with_a_start_without_fine_tuning(tmp_path):
    """Fine-tuning at a rate of 1e4 breaks models before the first round; that is no start to go by."""
    tuned = ("algorithm.name=fedavg_tuned", "local.tune_lr=10000")
    result = go(tmp_path / "r", *MLP, *tuned)
    assert list(facts_of(tmp_path / "r")["diverged"]["models"]) == ["fine-tuned"]
    assert "diverged at round 1" in result.diverged
