"""FedEM against expectation and maximisation by hand, and against FedAvg where they meet."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from kinfolk.algorithms.blocks.many_models import copies
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.fedem import FedEM, State, _mixed
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference, score_difference
from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.optim import SGD
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Batch, Plan

LR, K, CLASSES = 0.5, 3, 4


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("network", ["mlp", "tiny_cnn"])
def test_one_component_is_fedavg(network, engine):
    federation = toy.ragged()
    learner = toy.learner(network, federation)
    plain = toy.play_rounds(FedAvg(learner), federation, engine, participation=0.8)
    got = toy.play_rounds(FedEM(learner, k=1), federation, engine, participation=0.8)
    only = {name: leaf[0] for name, leaf in got.state.components.items()}
    assert message_difference(only, plain.state.model, 0) == ""
    assert score_difference({"centre": got.scores["personal"]}, plain.scores, 1e-5) == ""


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_two_components_that_are_alike_go_half_as_fast(engine):
    # q is a half for both: at twice the rate each is FedAvg's model, BatchNorm's buffers too.
    federation = toy.ragged()
    slow = toy.learner("tiny_cnn", federation, momentum=0.0, weight_decay=0.0, lr=0.05)
    plain = toy.play_rounds(FedAvg(slow), federation, engine, rounds=1, score=False).state.model
    method = FedEM(replace(slow, lr=0.1), k=2)
    with toy.coordinated(method, federation, engine) as coordinator:
        context = RoundContext(Seed(0), 0, federation.clients)
        state = toy.play_one(method, State(copies(slow.first, 2)), federation.clients, coordinator, context)
        shares = [coordinator.engine.memories[c]["pi"].tolist() for c in federation.clients]
    for j in range(2):
        one = {name: leaf[j] for name, leaf in state.components.items()}
        assert message_difference(one, plain, 1e-5) == ""
    assert shares == [pytest.approx([0.5, 0.5])] * len(shares)


def tables():
    """Three clients, rows of five numbers in four classes; (federation, training rows, test rows)."""
    draw = np.random.Generator(np.random.PCG64(1))
    sides = []
    for more in (5, 3):
        sides.append({})
        for who, n in (("ada", 4), ("ben", 11), ("cleo", 7)):
            y = draw.integers(CLASSES, size=n + more)
            sides[-1][who] = (draw.normal(size=(n + more, 5)) + np.eye(CLASSES, 5)[y], y)
    return from_arrays(sides[0], test=sides[1], classes=CLASSES), *sides


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def chances(w, b, x):
    """p_k(class | x) of every component: [K, rows, classes]."""
    return softmax(np.einsum("nd,kcd->knc", x, w) + b[:, None])


def by_hand(w, b, pi, train):
    """One round in float64: one step on all rows of each client."""
    sums, total, new = [0, 0], sum(len(y) for _, y in train.values()), {}
    for c, (x, y) in train.items():
        p = chances(w, b, x)
        q = pi[c][:, None] * p[:, np.arange(len(y)), y]
        q = q / q.sum(0)
        new[c] = q.mean(1)
        slope = (p - np.eye(CLASSES)[y]) * q[..., None] / len(y)
        sums[0] = sums[0] + len(y) / total * (w - LR * np.einsum("knc,nd->kcd", slope, x))
        sums[1] = sums[1] + len(y) / total * (b - LR * slope.sum(1))
    return *sums, new


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_expectation_maximisation_and_answers(engine):
    federation, train, test = tables()
    with Seed(0).borrowed("linear"):
        module = nn.Linear(5, CLASSES)
    learner = Learner(module, find_loss("cross_entropy"), CLASSES, SGD(), Plan(64), LR, score_batch=4)
    method = FedEM(learner, k=K)
    start = method.init(learner.first, federation.clients, Seed(0)).components
    w, b = (start[n].double().numpy() for n in ("weight", "bias"))
    assert len({tuple(v.ravel()) for v in w}) == K
    pi = {c: np.full(K, 1 / K) for c in train}
    for _ in range(3):
        w, b, pi = by_hand(w, b, pi, train)
    got = toy.play_rounds(method, federation, engine, rounds=3)
    np.testing.assert_allclose(got.state.components["weight"].numpy(), w, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got.state.components["bias"].numpy(), b, rtol=1e-4, atol=1e-6)
    assert max(np.ptp(shares) for shares in pi.values()) > 0.1
    for c, (x, y) in test.items():
        np.testing.assert_allclose(got.memories[c]["pi"].numpy(), pi[c], rtol=1e-4)
        answer = np.einsum("k,knc->nc", pi[c], chances(w, b, x))
        correct, loss = got.scores["personal"][c]
        assert correct == (answer.argmax(1) == y).sum()
        assert loss == pytest.approx(-np.log(answer[np.arange(len(y)), y]).mean(), rel=1e-4)


def test_numbers_are_answered_by_the_mean_of_outputs():
    learner = Learner(nn.Linear(2, 1), find_loss("mse"), 1)
    components = {"weight": torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]), "bias": torch.zeros(2, 1)}
    x = torch.tensor([[4.0, 8.0]])
    batch = Batch(x, torch.zeros(1), torch.arange(1), None)
    out = FedEM(learner, k=2).mixture({"sent": components, "pi": torch.tensor([0.25, 0.75])}, batch)
    assert out.tolist() == [[7.0]]


def test_no_component_is_refused():
    with pytest.raises(KinfolkError, match=r"algorithm.k = 0"):
        FedEM(toy.learner("mlp", toy.ragged()), k=0)


@pytest.mark.parametrize(
    ("target", "axis", "of"),
    [
        ("class", -1, lambda z: z.softmax(-1)),
        ("positions", -1, lambda z: z.softmax(-1)),
        ("positions", 1, lambda z: z.softmax(2)),
        ("labels", -1, torch.sigmoid),
        ("binary", -1, torch.sigmoid),
        ("numbers", -1, lambda z: z),
    ],
)
def test_a_mixture_is_one_of_probabilities_where_outputs_stand_for_such(target, axis, of):
    outs = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 5, 3, 4)))
    pi = torch.tensor([0.3, 0.7], dtype=outs.dtype)
    mixed = _mixed(outs, pi, target, axis)
    torch.testing.assert_close(of(mixed[None])[0], 0.3 * of(outs)[0] + 0.7 * of(outs)[1])
