"""`kinfolk choose-k` and `kinfolk assign` as a person meets them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

SETS = ("data.clients=6", "data.rows=20", "model.name=logistic", "engine.name=loop", "data.groups=2")
SMALL = [word for one in SETS for word in ("--set", one)]
FEW = ("--k", "1,2", "--rounds", 1, "--seeds", 2)


def test_choose_k_prints_a_table_a_reason_and_where_things_are(kinfolk, tmp_path):
    code, out, err = kinfolk("choose-k", *SMALL, *FEW, "--out", "c")
    assert code == 0, err
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    assert "validation" in lines[0]
    assert max(map(len, lines[:5])) <= 80
    assert "Confidence: " in " ".join(out.split())
    assert "fesem, 6 of 6 clients, 1 rounds, seeds 0, 1" in out
    assert "a fifth of the training rows is held out" in out
    assert (tmp_path / "c/choose-k.png").stat().st_size > 10_000
    facts = json.loads((tmp_path / "c/choose-k.json").read_text())
    assert facts["recommended"] in (1, 2)
    assert facts["reason"].split(":")[0] in " ".join(out.split())
    assert {path.name for path in (tmp_path / "c/runs").iterdir()} == {
        f"k{k}-seed{seed}" for k in (1, 2) for seed in (0, 1)
    }
    again, text, err = kinfolk("choose-k", *SMALL, *FEW, "--out", "c", "--resume", "--json")
    assert again == 0
    assert err == ""
    assert json.loads(text)["rows"] == facts["rows"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--k", "two"), "--k = 'two': give whole numbers"),
        (("--k", "0"), "--k = 0: give 1 or more"),
        (("--criterion", "silhouete"), "did you mean 'silhouette'"),
        (("--set", "algorithm.name=fedavg"), "use one of fesem"),
        (("--seeds", 0), "--seeds = 0"),
        (("--set", "algorithm.start.warm_epochs=0"), "algorithm.start.warm_epochs = 0: give 1 or more"),
        (("--set", "algorithm.start.warm_epoch=2"), "did you mean 'start.warm_epochs'"),
        (("--k", "2,7"), "--k = 7: give at most 6, the number of clients"),
    ],
)
def test_choose_k_refuses_in_one_line(kinfolk, words, line):
    code, _, err = kinfolk("choose-k", *SMALL, "--out", "c", *words)
    assert code == 2
    assert line in err
    assert len(err.strip().splitlines()) == 1
    assert not Path("c").exists(), "nothing was begun"


@pytest.fixture
def placed(kinfolk, tmp_path):
    """A small run, and a folder with two newcomers of its kind."""
    fesem = ("--set", "algorithm.name=fesem", "--set", "algorithm.k=2", "--set", "run.rounds=6")
    assert kinfolk("run", *SMALL, *fesem, "--out", "r", "--json")[0] == 0
    (tmp_path / "new").mkdir()
    draw = np.random.default_rng(0)
    for who in ("ann", "bob"):
        np.savez(tmp_path / "new" / f"{who}.npz", x=draw.normal(size=(20, 1, 8, 8)), y=np.arange(20) % 10)
    return tmp_path


def test_assign_prints_and_writes_one_row_per_newcomer(kinfolk, placed):
    code, out, err = kinfolk("assign", "r", "--data", "new", "--out", "placed.csv")
    assert code == 0, err
    assert max(map(len, out.splitlines())) <= 100
    assert all(word in out for word in ("ann", "bob", "mean", "its group", "models: r, round 1"))
    frame = pd.read_csv(placed / "placed.csv")
    assert list(frame["newcomer"]) == ["ann", "bob"]
    code, text, err = kinfolk("assign", "r", "--data", "new", "--by", "loss", "--json", "--out", "p.parquet")
    rows = json.loads(text)["newcomers"]
    assert err == ""
    assert list(pd.read_parquet(placed / "p.parquet")["group"]) == [row["group"] for row in rows]
    assert list(frame["one_model"]) == [row["one_model"] for row in rows]
    _bad(kinfolk, placed)


def _bad(kinfolk, folder):
    """Everything that will not do, on one run: each is one line and exit code 2."""
    (folder / "empty").mkdir()
    (folder / "strange").mkdir()
    np.savez(folder / "strange/ann.npz", x=np.zeros((20, 1, 8, 8)), y=np.arange(20) % 12)
    (folder / "flat.csv").write_text("who,a,y\n" + "ann,1,0\nann,2,1\n" * 5)
    for words, line in (
        (("nowhere", "--data", "new"), "run = 'nowhere': is no run folder"),
        (("r", "--data", "missing"), "there is no such file or folder"),
        (("r", "--data", "empty"), "is empty"),
        (("r", "--data", "flat.csv"), "name the column"),
        (("r", "--data", "flat.csv", "--client", "who"), "rows of this shape do not fit"),
        (
            ("r", "--data", "strange"),
            "label = '10': the run knows no such class; it has 0, 1, 2, 3, 4, 5, ...",
        ),
        (("r", "--data", "new", "--by", "size"), "--by = 'size'"),
        (("r", "--data", "new", "--out", "p.xls"), "ends in .csv or .parquet"),
    ):
        code, _, err = kinfolk("assign", *words, *(("--out", "no.csv") if "--out" not in words else ()))
        assert code == 2, words
        assert not (folder / "no.csv").exists()
        assert line in err
        assert len(err.strip().splitlines()) == 1, err
