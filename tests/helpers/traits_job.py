"""What tests let run in NVFlare's job processes, to see how it behaves. Only tests allow kits to run it."""

from __future__ import annotations

import json
import time
from threading import Barrier
from typing import Any

from nvflare.collab import collab

from kinfolk.deploy.nvflare_site import Pipe

LONGEST, LATE = 120.0, 3.0


class Bare:
    """A site's half that does nothing against NVFlare's trait that a killed process ends the job."""

    def __init__(self) -> None:
        self._together = Barrier(3)

    @collab.publish
    def fail(self) -> str:
        raise ValueError("on purpose")

    @collab.publish
    def meet(self) -> bool:
        """Comes back only if three calls are here at once."""
        self._together.wait(LONGEST)
        return True

    @collab.publish
    def late(self, who: str) -> str:
        """The site that is named takes its time."""
        if collab.site_name == who:
            time.sleep(LATE)
        return str(collab.site_name)


class Guarded(Pipe, Bare):
    """The same with our way around it: the file that `Pipe.begin` writes."""


class Traits:
    """The server's half: notes what it saw in a run's folder, and waits there for `go`."""

    def __init__(self, run: str, sites: list[str]) -> None:
        self.run, self.sites = run, sites

    @collab.main
    def play(self) -> str:
        from kinfolk.deploy.play import run_folder  # sites have no PyTorch in their job processes

        folder = run_folder(self.run)
        folder.mkdir(parents=True, exist_ok=True)
        everybody = collab.get_clients(self.sites)
        failed = everybody(timeout=LONGEST).fail()
        seen: dict[str, Any] = {
            "answers": len(list(failed)),
            "failures": sorted(failed.failures),
            "kinds": sorted({str(error.cause_type) for error in failed.failures.values()}),
        }
        first = collab.get_clients(self.sites[:1])
        calls = [first(blocking=False, timeout=LONGEST).meet() for _ in range(3)]
        seen["met"] = [value for call in calls for _, value in call]
        seen["order"] = [site for site, _ in everybody(timeout=LONGEST).late(self.sites[0])]
        (folder / "seen.json").write_text(json.dumps(seen))
        until = time.monotonic() + LONGEST
        while not (folder / "go").exists() and time.monotonic() < until:
            time.sleep(0.2)
        return "done"
