"""What peers think of one another: read between rounds, summed up, and gone on with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from film import slfed

from kinfolk.algorithms.slfed import comparison
from kinfolk.algorithms.slfed.comparison import partners
from kinfolk.algorithms.slfed.trust import add_contacts, no_evidence
from kinfolk.contract import toy
from kinfolk.errors import KinfolkError
from kinfolk.experiment.run import run
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import override
from kinfolk.papers.trust_figure import read_trust, trust_figure, trust_table
from kinfolk.papers.trust_record import pictured, round_facts, trace_trust, with_direct
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Peer
from kinfolk.types import Client

SETS = ["data.clients=6", "data.rows=20", "data.groups=2", "model.name=logistic", "engine.name=loop"]
SLFED = ["algorithm.name=slfed", "algorithm.images.kind=noise", "algorithm.images.count=20"]
SPEC = override(Experiment(), [*SETS, *SLFED, "algorithm.shares.scheme=plain", "run.rounds=3"])


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trust") / "direct1"
    return folder, trace_trust(with_direct(SPEC, 1), folder)


def test_round_facts_by_hand():
    draw = Seed(0).numpy("facts")
    s, u = draw.random((5, 5)), draw.random((5, 5))
    known, listed = draw.random((5, 5)) < 0.8, draw.random((5, 5)) < 0.4
    for one in (known, listed):
        np.fill_diagonal(one, False)
    groups = [0, 1, 0, 1, 1]
    seen = {"s": s, "u": u, "known": known, "listed": listed}
    facts = round_facts({key: torch.from_numpy(one) for key, one in seen.items()}, groups)
    pairs = [(i, j) for i in range(5) for j in range(5) if i != j]
    own = [s[i, j] for i, j in pairs if known[i, j] and groups[i] == groups[j]]
    others = [s[i, j] for i, j in pairs if known[i, j] and groups[i] != groups[j]]
    asked = [groups[i] == groups[j] for i, j in pairs if listed[i, j]]
    assert facts == pytest.approx(
        {
            "u": np.mean([u[i, j] for i, j in pairs]),
            "known": known.sum() / 5,
            "listed": listed.sum() / 5,
            "listed_least": listed.sum(1).min(),
            "listed_most": listed.sum(1).max(),
            "sent": np.mean([any(row) for row in listed]),
            "s_same": np.mean(own),
            "s_other": np.mean(others),
            "listed_same": np.mean(asked),
            "chance_same": 8 / 20,
        }
    )


ABC = tuple(map(Client, "abc"))


def method(**options):
    return slfed(toy.learner("mlp", toy.alike()), **options)


def test_an_opinion_after_one_contact_and_the_list_of_the_more_alike():
    trust = add_contacts(no_evidence(3), {1: torch.tensor(0.25), 2: torch.tensor(0.75)})
    plain = method(shares__scheme="plain")
    seen = plain.look({Client("a"): {"trust": trust}}, RoundContext(Seed(0), 0, ABC))
    np.testing.assert_allclose(seen["s"][0], [0, 1.25 / 5, 1.75 / 5])
    np.testing.assert_allclose(seen["u"], [[1, 0.4, 0.4], [1, 1, 1], [1, 1, 1]])
    assert seen["listed"].tolist() == [[False, False, True], [False] * 3, [False] * 3]


@pytest.mark.parametrize(
    ("options", "round", "participation"),
    [
        ({}, 0, 1.0),  # a list of one is too short for shares
        ({"shares__scheme": "plain", "shares__min_members": 2}, 0, 1.0),
        ({"shares__scheme": "plain", "local_rounds": 5}, 4, 1.0),
        ({"shares__scheme": "plain"}, 0, 0.34),  # the cohort is another client
    ],
)
def test_lists_that_could_not_be_sent_are_not_counted(options, round, participation):
    trust = add_contacts(no_evidence(3), {1: torch.tensor(0.25), 2: torch.tensor(0.75)})
    memories, context = {Client("a"): {"trust": trust}}, RoundContext(Seed(0), round, ABC, participation)
    assert participation == 1 or "a" not in context.cohort
    seen = method(**options).look(memories, context)
    assert not seen["listed"].any()
    facts = round_facts(seen, [0, 1, 0])
    assert (facts["listed"], facts["sent"], facts["listed_same"]) == (0, 0, None)
    usual = method(shares__scheme="plain").look(memories, RoundContext(Seed(0), 5, ABC))
    assert usual["listed"].any(), "nothing was there to be left out"


def test_a_trace_is_the_run_with_its_opinions(traced, tmp_path):
    folder, facts = traced
    assert [one["round"] for one in facts["rounds"]] == [1, 2, 3]
    assert list(facts["pictures"]) == [str(one) for one in pictured(3)]
    result = run(with_direct(SPEC, 1), tmp_path / "whole")
    books = [result.memories[Client(who)]["trust"] for who in facts["clients"]]
    total = np.stack([sum(b[k].numpy() for k in ("alpha", "beta", "told_alpha", "told_beta")) for b in books])
    u = np.where(total > 0, 2 / (total + 2), 1.0)
    last = facts["rounds"][-1]
    assert last["u"] == pytest.approx(u[~np.eye(6, dtype=bool)].mean(), abs=1e-12)
    assert last["known"] == (total > 0).sum() / 6
    assert last["listed_most"] <= 2, "half of five"
    assert facts["rounds"][0]["u"] > last["u"]
    here, there = (
        (path / "rounds.jsonl").read_text().splitlines()[-1] for path in (folder, tmp_path / "whole")
    )
    assert json.loads(here)["summary"] == json.loads(there)["summary"]


def test_a_trace_goes_on_and_tells_of_one_long_run(traced, tmp_path):
    _, whole = traced
    told = []
    spec = with_direct(SPEC, 1)
    first = replace(spec, run=replace(spec.run, rounds=1))
    trace_trust(first, tmp_path / "t")
    gone_on = trace_trust(
        spec,
        tmp_path / "t",
        resume=True,
        watch=lambda event, facts: told.append((event, facts.get("rounds"))),
    )
    assert gone_on["rounds"] == whole["rounds"]
    assert [one for one in told if one[0] in ("resume", "round", "end")] == [
        ("resume", None),
        *[("round", 3)] * 2,
        ("end", None),
    ]
    shorter = {**gone_on, "rounds": gone_on["rounds"][:2], "pictures": {"1": gone_on["pictures"]["1"]}}
    (tmp_path / "t" / "trust.json").write_text(json.dumps(shorter))  # killed before the last was noted
    assert trace_trust(spec, tmp_path / "t", resume=True) == gone_on
    (tmp_path / "t" / "trust.json").unlink()
    with pytest.raises(KinfolkError, match="is at round 3, its trace at 0; choose another folder"):
        trace_trust(spec, tmp_path / "t", resume=True)
    with pytest.raises(KinfolkError, match="a run is there already"):
        trace_trust(spec, tmp_path / "t")


def test_refused_letters_are_in_the_audit_log_with_peer_round_and_reason(tmp_path, monkeypatch):
    def suspicious(images, like, sender, *how):
        if sender == "client-02":
            raise KinfolkError(f"images of {sender!r}", None, "look odd")
        return images

    names = trace_trust(SPEC, tmp_path / "sound")["clients"]
    assert "client-02" in names
    monkeypatch.setattr(comparison, "checked_images", suspicious)
    run(SPEC, tmp_path / "odd")

    def refused(folder):
        lines = map(json.loads, (tmp_path / folder / "audit.jsonl").read_text().splitlines())
        return [line for line in lines if line["event"] == "refused"]

    assert refused("sound") == []
    lines = refused("odd")
    met = {
        (r, who)
        for r in range(3)
        for who in partners(Peer("client-02", RoundContext(Seed(0), r, tuple(names))), 2)
    }
    by_peer = [line for line in lines if line["peer"] == "client-02"]
    assert {(line["round"], line["client"]) for line in by_peer} == met
    assert {line["reason"] for line in by_peer} == {"images of 'client-02': look odd"}


def test_where_all_are_of_one_group_nothing_is_said_of_groups(tmp_path):
    one = override(SPEC, ["data.groups=1", "data.shift=none", "run.rounds=1"])
    facts = trace_trust(one, tmp_path / "t")
    assert facts["groups"] is None
    assert [facts["rounds"][0][key] for key in ("s_same", "s_other", "listed_same")] == [None] * 3


def test_only_slfed_has_opinions(tmp_path):
    with pytest.raises(KinfolkError, match=r"algorithm\.name = 'fedavg': has no opinions"):
        trace_trust(Experiment(), tmp_path)
    assert with_direct(SPEC, 2).algorithm.options["images.kind"] == "noise"


def test_a_trace_is_drawn_from_its_file_alone(traced, tmp_path):
    folder, facts = traced
    found = read_trust(folder.parent)
    assert found == [facts]
    path = trust_figure(found, tmp_path / "new" / "trust.svg")
    text = Path(path).read_text()
    assert text.count("DS = 1, round") >= 2
    assert trust_table(found).row_count == 2
    nameless = {**facts, "groups": None, "rounds": [{**one, "s_same": None} for one in facts["rounds"]]}
    assert trust_figure([nameless, facts], tmp_path / "two.png").stat().st_size > 10_000


def test_a_spoiled_trace_is_one_line(tmp_path):
    (tmp_path / "trust.json").write_text("{")
    with pytest.raises(KinfolkError, match="cannot be read"):
        read_trust(tmp_path)
