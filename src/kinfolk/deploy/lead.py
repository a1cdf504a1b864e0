"""The lead of a deployed run: it meets the sites, agrees with them, and plays the script as in simulation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinfolk.codec import encode
from kinfolk.deploy.agreement import Agreement, Introduction
from kinfolk.deploy.carrier import Carrier, patiently
from kinfolk.deploy.delivery import deliver
from kinfolk.deploy.meeting import Meeting
from kinfolk.deploy.remote import Remote, begin
from kinfolk.deploy.room import INTRODUCTION, Rooms
from kinfolk.engines.coordinator import Engine
from kinfolk.engines.memory import Memories
from kinfolk.engines.wire import checked
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import Network, Parts, build_parts
from kinfolk.experiment.ranks import table_of
from kinfolk.experiment.record import write_json, write_text
from kinfolk.experiment.run import Result, Watch, run
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import dump
from kinfolk.types import Client

FILE = "agreement.json"  # what was agreed on; it is not changed when a run goes on
COURSE = "deployment.json"
PROOFS = "exposed.json"  # signatures by which a site has proven itself that it told others two stories


def lead(
    spec: Experiment,
    folder: Path,
    carrier: Carrier,
    sites: Sequence[Client],
    *,
    resume: bool = False,
    network: Network | None = None,
    seconds: float = 600.0,
    watch: Watch = lambda event, facts: None,
) -> Result:
    """Run an experiment over sites into its folder; `seconds` is how long one request may take.

    With `resume` it goes on from the last checkpoint with the sites of the run, each of which goes back to
    the memory it had then; those that are not there are taken back when they are. A watch that answers
    "pause" ends it after the round as a signal would (`Stopped`), to be resumed.
    """
    if spec.run.attack != "none" or spec.run.absent:
        key, value = ("absent", spec.run.absent) if spec.run.absent else ("attack", spec.run.attack)
        raise KinfolkError(f"run.{key}", value, "is played in simulations only; leave it out")
    if spec.run.on_divergence == "rollback":
        remedy = "sites keep the rate that they began with; use stop or exclude"
        raise KinfolkError("run.on_divergence", "rollback", remedy)
    # Pictures show what clients hold, which nobody sees here.
    spec = replace(spec, run=replace(spec.run, pictures="none"))
    lost: dict[Client, str] = {}
    if resume and (folder / FILE).exists():  # a job may have ended before the run began
        agreement = agreed(folder)
        lost = begin(carrier, agreement, agreement.outline.clients, seconds)
    else:
        met, missing = introduced(carrier, sites, spec, seconds)
        meeting = Meeting(carrier, dump(spec), spec.run.quorum, seconds, watch)
        # What nobody can build is told here: sites do not say why they cannot.
        agreement = meeting.meet(met, missing, lambda rows: network or build_parts(spec, rows))
    rows = agreement.federation()
    if len(lost) == len(agreement.rows):  # who is not back yet is taken back later, if anybody is there
        raise KinfolkError("site", min(lost), f"cannot take part: {lost[min(lost)]}")
    attempt, made = _attempt(folder), list[tuple[Remote, Parts]]()

    def deployed(parts: Parts, memories: Memories) -> Engine:
        write_text(folder / FILE, agreement.text())
        write_json(folder / COURSE, {"run": agreement.run, "attempt": attempt})
        remote = Remote(
            carrier, agreement, table_of(parts), memories, attempt, seconds, watch,
            Rooms.of(parts), lambda proofs: write_text(folder / PROOFS, proofs),
        )  # fmt: skip
        for who, why in lost.items():
            remote.missed(who, why, "late")
        made.append((remote, parts))
        return remote

    resume = resume and (folder / COURSE).exists()
    done = run(spec, folder, federation=rows, network=network, resume=resume, watch=watch, deployed=deployed)
    have = deliver(*made[-1], done)
    watch("delivered", {"sites": have})
    return done


def introductions(
    carrier: Carrier, sites: Sequence[Client], spec: Experiment, seconds: float
) -> list[Introduction]:
    """What every site says of itself; one that says nothing is an error that names it."""
    found, missing = introduced(carrier, sites, spec, seconds)
    for who, why in missing.items():
        raise KinfolkError("site", who, why)
    return list(found.values())


def introduced(
    carrier: Carrier, sites: Sequence[Client], spec: Experiment, seconds: float
) -> tuple[dict[Client, Introduction], dict[Client, str]]:
    """What sites say of themselves, and why others do not."""
    found: dict[Client, Introduction] = {}
    why: dict[Client, str] = dict.fromkeys(sites, f"has not answered within {seconds:g} s; is it running?")
    rules = {"standardize": spec.data.standardize, "standardize_target": spec.data.standardize_target}
    requests = {c: encode({}, {"do": "introduce", "to": c, **rules}) for c in sites}
    for who, data in patiently(carrier, requests, seconds):
        if data is None:
            continue
        try:
            back = checked(data, {"from": who}, INTRODUCTION)
            if "introduction" not in back:
                raise KinfolkError("site", who, back.get("error", "said nothing of itself")[:200])
            found[who] = Introduction.read(back["introduction"])
            if found[who].who != who:
                raise KinfolkError("site", who, f"calls itself {found[who].who}")
        except KinfolkError as error:
            found.pop(who, None)
            why[who] = str(error)
    here = {who: found[who] for who in sites if who in found}
    return here, {who: why[who] for who in sites if who not in found}


def agreed(folder: Path) -> Agreement:
    """What the sites of the run in a folder have agreed on.

    >>> agreed(Path("nowhere"))
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run = 'nowhere': was not deployed, or did not begin; submit it
    """
    try:
        return Agreement.read((folder / FILE).read_text(encoding="utf-8"))
    except OSError as error:
        raise KinfolkError("run", str(folder), "was not deployed, or did not begin; submit it") from error


def _attempt(folder: Path) -> int:
    """Which attempt at the run this is, from 1: later ones number their requests above all before."""
    try:
        told: dict[str, Any] = json.loads((folder / COURSE).read_text(encoding="utf-8"))
        return int(told["attempt"]) + 1
    except FileNotFoundError:
        return 1
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KinfolkError("run", str(folder / COURSE), "cannot be read; restore it") from error
