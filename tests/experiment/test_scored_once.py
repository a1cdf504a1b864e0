"""Clients with the same model and the same test rows are scored once, and it makes no difference."""

from __future__ import annotations

import pandas as pd
import pytest
from small_runs import SPEC, digits, go

from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.engines.coordinator import Coordinator
from kinfolk.experiment import run as room
from kinfolk.experiment.record import read_scores
from kinfolk.experiment.score import score_everyone
from kinfolk.experiment.spec import override
from kinfolk.script import Ask


@pytest.fixture
def asked(monkeypatch):
    """Who was asked for scores, by kind of model, in the last evaluation."""
    found, perform = {}, Coordinator.perform

    def listen(self, request, context, rehearse=True):
        if isinstance(request, Ask) and request.task.startswith("score."):
            found[request.task.removeprefix("score.")] = request.to
        return perform(self, request, context, rehearse)

    monkeypatch.setattr(Coordinator, "perform", listen)
    return found


METHODS = {
    "fedavg": ([], {"centre": 2}),
    "fedavg_tuned": ([], {"centre": 2, "fine-tuned": 6}),
    "fesem": (["algorithm.k=3", "algorithm.start.warm_epochs=1"], {"personal": 6, "fine-tuned": 6}),
    "ifca": (["algorithm.k=2"], {}),
    "local": ([], {"personal": 6}),
    "slfed": (["algorithm.images.kind=noise", "algorithm.images.count=20"], {"centre": 6, "personal": 6}),
}


@pytest.mark.parametrize("name", METHODS)
def test_scores_are_those_of_scoring_everybody(name, tmp_path, monkeypatch, asked):
    options, wanted = METHODS[name]
    changes = [f"algorithm.name={name}", *options, "data.clients=6", "data.test=group", "run.rounds=2"]
    result = go(tmp_path / "once", *changes)
    assert {kind: len(asked[kind]) for kind in wanted} == wanted
    if hasattr(result.state, "member"):  # one for each pair of a model and a group's test rows
        truth = digits(override(SPEC, changes).data, 0).truth.tolist()
        assert len(asked["centre"]) == len(set(zip(truth, result.state.member.tolist(), strict=True)))
    monkeypatch.setattr(room, "score_everyone", lambda *given, **more: score_everyone(*given[:-1], **more))
    whole = go(tmp_path / "all", *changes)
    assert all(len(who) == 6 for who in asked.values())
    pd.testing.assert_frame_equal(
        read_scores(tmp_path / "once"), read_scores(tmp_path / "all"), check_exact=True
    )
    assert result.summary == whole.summary


def test_rows_of_ones_own_are_scored_by_everyone(tmp_path, asked):
    go(tmp_path / "run", "data.test=local", "run.rounds=1")
    assert len(asked["centre"]) == 4
    go(tmp_path / "all", "data.test=global", "run.rounds=1")
    assert len(asked["centre"]) == 1


@pytest.mark.parametrize("engine", ["batched", "workers", "wire"])
def test_every_engine_scores_once(engine, tmp_path, asked):
    changes = ["algorithm.name=fesem", "algorithm.k=2", "data.test=group", "run.rounds=6"]
    go(tmp_path / "loop", *changes)
    alone = dict(asked)
    go(tmp_path / "engine", *changes, f"engine.name={engine}", "engine.processes=2")
    assert asked == alone
    a, b = (read_scores(tmp_path / name) for name in ("loop", "engine"))
    pd.testing.assert_frame_equal(a, b, rtol=1e-5)


def test_a_run_builds_its_scoring_tasks_no_more_often_when_it_scores_more_often(tmp_path, monkeypatch):
    built, build = [], FedAvg.eval_tasks
    monkeypatch.setattr(FedAvg, "eval_tasks", lambda self: built.append(1) or build(self))
    go(tmp_path / "few", "run.rounds=1")
    few = len(built)
    go(tmp_path / "many", "run.rounds=5")
    assert len(built) == 2 * few
