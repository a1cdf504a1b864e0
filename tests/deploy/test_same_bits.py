"""A deployed run is the run of a simulation, bit for bit: models, groups, opinions, memories and scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployed import all_equal, federated, sites_of, spec_of

from kinfolk.deploy.carrier import Threads
from kinfolk.deploy.lead import lead
from kinfolk.deploy.site import Site
from kinfolk.experiment.run import Result, run
from kinfolk.experiment.state import to_message
from kinfolk.types import Client


def deployed(spec: Any, folder: Path, sites: dict[Client, Site], **more: Any) -> Result:
    carrier = Threads({who: site.answer for who, site in sites.items()})
    try:
        return lead(spec, folder, carrier, list(sites), seconds=120, **more)
    finally:
        carrier.close()


METHODS = ("fedavg", "ifca,k=2", "fesem,k=2", "mdicfl,k=2", "mdicfl,k=2,privacy='strong'", "slfed")


@pytest.mark.parametrize("method", METHODS)
def test_the_bits_are_those_of_the_loop(method: str, tmp_path: Path):
    spec = spec_of(method)
    rows = federated(spec)
    theirs = run(spec, tmp_path / "loop")
    sites = sites_of(rows)
    ours = deployed(spec, tmp_path / "deployed", sites)
    assert all_equal(to_message(ours.state)[0], to_message(theirs.state)[0])
    assert ours.summary == theirs.summary
    for who, site in sites.items():
        assert site.begun is not None
        assert all_equal(site.begun.store.memory, theirs.memories.get(who, site.begun.store.memory))
