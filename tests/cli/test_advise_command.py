"""`kinfolk advise` as a person meets it."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

SETS = ("model.name=logistic", "local.batch=40", "local.epochs=5", "engine.name=batched")
SMALL = [word for one in SETS for word in ("--set", one)]


@pytest.fixture
def shops(tmp_path):
    """Three shops with one rule, in a file each."""
    draw = np.random.default_rng(0)
    folder = tmp_path / "shops"
    folder.mkdir()
    for name in ("east", "north", "west"):
        x = draw.normal(size=(200, 4))
        buys = np.where(x @ [1, -1, 2, 0] + 0.5 * draw.normal(size=200) > 0, "yes", "no")
        frame = pd.DataFrame(x, columns=["age", "visits", "spent", "noise"]).assign(buys=buys)
        frame.to_csv(folder / f"{name}.csv", index=False)
    return folder


def test_advise_prints_the_plan_the_advice_its_evidence_and_what_comes_next(kinfolk, shops, tmp_path):
    code, out, err = kinfolk("advise", "shops", *SMALL, "--budget", 192, "--out", "a")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0] == "3 clients, 120 training rows each, 90 validation rows, 2 classes"
    assert lines[1].startswith("note: a fifth of the training rows is held out")
    assert "at most 192 rounds' worth of training" in out
    assert max(len(line.rstrip()) for line in lines) <= 100
    table = [line.rstrip() for line in lines if line.startswith(" ")]
    assert max(map(len, table)) <= 80
    assert sum("* " in line for line in table) <= 1
    facts = json.loads((tmp_path / "a/advice.json").read_text())
    answer = facts["advice"]
    # One rule and 120 rows of four columns: one model is as good as three, and three clients prove little.
    assert answer["answer"] in ("local", "fedavg", "unclear")
    assert answer["confidence"] == "low"
    assert ("Confidence: low." in out) == (answer["answer"] != "unclear")
    assert "Test rows were not looked at." in " ".join(out.split())
    assert "next:   kinfolk" in out
    assert "3 clients are few" in out or answer["answer"] == "unclear"
    # What is written can be run, compared and shown again.
    code, shown, _ = kinfolk("show", "a")
    assert code == 0
    assert "fedavg_tuned" in shown
    code, _, err = kinfolk("run", "a/advice.toml", "--set", "run.rounds=1", "--out", "r")
    assert code == 0, err
    # The same again, as JSON; a folder in use is not written over.
    code, text, err = kinfolk("advise", "shops", *SMALL, "--budget", 192, "--out", "a", "--resume", "--json")
    assert (code, err) == (0, "")
    assert json.loads(text)["advice"] == answer
    code, _, err = kinfolk("advise", "shops", *SMALL, "--out", "a")
    assert code == 2
    assert err == "error: --out = 'a': is not empty; add --resume or choose another folder\n"


def test_too_little_data_is_an_answer_and_no_error(kinfolk, tmp_path):
    (tmp_path / "shops").mkdir()
    for name in ("east", "west"):
        pd.DataFrame({"age": [1.0, 2.0, 3.0] * 4, "buys": ["yes", "no"] * 6}).to_csv(
            tmp_path / f"shops/{name}.csv", index=False
        )
    code, out, _ = kinfolk("advise", "shops", "--out", "a")
    assert code == 0
    assert "Cannot say: too little data: there are 4 validation rows in all" in " ".join(out.split())
    assert "plan:" not in out
    assert "next:   kinfolk compare a/advice.toml -a local -a fedavg --seeds 10" in out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("nowhere",), "spec = 'nowhere': no such file"),
        (("shops", "--budget", 10), "--budget = 10.0: trials of 12 rounds need 192 or more"),
        (("shops", "--minutes", "0.0001"), "--minutes = 0.0001: trials of 12 rounds need about"),
        (("shops", "--budget", 10, "--minutes", 2), "--minutes = 2.0: give a budget or minutes, not both"),
        (("shops", "--clients", 1), "--clients = 1: give 2 or more"),
        (("shops", "--set", "local.lr=-1"), "local.lr = -1.0: give a number above 0"),
        (("shops", "--set", "run.monitor=acuracy"), "did you mean 'accuracy'"),
    ],
)
def test_what_cannot_be_advised_on_is_one_line(kinfolk, shops, tmp_path, words, line):
    code, _, err = kinfolk("advise", *words, *(SMALL if "--set" not in words else ()), "--out", "a")
    assert code == 2
    assert line in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "a").exists()


def test_own_rows_that_nobody_can_learn_from_are_one_line(kinfolk, shops, tmp_path):
    (shops / "west.csv").write_text("age,visits,spent,noise,buys\n")
    code, _, err = kinfolk("advise", "shops", "--out", "a")
    assert code == 2
    assert "west" in err
    for name in ("north", "west"):
        (shops / f"{name}.csv").unlink()
    code, _, err = kinfolk("advise", "shops", "--out", "a")
    assert (code, err.count("\n")) == (2, 1)
    assert "data.clients = 1: nobody to learn with" in err
    frame = pd.read_csv(shops / "east.csv").assign(buys="no")
    for name in ("east", "west"):
        frame.to_csv(shops / f"{name}.csv", index=False)
    code, _, err = kinfolk("advise", "shops", "--out", "a")
    assert (code, err.count("\n")) == (2, 1)
    assert "there is nothing to predict" in err
    assert not (tmp_path / "a").exists()
