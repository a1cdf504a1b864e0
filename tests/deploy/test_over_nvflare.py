"""Over NVFlare 2.9.0: every kind of method has the bits of the loop, and its known traits are as we think.

One federation of a server and eight sites is started for all of it: real certificates, real processes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from deployed import federated, memory_file, spec_of
from small_runs import equal, saved

from kinfolk.experiment.record import read_rounds, read_scores
from kinfolk.experiment.run import run

pytest.importorskip("nvflare", reason="NVFlare is not installed: make test-deploy installs it")
from kinfolk.deploy.keep import jobs_of_sites
from kinfolk.deploy.local import Trial, trial
from kinfolk.deploy.submit import session
from kinfolk.deploy.supervise import processes_of

pytestmark = pytest.mark.deploy
SITE_JOB = "nvflare.private.fed.app.client.worker_process"
# Of what a client remembers, what is secret or drawn at the site, and equal nowhere. Sums over it are equal.
SECRET: tuple[str, ...] = ()


def test_these_are_the_traits_of_2_9_0():
    """Whoever moves to another version reads what follows again."""
    assert version("nvflare") == "2.9.0"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    spec = spec_of("fedavg")
    with trial(spec, federated(spec).clients, tmp_path_factory.mktemp("trial")) as started:
        yield started


METHODS = (
    "fedavg",
    "ifca,k=2",
    "fesem,k=2",
    "mdicfl,k=2",
    "mdicfl,k=2,privacy='strong'",
    "slfed,shares.scheme='plain'",
    "slfed,shares.scheme='additive'",
)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_over_nvflare_has_the_bits_of_the_loop(method: str, opened: Trial, tmp_path: Path):
    spec = spec_of(method, rounds=4)
    loop = run(spec, tmp_path / "loop")
    ours = opened.play(spec, f"run{METHODS.index(method)}", seconds=120)
    assert equal(saved(loop.folder)[1]["state"], saved(ours)[1]["state"])
    assert read_scores(loop.folder).equals(read_scores(ours))
    for one, other in zip(read_rounds(loop.folder), read_rounds(ours), strict=True):
        assert (one["summary"], one.get("answered")) == (other["summary"], other.get("answered"))
    for who, theirs in loop.memories.items():
        files = sorted((opened.folder / "kits" / who / "memory").glob("*/memory.safetensors"), key=os.path.getmtime)
        if files:
            assert equal(memory_file(files[-1]), theirs), who
