"""Before anything is trained sites agree on columns, classes and scaling; whoever does not fit is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deployed import all_equal, sites_of
from numpy.typing import NDArray

from kinfolk.codec import decode, encode
from kinfolk.deploy.agreement import Agreement, Introduction, agree, taken
from kinfolk.deploy.carrier import Threads
from kinfolk.deploy.lead import lead
from kinfolk.deploy.letters import Identity, Trust, bond
from kinfolk.deploy.site import Site
from kinfolk.errors import KinfolkError
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import parse
from kinfolk.experiment.state import to_message
from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.scaling import Told, scaling_of, standardized
from kinfolk.types import Client

MODEL = "[model]\nname = 'logistic'"
NAMES = [Client(name) for name in ("ann", "bob", "cem", "dua")]


def table(seed: int = 0, numbers: bool = False) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    draw, made = np.random.default_rng(seed), {}
    for i, name in enumerate(NAMES):
        x = draw.normal(10.0 * i, 1.0 + i, size=(40 + 10 * i, 3)) * [1, 100, 0.01]
        made[name] = (
            x,
            x[:, 0] * 3 + draw.normal(size=len(x)) if numbers else (x[:, 1] > 1000 * i).astype(int),
        )
    return made


def alone(rows: Federation) -> list[Federation]:
    return [rows.only(c) for c in rows.clients]


def introduced(rows: Federation, **more: Any) -> list[Introduction]:
    return [Introduction.of(c, rows.only(c), "key", **more) for c in rows.clients]


@pytest.mark.parametrize("by", ["global", "client", "none", "auto"])
@pytest.mark.parametrize("target", ["auto", "global", "none"])
def test_scaling_out_of_what_sites_tell_is_that_of_all_rows(by: str, target: str):
    rows = from_arrays(table(numbers=True))
    told = [Told.of(one, by, target) for one in alone(rows)]
    ours = scaling_of([Told.from_list(json.loads(json.dumps(one.to_list()))) for one in told], rows)
    theirs = standardized(rows, by, target).scaling
    if theirs is None:
        assert ours is None
        return
    assert ours is not None
    assert (ours.by, ours.target, ours.bytes_up) == (theirs.by, theirs.target, theirs.bytes_up)
    assert by == "client" or ours.rows == theirs.rows


def test_nothing_but_moments_is_told():
    own = from_arrays({"ann": table()["ann"]})
    assert Told.of(own, "none", "auto").to_list() == ["none", False, None, None]
    (count, mean, squares) = Told.of(own, "global", "auto").to_list()[2]
    x = own.x[own.splits["train"].rows(0)].double().numpy()
    assert count == len(x)
    np.testing.assert_allclose(mean, x.mean(0), rtol=1e-9)
    np.testing.assert_allclose(squares, x.var(0) * len(x), rtol=1e-6)


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("by", ["global", "client"])
def test_a_deployed_table_is_trained_as_in_a_simulation(by: str, numbers: bool, tmp_path: Path):
    rows = from_arrays(table(numbers=numbers))
    text = f"[data]\nstandardize = '{by}'\n[run]\nrounds = 3\n[engine]\nname = 'loop'\n" + MODEL
    spec = parse(text)
    theirs = run(spec, tmp_path / "loop", federation=rows)
    sites = sites_of(rows)
    ours = lead(
        spec, tmp_path / "run", Threads({c: s.answer for c, s in sites.items()}), list(sites), seconds=60
    )
    assert all_equal(to_message(ours.state)[0], to_message(theirs.state)[0])
    assert ours.summary == theirs.summary


def test_classes_are_those_of_any_site_by_their_names():
    x = np.arange(12.0).reshape(6, 2)
    own = {
        "ann": ["cat", "dog", "cat", "dog", "cat", "dog"],
        "bob": ["dog", "owl", "dog", "owl", "dog", "owl"],
    }
    rows = {c: from_arrays({c: (x, np.array(y))}, test={}) for c, y in own.items()}
    assert {c: one.class_names for c, one in rows.items()} == {"ann": ("cat", "dog"), "bob": ("dog", "owl")}
    agreement = agree([Introduction.of(Client(c), one, "") for c, one in rows.items()], "", "r")
    assert agreement.outline.class_names == ("cat", "dog", "owl")
    assert taken(rows["bob"], agreement.outline).y.tolist() == [1, 2, 1, 2, 1, 2]
    assert taken(rows["ann"], agreement.outline).classes == 3


def other_columns(one: Introduction) -> Introduction:
    return replace(one, outline=replace(one.outline, shape=(4,)))


CASES = {
    "has other columns": (other_columns, r"site = 'cem': its shape are \(4,\), those of ann \(3,\)"),
    "predicts numbers": (lambda one: replace(one, outline=replace(one.outline, classes=0)), "site = 'cem'"),
    "another version": (
        lambda one: replace(one, versions={**one.versions, "torch": "1.0"}),
        "runs torch 1.0",
    ),
    "no rows": (lambda one: replace(one, rows={**one.rows, "train": 0}), "has no training rows"),
    "another's name": (lambda one: replace(one, who=Client("ann")), "two sites have this name"),
}


@pytest.mark.parametrize("case", CASES)
def test_whoever_does_not_fit_is_named(case: str):
    changed, told = CASES[case]
    known = introduced(from_arrays(table()))
    known[2] = changed(known[2])
    with pytest.raises(KinfolkError, match=told):
        agree(known, "", "r")


def test_a_site_without_test_rows_takes_part():
    whole = table()
    rows = from_arrays(whole, test={c: whole[c] for c in NAMES[:3]})
    assert agree(introduced(rows), "", "r").rows[NAMES[3]]["test"] == 0


def test_an_agreement_holds_no_row_and_reads_back():
    rows = from_arrays(table())
    agreement = agree(introduced(rows), "text", "r")
    assert Agreement.read(agreement.text()) == agreement
    shell = agreement.federation()
    assert shell.rows == 0
    assert torch.equal(shell.splits["train"].counts(), rows.splits["train"].counts())


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"who": 3}', "[" * 5000])
def test_what_is_no_introduction_or_agreement_is_one_line(text: str):
    for kind in (Introduction, Agreement):
        with pytest.raises(KinfolkError, match="cannot be read"):
            kind.read(text)


def test_a_site_refuses_an_agreement_that_is_not_about_it():
    rows = from_arrays(table())
    site = Site(NAMES[0], rows.only(NAMES[0]))

    def told(agreement: Agreement) -> str:
        asked = encode({}, {"to": "ann", "do": "begin", "agreement": agreement.text()})
        return decode(site.answer(asked))[1].get("error", "")

    own = [Introduction.of(c, rows.only(c), "key") for c in NAMES]
    own[0] = replace(own[0], key=site.identity.public)
    good = agree(own, MODEL, "r1")
    assert told(good) == ""
    assert "other keys" in told(replace(good, keys={**good.keys, NAMES[0]: "00" * 64}))
    assert "no name of a run" in told(replace(good, run="../../r1"))
    assert "install the same" in told(replace(good, versions={**good.versions, "kinfolk": "9"}))
    fewer = {**good.rows, NAMES[0]: {**good.rows[NAMES[0]], "train": 1}}
    assert "other rows" in told(replace(good, rows=fewer))
    assert "because of algorithm.name" in told(replace(good, spec="[algorithm]\nname = 'slfedd'"))


@pytest.mark.parametrize("change", ["on_divergence = 'rollback'", "attack = 'scaled'", "absent = 0.1"])
def test_what_only_a_simulation_can_do_is_refused(change: str, tmp_path: Path):
    sites = sites_of(from_arrays(table()))
    carrier = Threads({c: site.answer for c, site in sites.items()})
    with pytest.raises(KinfolkError, match=rf"^run\.{change.partition(' ')[0]} = "):
        lead(parse(f"[run]\n{change}\n{MODEL}"), tmp_path / "run", carrier, list(sites), seconds=5)
    assert not (tmp_path / "run").exists()


def test_keys_that_the_authority_does_not_vouch_for_are_refused():
    """Whoever stands in the middle may put its own keys in a site's place; nobody takes part with them."""
    authority, rows = Identity.new(), from_arrays(table())
    keys = {c: Identity.new() for c in NAMES}
    words = {c: bond(authority, "lungs", c, keys[c].public) for c in NAMES}
    trust = Trust("lungs", authority.public, words[NAMES[0]])
    site = Site(NAMES[0], rows.only(NAMES[0]), identity=keys[NAMES[0]], trust=trust)
    good = agree([Introduction.of(c, rows.only(c), keys[c].public, words[c]) for c in NAMES], MODEL, "r1")

    def told(agreement: Agreement) -> str:
        asked = encode({}, {"to": "ann", "do": "begin", "agreement": agreement.text()})
        return decode(site.answer(asked))[1].get("error", "")

    eve, other = Identity.new(), Identity.new()
    assert told(good) == ""
    assert "vouch" in told(replace(good, keys={**good.keys, NAMES[1]: eve.public}))
    forged = bond(other, "lungs", NAMES[1], eve.public)
    swapped = replace(good, keys={**good.keys, NAMES[1]: eve.public}, bonds={**good.bonds, NAMES[1]: forged})
    assert "vouch" in told(swapped)
    elsewhere = bond(authority, "hearts", NAMES[1], keys[NAMES[1]].public)
    assert "vouch" in told(replace(good, bonds={**good.bonds, NAMES[1]: elsewhere}))
    double = {**good.keys, NAMES[1]: good.keys[NAMES[2]]}
    assert "vouch" in told(replace(good, keys=double, bonds={**good.bonds, NAMES[1]: good.bonds[NAMES[2]]}))
