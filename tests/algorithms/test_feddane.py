"""FedDANE against gradients and steps computed by hand."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from kinfolk import script
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.feddane import FedDANE
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.optim import SGD
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan

LR, MU = 0.1, 0.3


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("network", ["mlp", "tiny_cnn"])
def test_a_client_alone_has_nothing_to_correct(network, engine):
    federation = toy.grouped((13,), side=8, noise=1.0)
    learner = toy.learner(network, federation, batch=64, epochs=3)
    plain = toy.play_rounds(FedAvg(learner), federation, engine, score=False).state.model
    got = toy.play_rounds(FedDANE(learner, mu=0.0), federation, engine, score=False).state.model
    assert message_difference(got, plain, 1e-5) == ""
    held = toy.play_rounds(FedDANE(learner, mu=2.0), federation, engine, score=False).state.model
    assert message_difference(held, plain, 1e-4) != ""


def regression():
    """Three clients with lines of their own; (federation, rows by client)."""
    draw, rows = np.random.Generator(np.random.PCG64(0)), {}
    for who, n in (("ada", 4), ("ben", 9), ("cleo", 6)):
        x = draw.normal(size=(n, 3)).astype(np.float32)
        rows[who] = (x, (x @ draw.normal(size=3) + draw.normal()).astype(np.float32))
    return from_arrays(rows, test=rows), rows


def by_hand(w, rows, epochs):
    """One round in float64: w is [slopes, offset], F_i the mean squared error."""
    wide = {c: np.column_stack([x, np.ones(len(x))]).astype(np.float64) for c, (x, _) in rows.items()}
    n = {c: len(x) for c, x in wide.items()}

    def slope(v, c):
        return 2 / n[c] * wide[c].T @ (wide[c] @ v - rows[c][1])

    g = sum(n[c] * slope(w, c) for c in rows) / sum(n.values())
    ends = {}
    for c in rows:
        v = w.copy()
        for _ in range(epochs):
            v = v - LR * (slope(v, c) + g - slope(w, c) + MU * (v - w))
        ends[c] = v
    return sum(n[c] * ends[c] for c in rows) / sum(n.values())


def line(batch, epochs=1):
    """A learner of a line, and its parameters as [slopes, offset] in float64."""
    with Seed(0).borrowed("line"):
        module = nn.Linear(3, 1)
    learner = Learner(module, find_loss("mse"), 1, SGD(), Plan(batch, epochs), lr=LR, score_batch=4)
    return learner, flat(learner.first)


def flat(model):
    return np.append(model["weight"].numpy().ravel(), model["bias"].numpy()).astype(np.float64)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_corrected_steps_on_linear_regression(engine):
    federation, rows = regression()
    learner, w = line(batch=16, epochs=3)
    for _ in range(2):
        w = by_hand(w, rows, epochs=3)
    got = toy.play_rounds(FedDANE(learner, MU), federation, engine, rounds=2, score=False).state.model
    np.testing.assert_allclose(flat(got), w, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batch", [16, 2])
def test_the_gradient_is_that_of_all_rows_however_they_are_cut(batch):
    federation, rows = regression()
    learner, w = line(batch)
    with toy.coordinated(FedDANE(learner), federation, "batched") as coordinator:
        request = script.Ask("gradient", federation.clients, {"model": learner.first})
        sent = coordinator.perform(request, RoundContext(Seed(0), 0, federation.clients))
    for who, (x, y) in rows.items():
        wide = np.column_stack([x, np.ones(len(x))])
        slope = 2 / len(x) * wide.T @ (wide @ w - y)
        np.testing.assert_allclose(flat(sent.row(who)["gradient"]), slope, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_the_gradient_is_taken_with_batch_norm_at_rest(engine):
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation, batch=4)
    model = learner.first
    for name in model:
        if name.endswith("running_var"):
            model[name] *= 1.7
    with toy.coordinated(FedDANE(learner), federation, engine) as coordinator:
        context = RoundContext(Seed(0), 0, federation.clients)
        got = coordinator.perform(script.Ask("gradient", federation.clients, {"model": model}), context)
    assert got.clients == federation.clients  # the one with a single row as well
    network = copy.deepcopy(learner.module)
    network.load_state_dict(model)
    network.eval()
    for i, who in enumerate(federation.clients):
        mine = federation.splits["train"].rows(i)
        loss = nn.functional.cross_entropy(network(federation.x[mine]), federation.y[mine])
        wanted = torch.autograd.grad(loss, list(network.parameters()))
        for (name, _), value in zip(network.named_parameters(), wanted, strict=True):
            torch.testing.assert_close(got.row(who)["gradient"][name], value, rtol=1e-3, atol=1e-5)


def test_the_two_samples_are_drawn_apart():
    federation = toy.ragged()
    method = FedDANE(toy.learner("mlp", federation))
    cohort = federation.clients[:4]
    state = method.init(method.learner.first, federation.clients, Seed(0))
    firsts = [
        next(method.round(state, cohort, RoundContext(Seed(0), n, federation.clients))) for n in range(40)
    ]
    assert {request.task for request in firsts} == {"gradient"}
    assert all(len(set(request.to)) == 4 for request in firsts)
    often = [sum(who in request.to for request in firsts) for who in federation.clients]
    assert all(8 <= count <= 32 for count in often)
    assert len({request.to for request in firsts}) > 10


def test_without_a_gradient_nothing_moves():
    federation = toy.ragged()
    method = FedDANE(toy.learner("mlp", federation))
    script = method.round(
        method.init(method.learner.first, federation.clients, Seed(0)),
        federation.clients,
        RoundContext(Seed(0), 0, federation.clients),
    )
    request = next(script)
    with pytest.raises(StopIteration) as end:
        script.send(request.fold.end(request.fold.begin()))
    assert message_difference(end.value.value[0].model, method.learner.first, 0) == ""


def test_a_negative_penalty_is_refused():
    with pytest.raises(KinfolkError, match=r"algorithm.mu = -1"):
        FedDANE(toy.learner("mlp", toy.ragged()), mu=-1)
