"""The command line as a person meets it: what it prints, its exit codes, and its one-line errors."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from kinfolk.experiment.compare import DEFAULT

SMALL = [
    "--set",
    "run.rounds=2",
    "--set",
    "data.clients=6",
    "--set",
    "data.rows=20",
    "--set",
    "model.hidden=[8]",
]


def test_run_writes_a_folder_that_pandas_opens(kinfolk, tmp_path):
    code, out, err = kinfolk("run", *SMALL, "--out", "r")
    assert code == 0
    assert "run folder: r" in out
    assert "engine: batched" in err
    frame = pd.read_parquet(tmp_path / "r" / "records")
    assert set(frame["round"]) == {0, 1, 2}
    assert len(frame[(frame["round"] == 2) & (frame["score"] == "accuracy")]) == 6
    assert {"spec.toml", "run.json", "rounds.jsonl", "audit.jsonl", "checkpoints", "figure.png"} <= {
        p.name for p in (tmp_path / "r").iterdir()
    }
    assert max(map(len, out.splitlines())) <= 100


def test_json_is_the_only_thing_on_standard_output(kinfolk):
    code, out, err = kinfolk("run", *SMALL, "--out", "r", "--json")
    assert code == 0
    assert json.loads(out)["rounds"] == 2
    assert err == ""


def test_compare_shows_every_algorithm_once_and_show_repeats_it(kinfolk):
    code, out, _ = kinfolk(
        "compare", *SMALL, "-a", "local", "-a", "fedprox,mu=0.5", "--seeds", 2, "--out", "c"
    )
    assert code == 0
    assert "fedprox mu=0.5" in out
    assert "±" in out
    again, same, _ = kinfolk("show", "c")
    assert again == 0
    assert same == out
    assert "\nverdict:    " in out
    code, text, _ = kinfolk("show", "c", "--json")
    rows = json.loads(text)["rows"]
    assert code == 0
    assert sorted(row["algorithm"] for row in rows) == ["fedprox mu=0.5", "local"]
    assert {row["seeds"] for row in rows} == {2}


def test_one_algorithm_that_breaks_down_does_not_cost_the_others(kinfolk):
    longer = ("--set", "run.rounds=4", "--set", "local.epochs=5")
    words = ("compare", *SMALL, *longer, "--seeds", 1, "-a", "fedprox,mu=1e9")
    code, out, _ = kinfolk(*words, "-a", "fedavg", "--out", "c")
    assert code == 2
    assert "fedavg" in out
    assert "fedprox mu=1000000000.0 seed 0 is diverged: 3 rounds in a row brought 0 usable" in out
    code, out, err = kinfolk(*words, "--out", "alone")
    assert (code, out) == (2, ""), "nothing is left to compare"
    assert "3 rounds in a row" in err


def test_compared_algorithms_see_the_same_federation(kinfolk, tmp_path):
    kinfolk("compare", *SMALL, "-a", "local", "-a", "fedavg", "--seeds", 2, "--out", "c")
    prints = {}
    for run in json.loads((tmp_path / "c/compare.json").read_text())["runs"]:
        facts = json.loads((tmp_path / "c" / run / "run.json").read_text())
        prints.setdefault(facts["seed"], set()).add(facts["federation"]["fingerprint"])
    assert all(len(found) == 1 for found in prints.values())
    assert prints[0] != prints[1]


def test_compare_resumes_and_does_not_overwrite(kinfolk):
    words = ("compare", *SMALL, "-a", "fedavg", "--seeds", 1, "--out", "c")
    assert kinfolk(*words)[0] == 0
    code, _, err = kinfolk(*words)
    assert code == 2
    assert "--resume" in err
    assert kinfolk(*words, "--resume")[0] == 0


@pytest.mark.parametrize("what", ["algorithms", "data", "models", "settings"])
def test_list_has_a_line_for_everything(kinfolk, what):
    code, out, _ = kinfolk("list", what, "--json")
    assert code == 0
    entries = json.loads(out)[what]
    assert entries
    assert all(entry["line"] for entry in entries)


def test_list_without_a_word_fits_the_page(kinfolk):
    code, out, _ = kinfolk("list")
    assert code == 0
    assert "fedavg_tuned" in out
    assert "resnet18" in out
    assert max(map(len, out.splitlines())) <= 100


def test_every_command_has_help_with_examples(kinfolk):
    for command in ("run", "compare", "show", "list", "check"):
        code, out, _ = kinfolk(command, "--help")
        assert code == 0
        assert "Examples" in out


NET = """
from torch import nn

