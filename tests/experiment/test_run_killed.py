"""A run that is killed again and again, at any moment, ends like one that was left alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from kinfolk.experiment.checkpoint import load_latest
from kinfolk.experiment.record import read_audit, read_rounds, read_scores
from kinfolk.types import leaves

pytestmark = pytest.mark.slow

COMMON = """
[data]
clients = 4
rows = 12
groups = 2
[local]
batch = 5
momentum = 0.9
[engine]
name = "loop"
[run]
rounds = 8
absent = 0.2
"""
SPECS = {
    # A state with buffers, scored and saved every other round.
    "fedavg": COMMON
    + 'evaluate_every = 2\ncheckpoint_every = 2\n[model]\nname = "tiny_cnn"\nnorm = "bn"\nwidth = 2\n',
    # Memories of some clients, others never asked.
    "local": COMMON
    + 'participation = 0.5\ncheckpoint_every = 1\n[model]\nname = "logistic"\n[algorithm]\nname = "local"\n',
}

# Loads everything once and forks for each attempt. An attempt ends by SIGKILL: some seconds after it
# has finished a round, or just before the n-th time that it touches its folder.
LAUNCHER = """
import json, os, signal, sys, time, traceback
from pathlib import Path
import torch
from killing import arm
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import override, parse

LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT

def finished(folder):
    lines = folder / "rounds.jsonl"
    return len(lines.read_bytes().splitlines()) if lines.exists() else 0

def attempt(spec, folder, moment):
    child = os.fork()
    if child == 0:
        try:
            if isinstance(moment, int):
                arm(folder, moment)
            run(spec, folder, resume=True)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    if isinstance(moment, float):
        before = finished(folder)
        while finished(folder) <= before and not os.waitid(os.P_PID, child, LOOK):
            time.sleep(0.001)
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

jobs = json.loads(sys.argv[1])
torch.set_num_threads(1)
run(override(parse(jobs[0][0]), ["run.rounds=1"]), Path(jobs[0][1] + "-warm"))  # what is loaded late, once
for text, folder, moments in jobs:
    ends = []
    for moment in [*moments, None]:
        ends.append(attempt(parse(text), Path(folder), moment))
        if ends[-1] != -signal.SIGKILL:
            break
    print(json.dumps(ends))
"""

# Touches of a first round, then of resumed ones: the even ones here, the odd ones there. Then by the clock.
TOUCHES = {
    "fedavg": [*range(0, 40, 2), 11, 23, 60],
    "local": [*range(1, 41, 2), 14, 26, 61],
}
CLOCK = {"fedavg": [0.0, 0.013, 0.041], "local": [0.002, 0.007, 0.023]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    room = tmp_path_factory.mktemp("killed")
    jobs, names = [], []
    for name, text in SPECS.items():
        for kind, moments in (("whole", []), ("touch", TOUCHES[name]), ("clock", CLOCK[name])):
            names.append((name, kind))
            jobs.append([text, str(room / f"{name}-{kind}"), moments])
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, json.dumps(jobs)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    return {key: (Path(job[1]), end, done.stderr) for key, job, end in zip(names, jobs, ends, strict=True)}


def final(folder: Path) -> tuple[Any, ...]:
    loaded, complaints = load_latest(folder / "checkpoints", (folder / "spec.toml").read_text())
    assert loaded is not None
    assert complaints == []
    return loaded.number, loaded.facts, loaded.tensors


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("kind", ["touch", "clock"])
def test_killed_and_resumed_equals_left_alone(runs, name, kind):
    whole, ends, _ = runs[name, "whole"]
    killed, deaths, errors = runs[name, kind]
    assert ends == [0]
    assert deaths[-1] == 0, errors
    assert all(end == -9 for end in deaths[:-1])
    # How many rounds fit before the clock strikes is the machine's affair.
    assert len(deaths) >= (12 if kind == "touch" else 1)
    number, facts, tensors = final(killed)
    expected = final(whole)
    assert (number, facts) == expected[:2]
    assert number == 8
    for entry, message in expected[2].items():
        mine, theirs = ({(k, n): t for k, n, t in leaves(m)} for m in (tensors[entry], message))
        assert list(mine) == list(theirs)
        assert all(
            torch.equal(mine[key], theirs[key]) and mine[key].dtype == theirs[key].dtype for key in mine
        )
    assert any(tensors[entry] for entry in tensors)
    pd.testing.assert_frame_equal(read_scores(killed), read_scores(whole), check_exact=True)
    rounds = [
        [{k: v for k, v in fact.items() if k != "seconds"} for fact in read_rounds(f)]
        for f in (killed, whole)
    ]
    assert rounds[0] == rounds[1]
    assert [fact["round"] for fact in rounds[0]] == list(range(9))
    assert (killed / "spec.toml").read_text() == (whole / "spec.toml").read_text()
    told = [json.loads((folder / "run.json").read_text()) for folder in (killed, whole)]
    for facts in told:
        del facts["kept"]["bytes"]  # hangs on which memories were written together
    assert told[0] == told[1]


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("kind", ["touch", "clock"])
def test_no_litter_is_left(runs, name, kind):
    killed, _, _ = runs[name, kind]
    whole, _, _ = runs[name, "whole"]
    segment = re.compile(r"memory-[0-9a-f]{32}")  # how many there are hangs on what was written together
    files = [{segment.sub("memory", str(p.relative_to(f))) for p in f.rglob("*")} for f in (killed, whole)]
    assert files[0] == files[1]
    events = [line["event"] for line in read_audit(killed)]
    assert "resume" in events or kind == "clock"
    assert "unreadable" not in events
