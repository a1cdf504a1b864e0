"""Whose a site is, is the authority's word; what one owner's sites weigh together is capped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deployed import federated, spec_of

from kinfolk.codec import decode, encode
from kinfolk.deploy.agreement import Introduction, agree
from kinfolk.deploy.carrier import Threads
from kinfolk.deploy.kits import Project
from kinfolk.deploy.lead import lead
from kinfolk.deploy.letters import Identity, Trust, bond
from kinfolk.deploy.site import Site
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import read_audit, read_rounds
from kinfolk.experiment.spec import dump, override
from kinfolk.federation.federation import Federation
from kinfolk.types import Client


def owned(rows: Federation, owners: dict[Client, str]) -> dict[Client, Site]:
    """Sites with keys of one authority, which knows whose they are."""
    authority, sites = Identity.new(), {}
    for who in rows.clients:
        own, owner = Identity.new(), owners.get(who, "")
        word = bond(authority, "lungs", who, own.public, owner)
        trust = Trust("lungs", authority.public, word, owner)
        sites[who] = Site(who, rows.only(who), identity=own, trust=trust)
    return sites


def hub_of(rows: Federation) -> dict[Client, str]:
    return dict.fromkeys(rows.clients[:5], "hub")


def test_somebody_with_many_sites_counts_as_one(tmp_path: Path):
    """Case 34: five of eight sites belong to one owner; two of them have a part in a round, in turn."""
    spec = override(spec_of("fedavg", rounds=5), ["guard.rows=2.0"])
    rows = federated(spec)
    sites = owned(rows, hub_of(rows))
    lead(
        spec,
        tmp_path / "run",
        Threads({c: s.answer for c, s in sites.items()}),
        list(rows.clients),
        seconds=60,
    )
    told = [line for line in read_audit(tmp_path / "run") if line["event"] == "capped"]
    assert {line["client"] for line in told} == set(hub_of(rows))
    assert all("2 of 5 sites in a round" in line["reason"] for line in told)
    assert {line["answered"] for line in read_rounds(tmp_path / "run") if line.get("round")} == {5}


def test_a_site_cannot_choose_its_owner(tmp_path: Path):
    spec = spec_of("fedavg", rounds=1)
    rows = federated(spec)
    sites = owned(rows, hub_of(rows))
    told = {c: decode(s.answer(encode({}, {"to": c, "do": "introduce"})))[1] for c, s in sites.items()}
    met = [Introduction.read(one["introduction"]) for one in told.values()]
    assert [one.owner for one in met] == ["hub"] * 5 + [""] * 3

    def answer(who: Client, introductions: list[Introduction]) -> dict[str, Any]:
        text = agree(introductions, dump(spec), "r1").text()
        return decode(sites[who].answer(encode({}, {"to": who, "do": "begin", "agreement": text})))[1]

    assert "ready" in answer(rows.clients[7], met)
    for owner in ("", "another"):
        said = answer(rows.clients[7], [replace(met[0], owner=owner), *met[1:]])
        assert f"site = '{rows.clients[0]}': has keys or an owner" in said["error"]


def test_a_project_file_says_whose_sites_are():
    told: dict[str, Any] = {
        "name": "lungs",
        "host": "hub.org",
        "sites": ["north", "south", "west"],
        "admins": ["a@b.org"],
    }
    project = Project.of({**told, "owners": {"St. Mary's": ["north", "south"]}})
    orgs = {
        one["name"]: one["org"] for one in project.for_nvflare()["participants"] if one["type"] == "client"
    }
    assert orgs == {"north": "St__Mary_s", "south": "St__Mary_s", "west": "west"}
    for owners, why in (
        ({"hub": ["nord"]}, "north"),
        ({"hub": ["north"], "spoke": ["north"]}, "belongs to hub already"),
        ({"west": ["north"]}, "is the name of a site"),
        (["north"], "give a table"),
    ):
        with pytest.raises(KinfolkError, match=rf"^project\.owners.*{why}"):
            Project.of({**told, "owners": owners})
