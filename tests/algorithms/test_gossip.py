"""Gossip averaging against matrices in NumPy, on graphs whose links are counted here."""

import numpy as np
import pytest
import torch
from test_feddane import LR, line, regression

from kinfolk.algorithms.gossip import Gossip, metropolis
from kinfolk.algorithms.local import Local
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.errors import KinfolkError
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Peer
from kinfolk.types import Client, nbytes

EPOCHS, ROUNDS = 2, 3


def flat(model):
    return np.concatenate([t.double().numpy().ravel() for t in model.values()])


def matrix(graph, names):
    """W of Metropolis and Hastings from a table of links."""
    adjacent = np.array([[b in graph.get(a, ()) for b in names] for a in names], dtype=float)
    degree = adjacent.sum(1)
    weights = adjacent / (1 + np.maximum(degree[:, None], degree[None]))
    return weights + np.diag(1 - weights.sum(1))


def stacked(memories, names, key):
    return np.stack([flat(memories[c][key]) for c in names])


@pytest.mark.parametrize("engine", ["loop", "batched", "wire"])
def test_a_run_is_local_steps_and_products_with_a_matrix(engine):
    federation, rows = regression()
    learner, w = line(batch=16, epochs=EPOCHS)
    got = toy.play_rounds(Gossip(learner, "ring", 1), federation, engine, ROUNDS, score=False)
    names = federation.clients
    x = np.stack([w] * len(names))
    for _ in range(ROUNDS):
        z = x.copy()
        for i, c in enumerate(names):
            wide = np.column_stack([rows[c][0], np.ones(len(rows[c][0]))]).astype(np.float64)
            for _ in range(EPOCHS):
                z[i] -= LR * 2 / len(wide) * wide.T @ (wide @ z[i] - rows[c][1])
        x = np.full((3, 3), 1 / 3) @ z  # a ring of three, on which everybody has two links
    near = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(stacked(got.memories, names, "mixed"), x, **near)
    np.testing.assert_allclose(stacked(got.memories, names, "model"), z, **near)
    assert np.abs(x - z).max() > 0.01


@pytest.mark.parametrize(("topology", "chosen"), [("random", 1), ("random", 3), ("ring", 1), ("ring", 2)])
def test_weights_are_doubly_stochastic_and_mix_what_was_trained(topology, chosen):
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    method = Gossip(learner, topology, chosen)
    got = toy.play_rounds(method, federation, rounds=1)
    names, context = federation.clients, RoundContext(Seed(0), 0, federation.clients)
    graph = method.graph(Peer(names[0], context))
    w = matrix(graph, names)
    np.testing.assert_allclose(w.sum(0), 1)
    np.testing.assert_allclose(w, w.T)
    assert (np.diag(w) >= 0).all()
    if topology == "ring":
        assert (np.count_nonzero(w, 1) == 2 * chosen + 1).all()
        assert w[0, 0] == pytest.approx(1 / (2 * chosen + 1))
    for i, who in enumerate(names):
        ours = metropolis(graph, who)
        assert [ours.get(c, 0.0) for c in names] == pytest.approx(list(w[i] * (np.arange(len(w)) != i)))
    z = stacked(got.memories, names, "model")
    np.testing.assert_allclose(stacked(got.memories, names, "mixed"), w @ z, rtol=1e-5, atol=1e-6)
    alone = toy.play_rounds(Local(learner), federation, rounds=1, score=False).memories
    for who in names:
        assert message_difference({"m": got.memories[who]["model"]}, {"m": alone[who]["model"]}, 0) == ""
    assert set(got.scores) == {"centre", "personal"}
    assert got.scores["centre"] != got.scores["personal"]


def test_what_travels_is_a_model_to_each_link_and_nothing_to_a_server():
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    ledger = toy.play_rounds(Gossip(learner, "ring", 2), federation, rounds=1, score=False).ledger
    assert ledger["mix"] == {"across": 8 * 4 * nbytes({"m": learner.first})}
    assert ledger["train"] == {"down": 0, "up": 0}


def test_who_is_away_is_replaced_by_the_own_model():
    federation = toy.ragged()
    method = Gossip(toy.learner("mlp", federation), "ring", 1)
    away = federation.clients[2]
    got = toy.play_rounds(
        method, federation, rounds=1, absent=lambda context, who: who == away, score=False
    ).memories
    left, me, right = federation.clients[0], federation.clients[1], away
    z = {c: flat(got[c]["model"]) for c in (left, me)}
    np.testing.assert_allclose(flat(got[me]["mixed"]), (z[left] + 2 * z[me]) / 3, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(flat(got[right]["mixed"]), flat(method.learner.first))


def test_a_message_that_is_no_model_is_refused_by_name_and_moves_nobody():
    federation = toy.ragged()
    method = Gossip(toy.learner("mlp", federation), "ring", 1)
    names = federation.clients
    me = Peer(names[1], RoundContext(Seed(0), 0, names))
    first = method.learner.first
    memory = {**method.init_client(names[1]), "model": first}
    good = {n: t + 3 for n, t in first.items()}
    leaf = next(iter(first))
    for bad in (
        {**good, leaf: good[leaf] * float("nan")},
        {n: t for n, t in good.items() if n != leaf},
        {**good, "more": torch.zeros(1)},
        {**good, leaf: good[leaf].double()},
        {**good, leaf: good[leaf].flatten()[:-1]},
        None,
    ):
        after = method.receive({names[0]: {"model": good}, names[2]: {"model": bad}}, memory, me)
        np.testing.assert_allclose(flat(after["mixed"]), flat(first) + 1, rtol=1e-5, atol=1e-6)
        assert list(method.complaints(after, names)) == [names[2]]
    stranger = method.receive({names[5]: {"model": good}}, memory, me)
    np.testing.assert_array_equal(flat(stranger["mixed"]), flat(first))
    assert list(method.complaints(stranger, names)) == [names[5]]


def test_only_the_cohort_is_linked():
    names = tuple(map(Client, "abcdefgh"))
    for ring in ("random", "ring"):
        for number in range(5):
            context = RoundContext(Seed(3), number, names, 0.5)
            graph = Gossip(toy.learner("mlp", toy.ragged()), ring, 2).graph(Peer(names[0], context))
            assert set(graph) == set(context.cohort)
            assert all(a in graph[b] and a != b for a in graph for b in graph[a])


def test_nobody_to_write_to_is_refused():
    with pytest.raises(KinfolkError, match="neighbours = 0"):
        Gossip(toy.learner("mlp", toy.ragged()), neighbours=0)
