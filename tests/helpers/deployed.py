"""Small federations whose clients are sites of their own."""

from __future__ import annotations

from pathlib import Path

from kinfolk.deploy.site import Site
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import parse
from kinfolk.federation.federation import Federation
from kinfolk.federation.sources import build
from kinfolk.streams import Seed
from kinfolk.types import Client


def spec_of(method: str, rounds: int = 8) -> Experiment:
    """Eight clients with digits; `method` as on the command line."""
    name, *options = method.split(",")
    given = "\n".join(option.replace("=", " = ") for option in options)
    return parse(
        f"""
        [data]
        name = "digits"
        clients = 8
        [algorithm]
        name = "{name}"
        {given}
        [local]
        epochs = 1
        [run]
        rounds = {rounds}
        seed = 3
        [engine]
        name = "loop"
        device = "cpu"
        """
    )


def federated(spec: Experiment) -> Federation:
    """All rows of a spec."""
    return build(spec.data, Seed(spec.run.seed))


def sites_of(rows: Federation, folder: Path | None = None) -> dict[Client, Site]:
    """A site for every client, which holds its rows alone."""
    return {c: Site(c, rows.only(c), folder / c if folder else None) for c in rows.clients}
