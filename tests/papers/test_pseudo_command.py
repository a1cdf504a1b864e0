"""`kinfolk pseudo` as a person meets it."""

from __future__ import annotations

import json

import pytest

SETS = ("data.clients=6", "data.rows=20", "model.name=logistic", "engine.name=loop", "data.groups=2")
MDICFL = ("name=mdicfl", "k=2", "pseudo.samples=3", "search.iterations=5", "start.name=warm_kmeans")
SMALL = [word for one in (*SETS, *(f"algorithm.{o}" for o in MDICFL)) for word in ("--set", one)]


@pytest.fixture
def run(kinfolk):
    assert kinfolk("run", *SMALL, "--set", "run.rounds=6", "--out", "r", "--json")[0] == 0


@pytest.mark.usefixtures("run")
def test_pseudo_prints_a_matrix_and_a_check_and_writes_both(kinfolk, tmp_path):
    code, out, err = kinfolk("pseudo", "r", "--out", "p", "--images", 1)
    assert code == 0, err
    assert max(map(len, out.splitlines())) <= 100
    for words in ("rows of 0", "rows of 1", "cluster 1", "% near a training row", "models: mdicfl"):
        assert words in " ".join(out.split()), out
    assert (tmp_path / "p/pseudo.png").stat().st_size > 10_000
    facts = json.loads((tmp_path / "p/pseudo.json").read_text())
    code, text, err = kinfolk("pseudo", "r", "--json")
    assert (code, err) == (0, "")
    told = json.loads(text)
    assert told["samplers"]["back_search"]["confidence"] == facts["samplers"]["back_search"]["confidence"]
    assert (tmp_path / "r/pseudo/pseudo.json").exists()
    for words, line in (
        (("nowhere",), "run = 'nowhere': is no run folder"),
        (("r", "--sampler", "gan"), "--sampler = 'gan'"),
        (("r", "--images", 0), "--images = 0"),
    ):
        code, _, err = kinfolk("pseudo", *words)
        assert code == 2
        assert line in err
        assert len(err.strip().splitlines()) == 1, err


def test_pseudo_refuses_other_algorithms_in_one_line(kinfolk):
    assert kinfolk("run", *SMALL[:10], "--set", "run.rounds=1", "--out", "f", "--json")[0] == 0
    code, _, err = kinfolk("pseudo", "f")
    assert code == 2
    assert err.strip().endswith("run = 'f': is a run of fedavg; only mdicfl makes pseudo rows")
    assert len(err.strip().splitlines()) == 1
