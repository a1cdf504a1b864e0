"""What benchmarks/deploy.py runs in NVFlare's job processes: an echo of NVFlare alone, then a run of ours."""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import Any

from nvflare.collab import collab

from kinfolk.deploy.lead import lead
from kinfolk.deploy.nvflare_lead import Calls, Lead
from kinfolk.deploy.nvflare_site import Pipe
from kinfolk.deploy.play import run_folder
from kinfolk.experiment.spec import parse
from kinfolk.types import Client

ECHOES = 20


class EchoPipe(Pipe):
    """Gives back what it was given, without any site behind it."""

    @collab.publish
    def echo(self, data: bytes) -> bytes:
        return data


class EchoLead(Lead):
    """Times echoes of as many bytes as a model has, different ones to every site, and then plays the run."""

    @collab.main
    def play(self) -> str:
        spec, folder = parse(self.spec), run_folder(self.run)
        sites = [Client(site) for site in self.sites]
        size = model_bytes(spec.data.features)
        echoes = [self._echo(size) for _ in range(ECHOES if size < 1 << 22 else 6)]
        ends: list[float] = []
        facts: list[dict[str, Any]] = []

        def watch(event: str, told: dict[str, Any]) -> None:
            if event == "round":
                ends.append(time.monotonic())
                facts.append({"seconds": told.get("seconds"), "bytes": told.get("bytes")})

        done = lead(spec, folder, Calls(), sites, seconds=self.seconds, watch=watch)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        own = Path("/proc/self")
        limits = {"threads": len(os.listdir(own / "task")), "descriptors": len(os.listdir(own / "fd"))}
        told = {"size": size, "echoes": echoes, "ends": ends, "facts": facts, "peak_mib": peak, **limits}
        (folder / "costs.json").write_text(json.dumps(told))
        return done.reason

    def _echo(self, size: int) -> float:
        """Seconds there and back, all sites at once."""
        data = {site: os.urandom(size) for site in self.sites}
        began = time.monotonic()
        asked = {
            s: collab.get_clients([s])(blocking=False, timeout=120).echo(sent) for s, sent in data.items()
        }
        for site, answers in asked.items():
            assert [back for _, back in answers] == [data[site]]
        return time.monotonic() - began


def model_bytes(features: int) -> int:
    """Of the two-layer network on rows with so many features and ten classes.

    >>> model_bytes(300)
    248840
    """
    return 4 * (features * 200 + 200 + 200 * 10 + 10)
