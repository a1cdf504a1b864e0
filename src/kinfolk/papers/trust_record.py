"""What SLFed's peers think of one another, round by round, written down while a run is simulated.

Opinions lie in the clients' memories, and no request of the algorithm brings them out. Whoever simulates
all clients holds these memories anyway; here they are looked at between two rounds, and only there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.algorithms.slfed.slfed import SLFed
from kinfolk.errors import KinfolkError
from kinfolk.experiment.asking import one_process
from kinfolk.experiment.build import build_parts, title
from kinfolk.experiment.record import plain, write_json
from kinfolk.experiment.run import Watch, run
from kinfolk.experiment.sections import AlgorithmSpec, Experiment
from kinfolk.federation.federation import Federation
from kinfolk.federation.sources import build
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Client, Message

KINDS = ("slfed", "slfed_similar")


def with_direct(spec: Experiment, direct: int) -> Experiment:
    """The spec for SLFed with so many direct partners; an SLFed of the spec keeps its name and options.

    >>> with_direct(Experiment(), 1).algorithm
    AlgorithmSpec(name='slfed', options={'direct': 1})
    """
    here = spec.algorithm
    kind, usual = (here.name, here.options) if here.name in KINDS else ("slfed", {})
    return replace(spec, algorithm=AlgorithmSpec(kind, {**usual, "direct": direct}))


def trace_trust(
    spec: Experiment,
    folder: Path,
    *,
    federation: Federation | None = None,
    resume: bool = False,
    watch: Watch = lambda event, facts: None,
) -> dict[str, Any]:
    """Run SLFed and keep what its clients think after each round in `trust.json` of the run folder.

    The run is the one that `run` would make.
    """
    one_process(spec.engine.name)
    rows = federation or build(spec.data, Seed(spec.run.seed))
    algorithm = build_parts(spec, rows).algorithm
    if not isinstance(algorithm, SLFed):
        raise KinfolkError("algorithm.name", spec.algorithm.name, "has no opinions to trace; use slfed")
    facts = _begun(spec, rows, algorithm.direct, folder / "trust.json", resume)

    def note(number: int, memories: Mapping[Client, Message]) -> None:
        context = RoundContext(Seed(spec.run.seed), number - 1, rows.clients, spec.run.participation)
        seen = algorithm.look(memories, context)
        facts["rounds"].append({"round": number, **round_facts(seen, facts["groups"])})
        if number in pictured(spec.run.rounds):
            facts["pictures"][str(number)] = {"s": seen["s"].tolist(), "listed": seen["listed"].tolist()}
        write_json(folder / "trust.json", facts)

    def tell(event: str, told: dict[str, Any]) -> None:
        if event == "resume":
            _go_back(facts, told["round"], folder)
        if event in ("resume", "round") and told["round"] == len(facts["rounds"]) + 1:
            note(told["round"], told["memories"])
        watch(event, told)

    run(spec, folder, federation=rows, resume=resume, watch=tell)
    written: dict[str, Any] = plain(facts)
    return written


def _go_back(facts: dict[str, Any], number: int, folder: Path) -> None:
    """Forget what came after the checkpoint; a trace may be one round behind it, but not more."""
    if len(facts["rounds"]) < number - 1:
        remedy = f"is at round {number}, its trace at {len(facts['rounds'])}; choose another folder"
        raise KinfolkError("run folder", str(folder), remedy)
    del facts["rounds"][number:]
    facts["pictures"] = {k: one for k, one in facts["pictures"].items() if int(k) <= number}


def _begun(spec: Experiment, rows: Federation, direct: int, path: Path, resume: bool) -> dict[str, Any]:
    """A trace without rounds, or the one that is there to go on with."""
    groups = [] if rows.truth is None else rows.truth.tolist()
    facts = {
        "title": title(spec),
        "federation": rows.name,
        "direct": direct,
        "clients": list(rows.clients),
        "groups": groups if len(set(groups)) > 1 else None,  # of one group there is nothing to tell apart
        "rounds": [],
        "pictures": {},
    }
    return {**facts, **json.loads(path.read_text())} if resume and path.exists() else facts


def pictured(rounds: int) -> tuple[int, ...]:
    """The few rounds of which every single opinion is kept.

    >>> pictured(20), pictured(2)
    ((1, 3, 10, 20), (1, 2))
    """
    return tuple(sorted({one for one in (1, 3, rounds // 2, rounds) if 1 <= one <= rounds}))


def round_facts(seen: Mapping[str, Tensor], groups: list[int] | None) -> dict[str, float | None]:
    """A round in a few numbers: uncertainty, list sizes, and what is thought of the own group and of others.

    A stranger counts with u = 1. Where there are no groups, what is about them is None.

    >>> one = torch.eye(2, dtype=torch.float64)
    >>> round_facts({"s": one, "u": 1 - one, "known": one > 1, "listed": one > 1}, None)["u"]
    1.0
    """
    n = len(seen["u"])
    others = ~torch.eye(n, dtype=torch.bool)
    sizes = seen["listed"].sum(1).double()
    facts: dict[str, float | None] = {
        "u": float(seen["u"][others].mean()),
        "known": float(seen["known"].sum(1).double().mean()),
        "listed": float(sizes.mean()),
        "listed_least": float(sizes.min()),
        "listed_most": float(sizes.max()),
        "sent": float((sizes > 0).double().mean()),  # share of the clients with a list that could be sent
    }
    truth = torch.zeros(n, dtype=torch.int64) if groups is None else torch.tensor(groups)
    same = (truth[:, None] == truth[None]) & others
    for name, where in (("s_same", same & seen["known"]), ("s_other", ~same & others & seen["known"])):
        told = groups is not None and bool(where.any())
        facts[name] = float(seen["s"][where].mean()) if told else None
    told = groups is not None and bool(seen["listed"].any())
    facts["listed_same"] = float(same[seen["listed"]].double().mean()) if told else None
    facts["chance_same"] = float(same[others].double().mean()) if groups is not None else None
    return facts
