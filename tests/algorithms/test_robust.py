"""Robust: trimmed k-means of models trained alone, then trimmed means, against NumPy and scikit-learn."""

import numpy as np
import pytest
import torch
from turned import turned

from kinfolk.algorithms import with_options
from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.robust import Robust, State
from kinfolk.clustering.agreement import agreement
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.contract.spoil import Passing
from kinfolk.engines.cohort import GuardSpec
from kinfolk.errors import KinfolkError
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Client, Stack


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_one_group_without_trimming_is_fedavg(engine):
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation)
    plain = toy.play_rounds(FedAvg(learner, "uniform"), federation, engine, score=False).state.model
    method = Robust(learner, k=1, first_epochs=1, cluster_trim=0.0, aggregate=Aggregator("trimmed", trim=0.0))
    got = toy.play_rounds(method, federation, engine, score=False).state.centres
    assert message_difference({n: t[0] for n, t in got.items()}, plain, 1e-5) == ""
    longer = toy.play_rounds(
        Robust(learner, k=1, aggregate=Aggregator("trimmed", trim=0.0)),
        federation,
        engine,
        rounds=1,
        score=False,
    ).state.centres
    assert message_difference({n: t[0] for n, t in longer.items()}, plain, 1e-3) != ""


def test_the_groups_are_found_once_and_kept():
    federation, truth = turned(3)
    method = Robust(toy.learner("mlp", federation), k=3)
    found = [toy.play_rounds(method, federation, "batched", rounds=r) for r in (1, 3)]
    assert agreement(list(found[0].groups), truth)["ari"] == 1.0
    assert found[1].groups == found[0].groups
    assert torch.equal(found[1].state.points, found[0].state.points)
    assert message_difference(found[1].state.centres, found[0].state.centres, 1e-4) != ""
    assert {way: spent for way, spent in found[1].ledger.items() if way == "alone"} == found[0].ledger


def test_who_comes_later_joins_the_nearest_group():
    federation, truth = turned(3)
    method = Robust(toy.learner("mlp", federation), k=3)
    late = federation.clients[2:4]
    early = [c for c in federation.clients if c not in late]
    outcome = toy.play_rounds(
        method, federation, "batched", rounds=2, cohort=lambda number: federation.clients if number else early
    )
    assert agreement(list(outcome.groups), truth)["ari"] == 1.0
    first = toy.play_rounds(method, federation, "batched", rounds=1, cohort=lambda number: early)
    assert first.state.placed.tolist() == [int(c in early) for c in federation.clients]
    # Newcomers are placed by a model that they trained alone, which is in nobody's mean.
    only_old = toy.play_rounds(method, federation, "batched", rounds=2, cohort=lambda number: early)
    assert message_difference(outcome.state.centres, only_old.state.centres, 1e-5) == ""


def test_fewer_replies_than_groups_leave_the_grouping_for_later():
    federation = toy.ragged()
    method = Robust(toy.learner("mlp", federation), k=3)
    start = method.init(method.learner.first, federation.clients, Seed(0))
    few = toy.play_rounds(method, federation, rounds=2, cohort=lambda number: federation.clients[:2]).state
    assert not few.placed.any()
    assert message_difference(few.centres, start.centres, 0) == ""


def poisoned(bad):
    """One client sends a model of -50 everywhere, which is no more than the guard lets pass."""

    def change(request, reply):
        if reply.clients[0] != bad:
            return reply
        model = {name: torch.full_like(t, -50) for name, t in reply.tree("model").items()}
        return Stack(reply.clients, reply.size, {"model": model})

    return lambda engine: Passing(engine, change)


def test_a_poisoned_client_is_trimmed():
    federation = toy.grouped((24,) * 10, side=8, noise=0.3, names=[Client(f"c{i}") for i in range(10)])
    learner = toy.learner("mlp", federation)

    def centre(trim, bad):
        method = Robust(learner, k=1, aggregate=Aggregator("trimmed", trim=trim))
        outcome = toy.play_rounds(
            method, federation, rounds=2, wrap=poisoned(bad), score=False, guard=GuardSpec(norm=0)
        )
        return torch.cat([t.flatten() for t in outcome.state.centres.values()])

    clean = centre(0.1, "nobody")
    assert (centre(0.1, "c4") - clean).abs().max() < 0.2
    assert (centre(0.0, "c4") - clean).abs().min() > 2


