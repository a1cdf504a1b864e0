"""PENS step by step in NumPy and PyTorch: who is asked, whose loss is lowest, what is mixed, who is near."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from turned import turned

from kinfolk.algorithms.pens import PENS, neighbours
from kinfolk.contract import toy
from kinfolk.errors import KinfolkError
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Peer
from kinfolk.types import nbytes

SAMPLED, TOP, SELECT = 4, 2, 3


def flat(model):
    return np.concatenate([t.double().numpy().ravel() for t in model.values()])


def asked(names, number, who, count, among=None):
    """Whom a client draws, by the stream that the method says it draws from."""
    others = [c for c in names if c != who and (among is None or c in among)]
    order = Seed(0).numpy("pens", number, who).permutation(len(others))
    return [others[i] for i in order[:count]]


@torch.no_grad()
def loss_on(learner, federation, model, place):
    network = copy.deepcopy(learner.module).eval()
    network.load_state_dict(model)
    rows = federation.splits["train"].rows(place)
    return float(nn.functional.cross_entropy(network(federation.x[rows]), federation.y[rows]))


def mean_of(models):
    return {
        n: torch.stack([m[n] for m in models]).double().mean(0).to(t.dtype)
        if t.is_floating_point()
        else torch.stack([m[n] for m in models]).amax(0)
        for n, t in models[0].items()
    }


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("network", ["mlp", "tiny_cnn"])
def test_the_first_rounds_mix_the_models_of_lowest_loss(network, engine):
    federation = toy.ragged()
    learner = toy.learner(network, federation)
    names = federation.clients
    taken, chance = np.zeros((8, 8)), np.zeros((8, 8))
    for rounds in range(1, SELECT + 1):
        got = toy.play_rounds(PENS(learner, SAMPLED, TOP, SELECT), federation, engine, rounds, score=False)
        z = {c: got.memories[c]["model"] for c in names}
        for i, who in enumerate(names):
            peers = asked(names, rounds - 1, who, SAMPLED)
            best = sorted(peers, key=lambda c, i=i: loss_on(learner, federation, z[c], i))[:TOP]
            mixed = mean_of([z[who], *(z[c] for c in best)])
            np.testing.assert_allclose(
                flat(got.memories[who]["mixed"]), flat(mixed), rtol=1e-4, atol=1e-5, err_msg=who
            )
            for c in peers:
                chance[i, names.index(c)] += TOP / SAMPLED
                taken[i, names.index(c)] += c in best
            np.testing.assert_allclose(got.memories[who]["taken"], taken[i])
            np.testing.assert_allclose(got.memories[who]["chance"], chance[i])
    for i, who in enumerate(names):
        near = [c for j, c in enumerate(names) if taken[i, j] > chance[i, j] + 1e-9]
        assert list(neighbours(got.memories[who], names)) == near


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_later_rounds_mix_the_models_of_neighbours_alone(engine):
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    names = federation.clients
    got = toy.play_rounds(PENS(learner, SAMPLED, TOP, SELECT), federation, engine, SELECT + 1, score=False)
    z = {c: got.memories[c]["model"] for c in names}
    fewer = 0
    for who in names:
        near = neighbours(got.memories[who], names)
        peers = asked(names, SELECT, who, TOP, near or None)
        fewer += len(peers) < TOP
        mixed = mean_of([z[who], *(z[c] for c in peers)])
        np.testing.assert_allclose(flat(got.memories[who]["mixed"]), flat(mixed), rtol=1e-5, atol=1e-6)
    assert fewer < len(names)


def test_neighbours_are_of_the_own_group():
    federation, groups = turned(2)
    learner = toy.learner("mlp", federation)
    got = toy.play_rounds(PENS(learner, 5, 2, 8), federation, "batched", 8, score=False)
    names = federation.clients
    inside = total = 0
    for i, who in enumerate(names):
        near = [names.index(c) for c in neighbours(got.memories[who], names)]
        inside += sum(groups[i] == groups[j] for j in near)
        total += len(near)
    assert total >= len(names)
    assert inside >= 0.9 * total


def test_the_bytes_on_record_are_one_model_for_each_that_was_asked():
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    ledger = toy.play_rounds(PENS(learner, SAMPLED, TOP, SELECT), federation, rounds=1, score=False).ledger
    model = nbytes({"m": learner.first})
    assert ledger["answer"] == {"across": 8 * SAMPLED * model}
    assert ledger["request"] == {"across": 8 * SAMPLED}
    assert {way: n for t in ("train", "select") for way, n in ledger[t].items()} == {"down": 0, "up": 0}


def test_bad_models_are_taken_by_nobody_and_named():
    federation = toy.ragged()
    method = PENS(toy.learner("mlp", federation), SAMPLED, TOP, SELECT)
    names, me = federation.clients, federation.clients[0]
    peer = Peer(me, RoundContext(Seed(0), 0, names))
    memory = method.init_client(me)
    wanted = method.wanted(memory, peer)
    stranger = next(c for c in names if c not in wanted and c != me)
    nan = {n: t * float("nan") for n, t in memory["model"].items()}
    inbox = {
        wanted[0]: {"model": nan},
        wanted[1]: {"model": memory["model"]},
        stranger: {"model": memory["model"]},
    }
    after = method.take(inbox, memory, peer)
    assert after["from"].tolist()[:2] == [names.index(wanted[1]), -1]
    assert set(method.complaints(after, names)) == {wanted[0], stranger}


def test_counts_that_make_no_sense_are_refused():
    learner = toy.learner("mlp", toy.ragged())
    for wrong in ({"sampled": 0}, {"top": 0}, {"select_rounds": -1}):
        with pytest.raises(KinfolkError, match=rf"algorithm.{next(iter(wrong))}"):
            PENS(learner, **wrong)
