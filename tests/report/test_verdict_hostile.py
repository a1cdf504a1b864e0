"""Whatever the records hold, there is a verdict; and no verdict flatters."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from flat_runs import flat, seeds
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import make_comparison, make_run

from kinfolk.errors import KinfolkError
from kinfolk.report.read import Run, load_run, load_runs
from kinfolk.report.verdict import Verdict, verdict

SCORES = ("accuracy", "mse", "loss", "r2", "made up")
ALGORITHMS = ("local", "fedavg", "fesem k=2", "slfed", "<script>alert(1)</script>", "طريقة 🦆")
MODELS = ("centre", "personal", "fine-tuned")
NUMBERS = st.one_of(
    st.floats(0, 1), st.sampled_from([0.0, 1.0, -1e300, 1e300, 1e-300, math.nan, math.inf, -math.inf])
)


def sound(found: Verdict) -> Verdict:
    """What every verdict is, whatever it is about."""
    assert found.headline.endswith(".")
    assert "\n" not in found.headline
    for one in found.sentences:
        assert one.text
        assert one.rule
        assert "nan" not in one.text.replace("<script>", "").split()
        assert all(math.isfinite(number) for number in one.numbers.values())
        assert one.weight in ("good", "warning", "plain")
    said = [one.rule for one in found.sentences]
    claims = {"best", "equals", "noise", "below", "groups-help", "groups-cost", "one-group"}
    if found.headline.startswith("No conclusion yet"):
        assert not claims & set(said)
    return found


LINE = {"round": 4, "bytes": {"u": {"up": 5}}, "seconds": {"u": 0.1}, "groups": {}}


@st.composite
def made_up_runs(draw: st.DrawFn) -> list[Run]:
    """Small runs of any kind: scores of any size, clients that come and go, groups, failures."""
    score = draw(st.sampled_from(SCORES))
    rounds = draw(st.sampled_from([(0,), (4,), (0, 4), (0, 2, 3, 4)]))
    runs = []
    for title in draw(st.lists(st.sampled_from(ALGORITHMS), min_size=1, max_size=4, unique=True)):
        models = draw(st.lists(st.sampled_from(MODELS), min_size=1, max_size=2, unique=True))
        for seed in range(draw(st.integers(1, 3))):
            clients = draw(st.integers(0, 8))
            many = clients * len(rounds) * len(models)
            columns = {
                "round": np.tile(np.repeat(rounds, clients), len(models)),
                "client": [f"c{i}" for i in range(clients)] * (len(rounds) * len(models)),
                "model": np.repeat(models, clients * len(rounds)),
                "score": score,
                "value": np.array(draw(st.lists(NUMBERS, min_size=many, max_size=many)), dtype=float),
                "rows": draw(st.lists(st.integers(0, 50), min_size=many, max_size=many)),
            }
            if title.startswith("fesem"):
                groups = draw(st.lists(st.integers(0, 2), min_size=clients, max_size=clients))
                columns["group"] = groups * (len(rounds) * len(models))
            facts = {"status": draw(st.sampled_from(["finished", "running", "stopped", "diverged"]))}
            if draw(st.booleans()):
                facts["federation"] = {
                    "fingerprint": draw(st.sampled_from("ab")),
                    "clients": clients,
                    "rows": 9,
                }
            if facts["status"] == "diverged":
                facts["diverged"] = {"text": "diverged", "models": {models[0]: {"round": 1}}}
            lines = draw(st.sampled_from([[], [{"round": 4, "cohort": 0}], [{**LINE, "cohort": clients}]]))
            runs.append(Run.of({"title": title, "seed": seed, **facts}, columns, lines))
    return runs


@settings(max_examples=150)
@given(made_up_runs(), st.sampled_from([None, {}, {"recommended": 3}, {"recommended": None}]))
def test_there_is_a_verdict_on_anything(runs, choice):
    sound(verdict(runs, choice=choice))


def test_no_runs_and_no_scores_are_nothing_to_judge():
    assert verdict([]).headline == "There is nothing to judge yet: no run has scores."
    found = sound(verdict([Run.of({"title": "fedavg", "seed": 0}, {"value": []})]))
    assert found.sentences[0].rule == "no-scores"


def test_an_unknown_score_is_an_error_as_everywhere():
    with pytest.raises(KinfolkError, match="wurst"):
        verdict(seeds("fedavg", 0.5), "wurst")


def test_scores_that_are_not_numbers_are_no_result():
    found = sound(verdict(seeds("fedavg", math.nan) + seeds("local", math.nan)))
    assert found.headline.startswith("No result can be used: fedavg lost clients")


def test_one_client_is_judged_by_seeds_alone():
    runs = seeds("fedavg", 0.5, clients=1) + seeds("local", 0.8, clients=1)
    found = sound(verdict(runs))
    assert "local serves best" in found.headline


def test_forty_methods_are_judged_without_a_page_of_names():
    few = [run for i in range(40) for run in seeds(f"method-{i:02d}", 0.5 + i / 100)]
    assert sound(verdict(few)).headline.startswith("No conclusion: 12 clients are too few to tell 40 methods")
    runs = [run for i in range(40) for run in seeds(f"method-{i:02d}", 0.5 + i / 100, clients=24)]
    found = sound(verdict(runs))
    assert found.headline.startswith("method-39 serves best")
    assert max(len(one.text) for one in found.sentences if not one.rule.startswith("next-")) < 400
    assert "36 more" in " ".join(one.text for one in found.sentences)


def test_two_methods_and_one_seed_are_never_ranked():
    found = sound(verdict([flat("fedavg", 0, 0.2), flat("local", 0, 0.9)]))
    assert found.headline.startswith("No conclusion yet: the methods share 1 seed")


def test_a_broken_error_that_looks_low_is_not_praised():
    gone = {"text": "", "models": {"centre": {"round": 2}}}
    runs = seeds("fedavg", 0.001, score="mse", diverged=gone) + seeds("local", 0.5, score="mse")
    text = " ".join([sound(verdict(runs)).headline, *(one.text for one in verdict(runs).sentences[:2])])
    assert "fedavg serves" not in text
    infinite = (
        seeds("fedprox", math.inf, score="mse")
        + seeds("local", 0.5, score="mse")
        + seeds("ours", 0.7, score="mse")
    )
    assert "local serves best" in sound(verdict(infinite)).headline


def test_a_run_that_was_killed_half_way_is_said_to_be_unfinished(tmp_path: Path):
    make_comparison(tmp_path, {"fedavg": 0.7, "local": 0.9}, rounds=20)
    killed = tmp_path / "local-seed2"
    for path in sorted((killed / "records").iterdir())[10:]:
        path.unlink()
    lines = (killed / "rounds.jsonl").read_text().splitlines()[:9]
    (killed / "rounds.jsonl").write_text("\n".join(lines) + '\n{"rou')
    (killed / "run.json").write_text((killed / "run.json").read_text().replace('"finished"', '"running"'))
    found = sound(verdict(load_runs(tmp_path)))
    assert found.headline.startswith("No conclusion yet: 1 of 6 runs is not finished")


def test_records_of_an_older_version_have_a_verdict(tmp_path: Path):
    folder = make_run(tmp_path / "old", {"centre": {"accuracy": {r: [0.5, 0.6] for r in (0, 3, 4)}}}, "ifca")
    for path in (folder / "records").iterdir():
        pq.write_table(pq.read_table(path, partitioning=None).drop_columns(["group", "margin"]), path)
    (folder / "spec.toml").unlink()
    found = sound(verdict([load_run(folder)]))
    assert found.headline.startswith("ifca has 55.0% on average")


def test_a_folder_that_looks_real_has_a_verdict_that_needs_no_torch(tmp_path: Path):
    import subprocess
    import sys

    make_comparison(
        tmp_path, {"fedavg": 0.7, "local": 0.9, "fedprox": 0.7}, models=("centre", "personal"), rounds=60
    )
    code = (
        "import sys; from kinfolk.report.read import load_runs\n"
        "from kinfolk.report.verdict import verdict\n"
        f"print(verdict(load_runs({str(tmp_path)!r})).headline); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    headline, torch = done.stdout.splitlines()
    assert torch == "False"
    assert headline == verdict(load_runs(tmp_path)).headline


def test_the_same_runs_have_the_same_verdict_in_any_order():
    runs = seeds("fedavg", 0.7, groups=[0] * 12) + seeds("local", 0.9) + seeds("fedprox", 0.8)
    assert verdict(runs) == verdict(runs)
    assert verdict(runs[::-1]).headline == verdict(runs).headline


def test_names_are_told_as_they_are():
    runs = seeds("<script>alert(1)</script>", 0.9) + seeds("طريقة 🦆", 0.5)
    assert "<script>alert(1)</script> serves best" in sound(verdict(runs)).headline


def test_groups_that_are_missing_at_the_end_are_no_error():
    runs = seeds("fedavg", 0.7) + seeds("ifca", 0.9, groups=[0, 1] * 6)
    for run in runs[3:]:
        run.scores.loc[run.scores["client"] == "c03", "group"] = math.nan
    sound(verdict(runs))
    for run in runs[3:]:
        run.scores["group"] = pd.Series([None] * len(run.scores), dtype=object)
        run.rounds.append({"round": 4, "groups": {"sizes": None}})
    sound(verdict(runs))
