"""The clustered test algorithm: messages for each client, folds of one's own, groups and their scores."""

import numpy as np
import pytest
import torch
from nearest import ByNearest, Nearest, flat

from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.engines.choose import ENGINES
from kinfolk.experiment.score import score_groups
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Client, Stack

TURNED = (0, 2, 0, 2, 2, 0, 0, 2)


def planted():
    """Eight clients in two groups whose labels contradict each other."""
    return toy.grouped((24,) * 8, side=8, noise=0.3, turned=TURNED)


@pytest.mark.parametrize("engine", ENGINES)
def test_planted_groups_are_found(engine):
    federation = planted()
    algorithm = Nearest(toy.learner("mlp", federation, epochs=2))
    outcome = toy.play_rounds(algorithm, federation, engine, rounds=3)
    context = RoundContext(Seed(0), 3, federation.clients)
    truth = torch.tensor(TURNED)
    found = score_groups(algorithm, outcome.state, outcome.state, federation.clients, context, truth)
    assert (found["ari"], found["nmi"], found["purity"]) == (1.0, 1.0, 1.0)
    assert sorted(found["sizes"].values()) == [4, 4]
    assert found["switch"] == 0
    loss = np.mean([loss for _, loss in outcome.scores["centre"].values()])
    common = toy.play_rounds(FedAvg(algorithm.learner), federation, engine, rounds=3)
    assert loss < 0.5 * np.mean([loss for _, loss in common.scores["centre"].values()])


def test_a_sampled_cohort_leaves_the_groups_of_others_alone():
    federation = planted()
    algorithm = Nearest(toy.learner("mlp", federation, epochs=2))
    names = federation.clients
    every = toy.play_rounds(algorithm, federation, rounds=1)
    some = toy.play_rounds(
        algorithm, federation, rounds=2, cohort=lambda number: names if number == 0 else names[5:7]
    )
    assert some.groups == every.groups


@pytest.mark.parametrize("engine", ENGINES)
def test_one_centre_is_fedavg_with_uniform_weights(engine):
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation)
    one = toy.play_rounds(Nearest(learner, k=1), federation, engine, rounds=3, participation=0.6)
    mean = toy.play_rounds(FedAvg(learner, "uniform"), federation, engine, rounds=3, participation=0.6)
    centre = {n: t[0] for n, t in one.state.centres.items()}
    assert message_difference(centre, mean.state.model, 1e-5) == ""
    assert set(one.groups) == {0}


def test_centres_that_nothing_joins_stay_where_they_were():
    federation = toy.ragged()
    algorithm = Nearest(toy.learner("tiny_cnn", federation), k=5)
    before = toy.play_rounds(algorithm, federation, rounds=1).state
    after = toy.play_rounds(
        algorithm, federation, rounds=2, cohort=lambda number: federation.clients[: 1 if number else None]
    )
    joined = after.groups[0]
    for name, old in before.centres.items():
        for k in range(5):
            if k != joined:
                assert torch.equal(after.state.centres[name][k], old[k])
    weights = after.state.centres["conv2.weight"]
    assert not torch.equal(weights[joined], before.centres["conv2.weight"][joined])


def test_the_fold_does_not_mind_how_replies_are_cut_into_chunks():
    draw = torch.Generator().manual_seed(3)
    names = [Client(f"c{i}") for i in range(7)]
    body = {"w": torch.randn(7, 4, generator=draw), "n": torch.arange(7)}
    replies = {c: (1, {"model": {k: t[i] for k, t in body.items()}}) for i, c in enumerate(names)}
    centres = {"w": torch.randn(3, 4, generator=draw), "n": torch.zeros(3, dtype=torch.int64)}
    by = ByNearest(centres, ("w",))
    ends = []
    for cut in (1, 3, 7):
        total = by.begin()
        for i in range(0, 7, cut):
            total = by.add(total, Stack.of({c: replies[c] for c in names[i : i + cut]}))
        ends.append(by.end(total))
    apart = ((body["w"].double().numpy()[:, None] - centres["w"].double().numpy()) ** 2).sum(2)
    near = apart.argmin(1)
    for found, label in ends:
        assert [label[c] for c in names] == near.tolist()
        for k in range(3):
            mine = near == k
            mean = body["w"].double().numpy()[mine].mean(0) if mine.any() else centres["w"][k].numpy()
            np.testing.assert_allclose(found["w"][k].numpy(), mean, rtol=1e-6)
            assert found["n"][k] == (body["n"].numpy()[mine].max() if mine.any() else 0)
    assert len(set(near.tolist())) > 1


def test_distances_leave_buffers_out():
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation)
    stacked = {n: t[None] for n, t in learner.first.items()}
    assert flat(stacked, learner.names).shape == (1, sum(learner.first[n].numel() for n in learner.names))
