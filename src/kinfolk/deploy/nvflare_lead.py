"""What runs in NVFlare's job process at the server: the lead of one run, over NVFlare's calls.

The job names the run and holds its spec; where run folders are is the server's own business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

from kinfolk.deploy.control import TOPIC, Control
from kinfolk.deploy.play import play
from kinfolk.types import Client


class Lead:
    """Plays one run. Its arguments stand in the job, as NVFlare wants them: plain values.

    Without a spec it is that of the run's folder; with `newcomers` its sites get a model of the run, no more.
    """

    def __init__(
        self,
        run: str,
        spec: str,
        sites: list[str],
        resume: bool = False,
        seconds: float = 600.0,
        newcomers: bool = False,
    ):
        self.run, self.spec, self.sites = run, spec, sites
        self.resume, self.seconds, self.newcomers = resume, seconds, newcomers

    @collab.main
    def play(self) -> str:
        """The run, from its first round or its last checkpoint to its end; why it ended."""
        engine = collab.fl_ctx.get_engine()

        def asked_by_admins(control: Control) -> None:
            engine.register_app_command(TOPIC, lambda topic, asked, _: control.answer(asked))

        order = self.run, self.spec, self.sites, Calls(), self.resume, self.seconds, self.newcomers
        return play(*order, begun=asked_by_admins)


class Calls:
    """A carrier by NVFlare's calls: one for each site, as a call for several sends the same to all."""

    def ask(
        self, requests: Mapping[Client, bytes], seconds: float
    ) -> Iterator[tuple[Client, bytes | Exception]]:
        """As `Carrier.ask`: all are asked at once, and answers are read in order of names."""
        # Else every call fails at once, and is made again until NVFlare kills this process.
        if collab.is_aborted:
            raise RunAborted("this job has been told to end")
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
