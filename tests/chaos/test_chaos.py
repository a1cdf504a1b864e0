"""A few kills of the chaos suite, and that it sees what it is there to see."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from attempts import End, Fault
from shortened import LIGHT
from small_runs import go
from soak import risen

from chaos import ENGINES, Cell, compared, faults, table
from kinfolk.algorithms import ALGORITHMS

HERE = Path(__file__).parent
PATHS = os.pathsep.join(sys.path)


def performed(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / script), *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)


@pytest.mark.slow
def test_some_kills_on_some_engines():
    cells = (
        "--engine",
        "loop",
        "--engine",
        "workers",
        "--method",
        "fesem",
        "--method",
        "local",
        "--kills",
        "2",
    )
    done = performed("chaos.py", *cells)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 kills" in done.stdout
    assert "4 equal to the undisturbed run" in done.stdout


@pytest.mark.slow
def test_a_short_soak():
    done = performed("soak.py", "--engine", "workers", "--rounds", "100")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| workers | fedavg | 100 |" in done.stdout


def test_another_end_is_seen(tmp_path):
    go(tmp_path / "a")
    go(tmp_path / "b")
    assert compared(tmp_path / "a", tmp_path / "b") == []
    (tmp_path / "b" / "litter.tmp").touch()
    assert compared(tmp_path / "a", tmp_path / "b") == ["files of one alone: ['litter.tmp']"]
    go(tmp_path / "c", "local.lr=0.1000001")
    assert "another end" in compared(tmp_path / "a", tmp_path / "c")[0]
    lines = (tmp_path / "b" / "rounds.jsonl").read_text().splitlines()
    facts = json.loads(lines[-1])
    (tmp_path / "b" / "litter.tmp").unlink()
    (tmp_path / "b" / "rounds.jsonl").write_text(
        "\n".join([*lines[:-1], json.dumps(facts | {"answered": 1})])
    )
    assert "another end" in compared(tmp_path / "a", tmp_path / "b")[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cell_has_kills_of_every_kind_and_one_fault_that_is_none(engine):
    whole = End(0, "", 2.0, 60, False)
    first, *kills = islice(faults(engine, "stop", whole, random.Random(1)), 40)
    helped = engine in ("workers", "distributed")
    assert (first.kind, first.helper, first.kills) == ("stop", helped, False)
    assert all(one.kills for one in kills)
    assert {one.helper for one in kills} == ({True, False} if helped else {False})
    assert {one.kind for one in kills} == ({"kill"} if engine == "distributed" else {"kill", "touch"})
    assert str(Fault("kill", True, 0.5, 3.0)) == "kill of a helper at 1.5"


def test_options_are_of_methods_that_there_are():
    assert LIGHT.keys() <= ALGORITHMS.keys()
    shown = table([Cell("loop", "fedavg", 2, 1, 3), Cell("wire", "fedavg", 1, 0, 1, ["other"])])
    assert shown.splitlines()[-1] == "| fedavg | 2+1/3 = | 1+0/1 DIFFERS |"


@pytest.mark.parametrize(
    ("what", "each"), [("memory", 4e5), ("descriptors", 0.2), ("objects", 5.0), ("memory", -4e5)]
)
def test_what_rises_is_not_flat_and_a_start_is_no_rise(what, each):
    """Fifty samples of 1,000 rounds; one step at the beginning is allowed."""
    flat = {"memory": [1e8] + [3e8] * 49, "descriptors": [9.0] * 50, "objects": [4e5] * 50}
    assert risen(flat, 1000) == {}
    rises = {**flat, what: [v + each * i for i, v in enumerate(flat[what])]}
    assert risen(rises, 1000).keys() == ({what} if each > 0 else set())
