"""MD-ICFL with more clusters than groups: which of them are merged, into what, and which are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from mdicfl_options import DISTINCT, FEW, mdicfl
from test_mdicfl import one_round, started
from turned import turned

from kinfolk.algorithms.mdicfl import merging
from kinfolk.algorithms.mdicfl.merging import as_one, merged
from kinfolk.clustering.agreement import agreement
from kinfolk.contract import toy
from kinfolk.federation.sources import build
from kinfolk.federation.spec import DataSpec
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.models import build_model
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan


def test_merging_joins_what_agrees_and_nothing_else(monkeypatch):
    federation, _ = turned(3)
    method = mdicfl(toy.learner("mlp", federation), k=5, **DISTINCT, **FEW)
    state = replace(started(method, federation), shape=(1, 8, 8))
    context = RoundContext(Seed(0), 1, federation.clients)
    member = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3])  # nobody is in the last
    slightly = torch.tensor([1.0, 1.0, 1.0001, 1.0, 1.0])
    twins = {
        n: t[[0, 1, 0, 3, 0]] * slightly.reshape(-1, *[1] * (t.dim() - 1)) for n, t in state.centres.items()
    }
    before = replace(state, member=member, centres=twins)
    probe = method.probe(before, context)[1]
    after, told = merged(before, method.learner, probe, True)
    assert told == {"clusters": 3, "effective": 3}
    assert after.member.tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0, 3, 3, 3]
    assert after.one_with.tolist() == [0, 1, 0, 3, 4]
    for name, t in twins.items():
        wanted = (3 * t[0].double().numpy() + 4 * t[2].double().numpy()) / 7
        np.testing.assert_allclose(after.centres[name][0].numpy(), wanted, rtol=1e-6, atol=1e-8)
        assert torch.equal(after.centres[name][2], after.centres[name][0])
        assert all(torch.equal(after.centres[name][k], t[k]) for k in (1, 3, 4))
    same, told = merged(before, method.learner, probe, False)
    assert same is before
    assert told == {"clusters": 4, "effective": 3}
    monkeypatch.setattr(merging, "AGREE", 0.0)
    assert merged(before, method.learner, probe, True)[0] is before
    chained = after.one_with.clone()
    chained[0] = 1  # what was merged before follows
    assert as_one(after, chained[after.one_with]).one_with.tolist() == [1, 1, 1, 3, 4]


@pytest.mark.parametrize("privacy", ["weak", "strong"])
def test_a_merged_cluster_is_a_copy_that_nobody_joins(privacy, monkeypatch):
    monkeypatch.setattr(merging, "AGREE", 2.1)
    federation, _ = turned(2)
    method = mdicfl(
        toy.learner("mlp", federation),
        k=3,
        privacy=privacy,
        **DISTINCT,
        merge=True,
        **FEW,
    )
    state = started(method, federation)
    state, told, _ = one_round(method, state, federation)
    assert told["clusters"] > told["effective"] == 1, "too early"
    state, told, _ = one_round(method, state, federation, 1)
    assert told["clusters"] == 1, "everything agrees by so lenient a measure"
    assert state.one_with.tolist() == [0, 0, 0]
    rows = method.probe(state, RoundContext(Seed(0), 1, ()))[1].x
    assert torch.equal(rows[0], rows[2]), "rows are made once"
    state, told, _ = one_round(method, state, federation, 2)
    assert told["clusters"] == 1
    assert state.member.tolist() == [0] * 12
    assert all(torch.equal(t[0], t[2]) for t in state.centres.values())


@pytest.mark.slow
def test_six_clusters_on_four_groups_end_as_four():
    data = DataSpec("digits", clients=24, rows=60, groups=4, shift="rotation", seed=0)
    federation = build(data, Seed(0))
    with Seed(0).borrowed("init"):
        module = build_model("mlp", federation.shape, 10, {"hidden": [32]})
    learner = Learner(module, find_loss("cross_entropy"), 10, plan=Plan(20, 4), lr=0.1)
    method = mdicfl(learner, k=6, **{"pseudo.samples": 10, "search.iterations": 50}, merge=True)
    found = toy.play_rounds(method, federation, "batched", rounds=7, participation=1.0, score=False)
    assert len(set(found.groups)) == 4
    assert agreement(list(found.groups), federation.truth)["ari"] >= 0.95
    plain = replace(method, merge=False)
    assert (
        len(
            set(
                toy.play_rounds(plain, federation, "batched", rounds=4, participation=1.0, score=False).groups
            )
        )
        == 6
    )