@pytest.mark.parametrize("mean", ["trimmed", "median", "mean"])
def test_the_models_of_groups_against_numpy(mean):
    draw = np.random.Generator(np.random.PCG64(1))
    points, group = draw.normal(size=(25, 2, 3)), draw.integers(2, size=25)
    names = tuple(Client(f"c{i:02}") for i in range(25))
    models = {"w": torch.from_numpy(points).float(), "n": torch.arange(25)}
    keep = {"w": torch.full((3, 2, 3), 7.0), "n": torch.tensor([1, 2, 3])}
    state = State(keep, torch.from_numpy(group), names, torch.ones(25, dtype=torch.int64), torch.zeros(3, 1))
    method = Robust(toy.learner("mlp", toy.alike()), k=3, aggregate=Aggregator(mean, trim=0.2))
    got = method.means(state, Stack(names, torch.arange(1, 26), {"model": models}))
    for g in range(2):
        ranked = np.sort(points[group == g], axis=0)
        cut = int(0.2 * len(ranked))
        assert cut > 0
        kept = ranked[cut : len(ranked) - cut] if mean == "trimmed" else ranked
        wanted = np.median(kept, axis=0) if mean == "median" else kept.mean(0)
        np.testing.assert_allclose(got["w"][g], wanted, rtol=1e-5, atol=1e-6)
        assert got["n"][g] == np.flatnonzero(group == g).max()
    assert got["w"][2].tolist() == keep["w"][2].tolist()
    assert got["n"][2] == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 0}, "algorithm.k = 0: give 1 or more"),
        ({"first_epochs": 0}, "algorithm.first_epochs = 0: give 1 or more"),
        ({"aggregate.trim": 0.5}, "algorithm.aggregate.trim = 0.5: give 0 or more and less than 0.5"),
        ({"cluster_trim": -0.1}, "algorithm.cluster_trim = -0.1: give 0 or more and less than 0.5"),
    ],
)
def test_options_out_of_range_are_refused(options, words):
    with pytest.raises(KinfolkError, match=words):
        with_options(Robust, toy.learner("mlp", toy.ragged()), options)


def test_more_groups_than_clients_are_refused():
    method = Robust(toy.learner("mlp", toy.alike()), k=5)
    with pytest.raises(KinfolkError, match=r"algorithm.k = 5: give at most 4"):
        method.init(method.learner.first, toy.alike().clients, Seed(0))


def test_k_means_cuts_the_outermost_of_each_group_off_its_centres():
    """Clients found far out in one coordinate must not move the centres that later clients are placed by."""
    learner = toy.learner("mlp", toy.alike())
    names = tuple(Client(f"c{i:02}") for i in range(40))
    draw = np.random.default_rng(0)
    width = sum(t.numel() for t in learner.first.values())
    flat = draw.normal(scale=0.01, size=(40, width)) + np.repeat([[-1.0], [1.0]], 20, axis=0)
    flat[::10, :5] += 0.7  # two of each group stand out, yet belong to it
    parts = np.split(flat, np.cumsum([t.numel() for t in learner.first.values()])[:-1], axis=1)
    models = {
        n: torch.from_numpy(part).float().reshape(40, *t.shape)
        for (n, t), part in zip(learner.first.items(), parts, strict=True)
    }
    got = Stack(names, torch.full((40,), 24), {"model": models})
    method = Robust(learner, k=2, cluster_trim=0.1)
    state = method.init(learner.first, names, Seed(0))
    found = method.place(state, got, RoundContext(Seed(0), 0, names))
    assert agreement(found.member.tolist(), np.repeat([0, 1], 20))["ari"] == 1.0
    for number in (0, 1):
        mine = flat[20 * number : 20 * number + 20]
        ranked = np.sort(mine, axis=0)[2:-2]  # a tenth of twenty on each side
        centre = found.points[int(found.member[20 * number])].numpy()
        np.testing.assert_allclose(centre, ranked.mean(0), atol=2e-3)
        assert np.abs(mine.mean(0) - ranked.mean(0)).max() > 0.05, "or plain means would do"
