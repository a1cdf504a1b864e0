"""A trial on one machine, with a stand-in for NVFlare: it leaves nothing running."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from certified import certify, serving
from deployed import spec_of

from kinfolk.deploy import local
from kinfolk.deploy.supervise import processes_of

# A server and, as NVFlare starts it, a job in a session of its own that no signal to a group reaches.
STAND_IN = """
sleeping="import time; time.sleep(100)"
setsid python3 -c "$sleeping" nvflare.job -m {kit} &
exec python3 -c "$sleeping" nvflare.server -m {kit}
"""


def test_ctrl_c_ends_all_that_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kit = tmp_path / "kits" / "localhost"
    (kit / "startup").mkdir(parents=True)
    (kit / "startup" / "sub_start.sh").write_text(STAND_IN.format(kit=kit))
    serving(certify(kit), local.free_port())

    def up(port: int, opened: local.Trial) -> None:
        until = time.monotonic() + 120
        while len(processes_of(kit)) < 2:
            opened.check()
            assert time.monotonic() < until
            time.sleep(0.1)

    monkeypatch.setattr(local, "provision", lambda project, out: {"localhost": kit})
    monkeypatch.setattr(local, "_wait_for", up)
    held = local.trial(spec_of("fedavg"), [], tmp_path)
    server = held.__enter__().started["localhost"]
    assert sorted(processes_of(kit).values()) == ["nvflare.job", "nvflare.server"]
    assert not held.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert processes_of(kit) == {}
    assert server.returncode == 0  # it was asked, and came to its end
