"""Noise where processes share a run: the server's on the first alone, a client's where its rows are."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import SPEC
from small_runs import rounds_of, saved

import kinfolk
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.spec import override, parse

HELPERS = Path(__file__).parents[1] / "helpers"
no_gloo = not dist.is_available() or not dist.is_gloo_available()
MODES = {
    "server": ["privacy.mode=server", "algorithm.weights=uniform"],
    "local": ["privacy.mode=local"],
}
MORE = ["privacy.noise=100", "privacy.delta=0.01", "run.rounds=1"]


@pytest.mark.slow
@pytest.mark.skipif(no_gloo, reason="this PyTorch has no gloo")
def test_two_ranks_add_the_noise_of_one_run(tmp_path):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = str(held.getsockname()[1])
    jobs = [[str(tmp_path / mode), [*changes, *MORE], False] for mode, changes in MODES.items()]
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port]
    paths = os.pathsep.join([str(Path(kinfolk.__file__).parents[1]), str(HELPERS)])
    done = subprocess.run(
        [sys.executable, *launch, str(HELPERS / "ranks.py"), json.dumps(jobs)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    first = build_parts(override(parse(SPEC), MODES["local"] + MORE)).learner.first
    # Six clients: z x clip over the cohort, once; or of each its own, twice as long, in a mean.
    for mode, std in (("server", 100 / 6), ("local", 2 * 100 / 6**0.5)):
        model = saved(tmp_path / mode)[1]["state"]["model"]
        moved = [(t - first[n]).double().flatten() for n, t in model.items()]
        assert float(torch.cat(moved).std()) == pytest.approx(std, rel=0.15)
        assert rounds_of(tmp_path / mode)[-1]["privacy"]["epsilon"] < 0.1
