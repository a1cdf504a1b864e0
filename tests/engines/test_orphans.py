"""Ranks whose launcher is killed end the run in order, and let go of its folder."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import kinfolk
from kinfolk.engines import link as linking
from kinfolk.experiment.record import read_rounds
from kinfolk.lock import is_written

RANKS = Path(__file__).parents[1] / "helpers" / "ranks.py"
no_gloo = not dist.is_available() or not dist.is_gloo_available()
pytestmark = [
    pytest.mark.skipif(no_gloo, reason="this PyTorch has no gloo"),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="this system has no /proc"),
]
LONG = (
    "data.clients=4",
    "data.rows=12",
    "model.name=logistic",
    "run.rounds=100000",
    "run.checkpoint_every=9",
)


def children(parent: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ranks_whose_launcher_was_killed_stop_and_say_why(tmp_path):
    env = {**os.environ, "PYTHONPATH": f"{Path(kinfolk.__file__).parents[1]}:{RANKS.parent}"}
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.getsockname()[1])}
    env |= {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}  # as torchrun does
    sets = [
        word for one in (*LONG, "engine.name=distributed", "engine.inner=loop") for word in ("--set", one)
    ]
    launcher = subprocess.Popen(
        [sys.executable, str(RANKS), "fork", "2", "run", *sets, "--out", "r"], cwd=tmp_path, env=env
    )
    folder, until = tmp_path / "r", time.monotonic() + 300
    while not (folder / "rounds.jsonl").exists() or len(read_rounds(folder)) < 3:
        assert launcher.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    ranks = children(launcher.pid)
    assert len(ranks) == 2
    assert is_written(folder) is True
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    while any(map(alive, ranks)):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert is_written(folder) is False
    facts = json.loads((folder / "run.json").read_text())
    why = "lost the process that launched it"
    assert (facts["status"], why in facts["reason"]) == ("stopped", True)
    assert f"error: run: {why}; add --resume to go on" in (tmp_path / "err.0").read_text()


def test_a_launcher_that_was_killed_between_two_runs_is_missed_at_the_second(monkeypatch):
    told, heard = list[int](), threading.Event()

    def kill(process: int, number: int) -> None:
        told.append(number)
        heard.set()

    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setattr(linking.os, "kill", kill)
    linking._launcher.cache_clear()
    one = linking.Link(0, 2, 9.0, torch.device("cpu"), None)
    try:
        with linking._with_launcher(one):
            pass
        assert not one.orphan
        monkeypatch.setattr(linking.os, "getppid", lambda: 1)
        with linking._with_launcher(one):
            assert heard.wait(60)
        assert (one.orphan, told) == (True, [signal.SIGTERM])
    finally:
        linking._launcher.cache_clear()
