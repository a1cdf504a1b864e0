"""A site that comes later has a model at once: that of the group where `kinfolk assign` would put it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deployed import Flaky, all_equal, federated, spec_of
from safetensors.torch import load_file

from kinfolk.codec import decode, encode
from kinfolk.deploy.agreement import Introduction, agree
from kinfolk.deploy.carrier import Threads
from kinfolk.deploy.lead import lead
from kinfolk.deploy.letters import Identity, Trust, bond
from kinfolk.deploy.newcomers import FILE, joined, welcome
from kinfolk.deploy.own_model import export_own
from kinfolk.deploy.own_rows import simulated_rows
from kinfolk.deploy.site import Site
from kinfolk.errors import KinfolkError
from kinfolk.experiment.assign import assign
from kinfolk.experiment.newcomers import open_run
from kinfolk.experiment.spec import override, parse
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.trained import load
from kinfolk.types import Client

# By loss, and by distance.
METHODS = ("ifca,k=2", "fesem,k=2")
LATE = 2  # the last clients of the data come later


def sites_of(spec: Any, folder: Path, who: Any) -> dict[Client, Site]:
    return {c: Site(c, simulated_rows(spec, c), folder / c) for c in who}


class Kept:
    """A carrier that keeps all bytes that leave sites."""

    def __init__(self, sites: Mapping[Client, Site]) -> None:
        self.inner, self.left = Threads({c: site.answer for c, site in sites.items()}), list[bytes]()

    def ask(self, requests: Mapping[Client, bytes], seconds: float) -> Iterator[tuple[Client, Any]]:
        """As `Carrier.ask`."""
        for who, answer in self.inner.ask(requests, seconds):
            self.left += [answer] if isinstance(answer, bytes) else []
            yield who, answer


def trained(method: str, folder: Path, *more: str) -> tuple[Any, tuple[Client, ...]]:
    """A run over all clients but the last, into `first`; its spec, and who comes later."""
    apart = ["data.groups=2", "data.shift=label_permutation", "run.rounds=8"]
    spec = override(spec_of(method), [*apart, *more])
    names = federated(spec).clients
    sites = sites_of(spec, folder / "sites", names[:-LATE])
    lead(spec, folder / "first", Flaky(sites, 0.0, 0.0), list(sites), seconds=60)
    return spec, names[-LATE:]


@pytest.mark.parametrize("method", METHODS)
def test_a_newcomer_is_put_where_a_simulation_puts_it_and_has_that_groups_model(method: str, tmp_path: Path):
    spec, late = trained(method, tmp_path)
    carrier = Kept(sites_of(spec, tmp_path / "sites", late))
    found = welcome(tmp_path / "first", carrier, late, seconds=60)
    run = open_run(tmp_path / "first")
    assert run.k == 2
    for who in late:
        row = assign(run, simulated_rows(spec, who))["newcomers"][0]
        assert found[who] == row["group"]
        group = run.groups.index(found[who])
        export_own(tmp_path / "sites" / who, who, "first", tmp_path / who)
        model = load_file(tmp_path / who / "model.safetensors")
        assert all(torch.equal(t, run.centres[name][group]) for name, t in model.items())
    assert len(set(found.values())) == 2
    assert set(json.loads((tmp_path / "first" / FILE).read_text())) == set(late)
    # All that leaves them: who they are, that they are ready, and their choice.
    assert max(map(len, carrier.left)) < 4096


@pytest.mark.parametrize("method", ["fedavg", "fedavg_tuned"])
def test_where_there_is_one_model_for_all_a_newcomer_has_it(method: str, tmp_path: Path):
    spec, late = trained(method, tmp_path, "run.rounds=2")
    found = welcome(tmp_path / "first", Kept(sites_of(spec, tmp_path / "sites", late)), late, seconds=60)
    assert found == dict.fromkeys(late)
    export_own(tmp_path / "sites" / late[0], late[0], "first", tmp_path / "ours")
    load(tmp_path / "first").export(tmp_path / "theirs", kind="centre")
    ours, theirs = (load_file(tmp_path / f / "model.safetensors") for f in ("ours", "theirs"))
    assert all_equal(ours, theirs)


def test_a_newcomers_rows_are_standardised_by_the_runs_numbers_and_it_tells_none_of_its_own(tmp_path: Path):
    draw = np.random.default_rng(0)
    own = {c: (draw.normal(5, 3, size=(20, 3)), np.arange(20) % 2) for c in ("ann", "bob")}
    spec = parse("[data]\nstandardize = 'global'\n[run]\nrounds = 2\n[engine]\nname = 'loop'\n")
    rows = from_arrays(own)
    sites = {c: Site(c, rows.only(c), tmp_path / c) for c in rows.clients}
    lead(spec, tmp_path / "first", Flaky(sites, 0.0, 0.0), list(sites), seconds=60)
    zoe, far = Client("zoe"), from_arrays({"zoe": (draw.normal(90, 3, size=(20, 3)), np.arange(20) % 2)})
    late = Site(zoe, far, tmp_path / zoe)
    carrier = Kept({zoe: late})
    assert welcome(tmp_path / "first", carrier, [zoe], seconds=60) == {zoe: None}
    assert late.begun is not None
    assert late.begun.rows.x.mean() > 10  # by its own mean it would be 0
    headers = [decode(data)[1] for data in carrier.left]
    told = [json.loads(header["introduction"])["told"] for header in headers if "introduction" in header]
    assert told == [["none", False, None, None]]


def introduced(own: Mapping[str, Any]) -> list[Introduction]:
    rows = from_arrays(own, test={})
    named = {c: replace(rows.only(c), class_names=rows.class_names) for c in rows.clients}
    return [Introduction.of(c, own, "key") for c, own in named.items()]


X, Y = np.arange(12.0).reshape(6, 2), np.array(["cat", "dog"] * 3)
STRANGERS = {
    "other columns": ({"zoe": (X[:, :1], Y)}, r"site = 'zoe': its shape are \(1,\), those of the run \(2,\)"),
    "a class of its own": ({"zoe": (X, np.array(["cat", "owl"] * 3))}, "has the class 'owl', which the run"),
    "numbers to predict": ({"zoe": (X, X[:, 0] + 0.5)}, "predicts numbers"),
    "a site of the run": ({"ann": (X, Y)}, "is a site of this run from the beginning"),
}


@pytest.mark.parametrize("case", STRANGERS)
def test_who_does_not_fit_the_run_is_told_so(case: str):
    own, told = STRANGERS[case]
    agreement = agree(introduced({"ann": (X, Y), "bob": (X, Y)}), "", "r")
    with pytest.raises(KinfolkError, match=told):
        joined(agreement, introduced(own))


def test_who_lacks_a_class_fits_and_the_agreement_of_the_run_stays():
    agreement = agree(introduced({"ann": (X, Y), "bob": (X, Y)}), "", "r")
    grown = joined(agreement, introduced({"zoe": (X, np.array(["dog"] * 6))}))
    assert (grown.outline.clients, grown.outline.class_names) == (("ann", "bob", "zoe"), ("cat", "dog"))
    assert grown.run != agreement.run
    assert set(agreement.rows) == {"ann", "bob"}


def test_a_method_whose_models_are_its_clients_own_has_none_for_others(tmp_path: Path):
    spec, late = trained("local", tmp_path, "run.rounds=1")
    with pytest.raises(KinfolkError, match="has a model for each of its clients and none for others"):
        welcome(tmp_path / "first", Kept(sites_of(spec, tmp_path / "sites", late)), late, seconds=60)


def test_a_newcomer_that_no_authority_vouches_for_is_believed_by_nobody(tmp_path: Path):
    """It may be served by a lead that is fooled; in no run of the federation has it a part."""
    authority, rows = Identity.new(), from_arrays(dict.fromkeys(("ann", "bob"), (X, Y)), test={})
    keys = {c: Identity.new() for c in rows.clients}
    words = {c: bond(authority, "pets", c, keys[c].public) for c in rows.clients}
    met = [Introduction.of(c, rows.only(c), keys[c].public, words[c]) for c in rows.clients]
    zoe = replace(introduced({"zoe": (X, Y)})[0], key=Identity.new().public)
    grown = joined(agree(met, "[run]\nrounds = 1\n", "r"), [replace(zoe, outline=met[0].outline)])
    trust = Trust("pets", authority.public, words[Client("ann")])
    ann = Site(Client("ann"), rows.only(Client("ann")), identity=keys[Client("ann")], trust=trust)
    answer = ann.answer(encode({}, {"to": "ann", "do": "begin", "agreement": grown.text()}))
    assert "does not vouch for" in decode(answer)[1]["error"]
