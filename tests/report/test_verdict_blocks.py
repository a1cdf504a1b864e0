"""What forbids a conclusion, on both sides of each limit: then nobody is called better."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from flat_runs import flat, seeds
from made_up import make_run

from kinfolk.experiment.record import write_json
from kinfolk.report.read import Run, load_runs
from kinfolk.report.verdict import Sentence, verdict

RANKS = {"best", "equals", "noise", "below", "cheapest", "groups-help", "groups-cost", "one-group"}


def rules(runs: list[Run]) -> dict[str, Sentence]:
    found = verdict(runs)
    return {one.rule: one for one in found.sentences} | {
        "headline": Sentence("headline", found.headline, "plain")
    }


def stopped(found: dict[str, Sentence], rule: str) -> bool:
    """Whether this rule forbids a conclusion: it warns, the headline begins with it, and nobody is ranked."""
    if rule not in found:
        return False
    assert found[rule].weight == "warning"
    assert found["headline"].text.startswith("No conclusion yet: ")
    assert not RANKS & set(found)
    assert "serves best" not in " ".join(one.text for one in found.values())
    return True


@pytest.mark.parametrize(("gain", "rises"), [(0.008, False), (0.012, True)])
def test_a_mean_that_still_rises_by_more_than_a_point_forbids_it(gain, rises):
    found = rules(seeds("fedavg", 0.7, before=gain) + seeds("local", 0.9))
    assert stopped(found, "rising") == rises
    if rises:
        assert "fedavg still gained 1.2 points in the last quarter" in found["headline"].text
        assert found["rising"].numbers["most"] == pytest.approx(0.012)
        assert "next-rounds" in found
        assert "not a ranking" in found["so-far"].text


@pytest.mark.parametrize(("loss", "falls"), [(-0.008, False), (-0.012, True)])
def test_and_so_does_one_that_falls(loss, falls):
    found = rules(seeds("fedavg", 0.7, before=loss) + seeds("local", 0.9))
    assert stopped(found, "falling") == falls
    if falls:
        assert "lost 1.2 points" in found["headline"].text
        assert "run.patience" in found["next-rate"].text


@pytest.mark.parametrize(("before", "rule"), [(-0.0205, "rising"), (-0.015, None), (0.0205, "falling")])
def test_an_error_that_falls_gains(before, rule):
    runs = seeds("fedavg", 1.0, before=before, score="mse", noise=1e-4) + seeds("local", 0.5, score="mse")
    found = rules(runs)
    assert {"rising", "falling"} & set(found) == ({rule} if rule else set())


def test_too_few_scores_on_the_way_are_no_sign_that_training_is_finished():
    runs = seeds("fedavg", 0.7) + seeds("local", 0.9)
    for run in runs[:3]:
        run.__dict__["scores"] = run.scores[run.scores["round"] != 3]
    found = rules(runs)
    assert stopped(found, "unseen")
    assert "fedavg was scored too seldom (once" in found["unseen"].text


@pytest.mark.parametrize(("many", "few"), [(1, True), (2, True), (3, False)])
def test_fewer_than_three_seeds_allow_no_ranking(many, few):
    found = rules(seeds("fedavg", 0.7, many) + seeds("local", 0.9, many))
    assert stopped(found, "few-seeds") == few


def test_seeds_that_methods_do_not_share_do_not_count():
    runs = seeds("fedavg", 0.7) + [flat("local", s, 0.9) for s in (2, 3, 4)]
    found = rules(runs)
    assert stopped(found, "few-seeds")
    assert found["few-seeds"].numbers["seeds"] == 1


@pytest.mark.parametrize(
    ("status", "is_open"), [("finished", False), ("stopped", True), ("running", True), ("diverged", True)]
)
def test_a_run_that_is_not_finished_forbids_it(status, is_open):
    spec = {"run": {"rounds": 400}}
    runs = [flat("fedavg", s, 0.7, status=status if s == 2 else "finished", spec=spec) for s in range(3)]
    found = rules(runs + seeds("local", 0.9))
    assert stopped(found, "unfinished") == is_open
    if is_open:
        assert found["unfinished"].text == "1 of 6 runs is not finished: fedavg seed 2 (4 of 400 rounds)."
        assert "next-resume" in found


def test_runs_that_a_comparison_names_and_has_not_begun_count_as_unfinished(tmp_path: Path):
    curve = {r: [0.5, 0.6] for r in (0, 3, 4)}
    names = [f"{title}-seed{s}" for title in ("fedavg", "local") for s in (0, 1, 2)]
    for name in names[:4]:
        title, _, seed = name.rpartition("-seed")
        make_run(tmp_path / name, {"centre": {"accuracy": curve}}, title, int(seed))
    write_json(tmp_path / "compare.json", {"runs": names})
    found = rules(load_runs(tmp_path))
    assert stopped(found, "unfinished")
    assert "2 of 6 runs are not begun: local-seed1 and local-seed2" in found["unfinished"].text


def test_other_clients_or_rows_cannot_be_compared():
    runs = seeds("fedavg", 0.7, federation={"fingerprint": "a"}) + seeds(
        "local", 0.9, federation={"fingerprint": "b"}
    )
    found = rules(runs)
    assert stopped(found, "other-data")
    assert "so-far" not in found
    same = seeds("fedavg", 0.7, federation={"fingerprint": "a"}) + seeds(
        "local", 0.9, federation={"fingerprint": "a"}
    )
    assert "other-data" not in rules(same)


def test_several_reasons_are_counted_in_the_headline():
    found = rules(seeds("fedavg", 0.7, 1, before=0.1, status="stopped") + seeds("local", 0.9, 1, before=-0.1))
    assert found["headline"].text.endswith("; and 2 more reasons.")
    assert found["headline"].text.startswith(
        "No conclusion yet: 1 of 2 runs is not finished; fedavg still gained"
    )


def test_a_method_that_diverged_is_not_ranked_and_the_others_are():
    gone = {"text": "diverged", "models": {"centre": {"round": 51}}}
    runs = [flat("fedavg", s, 0.99, diverged=gone) for s in range(3)]
    found = rules(runs + seeds("fedprox", 0.7) + seeds("local", 0.8))
    assert found["diverged"].text.startswith("fedavg (centre) diverged in 3 of 3 runs, first at round 51")
    assert "fedavg" not in found["best"].text
    assert found["headline"].text.endswith("; not ranked: fedavg diverged.")
    alone = rules(runs)
    assert alone["headline"].text == "No result can be used: fedavg diverged."


def test_a_mean_without_the_clients_that_were_lost_is_not_ranked():
    lost = seeds("fedavg", [0.95] * 11 + [0.1])
    for run in lost:
        run.scores.loc[(run.scores["client"] == "c11") & (run.scores["round"] == 4), "value"] = math.nan
    found = rules(lost + seeds("fedprox", 0.7) + seeds("local", 0.8))
    assert found["lost"].text.startswith("fedavg (centre) has no score for 1 client")
    assert "fedavg" not in found["best"].text
    assert "fedavg lost clients" in found["headline"].text


def test_a_client_without_test_rows_is_not_lost():
    runs = seeds("fedavg", 0.7) + seeds("local", 0.8)
    for run in runs:
        run.scores.loc[run.scores["client"] == "c11", ["value", "rows"]] = math.nan, 0
    found = rules(runs)
    assert "lost" not in found
    assert "best" in found
