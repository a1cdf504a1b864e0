"""Who is hurt by how much: methods and defences under attacks, for none to half of the clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kinfolk.algorithms import find_algorithm
from kinfolk.algorithms.options import options_of
from kinfolk.attacks.attack import KINDS
from kinfolk.errors import KinfolkError, near
from kinfolk.experiment.attack import attackers
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.compare import parse_methods, run_all
from kinfolk.experiment.method import Method
from kinfolk.experiment.ranks import table_of
from kinfolk.experiment.record import FORMAT, check_format, write_json
from kinfolk.experiment.run import Watch
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.seeds import Seeds, seed_numbers
from kinfolk.federation.federation import Federation
from kinfolk.federation.sources import build
from kinfolk.lock import writing
from kinfolk.streams import Seed

# What is tried if nothing is named.
METHODS = ("fedavg", "ifca", "fesem")
ATTACKS = ("sign_flip", "scaled", "noise", "label_flip", "backdoor")
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
RULES = ("mean", "trimmed", "median", "geometric", "krum", "clipped")
UNGUARDED = "unguarded"  # the mean, without the guard's limits
DEFENCES = (*RULES, UNGUARDED)
FILE = "attack.json"


@dataclass(frozen=True)
class Cell:
    """A method with a defence under an attack by so many clients: a run for each seed, or why not."""

    method: str
    defence: str
    attack: str
    attackers: int
    clients: int
    runs: tuple[str, ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class Asked:
    """What is tried against what."""

    methods: Sequence[str] = METHODS
    attacks: Sequence[str] = ATTACKS
    defences: Sequence[str] = ("mean", "median")
    shares: Sequence[float] = SHARES

    def __post_init__(self) -> None:
        for name, given, known in (
            ("--attacks", self.attacks, KINDS),
            ("--defences", self.defences, DEFENCES),
        ):
            for one in given:
                if one not in known:
                    raise KinfolkError(name, one, near(one, known))
            if len(set(given)) < len(given):
                raise KinfolkError(name, ",".join(given), "name each once")
        for share in self.shares:
            if not 0 <= share <= 0.5:
                raise KinfolkError("--attackers", share, "give shares from 0 to 0.5, as 0,0.1,0.5")


def attack_lab(
    spec: Experiment,
    asked: Asked,
    seeds: Seeds,
    folder: Path,
    *,
    resume: bool = False,
    watch: Callable[[str, int], Watch] = lambda title, seed: lambda event, facts: None,
) -> dict[str, Any]:
    """Run every cell with every seed into subfolders of the folder; `attack.json` lists cells and runs.

    Finished runs are kept. A run that breaks down keeps no other from running: its records say why.
    """
    if spec.engine.name == "distributed":
        raise KinfolkError(
            "engine.name", "distributed", "attacks are run by one process; use batched or workers"
        )
    with writing(folder):
        if (folder / FILE).exists() and not resume:
            remedy = "attacks have been run there already; add resume=True or choose another folder"
            raise KinfolkError("folder", str(folder), remedy)
        check_format(folder, FILE)
        numbers = seed_numbers(seeds, spec.run.seed)
        data = {k: build(spec.data, Seed(k)) for k in numbers}
        cells, runs = planned(spec, asked, numbers, data[numbers[0]])
        if not runs:
            raise KinfolkError("attack", ", ".join(asked.methods), f"nothing can be run: {cells[0].refused}")
        facts = {"format": FORMAT, "seeds": numbers, "cells": [asdict(cell) for cell in cells]}
        write_json(folder / FILE, facts)
        run_all(runs, folder, data, {"resume": resume}, watch)
    return facts


def planned(
    spec: Experiment, asked: Asked, seeds: Sequence[int], federation: Federation
) -> tuple[list[Cell], dict[str, tuple[Method, int]]]:
    """(all cells, their runs by the names of folders); where nobody attacks, attacks share a cell."""
    cells: list[Cell] = []
    runs: dict[str, tuple[Method, int]] = {}
    for plain in parse_methods(spec, asked.methods).values():
        for defence in asked.defences:
            for attack in asked.attacks:
                for share in asked.shares:
                    cell, method = _cell(plain, defence, attack, share, federation)
                    if method is not None:
                        own = {f"{method.folder}-seed{k}": (method, k) for k in seeds}
                        cell = replace(cell, runs=tuple(own))
                        runs |= own
                    if cell not in cells:
                        cells.append(cell)
    return cells, runs


def _cell(
    plain: Method, defence: str, attack: str, share: float, federation: Federation
) -> tuple[Cell, Method | None]:
    """A cell, and its method unless it is refused."""
    clients = federation.clients
    count = len(attackers(clients, share, Seed(plain.spec.run.seed))) if share else 0
    # A back door's trigger is tried without attackers too; the other attacks are none then.
    kind = attack if count or attack == "backdoor" else "none"
    cell = Cell(plain.title, defence, kind, count, len(clients))
    options = options_of(find_algorithm(plain.spec.algorithm.name))
    if defence not in ("mean", UNGUARDED) and "aggregate.name" not in options:
        return replace(cell, refused="offers no aggregation rule"), None
    try:
        method = plain.having(
            {
                "run.attack": kind,
                "run.attackers": share if count else 0.0,
                **_settings(defence, options, count, share),
            }
        )
        table_of(build_parts(method.spec, federation))
    except KinfolkError as error:
        if error.field in ("run.attack", "algorithm.aggregate.attackers"):
            return replace(cell, refused=f"{error.field}: {error.remedy}"), None
        raise
    return cell, method


def _settings(defence: str, options: dict[str, Any], count: int, share: float) -> dict[str, Any]:
    """A defence as settings. Krum and the trimmed mean are told how many attack, which nobody knows."""
    if defence == UNGUARDED:
        return {**_settings("mean", options, count, share), "guard.norm": 0.0, "guard.rows": 0.0}
    if "aggregate.name" not in options:
        return {}
    more: dict[str, Any] = {"algorithm.aggregate.name": defence}
    if defence == "krum":
        more["algorithm.aggregate.attackers"] = count
    if defence == "trimmed":
        more["algorithm.aggregate.trim"] = min(max(share, 0.1), 0.49)
    return more
