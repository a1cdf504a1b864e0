"""A stranger's run folder, made in earnest by code of the stranger's: no command runs any of it unasked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

import kinfolk as library
from kinfolk.allowed import allowing
from kinfolk.cli.commands import app
from kinfolk.errors import KinfolkError, visible

THEIRS = """
from dataclasses import dataclass
from torch import nn
from torch.nn import functional as F
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.learning.optim import SGD

class Net(nn.Linear):
    def __init__(self, shape, outputs):
        super().__init__(shape[0], outputs)

def loss(out, y):
    return F.cross_entropy(out, y, reduction="none")

def metric(out, y):
    return float(out.mean())

def schedule(at, of):
    return 1.0

class Steps(SGD):
    pass

@dataclass(frozen=True)
class Mine(FedAvg):
    pass
"""
OWN = {
    "model.name": "Net", "local.loss": "loss", "run.metrics": "metric", "local.schedule": "schedule",
    "local.step_schedule": "schedule", "local.optimiser": "Steps",
}  # fmt: skip
COMMON = ("run.rounds=2", "engine.name=loop", "data.valid=0.2", "run.keep=all", "data.test_fraction=0.2")
# What each command is given, {run} being the folder; and how it must end.
READ = ["show {run}", "show {run} --json", "show {run} --format md", "show {run} --follow", "report {run}",
        "groups {run} --clients", "groups {run} --json"]  # fmt: skip
WORK = [
    "predict {run} new.npz --client ann", "export {run} --client ann --out e1", "export {run} --all --out e2",
    "score {run} --set data.test_fraction=0.3", "assign {run} --data sites",
    "run {run}/spec.toml --out r1", "run {run}/spec.toml --out {run} --resume", "run small.toml --out r2",
    "compare {run}/spec.toml -a fedavg --seeds 1 --out c1", "tune {run}/spec.toml -a fedavg --out t1",
    "choose-k {run}/spec.toml --out k1 --k 1,2 --seeds 1", "advise {run}/spec.toml --out a1",
    "check strange:Mine", "pseudo {run}",
]  # fmt: skip
# The others name a method of their own, or are for other methods.
OF_METHODS = ("predict", "export", "score", "run", "check")


@pytest.fixture
def stranger(kinfolk, tmp_path, monkeypatch):
    """Two run folders, and their code, which now leaves a mark; it lies on the path and where one works."""
    draw = np.random.default_rng(0)
    for who in ("ann", "bob", "cyd"):
        (tmp_path / "sites").mkdir(exist_ok=True)
        np.savez(tmp_path / "sites" / f"{who}.npz", x=draw.normal(size=(30, 4)), y=np.arange(30) % 3)
    np.savez(tmp_path / "new.npz", x=draw.normal(size=(9, 4)), y=np.arange(9) % 3)
    (tmp_path / "strange.py").write_text(THEIRS)
    own = [f"{name}=strange:{one}" for name, one in OWN.items()]
    for folder, sets in (
        ("theirs", [*own, "algorithm.name=ifca", "algorithm.k=2"]),
        ("method", ["algorithm.name=strange:Mine", "model.name=logistic"]),
    ):
        words = [word for one in (*COMMON, *sets) for word in ("--set", one)]
        code, _, err = kinfolk("run", "sites", "--out", folder, "--allow-import", "strange", *words)
        assert code == 0, err
    mark = tmp_path / "MARK"
    (tmp_path / "strange.py").write_text(f"open({str(mark)!r}, 'w').close()\n{THEIRS}")
    (tmp_path / "small.toml").write_text('extends = "theirs/spec.toml"\n[run]\nrounds = 1\n')
    for folder in ("theirs", "method"):
        (tmp_path / folder / "strange.py").write_text((tmp_path / "strange.py").read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("strange")
    yield mark
    sys.modules.pop("strange", None)


def test_reading_runs_nothing_and_work_says_whose_code_it_would_be(stranger, kinfolk):
    for folder in ("theirs", "method"):
        for line in READ:
            if line.startswith("groups") and folder == "method":
                continue
            code, _, err = kinfolk(*line.format(run=folder).split())
            assert code == 0, (line, err)
            assert "strange" not in sys.modules, line
        for line in WORK:
            code, _, err = kinfolk(*line.format(run=folder).split())
            assert "strange" not in sys.modules, (folder, line)
            if (folder == "theirs" or line.split()[0] in OF_METHODS) and line != "pseudo {run}":
                assert code == 2, (folder, line, err)
                told = [one for one in err.splitlines() if one.startswith("error: ")]
                assert len(told) == 1, (folder, line, err)
                assert "--allow-import strange " in told[0], (folder, line, err)
        run = library.load(folder)
        with pytest.raises(KinfolkError, match="allow_imports"):
            run.model("ann")
        assert library.load_run(folder).facts["status"] == "finished"
        assert not stranger.exists()


def test_what_is_allowed_works_for_one_command_only(stranger, kinfolk):
    for line in ("predict theirs new.npz --client ann --json", "export theirs --client ann --out one"):
        code, _, err = kinfolk(*line.split(), "--allow-import", "strange")
        assert code == 0, err
        code, _, err = kinfolk(*line.split())
        assert code == 2
    assert stranger.exists()
    with allowing(["strange"]):
        assert library.load("theirs").predict(np.zeros((2, 4)), client="ann").shape == (2,)


def test_no_file_of_a_folder_allows_anything(stranger, kinfolk, tmp_path):
    """Not the spec, nor what lies beside it, nor what a shell might have set."""
    folder = tmp_path / "theirs"
    spec = (folder / "spec.toml").read_text()
    for line in ('allow_imports = ["strange"]', 'allow_import = "strange"', '[allow]\nimports = ["strange"]'):
        (folder / "spec.toml").write_text(f"{line}\n{spec}")
        code, _, err = kinfolk("run", "theirs/spec.toml", "--out", "r1")
        assert code == 2
        assert "no such section" in err, err
    (folder / "spec.toml").write_text(spec)
    told = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**told, "allow_imports": ["strange"]}))
    for name in ("pyproject.toml", "kinfolk.toml", ".kinfolk.toml"):
        (tmp_path / name).write_text('[tool.kinfolk]\nallow_imports = ["strange"]\n')
    for line in WORK[:3]:
        code, _, err = kinfolk(*line.format(run="theirs").split())
        assert "--allow-import strange" in err
    code, _, err = kinfolk("run", "sites", "--set", "run.allow_imports=strange", "--out", "r1")
    assert code == 2
    assert not stranger.exists()


def test_the_name_of_a_folder_commands_no_terminal_and_no_page(stranger, kinfolk, tmp_path):
    nasty = "theirs\x1b[2J\u202e[red]"
    (tmp_path / "theirs").rename(tmp_path / nasty)
    for words in (["show"], ["show", "--format", "md"], ["report"], ["groups"], ["predict", "new.npz"]):
        code, out, err = kinfolk(words[0], nasty, *words[1:])
        assert code in (0, 2), err
        assert visible(out + err) == out + err, words
    page = (tmp_path / nasty / "report.html").read_text()
    assert not {"\x1b", "\u202e"} & set(page)


@pytest.mark.parametrize(
    ("line", "code"),
    [("show .", 0), pytest.param("predict . ../new.npz --client ann", 2, marks=pytest.mark.slow)],
)
def test_a_command_started_in_a_strangers_folder_imports_nothing_of_it(line, code, stranger, tmp_path):
    """As `python -m kinfolk`, which has the working directory on its path."""
    for name in ("torch", "numpy", "json", "rich", "typer", "pandas", "tomllib", "pyarrow",
                 "scipy", "matplotlib", "conftest"):  # fmt: skip
        (tmp_path / "theirs" / f"{name}.py").write_text(f"open({str(stranger)!r}, 'w').close()\n")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env["PYTHONPATH"] = str(Path(library.__file__).parents[1])
    command = [sys.executable, "-m", "kinfolk", *line.split()]
    done = subprocess.run(
        command, cwd=tmp_path / "theirs", env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stderr
    assert not stranger.exists()


def test_every_command_that_works_on_specs_or_runs_can_be_allowed_code_and_no_other():
    reading = {"show", "report", "groups", "list", "data", "init", "serve", "status", "site check"}
    group = typer.main.get_command(app)
    known = dict(group.commands)
    deploy, site = known.pop("deploy"), known.pop("site")
    reading |= {"kits", "add-site", "welcome", "drain", "resume", "site leave"}
    known |= deploy.commands | {f"site {name}": command for name, command in site.commands.items()}
    for name, command in known.items():
        has = any("--allow-import" in one.opts for one in command.params)
        assert has is (name not in reading), name
