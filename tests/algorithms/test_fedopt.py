"""FedOpt against its paper's Algorithm 2 in float64, on lines whose local updates are worked out by hand."""

import numpy as np
import pytest
import torch
from test_feddane import LR, flat, line, regression

from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.errors import KinfolkError

EPOCHS = 2
COHORTS = (("ada", "ben", "cleo"), ("ben", "cleo"), ("ada",), ("ada", "ben", "cleo"))
ETA, BETA1, BETA2, TAU = 0.05, 0.8, 0.6, 0.01


def moves(w, rows, cohort, uniform=False):
    """Delta in float64: the mean of what clients move in some full steps on the mean squared error."""
    moved, weight = [], []
    for c in cohort:
        x = np.column_stack([rows[c][0], np.ones(len(rows[c][0]))]).astype(np.float64)
        v = w.copy()
        for _ in range(EPOCHS):
            v = v - LR * 2 / len(x) * x.T @ (x @ v - rows[c][1])
        moved.append(v - w)
        weight.append(1.0 if uniform else len(x))
    return np.average(moved, axis=0, weights=weight)


def second(kind, v, square):
    if kind is FedAdagrad:
        return v + square
    if kind is FedAdam:
        return BETA2 * v + (1 - BETA2) * square
    return v - (1 - BETA2) * square * np.sign(v - square)


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("kind", [FedAdagrad, FedAdam, FedYogi])
@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_adaptive_steps(kind, engine, weights):
    federation, rows = regression()
    learner, x = line(batch=16, epochs=EPOCHS)
    m, v = np.zeros_like(x), np.full_like(x, TAU**2)
    for cohort in COHORTS:
        delta = moves(x, rows, cohort, weights == "uniform")
        m = BETA1 * m + (1 - BETA1) * delta
        v = second(kind, v, delta**2)
        x = x + ETA * m / (np.sqrt(v) + TAU)
    options = {"server_lr": ETA, "beta1": BETA1, "tau": TAU, "weights": weights}
    options |= {} if kind is FedAdagrad else {"beta2": BETA2}
    method = kind(learner, **options)
    got = toy.play_rounds(method, federation, engine, 4, cohort=lambda t: COHORTS[t], score=False).state
    np.testing.assert_allclose(flat(got.model), x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(flat(got.m), m, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(flat(got.v), v, rtol=1e-4, atol=1e-7)


def test_yogi_differs_from_adam_and_moves_v_both_ways():
    yogi, adam = (
        kind(toy.learner("mlp", toy.ragged()), beta2=BETA2).second(
            torch.tensor([1.0, 0.1]), torch.tensor(0.5)
        )
        for kind in (FedYogi, FedAdam)
    )
    torch.testing.assert_close(yogi, torch.tensor([0.8, 0.3]))
    torch.testing.assert_close(adam, torch.tensor([0.8, 0.26]))


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_momentum_of_the_server(engine):
    federation, rows = regression()
    learner, x = line(batch=16, epochs=EPOCHS)
    m = np.zeros_like(x)
    for cohort in COHORTS:
        m = 0.7 * m + moves(x, rows, cohort)
        x = x + 0.5 * m
    method = FedAvgM(learner, server_lr=0.5, momentum=0.7)
    got = toy.play_rounds(method, federation, engine, 4, cohort=lambda t: COHORTS[t], score=False).state
    np.testing.assert_allclose(flat(got.model), x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(flat(got.m), m, rtol=1e-4, atol=1e-6)


def test_without_momentum_a_whole_step_is_fedavg_and_buffers_are_its_own():
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation)
    plain = toy.play_rounds(FedAvg(learner), federation, score=False).state.model
    still = FedAvgM(learner, momentum=0.0)
    assert message_difference(toy.play_rounds(still, federation, score=False).state.model, plain, 1e-5) == ""
    once = toy.play_rounds(FedAvg(learner), federation, rounds=1, score=False).state.model
    adam = toy.play_rounds(FedAdam(learner), federation, rounds=1, score=False).state
    buffers = [n for n in once if n not in learner.names]
    assert buffers
    assert all(torch.equal(adam.model[n], once[n]) for n in buffers)
    assert set(adam.m) == set(adam.v) == set(learner.names)


@pytest.mark.parametrize("kind", [FedAvgM, FedAdam])
def test_a_round_without_an_answer_is_no_step(kind):
    federation = toy.ragged()
    method = kind(toy.learner("mlp", federation))
    one = toy.play_rounds(method, federation, rounds=1, score=False).state
    two = toy.play_rounds(method, federation, rounds=2, absent=lambda c, who: c.round == 1, score=False).state
    assert message_difference(two.model, one.model, 0) == ""
    assert message_difference(two.m, one.m, 0) == ""


def test_what_would_blow_up_is_refused():
    learner = toy.learner("mlp", toy.ragged())
    for kind, wrong in [
        (FedAvgM, {"momentum": 1.0}),
        (FedAvgM, {"server_lr": -1.0}),
        (FedAdam, {"beta1": 1.5}),
        (FedAdam, {"beta2": 1.0}),
        (FedYogi, {"tau": 0.0}),
    ]:
        with pytest.raises(KinfolkError, match=next(iter(wrong))):
            kind(learner, **wrong)
