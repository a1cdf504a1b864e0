"""The best round by validation rows: which it is, that it is kept, when a run stops without a better one."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
from small_runs import assert_same_end, go, rounds_of, saved

from kinfolk.errors import KinfolkError
from kinfolk.experiment.checkpoint import saved_rounds
from kinfolk.experiment.record import read_scores
from kinfolk.trained import load

# Steps so long that the model gets worse again.
WILD = ["data.valid=0.34", "local.lr=3.0", "run.rounds=8", "run.keep=best"]


def by_hand(folder):
    """{round: mean over clients of the main model's accuracy on validation rows}."""
    frame = read_scores(folder)
    frame = frame[(frame["split"] == "valid") & (frame["score"] == "accuracy")]
    return frame.groupby("round")["value"].mean().to_dict()


def first_best(values):
    return max(values, key=lambda number: (values[number], -number))


@pytest.fixture(scope="module")
def wild(tmp_path_factory):
    root = tmp_path_factory.mktemp("best")
    return root / "run", go(root / "run", *WILD)


def test_the_best_round_is_the_first_of_the_highest_validation_score_and_is_kept(wild):
    folder, _ = wild
    values = by_hand(folder)
    best = first_best(values)
    assert len(values) == 9
    assert 0 < best < 7, "or nothing was to be seen"
    assert saved_rounds(folder / "checkpoints") == (best, 7, 8)
    told = json.loads((folder / "run.json").read_text())["kept"]
    assert (told["best"]["round"], told["best"]["value"]) == (best, pytest.approx(values[best]))
    assert told["rounds"] == [best, 7, 8]
    assert told["bytes"] == sum(f.stat().st_size for f in (folder / "checkpoints").rglob("*") if f.is_file())
    run = load(folder)
    mine, same = (run.model(round=word).state_dict() for word in ("best", best))
    assert all(torch.equal(mine[name], same[name]) for name in mine)
    assert not torch.equal(mine["head.weight"], run.model(round="last").state_dict()["head.weight"])


def test_test_rows_have_no_part_in_it_and_scores_and_bytes_stay_as_they_were(wild, tmp_path):
    folder, result = wild
    plain = go(tmp_path / "plain", *WILD, "run.keep=last")
    assert plain.summary == result.summary
    mine, theirs = read_scores(folder), read_scores(tmp_path / "plain")
    assert mine[mine["split"] == "test"].reset_index(drop=True).equals(theirs)
    for with_it, without in zip(rounds_of(folder), rounds_of(tmp_path / "plain"), strict=True):
        assert {k: v for k, v in with_it.items() if k != "valid"} == without
    assert load(folder).scores.equals(theirs)


def test_a_run_stops_when_no_better_round_comes_and_goes_on_alike_when_resumed(tmp_path):
    changes = [*WILD, "run.patience=2", "run.evaluate_every=2", "run.checkpoint_every=3", "run.rounds=20"]
    done = go(tmp_path / "whole", *changes)
    values = by_hand(tmp_path / "whole")
    best = first_best(values)
    assert done.rounds == best + 4 < 20
    assert done.reason.startswith("no better accuracy on validation rows in 2 evaluations (best: ")
    assert best in saved_rounds(tmp_path / "whole" / "checkpoints")

    class Killed(Exception):
        pass

    def kill(event, facts):
        if event == "round" and facts["round"] == best + 3:
            raise Killed

    with pytest.raises(Killed):
        go(tmp_path / "halves", *changes, watch=kill)
    again = go(tmp_path / "halves", *changes, resume=True)
    assert (again.rounds, again.reason) == (done.rounds, done.reason)
    assert_same_end(tmp_path / "halves", tmp_path / "whole")
    assert saved(tmp_path / "halves")[2]["best"]["since"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["batched", "workers"])
def test_every_engine_judges_alike(engine, wild, tmp_path):
    go(tmp_path / "run", *WILD, f"engine.name={engine}", "engine.processes=2")
    assert by_hand(tmp_path / "run") == pytest.approx(by_hand(wild[0]))


def test_with_validation_rows_scored_anyway_nothing_is_scored_twice(tmp_path):
    go(tmp_path / "run", *WILD, "run.split=valid", "run.rounds=3")
    assert set(read_scores(tmp_path / "run")["split"]) == {"valid"}
    assert not any("score.centre.valid" in line["seconds"] for line in load(tmp_path / "run").rounds)
    assert load(tmp_path / "run")._kept.round("best") == first_best(by_hand(tmp_path / "run"))


@pytest.mark.parametrize("setting", ["run.keep=best", "run.patience=3"])
def test_without_validation_rows_no_round_is_judged(setting, tmp_path):
    with pytest.raises(
        KinfolkError, match=r"needs validation rows, and the federation has none; set data\.valid"
    ):
        go(tmp_path / "run", setting)
    assert not (tmp_path / "run").exists()


def test_all_rounds_can_be_kept_and_the_cost_is_told_before(tmp_path):
    go(tmp_path / "run", "run.keep=all", "algorithm.name=local")
    run = load(tmp_path / "run")
    assert run.kept_rounds == (0, 1, 2, 3)
    start = next(line for line in run.audit if line["event"] == "start")
    model = 4 * (64 * 10 + 10)  # a logistic regression of 8 x 8 pixels
    assert start["kept"] == {
        "keep": "all", "checkpoint_bytes": 4 * model, "checkpoints": 4, "bytes": 4 * 4 * model
    }  # fmt: skip
    scores = run.scores[(run.scores["score"] == "accuracy") & (run.scores["client"] == "client-00")]
    assert scores["value"].nunique() > 1
    weights = [run.model("client-00", round=number).state_dict()["head.weight"] for number in range(4)]
    assert all(not torch.equal(a, b) for a, b in pairwise(weights))
