"""What to run next: the commands that the verdict gives can be pasted, and do what it says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from flat_runs import flat, seeds

from kinfolk.report.read import Run, load_runs
from kinfolk.report.verdict import verdict
from kinfolk.report.verdict.commands import line_of
from kinfolk.report.verdict.folder import together

SPEC = """
[data]
clients = 4
rows = 12
groups = 2
[model]
name = "logistic"
[engine]
name = "loop"
[run]
rounds = 3
"""


def steps(runs: list[Run]) -> dict[str, str]:
    """The next steps by rule, each its command or, where it has none, its words."""
    found = [one for one in verdict(runs).sentences if one.rule.startswith("next-")]
    return {one.rule: (re.findall("`(.*)`", one.text) or [one.text])[0] for one in found}


@pytest.fixture
def compared(kinfolk, tmp_path: Path) -> Path:
    """A comparison of two methods, too short and with one seed, in a folder whose name has a space."""
    (tmp_path / "small.toml").write_text(SPEC)
    folder = tmp_path / "my runs"
    code, _, err = kinfolk(
        "compare", "small.toml", "-a", "fedavg", "-a", "local;local.lr=0.3", "--seeds", 1, "--out", folder
    )
    assert code == 0, err
    return folder


def test_the_commands_can_be_pasted_and_keep_what_is_done(kinfolk, compared: Path):
    given = steps(load_runs(compared))
    assert {"next-rounds", "next-seeds", "next-groups"} <= set(given)
    before = (compared / "fedavg-seed0" / "records" / "round-000003.parquet").read_bytes()
    for rule in ("next-rounds", "next-seeds"):
        code, _, err = kinfolk(*shlex.split(given[rule])[1:])
        assert code == 0, (rule, err)
    runs = load_runs(compared)
    assert sorted((run.title, run.seed) for run in runs) == [
        (title, seed) for title in ("fedavg", "local lr=0.3") for seed in (0, 1, 2)
    ]
    assert max(run.rounds[-1]["round"] for run in runs) == 6
    assert (compared / "fedavg-seed0" / "records" / "round-000003.parquet").read_bytes() == before
    code, _, err = kinfolk(
        *shlex.split(given["next-groups"])[1:], "--rounds", 1, "--seeds", 1, "--k", "1,2", "--out", "k"
    )
    assert code == 0, err


def test_a_run_by_itself_goes_on_by_itself(kinfolk, compared: Path, tmp_path: Path):
    alone = (compared / "fedavg-seed0").rename(tmp_path / "alone")
    command = shlex.split(steps(load_runs(alone))["next-rounds"])
    assert command[:2] == ["kinfolk", "run"]
    assert kinfolk(*command[1:])[0] == 0
    assert load_runs(alone)[0].rounds[-1]["round"] == 6


def test_a_part_of_a_comparison_is_never_continued_as_if_it_were_all(compared: Path):
    runs = load_runs(compared)
    assert together(runs) == compared
    assert together(runs[:1]) is None
    assert "--resume" not in steps(runs[:1]).get("next-baselines", "")


def test_a_killed_comparison_is_finished(kinfolk, compared: Path):
    facts = json.loads((compared / "fedavg-seed0" / "run.json").read_text())
    (compared / "fedavg-seed0" / "run.json").write_text(json.dumps({**facts, "status": "running"}))
    command = steps(load_runs(compared))["next-resume"]
    assert kinfolk(*shlex.split(command)[1:])[0] == 0
    assert "next-resume" not in steps(load_runs(compared))


def test_missing_baselines_are_added(kinfolk, compared: Path, tmp_path: Path):
    alone = (compared / "fedavg-seed0").rename(tmp_path / "alone")
    command = steps(load_runs(alone))["next-baselines"]
    assert "-a fedavg -a local --seeds 0,1,2" in command
    assert kinfolk(*shlex.split(command)[1:], "--out", "more")[0] == 0
    assert len(load_runs(tmp_path / "more")) == 6


def on_disk(tmp_path: Path, runs: list[Run]) -> list[Run]:
    """The same runs as if they were in folders."""
    for run in runs:
        object.__setattr__(run, "path", tmp_path / f"{run.title}-seed{run.seed}")
        run.path.mkdir()
        (run.path / "run.json").write_text("{}")
    return runs


def test_a_sure_result_is_tuned_and_taken_home(tmp_path: Path):
    spec = {"data": {"name": "digits"}, "algorithm": {"name": "fedavg"}}
    alone = {"data": {"name": "digits"}, "algorithm": {"name": "local"}}
    runs = on_disk(tmp_path, seeds("fedavg", 0.8, spec=spec) + seeds("local", 0.7, spec=alone))
    given = steps(runs)
    assert given["next-tune"].endswith("-a fedavg -a local")
    assert given["next-use"] == f"kinfolk export {tmp_path}/fedavg-seed0 --kind centre --out model"
    assert list(given) == ["next-groups", "next-tune", "next-use"]


def test_of_models_for_each_all_are_taken_home(tmp_path: Path):
    runs = on_disk(tmp_path, seeds("fedavg", 0.7) + seeds("local", 0.8))
    assert steps(runs)["next-use"].endswith("--kind personal --all --out models")


def test_what_was_given_in_python_is_told_in_words():
    spec = {"data": {"name": "own", "path": ""}, "run": {"rounds": 4}, "algorithm": {"name": "fedavg"}}
    given = steps(seeds("fedavg", 0.7, before=0.1, spec=spec) + seeds("local", 0.8, spec=spec))
    assert given["next-rounds"] == "Run twice the rounds, since scores still rise."


def test_a_method_that_diverged_is_tried_with_a_third_of_its_rate():
    gone = {"text": "", "models": {"centre": {"round": 2}}}
    spec = {"data": {"name": "digits"}, "local": {"lr": 0.3}, "algorithm": {"name": "fedavg"}}
    runs = seeds("fedavg", 0.7, diverged=gone, spec=spec) + seeds(
        "local", 0.8, spec={**spec, "algorithm": {"name": "local"}}
    )
    assert "-a 'fedavg;local.lr=0.1'" in steps(runs)["next-rate"]


@pytest.mark.parametrize(("rounds", "every", "rule"), [(100, 100, "next-looks"), (100, 10, "next-rounds")])
def test_who_was_scored_too_seldom_is_scored_more_often_or_longer(rounds, every, rule):
    spec = {"run": {"rounds": rounds, "evaluate_every": every}}
    runs = seeds("fedavg", 0.7, spec=spec) + seeds("local", 0.8, spec=spec)
    for run in runs:
        run.__dict__["scores"] = run.scores[run.scores["round"] != 3]
    assert rule in steps(runs)


def test_runs_on_other_data_get_no_advice():
    runs = [
        flat("fedavg", 0, 0.7, federation={"fingerprint": "a"}),
        flat("local", 0, 0.7, federation={"fingerprint": "b"}),
    ]
    assert steps(runs) == {}


def test_a_line_is_what_the_command_line_reads(kinfolk):
    from kinfolk.experiment.method import parse_method
    from kinfolk.experiment.sections import Experiment
    from kinfolk.experiment.spec import dump

    for line in (
        "fesem,k=4,start.name=random",
        "ifca,aggregate.name=median;local.lr=0.3",
        "fedavg;local.clip=1",
    ):
        method = parse_method(line, Experiment())
        run = Run.of({"title": method.title, "seed": 0, "own": dict(method.own)}, {"value": []})
        import tomllib

        run.__dict__["spec"] = tomllib.loads(dump(method.spec))
        again = parse_method(str(line_of(run)), Experiment())
        assert again == method
