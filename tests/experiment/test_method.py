"""Settings of one method of a comparison: how they are written, what is refused, and where they show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kinfolk.errors import KinfolkError
from kinfolk.experiment.compare import compare, parse_methods
from kinfolk.experiment.method import parse_method
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import override
from kinfolk.report.read import load_runs
from kinfolk.report.tables import comparison_table

SMALL = override(Experiment(), ["data.clients=4", "data.rows=12", "run.rounds=1", "engine.name=loop"])


def test_settings_after_a_semicolon_are_the_methods_own() -> None:
    one = parse_method("fedprox, mu=0.5 ; local.lr = 0.05; local.clip=1", SMALL)
    assert one.spec.algorithm.options == {"mu": 0.5}
    assert (one.spec.local.lr, one.spec.local.clip, SMALL.local.lr) == (0.05, 1.0, 0.1)
    assert one.title == "fedprox mu=0.5 lr=0.05 clip=1"
    assert one.folder == "fedprox-mu=0.5-lr=0.05-clip=1"


def test_a_name_that_the_algorithm_has_too_is_written_in_full() -> None:
    assert parse_method("fedavg_tuned;local.tune_epochs=3", SMALL).title == "fedavg_tuned local.tune_epochs=3"


def test_options_may_stand_among_the_settings_and_lines_read_back() -> None:
    one = parse_method("fedprox;algorithm.mu=0.5;local.optimiser=adam", SMALL)
    assert one.title == "fedprox mu=0.5 optimiser=adam"
    again = parse_method(one.line, SMALL)
    assert (again.spec, again.own) == (one.spec, one.own)
    listed = parse_method("fedavg;model.name=cnn;model.wide=[4, 8]", SMALL)
    assert parse_method(listed.line, SMALL) == listed


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("fedavg;data.clients=3", "is the same for every method"),
        ("fedavg;run.seed=3", "is the same for every method"),
        ("fedavg;local.lr", "write section.key=value"),
        ("fedavg;lr=0.1", "write section.key=value"),
        ("fedavg;", "write section.key=value"),
        ("fedavg;local.lr=0.1;local.lr=0.2", "is set twice"),
        ("fedavg;local.lrr=0.1", "no such setting"),
        ("fedavg;local.lr=-1", "give a number above 0"),
        ("fedavg;locl.lr=1", "no such section"),
    ],
)
def test_what_cannot_be_a_methods_own_is_refused_in_one_line(text: str, told: str) -> None:
    with pytest.raises(KinfolkError, match=told) as error:
        parse_method(text, SMALL)
    assert "\n" not in str(error.value)


def test_the_same_settings_twice_are_refused() -> None:
    with pytest.raises(KinfolkError, match="is named twice"):
        parse_methods(SMALL, ["fedavg;local.lr=0.05", "fedavg;local.lr=5e-2"])


def test_a_table_tells_methods_apart_by_their_settings_and_says_that_they_are_meant(tmp_path: Path) -> None:
    compare(SMALL, ["fedavg", "fedavg;local.lr=0.01"], 2, tmp_path / "both")
    runs = load_runs(tmp_path / "both")
    assert sorted({run.title for run in runs}) == ["fedavg", "fedavg lr=0.01"]
    assert (tmp_path / "both" / "fedavg-lr=0.01-seed1").is_dir()
    facts = json.loads((tmp_path / "both" / "fedavg-lr=0.01-seed0" / "run.json").read_text())
    assert facts["own"] == {"local.lr": 0.01}
    notes = comparison_table(runs)[1]
    assert "by intention, methods have settings of their own: local.lr" in notes
    assert not any("also differ" in note for note in notes)


def test_a_difference_that_nobody_meant_is_still_named(tmp_path: Path) -> None:
    compare(SMALL, ["fedavg;local.lr=0.01"], 2, tmp_path / "a")
    compare(override(SMALL, ["local.batch=5"]), ["local"], 1, tmp_path / "b")
    notes = comparison_table([*load_runs(tmp_path / "a"), *load_runs(tmp_path / "b")])[1]
    assert "the runs also differ in local.batch" in notes
