"""Clustered-HDBSCAN against scikit-learn on distances by hand, and the numbers that groups go by."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import HDBSCAN
from torch import nn
from turned import turned

from kinfolk.algorithms.clustered_hdbscan import ClusteredHDBSCAN, renumbered
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.errors import KinfolkError
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed


def trained(method, federation):
    """What everybody sends in the first round."""
    with toy.coordinated(method, federation) as coordinator:
        context = RoundContext(Seed(0), 0, federation.clients)
        return coordinator.perform(
            Ask("update", federation.clients, {"model": method.learner.first}), context
        )


def partition(labels):
    """Labels as a set of sets, so that numbers do not matter."""
    return {frozenset(np.flatnonzero(np.array(labels) == k).tolist()) for k in set(labels)}


@pytest.mark.parametrize("groups", [2, 3])
def test_groups_are_scikit_learns_and_models_their_means(groups):
    truth = [i % groups for i in range(8)]
    federation = toy.grouped((30, 14, 22, 18, 26, 20, 16, 24), side=8, noise=0.3, turned=truth)
    method = ClusteredHDBSCAN(toy.learner("mlp", federation, epochs=3))
    got = trained(method, federation)
    points = np.concatenate(
        [got.tree("model")[n].flatten(1).double().numpy() for n in ("head.weight", "head.bias")], axis=1
    )
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    apart = np.clip(1 - unit @ unit.T, 0, None)
    np.fill_diagonal(apart, 0)
    found = HDBSCAN(min_cluster_size=2, min_samples=1, metric="precomputed", copy=True).fit_predict(apart)
    alone = [k if k >= 0 else -1 - i for i, k in enumerate(found.tolist())]
    outcome = toy.play_rounds(method, federation, rounds=1, score=False)
    assert partition(list(outcome.groups)) == partition(alone)
    assert len(set(outcome.groups)) > 1
    for k in set(outcome.groups):
        mine = np.array(outcome.groups) == k
        for name, leaf in got.tree("model").items():
            mean = np.average(leaf.double().numpy()[mine], axis=0, weights=got.size.numpy()[mine])
            np.testing.assert_allclose(outcome.state.centres[name][k].numpy(), mean, rtol=1e-5, atol=1e-7)
        assert len(set(np.array(truth)[mine])) == 1  # a kind may fall into several groups, but none mixes two


def test_with_one_group_it_is_fedavg():
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    plain = toy.play_rounds(FedAvg(learner), federation, score=False).state.model
    # No two of eight make a group of nine, and who belongs to none joins the nearest: everybody.
    method = ClusteredHDBSCAN(learner, min_size=9, noise="nearest")
    got = toy.play_rounds(method, federation, score=False)
    assert got.groups == (0,) * 8
    assert message_difference({n: t[0] for n, t in got.state.centres.items()}, plain, 1e-5) == ""


def test_strays_go_alone_and_never_need_more_places_than_clients():
    federation = toy.ragged()
    method = ClusteredHDBSCAN(toy.learner("mlp", federation), min_size=9)
    outcome = toy.play_rounds(method, federation, rounds=3, participation=0.5, score=False)
    assert outcome.state.k <= 8
    full = toy.play_rounds(method, federation, rounds=2, score=False)
    assert sorted(full.groups) == list(range(8))
    assert full.state.k == 8


def test_who_is_not_heard_stays_in_its_group():
    federation, _ = turned(2)
    method = ClusteredHDBSCAN(toy.learner("mlp", federation, epochs=3))
    before = toy.play_rounds(method, federation, rounds=1, score=False)
    few = federation.clients[:4]
    after = toy.play_rounds(
        method, federation, rounds=2, cohort=lambda t: few if t else federation.clients, score=False
    )
    assert after.groups[4:] == before.groups[4:]
    for k in set(before.groups) - set(after.groups[:4]):
        for name, leaf in after.state.centres.items():
            assert torch.equal(leaf[k], before.state.centres[name][k])


labels = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=9)


@given(labels, st.sets(st.integers(0, 5)))
def test_new_groups_go_on_under_the_numbers_they_share_most_with(pairs, taken):
    found = torch.unique(torch.tensor([n for n, _ in pairs]), return_inverse=True)[1]
    old = torch.tensor([o for _, o in pairs])
    label = renumbered(found, old, torch.ones(len(pairs)), taken).tolist()
    assert partition(label) == partition(found.tolist())
    # As many members keep their number as by the best of all renamings.
    news = sorted(set(found.tolist()))
    names = [*range(4), *[-1] * len(news)]
    best = max(
        sum(names[p[n]] == o for n, o in zip(found.tolist(), old.tolist(), strict=True))
        for p in permutations(range(len(names)), len(news))
    )
    assert sum(a == b for a, b in zip(label, old.tolist(), strict=True)) == best
    # A new number is the lowest that nobody has.
    fresh = {k for k in label if k not in old.tolist()} | {
        k for k in label if not any(a == b == k for a, b in zip(label, old.tolist(), strict=True))
    }
    kept = set(label) - fresh
    assert not fresh & taken
    assert sorted(fresh) == [k for k in range(20) if k not in kept | taken][: len(fresh)]


def test_equals_are_parted_by_rows_and_not_by_place():
    old, found = torch.zeros(2, dtype=torch.int64), torch.tensor([0, 1])
    assert renumbered(found, old, torch.tensor([1, 9]), set()).tolist() == [1, 0]
    assert renumbered(found, old, torch.tensor([9, 1]), set()).tolist() == [0, 1]


def test_bad_options_and_headless_networks_are_refused():
    learner = toy.learner("mlp", toy.ragged())
    with pytest.raises(KinfolkError, match=r"algorithm.min_size = 1"):
        ClusteredHDBSCAN(learner, min_size=1)
    with pytest.raises(KinfolkError, match=r"last layer is called 'head'"):
        ClusteredHDBSCAN(replace(learner, module=nn.Linear(3, 4)))
