"""Commands in the order of a day, lists that lead to the settings, formats, seeds by number."""

from __future__ import annotations

import json
import re
import signal

import pytest

from kinfolk.cli.order import ORDER
from kinfolk.experiment.stopping import Stopped

SMALL = (
    "--set",
    "run.rounds=1",
    "--set",
    "data.clients=4",
    "--set",
    "data.rows=20",
    "--set",
    "engine.name=loop",
)


def test_commands_come_in_the_order_of_a_day(kinfolk):
    code, out, _ = kinfolk("--help")
    assert code == 0
    found = [m[1] for line in out.splitlines() if (m := re.match(r"│ ([a-z][a-z-]*) ", line))]
    assert found == [name for name in ORDER if name in found]
    assert found[:3] == ["data", "advise", "run"]
    assert {"show", "list", "check", "choose-k", "assign", "score", "reproduce"} <= set(found)


def test_list_leads_to_the_settings(kinfolk):
    _, out, _ = kinfolk("list")
    assert out.splitlines()[-1].endswith("kinfolk list settings")
    assert "local.lr" not in out
    _, out, _ = kinfolk("list", "all")
    assert "local.lr" in out
    assert "fedavg_tuned" in out
    assert set(json.loads(kinfolk("list", "all", "--json")[1])) == {
        "algorithms",
        "configs",
        "data",
        "models",
        "settings",
    }
    code, _, err = kinfolk("list", "setings")
    assert (code, err) == (2, "error: list = 'setings': did you mean 'settings'?\n")


def test_seeds_by_number_and_every_format(kinfolk, tmp_path):
    code, out, err = kinfolk("compare", *SMALL, "-a", "local", "--seeds", "3,5", "--out", "c")
    assert code == 0, err
    assert json.loads((tmp_path / "c/compare.json").read_text())["runs"] == ["local-seed3", "local-seed5"]
    assert kinfolk("show", "c", "--format", "table")[1] == out
    assert "\nverdict:    " in out
    assert kinfolk("show", "c", "--format", "json")[1] == kinfolk("show", "c", "--json")[1]
    assert "| local | personal |" in kinfolk("show", "c", "--format", "md")[1]
    assert r"\begin{tabular}" in kinfolk("show", "c", "--format", "latex")[1]
    assert (
        kinfolk("show", "c", "--format", "csv")[1].splitlines()[0].startswith("algorithm,model,score,seeds")
    )
    code, _, err = kinfolk("show", "c", "--format", "latx")
    assert (code, err) == (2, "error: --format = 'latx': did you mean 'latex'?\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--seeds", "0"), "--seeds = 0: give 1 or more"),
        (("--seeds", "1,1"), "--seeds = [1, 1]: give each seed once"),
        (("--seeds", "few"), "--seeds = 'few': give whole numbers"),
        (("-a", "local", "-a", "local"), "--algorithm = 'local': is named twice"),
        (("--log", "paper"), "--log = 'paper': known: mlflow, tensorboard, wandb"),
    ],
)
def test_errors_are_in_the_words_of_the_command_line(kinfolk, tmp_path, words, line):
    code, _, err = kinfolk("compare", *SMALL, *words, "--out", "c")
    assert code == 2
    assert err.startswith(f"error: {line}")
    assert not (tmp_path / "c").exists()


def test_scores_are_logged_from_the_command_line(kinfolk, monkeypatch):
    told = []

    def stand_in(facts):
        return lambda round, metrics: told.append(
            (facts["title"], facts["seed"], round)
        ), lambda: told.append("closed")

    monkeypatch.setitem(
        __import__("kinfolk.experiment.loggers", fromlist=["x"]).LOGGERS, "tensorboard", stand_in
    )
    monkeypatch.setattr("kinfolk.experiment.loggers._module", lambda *_: None)
    assert kinfolk("run", *SMALL, "--out", "r", "--log", "tensorboard")[0] == 0
    assert told == [("fedavg", 0, 0), ("fedavg", 0, 1), "closed"]


@pytest.mark.parametrize(
    ("words", "end"), [(("run",), "continue with --resume"), (("list",), "the same command goes on")]
)
def test_a_stop_says_how_the_command_goes_on(kinfolk, monkeypatch, words, end):
    def stop(*_, **__):
        raise Stopped(132, signal.SIGTERM)

    monkeypatch.setattr("kinfolk.experiment.run.run", stop)
    monkeypatch.setattr("kinfolk.cli.commands._listed", stop)
    code, out, err = kinfolk(*words)
    assert (code, out, err) == (143, "", f"stopped at round 132; {end}\n")
