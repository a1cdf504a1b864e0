"""What runs in NVFlare's job process at the server: the lead of one run, over NVFlare's calls.

The job names the run and holds its spec; where run folders are is the server's own business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nvflare.collab import collab

from kinfolk.deploy.play import play
from kinfolk.types import Client


class Lead:
    """Plays one run. Its arguments stand in the job, as NVFlare wants them: plain values."""

    def __init__(self, run: str, spec: str, sites: list[str], resume: bool = False, seconds: float = 600.0):
        self.run, self.spec, self.sites = run, spec, sites
        self.resume, self.seconds = resume, seconds

    @collab.main
    def play(self) -> str:
        """The run, from its first round or its last checkpoint to its end; why it ended."""
        return play(self.run, self.spec, self.sites, Calls(), self.resume, self.seconds)


class Calls:
    """A carrier by NVFlare's calls: one for each site, as a call for several sends the same to all."""

    def ask(
        self, requests: Mapping[Client, bytes], seconds: float
    ) -> Iterator[tuple[Client, bytes | Exception]]:
        """As `Carrier.ask`: all are asked at once, and answers are read in order of names."""
        asked: dict[Client, Any] = {}
        for who, data in requests.items():
            try:
                asked[who] = collab.get_clients([who])(blocking=False, timeout=seconds).ask(data)
            except Exception as error:  # whatever NVFlare raises, it is about this site alone
                yield who, error
        for who, answers in asked.items():
            # A live queue: read once. A call that fails is in `failures` and raises nothing.
            for _, answer in answers:
                yield who, answer
            for failure in answers.failures.values():
                yield who, failure
