"""The trial before a long run: when it is made, what it may change, and that a resumed run keeps to it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from small_spec import SPEC

from kinfolk.engines import tune
from kinfolk.engines.choose import Choice
from kinfolk.engines.spec import EngineSpec
from kinfolk.engines.tune import LONG, tuned
from kinfolk.experiment import run as module
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.choice import kept
from kinfolk.experiment.run import run

CHOICE = Choice(EngineSpec("batched", "cpu", chunk=4, lanes=1, processes=1), "because")


def with_rates(monkeypatch, rates: dict[int, float]) -> list[int]:
    asked: list[int] = []

    def rate(choice: Choice, *_: object) -> float:
        asked.append(choice.engine.chunk)
        return rates[choice.engine.chunk]

    monkeypatch.setattr(tune, "_rate", rate)
    return asked


@pytest.mark.parametrize(
    ("rates", "chunk"),
    [({1: 1, 2: 1, 4: 5, 8: 9}, 8), ({1: 9, 2: 1, 4: 5, 8: 1}, 1), ({1: 1, 2: 5.4, 4: 5, 8: 1}, 4)],
)
def test_the_fastest_is_taken_if_it_is_clearly_so_and_the_reason_is_told(monkeypatch, rates, chunk):
    parts = build_parts(SPEC)
    asked = with_rates(monkeypatch, rates)
    found = tuned(CHOICE, parts.federation, parts.learner, LONG["cpu"])
    assert asked == [1, 2, 4, 8]
    assert found.engine.chunk == chunk
    assert found.why.startswith("because; clients a second by clients a call: 1: ")


def test_lanes_are_tried_beside_larger_calls(monkeypatch):
    parts, tried = build_parts(SPEC), []

    def rate(choice: Choice, federation: object, learner: object, count: int) -> float:
        assert count == 12, "enough to fill all lanes of every way"
        tried.append((choice.engine.chunk, choice.engine.lanes))
        return {(4, 3): 9.0}.get(tried[-1], 1.0)

    monkeypatch.setattr(tune, "_rate", rate)
    lanes = CHOICE.but(chunk=1, lanes=4)
    found = tuned(lanes, parts.federation, parts.learner, LONG["cpu"])
    assert tried == [(1, 4), (1, 8), (4, 3)], "twelve clients a call are more than there are"
    assert (found.engine.chunk, found.engine.lanes) == (4, 3)
    assert found.why.endswith("1 in 4 lanes: 1, 1 in 8 lanes: 1, 4 in 3 lanes: 9")


def test_short_runs_and_other_engines_are_left_alone(monkeypatch):
    parts = build_parts(SPEC)
    asked = with_rates(monkeypatch, {})
    assert tuned(CHOICE, parts.federation, parts.learner, LONG["cpu"] / 2) == CHOICE
    loop = CHOICE.but(name="loop", chunk=0)
    assert tuned(loop, parts.federation, parts.learner, 1e20) == loop
    assert asked == []


def test_rates_are_those_of_real_training():
    parts = build_parts(SPEC)
    assert tune._rate(CHOICE, parts.federation, parts.learner, 6) > 0


@pytest.mark.parametrize("given", [{"chunk": 2}, {"lanes": 2}])
def test_what_the_user_has_set_is_not_tried_out(monkeypatch, tmp_path, given):
    monkeypatch.setattr(module, "tuned", lambda *_: pytest.fail("tried"))
    run(replace(SPEC, engine=replace(SPEC.engine, name="auto", **given)), tmp_path / "r")


def test_a_resumed_run_keeps_to_what_was_chosen(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "tuned", lambda choice, *_: choice.but("tried", chunk=3))
    run(SPEC, tmp_path / "r")
    assert json.loads((tmp_path / "r" / "run.json").read_text())["choice"]["chunk"] == 3
    longer = replace(SPEC, run=replace(SPEC.run, rounds=2))
    notes = []
    monkeypatch.setattr(module, "tuned", lambda *_: pytest.fail("tried again"))
    run(longer, tmp_path / "r", resume=True, watch=lambda event, facts: notes.append(facts.get("note", "")))
    assert any("3 clients a call" in note for note in notes)


def test_what_is_asked_for_now_wins_over_what_was_chosen(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"choice": {**asdict(CHOICE.engine), "why": "tried"}}))
    now = CHOICE.but("now", chunk=9, lanes=2, processes=5)
    found = kept(now, EngineSpec(), tmp_path)
    assert (found.engine, found.why) == (CHOICE.engine, "tried")
    assert kept(now, EngineSpec(processes=5, chunk=9), tmp_path).engine == replace(now.engine, lanes=1)
    assert kept(now.but(name="workers"), EngineSpec(), tmp_path) == now.but(name="workers"), "another engine"
