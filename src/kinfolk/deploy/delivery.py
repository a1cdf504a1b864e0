"""When a run has ended, each site is sent what its own models are made of: what it is scored by, and facts.

Models are made at the sites and stay there; what a site is sent of others is what scoring sends it anyway.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinfolk.deploy.own_model import SCORE, TOLD
from kinfolk.deploy.remote import Remote
from kinfolk.engines.loop import message_for
from kinfolk.experiment.build import Parts
from kinfolk.experiment.record import read_scores, write_json
from kinfolk.experiment.run import Result
from kinfolk.experiment.score_again import read_run
from kinfolk.script import Ask
from kinfolk.streams import RoundContext
from kinfolk.types import Client

# Which sites have their models, in the run folder.
FILE = "delivered.json"


def deliver(remote: Remote, parts: Parts, result: Result) -> tuple[Client, ...]:
    """Let each site have its own models of a run that has ended; who has them is written down.

    Whoever is away has none; it is sent them when the finished run is resumed.
    """
    clients = parts.federation.clients
    shared, each = parts.algorithm.eval_inputs(result.state, clients)
    request: Ask[Any] = Ask("give", clients, shared, each)
    context = RoundContext(parts.seed, result.rounds, clients, parts.spec.run.participation)
    facts, scores = facts_of(result.folder), _scores(result.folder, result.rounds)
    bodies = {c: message_for(request, c) for c in clients}
    own = {c: {"facts": json.dumps({**facts, "scores": scores.get(c, [])})} for c in clients}
    have = remote.hand_over("deliver", bodies, own, context)
    write_json(
        result.folder / FILE,
        {"round": result.rounds, "sites": sorted(have), "without": sorted(set(clients) - set(have))},
    )
    return tuple(sorted(have))


def facts_of(folder: Path) -> dict[str, Any]:
    """What the card of a model says of its run, out of the run's folder."""
    told = read_run(folder)
    federation = {key: told["federation"][key] for key in ("name", "classes", "fingerprint")}
    return {key: told.get(key) for key in TOLD} | {
        "name": folder.name,
        "federation": federation,
        "privacy": told.get("privacy"),
    }


def _scores(folder: Path, round: int) -> Mapping[str, list[Any]]:
    """The scores of each client after a round."""
    frame = read_scores(folder)
    frame = frame[frame["round"] == round]
    return {str(who): part[list(SCORE)].values.tolist() for who, part in frame.groupby("client")}
