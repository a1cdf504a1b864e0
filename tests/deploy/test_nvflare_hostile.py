"""Over NVFlare itself: its server reads and changes letters, its job processes hold no key."""

from __future__ import annotations

import json
import os
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from deployed import spec_of

from kinfolk.experiment.record import read_audit, read_rounds
from kinfolk.experiment.spec import override

pytest.importorskip("nvflare", reason="NVFlare is not installed: make test-deploy installs it")
from kinfolk.deploy.agent import VARIABLE
from kinfolk.deploy.local import local

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into processes by /proc"),
]
# What a module of this name does runs first in every process of Python that finds it.
HOOK = """
import sys

if "server.runner_process" in " ".join(sys.orig_argv):
    from pathlib import Path

    from relay import hook

    hook(Path({folder!r}))
"""
JOB = "client.worker_process"


class Watched:
    """Looks into NVFlare's job processes at sites: environment, memory map and open files."""

    def __init__(self, kits: Path) -> None:
        self.kits, self.looked, self.found = kits, set[int](), list[str]()
        self.variables: set[str] = set()

    def look(self) -> None:
        """Once, through all processes that there are."""
        keys = [path.read_bytes() for path in self.kits.glob("*/site.key")]
        words = [
            part for key in keys for half in (key[:32], key[32:]) for part in (half, half.hex().encode())
        ]
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (
                    JOB not in (process / "cmdline").read_text()
                    or str(self.kits) not in (process / "cmdline").read_text()
                ):
                    continue
                environment = (process / "environ").read_bytes()
                files = [os.readlink(path) for path in (process / "fd").iterdir()]
                files += [line.split()[-1] for line in (process / "maps").read_text().splitlines()]
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
            self.looked.add(int(process.name))
            self.variables |= {one.partition(b"=")[0].decode() for one in environment.split(b"\0")}
            self.found += [f"{process}: key in its words" for word in words if word in environment + command]
            self.found += [
                f"{process}: {name}" for name in files if Path(name).name in ("site.key", "authority.key")
            ]


def test_a_hostile_server_and_job_processes_without_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(HOOK.format(folder=str(tmp_path)))
    helpers = Path(__file__).parents[1] / "helpers"
    usual = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path / "hook"), str(helpers), usual)))
    )
    spec: Any = override(spec_of("slfed", rounds=5), ["data.clients=3", "data.groups=1"])
    watched, stop = Watched(tmp_path / "trial" / "kits"), Event()

    def looks() -> None:
        while not stop.wait(0.5):
            watched.look()

    looking = Thread(target=looks)
    looking.start()
    try:
        run = local(spec, tmp_path / "trial", seconds=120)
    finally:
        stop.set()
        looking.join()
    # The relay read nothing and forged nothing: what it touched is named as a letter that did not arrive.
    told = json.loads((tmp_path / "relay.json").read_text())
    assert told["letters"] > 50
    assert told["plain"] == 0
    assert sum(told["changed"].values()) > 5
    assert sum(count > 0 for count in told["changed"].values()) >= 3
    reasons = [line["reason"] for line in read_audit(run) if "its letter to" in line.get("reason", "")]
    refused = sum(reason.count("is not sealed for this place") for reason in reasons)
    assert refused == sum(told["changed"].values())
    assert all(not line.get("void") for line in read_rounds(run))
    # No key of ours is in any job process: neither in its environment, nor its command, nor an open file.
    assert len(watched.looked) >= 3
    assert VARIABLE in watched.variables
    assert watched.found == []
