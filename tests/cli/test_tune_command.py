"""`kinfolk tune` and `compare --tune` as a person meets them."""

from __future__ import annotations

import json

from kinfolk.experiment.spec import load

SMALL = [
    word
    for one in ("run.rounds=2", "data.clients=6", "data.rows=20", "model.hidden=[8]", "engine.name=loop")
    for word in ("--set", one)
]


def test_tune_prints_what_was_tried_and_leaves_specs_that_run(kinfolk, tmp_path):
    words = ("tune", *SMALL, "-a", "fedavg_tuned", "--space", "local.lr=0.01,0.5", "--out", "t")
    code, out, _ = kinfolk(*words)
    assert code == 0
    lines = out.splitlines()
    assert max(len(line.rstrip()) for line in lines if line.startswith(" ")) <= 80
    for words_told in (
        "tried",
        "spent",
        "chosen settings",
        "a fifth of the training rows is held out",
        '-a "',
    ):
        assert words_told in out
    assert (tmp_path / "t/tune.json").exists()
    chosen = json.loads((tmp_path / "t/tune.json").read_text())["methods"][0]
    assert load(tmp_path / "t/fedavg_tuned.toml").local.lr == chosen["settings"].get("local.lr", 0.1)
    code, out, _ = kinfolk("run", "t/fedavg_tuned.toml", "--out", "r")
    assert code == 0
    code, _, err = kinfolk(*words)
    assert code == 2
    assert "a search is there already" in err


def test_compare_tunes_first_and_compares_the_chosen_settings_on_test_rows(kinfolk, tmp_path):
    common = ("compare", *SMALL, "-a", "fedavg", "--seeds", 2, "--out", "c")
    code, out, _ = kinfolk(*common, "--tune", "--space", "local.lr=0.5,0.0001", "--budget", 6)
    assert code == 0
    line = json.loads((tmp_path / "c/tune/tune.json").read_text())["methods"][0]["chosen"]
    (run, _) = json.loads((tmp_path / "c/compare.json").read_text())["runs"]
    assert run == "fedavg" + line.removeprefix("fedavg").replace(";local.", "-") + "-seed0"
    spec = load(tmp_path / f"c/{run}/spec.toml")
    assert (spec.run.split, spec.data.valid) == ("test", 0.0)
    assert "chosen settings" in out
    assert "vs" in out
    code, again, _ = kinfolk(
        "compare", *common[1:], "--tune", "--space", "local.lr=0.5,0.0001", "--budget", 6, "--resume"
    )
    assert code == 0
    assert again == out


def test_a_search_that_nobody_asked_for_and_one_that_cannot_begin_are_one_line(kinfolk):
    code, out, err = kinfolk("compare", *SMALL, "-a", "fedavg", "--budget", 9)
    assert (code, out) == (2, "")
    assert "add --tune" in err
    code, _, err = kinfolk("tune", *SMALL, "-a", "fedavg", "--space", "local.lr=-1", "--out", "t")
    assert code == 2
    assert err.count("\n") == 1
    assert "local.lr=-1" in err


def test_json_has_everything_and_nothing_else(kinfolk):
    code, out, err = kinfolk(
        "tune", *SMALL, "-a", "fedavg", "--space", "local.lr=0.5", "--out", "t", "--json"
    )
    assert (code, err) == (0, "")
    assert json.loads(out)["methods"][0]["tried"] == 2