class Narrow(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 7)
    def forward(self, x):
        return self.fc(x.flatten(1))

class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10)
    def forward(self, x):
        out = self.fc(x.flatten(1))
        if out.sum() > 0:
            return out
        return out * 2
"""


@pytest.mark.parametrize(
    ("words", "field", "hint"),
    [
        (["--set", "local.lrr=1"], "local.lrr", "did you mean 'lr'"),
        (["--set", "locl.lr=1"], "locl", "did you mean 'local'"),
        (["--set", "algorithm.name=fedavgg"], "fedavgg", "did you mean 'fedavg'"),
        (
            ["--set", "algorithm.muu=1", "--set", "algorithm.name=fedprox"],
            "algorithm.muu",
            "did you mean 'mu'",
        ),
        (["--set", "algorithm.mu=big", "--set", "algorithm.name=fedprox"], "algorithm.mu", "number"),
        (["--set", "algorithm.mu=-1", "--set", "algorithm.name=fedprox"], "algorithm.mu", "0 or more"),
        (["--set", "algorithm.weights=sise"], "algorithm.weights", "'size'"),
        (["--set", "local.lr=fast"], "local.lr", "number"),
        (["--set", "run.rounds=2.5"], "run.rounds", "whole number"),
        (["--set", "model.name=lenett"], "model.name", "did you mean 'lenet'"),
        (["--set", "model.name=lenet"], "data.shape", "tiny_cnn"),
        (["--set", "model.name=net:Narrow"], "model.name", "10 classes"),
        (["--set", "model.name=net:Nobody"], "model.name", "Nobody"),
        (["--set", "model.name=nonet:Net"], "model.name", "nonet"),
        (["--set", "data.groups=5"], "data.groups", "at most 4"),
        (["--set", "data.groups=4", "--set", "data.clients=3"], "data.groups", "3 clients"),
        (["--set", "data.name=digit"], "data.name", "did you mean 'digits'"),
        (["--set", "run.split=valid"], "run.split", "data.valid"),
        (["--set", "run.target=0.9", "--set", "run.target_score=accurcy"], "run.target_score", "accuracy"),
        (["--set", "local.loss=mse"], "local.loss", "auto"),
        (["--set", "engine.device=cuda", "--set", "engine.name=loop"], "engine.device", "cpu"),
        (["missing.toml"], "spec", "no such file"),
        (["bad.toml"], "bad.toml", "line 2"),
        (["."], "data.file", "not a file of a known kind"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(kinfolk, tmp_path, words, field, hint):
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "bad.toml").write_text("[local]\nlr = = 1\n")
    sys.modules.pop("net", None)
    before = sorted(p.name for p in tmp_path.iterdir())
    code, out, err = kinfolk("run", *words, "--allow-import", "net", "--allow-import", "nonet")
    lines = [line for line in err.splitlines() if not line.startswith("engine:")]
    assert code == 2
    assert out == ""
    assert len(lines) == 1, err
    assert field in lines[0]
    assert hint in lines[0]
    assert "Traceback" not in err
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "__pycache__") == before


def test_a_network_that_cannot_be_batched_falls_back_with_a_warning(kinfolk, tmp_path):
    (tmp_path / "net.py").write_text(NET)
    sys.modules.pop("net", None)
    words = ("--set", "run.rounds=1", "--set", "data.clients=4", "--set", "model.name=net:Branch")
    words = (*words, "--allow-import", "net")
    code, _, err = kinfolk("run", *words, "--set", "engine.name=batched", "--out", "r")
    assert code == 0
    assert "warning: the network (Branch): " in err
    assert "it cannot be batched over clients, so 'loop' is used" in err
    assert json.loads((tmp_path / "r/run.json").read_text())["engine"].startswith("loop")


def test_a_checkpoint_of_another_spec_names_the_difference(kinfolk):
    assert kinfolk("run", *SMALL, "--out", "r")[0] == 0
    code, _, err = kinfolk("run", *SMALL, "--set", "local.lr=0.05", "--out", "r", "--resume")
    assert code == 2
    assert "local.lr: 0.1 there, 0.05 here" in err


def test_resume_goes_on_to_more_rounds(kinfolk, tmp_path):
    assert kinfolk("run", *SMALL, "--out", "r")[0] == 0
    assert kinfolk("run", *SMALL, "--set", "run.rounds=4", "--out", "r", "--resume")[0] == 0
    assert kinfolk("run", *SMALL, "--set", "run.rounds=4", "--out", "whole")[0] == 0
    halves, whole = (pd.read_parquet(tmp_path / name / "records") for name in ("r", "whole"))
    pd.testing.assert_frame_equal(halves, whole)


def test_an_altered_checkpoint_falls_back_and_says_so(kinfolk, tmp_path):
    assert kinfolk("run", *SMALL, "--out", "r")[0] == 0
    newest = tmp_path / "r/checkpoints/round-000002/state.safetensors"
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    code, _, err = kinfolk("run", *SMALL, "--out", "r", "--resume")
    assert code == 0
    assert "warning: round-000002 is skipped: the checksum of state.safetensors does not match" in err
    assert "going on after round 1" in err


def test_an_unwritable_place_is_one_line(kinfolk, tmp_path):
    (tmp_path / "file").write_text("in the way")
    code, _, err = kinfolk("run", *SMALL, "--out", "file/run")
    assert code == 2
    assert "cannot be written" in err
    assert (tmp_path / "file").read_text() == "in the way"


def test_debug_shows_the_traceback(kinfolk):
    from kinfolk.errors import KinfolkError

    with pytest.raises(KinfolkError):
        kinfolk("run", "--debug", "--set", "local.lrr=1")


def test_show_of_something_else(kinfolk):
    code, _, err = kinfolk("show", "nowhere")
    assert code == 2
    assert "nowhere" in err


def test_check_passes_a_good_algorithm_and_fails_a_broken_one(kinfolk, tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    sys.modules.pop("broken", None)
    code, out, _ = kinfolk("check", "broken:Broken", "--allow-import", "broken")
    assert code == 1
    assert "failed" in out


BROKEN = Path(__file__).with_name("broken_algorithm.txt").read_text()


def test_the_version_is_that_of_the_package(kinfolk):
    from importlib.metadata import version

    code, out, _ = kinfolk("--version")
    assert (code, out.strip()) == (0, f"kinfolk {version('kinfolk')}")


def test_without_names_the_usual_methods_are_compared_and_help_says_which(kinfolk, monkeypatch):
    asked = []
    monkeypatch.setattr("kinfolk.experiment.compare.run", lambda spec, *_, **__: asked.append(spec))
    monkeypatch.setattr("kinfolk.cli.commands._show", lambda *_, **__: None)
    code, _, err = kinfolk("compare", "--set", "data.clients=6", "--seeds", 1, "--out", "c")
    assert code == 0, err
    assert [spec.algorithm.name for spec in asked] == list(DEFAULT)
    told = " ".join(kinfolk("compare", "--help")[1].replace("│", " ").split())
    assert ", ".join(DEFAULT) in told
    listed = {row["name"] for row in json.loads(kinfolk("list", "algorithms", "--json")[1])["algorithms"]}
    assert set(DEFAULT) < listed
    assert "fedavg_no_buffers" in listed, "what is wrong on purpose is listed, but only run by name"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("can't allocate memory: 9 bytes"),
    ],
)
def test_memory_that_runs_out_is_one_line_and_no_fault_of_ours(kinfolk, monkeypatch, error):
    def run(*_, **__):
        raise error

    monkeypatch.setattr("kinfolk.experiment.run.run", run)
    code, _, err = kinfolk("run", "digits")
    assert code == 2
    assert err.splitlines()[-1].startswith("error: memory: ran out (")
    assert "engine.processes" in err
    assert "fault of kinfolk" not in err


@pytest.mark.parametrize(
    "words", [["run", "{}.toml"], ["run", "{}"], ["show", "{}"], ["predict", "{0}", "{0}"]]
)
def test_a_name_that_is_too_long_is_one_line(kinfolk, words):
    code, _, err = kinfolk(*(word.format("x" * 300) for word in words))
    assert (code, len(err.splitlines())) == (2, 1)
    assert err.endswith("no file can have so long a name; give another\n")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("model.hidden=1000000000000", "with hidden = 1000000000000, and 3 of it do not fit into"),
        ("data.rows=1000000000000", "give each client at most 1,000,000,000 rows"),
        ("data.clients=1000000000000", "give at most 10,000,000 clients"),
    ],
)
def test_sizes_that_no_machine_holds_are_one_line(kinfolk, change, told):
    code, _, err = kinfolk("run", "digits", "--set", "model.name=mlp", "--set", change, "--out", "a")
    assert (code, len(err.splitlines())) == (2, 1)
    assert told in err
