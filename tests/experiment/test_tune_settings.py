"""The search for settings: equal budgets, validation rows alone, no trial twice, and what cannot be tried."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import kinfolk
from kinfolk.algorithms import ALGORITHMS, options_of
from kinfolk.algorithms.options import check_options, search_space
from kinfolk.errors import BrokeDown, KinfolkError
from kinfolk.experiment import tune as tuning
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.halving import affordable, cost, halve, rungs, survivors
from kinfolk.experiment.method import parse_method
from kinfolk.experiment.run import run
from kinfolk.experiment.score_again import score_again
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.space import parse_space, points, space_of
from kinfolk.experiment.spec import load, override
from kinfolk.experiment.tune import Search, tune
from kinfolk.federation.federation import Federation
from kinfolk.federation.sources import build
from kinfolk.report.tune import tune_table
from kinfolk.streams import Seed

SMALL = override(
    Experiment(),
    ["data.clients=4", "data.rows=20", "run.rounds=3", "local.epochs=2", "engine.name=loop"],
)
RATES = {"local.lr": [0.001, 0.3]}


def searched(folder: Path, *names: str, spec: Experiment = SMALL, **more: Any) -> dict[str, Any]:
    given = {name: more.pop(name) for name in ("federation", "resume") if name in more}
    return tune(spec, names, folder, Search(**{"space": RATES, **more}), **given)


def test_a_third_goes_on_and_costs_what_the_plan_says() -> None:
    ran: dict[str, int] = {}

    def measure(point: Mapping[str, Any], rounds: int) -> float:
        ran[str(point["x"])] = rounds
        return float(point["x"])

    halve([{"x": i} for i in (3, 1, 4, 8, 5, 7, 2, 6, 0)], [2, 6, 18], measure)
    assert ran == {"8": 18, "7": 6, "6": 6, **dict.fromkeys("012345", 2)}
    assert sum(ran.values()) == cost(9, [2, 6, 18]) == 42
    assert survivors(9, [2, 6, 18]) == [9, 3, 1]


@pytest.mark.parametrize("budget", [36, 40, 100, 400])
def test_as_many_points_as_fit_and_no_more(budget: int) -> None:
    steps = rungs(18)
    many = affordable(budget, steps, most=1000)
    assert many == 0 or 18 + cost(many, steps) <= budget
    assert 18 + cost(many + 1, steps) > budget


def test_points_cover_every_value_and_then_every_combination() -> None:
    fedavg = parse_method("fedavg", SMALL)
    space = {"local.lr": (0.01, 0.1, 0.3), "local.clip": (0.0, 1.0)}
    found = list(points(fedavg, space, Seed(0)))
    assert len(found) == 5, "all but what it has"
    assert {p["local.lr"] for p in list(points(fedavg, {"local.lr": (1.0, 2.0, 3.0)}, Seed(0)))} == {1, 2, 3}
    assert found == list(points(fedavg, space, Seed(0)))
    assert found != list(points(fedavg, space, Seed(1)))
    other = parse_method("fedprox", SMALL)
    assert [p["local.lr"] for p in points(other, space, Seed(0))] == [p["local.lr"] for p in found]


def test_what_a_line_sets_is_not_searched_and_each_method_has_its_own_strengths() -> None:
    assert set(space_of(parse_method("fedprox", SMALL), {})) == {"local.lr", "local.clip", "algorithm.mu"}
    assert set(space_of(parse_method("fedprox,mu=1;local.clip=2", SMALL), {})) == {"local.lr"}
    given = {"algorithm.mu": ["0.1", "1"], "local.lr": ["1"]}
    assert set(space_of(parse_method("fedavg", SMALL), given)) == {"local.lr"}
    assert set(space_of(parse_method("fedprox", SMALL), given)) == {"local.lr", "algorithm.mu"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_declared_strengths_are_options_and_their_values_are_allowed(name: str) -> None:
    kind = ALGORITHMS[name]
    for option, values in search_space(kind).items():
        key = option.removeprefix("algorithm.")
        assert key in options_of(kind)
        for value in values:
            check_options(name, kind, {key: value})
            # Of two hidden layers, so that part of the network is left where two layers are the head.
            given = {"algorithm.name": name, "model.name": "mlp", "model.hidden": [8, 8], option: value}
            build_parts(override(Experiment(), given))


def test_the_better_rate_is_chosen_within_an_equal_budget(tmp_path: Path) -> None:
    spec = override(SMALL, ["run.rounds=4"])
    facts = searched(tmp_path / "t", "fedavg", "fesem,k=2", spec=spec, budget=12)
    for one in facts["methods"]:
        assert one["spent"] <= facts["budget"] == 12
        whole = [trial for trial in one["trials"] if trial["rounds"] == 4]
        assert one["trials"][0]["settings"] == {}
        best = max(max(trial["models"].values()) for trial in whole)
        assert max(one["models"].values()) >= best >= one["default"]
    fedavg = facts["methods"][0]
    assert fedavg["settings"] == {"local.lr": 0.3}
    assert fedavg["chosen"] == "fedavg;local.lr=0.3"
    assert facts["notes"] == ["no validation rows in the spec: a fifth of the training rows is held out"]


def test_the_chosen_spec_is_ready_to_run_on_the_data_as_they_were_given(tmp_path: Path) -> None:
    searched(tmp_path / "t", "fedavg")
    spec = load(tmp_path / "t" / "fedavg.toml")
    assert spec.local.lr == 0.3
    assert (spec.data, spec.run) == (SMALL.data, SMALL.run)
    assert json.loads((tmp_path / "t" / "tune.json").read_text())["methods"][0]["chosen"]
    assert not list((tmp_path / "t").glob("trials/*/*/checkpoints"))


def other_tests(seed: Seed) -> Federation:
    """The same clients with the labels of all test rows changed."""
    made = build(replace(SMALL.data, valid=0.2), seed)
    y, tested = made.y.clone(), made.splits["test"].row.unique()
    used = torch.cat([made.splits[name].row for name in ("train", "valid")]).unique()
    only = tested[~torch.isin(tested, used)]
    assert len(only) > 10
    y[only] = (y[only] + 1) % 10
    return replace(made, y=y)


def test_test_rows_play_no_part(tmp_path: Path) -> None:
    spec = override(SMALL, ["data.valid=0.2"])
    names = ("fedavg_tuned", "local")
    plain = searched(tmp_path / "a", *names, spec=spec)
    other = searched(tmp_path / "b", *names, spec=spec, federation=other_tests)
    assert plain == other


def test_a_search_is_the_same_again_and_follows_from_the_seed(tmp_path: Path) -> None:
    space = {"local.lr": [0.01, 0.05, 0.2, 0.4], "local.clip": [0.5, 2.0]}
    found = [searched(tmp_path / name, "fedavg", space=space, budget=9) for name in "ab"]
    assert found[0] == found[1]


class Stopped(Exception):
    """As if somebody had pulled the plug."""


def test_finished_trials_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = {"local.lr": [0.01, 0.05, 0.2, 0.4]}
    whole = searched(tmp_path / "whole", "fedavg_tuned", space=space)
    ran: list[str] = []

    def counted(spec: Experiment, folder: Path, **more: Any) -> Any:
        if len(ran) == 3 and "stop" not in ran:
            ran.append("stop")
            raise Stopped
        ran.append(f"{folder.name} {spec.run.rounds}")
        return run(spec, folder, **more)

    monkeypatch.setattr(tuning, "run", counted)
    with pytest.raises(Stopped):
        searched(tmp_path / "torn", "fedavg_tuned", space=space)
    with pytest.raises(KinfolkError, match="a search is there already; add --resume"):
        searched(tmp_path / "torn", "fedavg_tuned", space=space)
    again = searched(tmp_path / "torn", "fedavg_tuned", space=space, resume=True)
    assert again == whole
    assert len(ran) == len(set(ran))
    ran.clear()
    ran.append("stop")
    assert searched(tmp_path / "torn", "fedavg_tuned", space=space, resume=True) == whole
    assert ran == ["stop"]


def test_a_trial_that_diverges_or_breaks_down_is_worst_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(spec: Experiment, folder: Path, **more: Any) -> Any:
        if spec.local.lr == 0.3:
            raise BrokeDown("run", str(folder), "no usable reply")
        result = run(spec, folder, **more)
        if spec.local.lr == 0.2:
            facts = json.loads((folder / "run.json").read_text()) | {"diverged": {"round": 2}}
            (folder / "run.json").write_text(json.dumps(facts))
        if spec.local.lr == 0.4:
            return replace(result, summary={"centre": {"accuracy": {"macro": math.nan}}})
        return result

    monkeypatch.setattr(tuning, "run", failing)
    facts = searched(tmp_path / "t", "fedavg", space={"local.lr": [0.05, 0.2, 0.3, 0.4]})
    (one,) = facts["methods"]
    assert one["failed"] == 3
    assert one["settings"].get("local.lr", 0.1) in (0.05, 0.1)
    assert {t["settings"].get("local.lr") for t in one["trials"] if t["models"]["centre"] is None} == {
        0.2,
        0.3,
        0.4,
    }
    assert "3 trials diverged or broke down, and count as worst" in "\n".join(tune_table(facts)[1])


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ({"local.lr": ["-1", "0"]}, r"the first is local\.lr=.*: local\.lr = .*give a number above 0"),
        ({"local.clip": ["x"]}, r"local\.clip=x: local\.clip = 'x'"),
        ({"algorithm.weights": ["half"]}, r"algorithm\.weights=half"),
        ({"local.lrr": ["1"]}, "no such setting; did you mean 'local.lr'"),
        ({"algorithm.k": ["999"]}, r"--space: has no point .* the first is algorithm\.k=999: .* at most"),
        ({"algorithm.mu": ["1"]}, "no method here has such an option"),
    ],
)
def test_a_space_without_a_valid_point_is_one_line(space: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(KinfolkError, match=told) as error:
        searched(tmp_path / "t", "ifca" if "algorithm.k" in space else "fedavg", space=space)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "t").exists()


def test_points_that_cannot_be_run_are_left_out_and_named(tmp_path: Path) -> None:
    facts = searched(tmp_path / "t", "fedavg", space={"local.lr": ["-1", "0.3"]})
    assert facts["methods"][0]["left_out"] == ["local.lr=-1: local.lr = -1.0: give a number above 0"]
    assert "fedavg: not tried: local.lr=-1" in "\n".join(tune_table(facts)[1])


@pytest.mark.parametrize(
    "text", ["local.lr", "lr=1", "local.lr=", "local.lr=1,,2", "run.rounds=3", "data.rows=2"]
)
def test_a_space_is_written_in_one_way(text: str) -> None:
    with pytest.raises(KinfolkError, match="--space = "):
        parse_space([text])


def test_a_budget_too_small_for_any_search_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(KinfolkError, match="fedavg needs 6 or more"):
        searched(tmp_path / "t", "fedavg", budget=5)
    with pytest.raises(KinfolkError, match="--backend = 'halfing': did you mean 'halving'"):
        Search(backend="halfing")


def test_models_scored_again_with_other_fine_tuning_are_those_of_a_run_with_it(tmp_path: Path) -> None:
    spec = override(SMALL, ["algorithm.name=fedavg_tuned"])
    other = override(spec, ["local.tune_lr=0.01", "local.tune_epochs=2"])
    run(spec, tmp_path / "a")
    assert score_again(tmp_path / "a", other, tmp_path / "b").summary == run(other, tmp_path / "c").summary


def test_trials_of_fine_tuning_come_out_of_the_same_budget(tmp_path: Path) -> None:
    (one,) = searched(tmp_path / "t", "fedavg_tuned", space={}, budget=12)["methods"]
    # One epoch and three of them, at three rates each, where a round has two: six rounds of twelve.
    assert sum(trial["spent"] for trial in one["fine"]) == pytest.approx(6)
    assert one["spent"] == pytest.approx(12)
    assert one["models"]["fine-tuned"] >= one["default_models"]["fine-tuned"]


def test_several_seeds_share_the_budget(tmp_path: Path) -> None:
    facts = searched(tmp_path / "t", "fedavg", seeds=2, budget=12)
    assert facts["seeds"] == [0, 1]
    assert facts["methods"][0]["spent"] == 12


def test_python_has_the_table_the_settings_and_the_lines(tmp_path: Path) -> None:
    rows = [(torch.linspace(-1, 1, 40)[:, None], torch.arange(40) // 20) for _ in range(3)]
    found = kinfolk.tune(
        lambda: nn.Linear(1, 2),
        rows,
        ["fedavg_tuned"],
        rounds=2,
        space={"local.tune_lr": [1.0]},
        folder=tmp_path,
    )
    assert set(found.best) == {"fedavg_tuned"}
    assert found.frame["tried"].tolist() == [2]
    assert max(map(len, str(found).splitlines()[:6])) <= 80
    table = kinfolk.compare(lambda: nn.Linear(1, 2), rows, found.lines, rounds=1, seeds=1)
    assert len(table.frame) == 2


def test_optuna_is_asked_where_it_is_installed_and_named_where_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = {"local.lr": [0.001, 0.01, 0.3]}
    try:
        import optuna  # noqa: F401
    except ImportError:
        with pytest.raises(KinfolkError, match=r"pip install 'kinfolk\[tune\]'"):
            searched(tmp_path / "t", "fedavg", backend="optuna", space=space)
        pytest.skip("optuna is not installed")
    found = [searched(tmp_path / name, "fedavg", backend="optuna", space=space, budget=12) for name in "ab"]
    assert found[0] == found[1]
    assert found[0]["methods"][0]["spent"] <= 12
    assert found[0]["methods"][0]["tried"] > 1
