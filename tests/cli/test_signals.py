"""Ctrl-C and SIGTERM, sent to the command line as a terminal and a scheduler would send them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SMALL = ("--set", "data.clients=6", "--set", "data.rows=20", "--set", "model.hidden=[8]")
LONG = (*SMALL, "--set", "run.rounds=100000", "--set", "run.checkpoint_every=1000")


def lines(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def start(room: Path, *words: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "kinfolk", *words]
    return subprocess.Popen(command, cwd=room, env=env, stderr=subprocess.PIPE, text=True)


def wait_for(rounds: Path, running: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 300
    while lines(rounds) < 6 and time.monotonic() < until:
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)


def children(parent: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("engine", ["loop", "batched", "workers"])
def test_ctrl_c_saves_says_so_and_leaves_no_process(engine, tmp_path):
    running = start(tmp_path, "run", *LONG, "--set", f"engine.name={engine}", "--out", "r")
    wait_for(tmp_path / "r/rounds.jsonl", running)
    helpers = children(running.pid)
    assert bool(helpers) == (engine == "workers")
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    facts = json.loads((tmp_path / "r/run.json").read_text())
    assert facts["status"] == "stopped"
    assert err.splitlines()[-1] == f"stopped at round {facts['rounds']}; continue with --resume"
    assert (tmp_path / f"r/checkpoints/round-{facts['rounds']:06d}").is_dir()
    assert not any(map(alive, helpers))


def test_a_comparison_that_is_terminated_names_its_run_and_goes_on(tmp_path):
    words = ("compare", "-a", "local", "-a", "fedavg", "--seeds", "4,7", "--out", "c")
    running = start(tmp_path, *words, *LONG, "--set", "engine.name=loop")
    wait_for(tmp_path / "c/local-seed4/rounds.jsonl", running)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 143
    done = json.loads((tmp_path / "c/local-seed4/run.json").read_text())["rounds"]
    assert err.splitlines()[-1] == f"local seed 4: stopped at round {done}; continue with --resume"
    shorter = (*SMALL, "--set", f"run.rounds={done + 1}", "--set", "run.checkpoint_every=1000")
    again = start(tmp_path, *words, *shorter, "--set", "engine.name=loop", "--resume")
    _, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert f"local seed 4: going on after round {done}" in err
    assert json.loads((tmp_path / "c/fedavg-seed7/run.json").read_text())["status"] == "finished"


def test_ranks_finish_their_round_and_leave_together(tmp_path):
    """Rank 0 is told, as by a launcher that passes Ctrl-C on; the other serves until rank 0 has saved."""
    helper = ROOT / "tests/helpers/ranks.py"
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{helper.parent}", "OMP_NUM_THREADS": "1"}
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.getsockname()[1])}
    words = ["run", *LONG, "--set", "engine.name=distributed", "--set", "engine.inner=loop", "--out", "r"]
    command = [sys.executable, str(helper), "fork", "2", *words]
    running = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    wait_for(tmp_path / "r/rounds.jsonl", running)
    ranks = children(running.pid)
    for rank in ranks:
        os.kill(rank, signal.SIGINT)
    out, _ = running.communicate(timeout=120)
    assert json.loads(out) == [130, 0]
    facts = json.loads((tmp_path / "r/run.json").read_text())
    assert facts["status"] == "stopped"
    assert f"stopped at round {facts['rounds']}; continue with --resume" in (tmp_path / "err.0").read_text()
    assert (tmp_path / f"r/checkpoints/round-{facts['rounds']:06d}").is_dir()
    assert not any(map(alive, ranks))
