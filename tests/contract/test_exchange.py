"""Clients that only talk to one another: what they send, where it goes and what becomes of it."""

import numpy as np
import pytest
import torch
from gossip import Gossip

from kinfolk.algorithms.local import Local
from kinfolk.contract import toy
from kinfolk.contract.spoil import Passing
from kinfolk.engines.choose import ENGINES
from kinfolk.script import Ask, Exchange, play
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import nbytes


def models(memories):
    """Each client's whole model as one float64 row, by name."""
    return {
        c: np.concatenate([t.double().numpy().ravel() for t in m["model"].values()])
        for c, m in memories.items()
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_but_an_empty_reply_reaches_the_coordinator(engine):
    federation = toy.ragged()
    algorithm = Gossip(toy.learner("mlp", federation))
    replies, requests = [], []

    def watch(request, reply):
        replies.append(reply)
        return reply

    with toy.coordinated(
        algorithm, federation, engine, wrap=lambda inner: Passing(inner, watch)
    ) as coordinator:
        context = RoundContext(Seed(0), 0, federation.clients)

        def perform(request):
            requests.append(request)
            answer = coordinator.perform(request, context)
            assert answer is None if isinstance(request, Exchange) else answer.body == {}
            return answer

        state, info = play(algorithm.round(None, federation.clients, context), perform)
        sent, _ = coordinator.ledger.take()
    assert [type(request) for request in requests] == [Ask, Exchange]
    assert (requests[0].shared, requests[0].each, requests[0].fold) == ({}, None, None)
    assert len(replies) == len(federation.clients)
    assert all(reply.body == {} for reply in replies)
    letter = nbytes({"model": algorithm.learner.first})
    assert sent == {
        "practise": {"down": 0, "up": 0},
        "gossip": {"across": 2 * letter * len(federation.clients)},
    }
    assert (state, info) == (None, {})


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_on_the_ring_is_the_mean_with_both_neighbours(engine):
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation)
    trained = toy.play_rounds(Local(learner), federation, "loop", rounds=1).memories
    after = toy.play_rounds(Gossip(learner), federation, engine, rounds=1).memories
    names, count = federation.clients, len(federation.clients)
    for i, who in enumerate(names):
        near = [names[i], names[(i - 1) % count], names[(i + 1) % count]]
        for leaf, got in after[who]["model"].items():
            parts = np.stack([trained[c]["model"][leaf].numpy() for c in near])
            if parts.dtype.kind == "i":
                assert got.item() == parts.max()
            else:
                mean = parts.astype(np.float64).sum(0) / 3
                np.testing.assert_allclose(got.numpy(), mean, rtol=1e-5, atol=1e-6)


def test_who_is_missing_neither_sends_nor_receives():
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    away = federation.clients[2]
    trained = models(toy.play_rounds(Local(learner), federation, rounds=1).memories)
    outcome = toy.play_rounds(Gossip(learner), federation, rounds=1, absent=lambda context, who: who == away)
    after = models(outcome.memories)
    names = federation.clients
    first = np.concatenate([t.double().numpy().ravel() for t in learner.first.values()])
    np.testing.assert_array_equal(after[away], first)
    beside = (trained[names[0]] + trained[names[1]]) / 2
    np.testing.assert_allclose(after[names[1]], beside, rtol=1e-5, atol=1e-6)
    assert outcome.named("absent") == {away}


@pytest.mark.parametrize("neighbours", ["ring", "random"])
def test_gossip_without_training_comes_to_an_agreement(neighbours):
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    start = toy.play_rounds(Local(learner), federation, rounds=2).memories
    algorithm = Gossip(learner, neighbours, train=False)
    with toy.coordinated(algorithm, federation) as coordinator:
        coordinator.engine.memories.update(start)
        for number in range(60):
            toy.play_one(
                algorithm,
                None,
                federation.clients,
                coordinator,
                RoundContext(Seed(0), number, federation.clients),
            )
        end = models(dict(coordinator.engine.memories))
    before, after = np.stack(list(models(start).values())), np.stack([end[c] for c in federation.clients])
    apart = np.abs(before - before.mean(0)).max()
    assert np.abs(after - after.mean(0)).max() < 1e-4 * apart
    if neighbours == "ring":
        # Both neighbours weigh the same in both directions, so the mean of all never moves.
        np.testing.assert_allclose(after.mean(0), before.mean(0), rtol=0, atol=1e-5 * apart)


def test_random_neighbours_follow_from_the_seed_and_the_sender():
    federation = toy.ragged()
    algorithm = Gossip(toy.learner("mlp", federation), "random")
    letters = []

    def listen(seed):
        with toy.coordinated(algorithm, federation) as coordinator:
            swap = algorithm.tasks()["gossip"]
            return set(
                coordinator.engine.swap(
                    swap, federation.clients, RoundContext(Seed(seed), 3, federation.clients)
                )
            )

    letters = [listen(seed) for seed in (0, 0, 1)]
    assert letters[0] == letters[1] != letters[2]
    assert all(sender != to for sender, to in letters[0])
    assert len(letters[0]) == 2 * len(federation.clients)


def test_integers_are_not_averaged():
    federation = toy.ragged()
    algorithm = Gossip(toy.learner("tiny_cnn", federation))
    memories = toy.play_rounds(algorithm, federation, rounds=1).memories
    count = memories["eve"]["model"]["norm1.num_batches_tracked"]
    assert count.dtype == torch.int64
    assert count.item() == 4  # thirty rows in batches of eight
