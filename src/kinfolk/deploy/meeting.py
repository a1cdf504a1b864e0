"""Who takes part in a run: all, or those who fit, if the spec says that a part of them is enough."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kinfolk.deploy.agreement import Agreement, Introduction, agree
from kinfolk.deploy.carrier import Carrier
from kinfolk.deploy.remote import begin
from kinfolk.errors import KinfolkError
from kinfolk.experiment.run import Watch
from kinfolk.federation.federation import Federation
from kinfolk.types import Client


@dataclass(frozen=True)
class Meeting:
    """What those who meet are to agree on.

    With a `quorum` above 0, whoever is missing or does not fit is left out, while that fraction is there;
    otherwise the first of them is an error that names it and why.
    """

    carrier: Carrier
    text: str  # of the spec
    quorum: float
    seconds: float
    watch: Watch

    def meet(
        self,
        found: Mapping[Client, Introduction],
        missing: Mapping[Client, str],
        build: Callable[[Federation], object],
    ) -> Agreement:
        """The agreement of those who fit, each of whom has taken it; `build` tries it at the lead."""
        here, out = dict(found), dict(missing)
        least = max(math.ceil((self.quorum or 1.0) * (len(found) + len(missing))), 1)
        while True:
            for who in sorted(out):
                if len(here) < least:
                    raise KinfolkError("site", who, out[who])
            wrong, agreement = self._tried(here, build)
            if agreement is not None:
                break
            out |= wrong
            here = {who: one for who, one in here.items() if who not in wrong}
        for who, why in sorted(out.items()):
            self.watch("warning", {"text": f"site {who} is left out of the run: {why}", "late": who})
        return agreement

    def _tried(
        self, here: Mapping[Client, Introduction], build: Callable[[Federation], object]
    ) -> tuple[dict[Client, str], Agreement | None]:
        """The agreement of all who are here; or who does not fit, and why."""
        try:
            agreement = agree(list(here.values()), self.text, secrets.token_hex(8))
        except KinfolkError as error:
            if error.field != "site" or error.value not in here:
                raise
            return {Client(str(error.value)): error.remedy}, None
        build(agreement.federation())
        lost = begin(self.carrier, agreement, agreement.outline.clients, self.seconds)
        if lost:
            return {who: f"cannot take part: {why}" for who, why in lost.items()}, None
        return {}, agreement
