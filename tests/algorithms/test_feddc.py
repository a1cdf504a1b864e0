"""FedDC against a loop in float64, and against FedAvg where they meet."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_feddane import LR, flat, line, regression

from kinfolk.algorithms.blocks.own_gradient import plain_steps
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.feddc import FedDC
from kinfolk.contract import toy
from kinfolk.contract.compare import tensor_difference
from kinfolk.errors import KinfolkError
from kinfolk.learning.optim import SGD

EPOCHS, DECAY = 3, 0.8
COHORTS = (("ada", "ben", "cleo"), ("ben", "cleo"), ("ada",), ("ada", "ben", "cleo"))


def by_hand(w, rows, a, cohorts):
    """(w, g, h_i, g_i) in float64 after a round for each cohort; F_i is the mean squared error."""
    wide = {c: np.column_stack([x, np.ones(len(x))]).astype(np.float64) for c, (x, _) in rows.items()}
    mean = np.mean([len(x) for x in wide.values()])
    g, h, own = np.zeros_like(w), dict.fromkeys(rows, 0 * w), dict.fromkeys(rows, 0 * w)
    for t, cohort in enumerate(cohorts):
        eta, ends, change = LR * DECAY**t, [], np.zeros_like(w)
        for c in cohort:
            r, v = len(wide[c]) / mean, w.copy()
            for _ in range(EPOCHS):
                slope = 2 / len(wide[c]) * wide[c].T @ (wide[c] @ v - rows[c][1])
                v = v - eta * (slope + a / r * (v - (w - h[c])) + g / r - own[c])
            new = own[c] - g / r - (v - w) / (EPOCHS * eta)
            change += r * (new - own[c]) / len(rows)
            h[c], own[c] = h[c] + v - w, new
            ends.append(v)
        w = np.mean(ends, axis=0) + np.mean(list(h.values()), axis=0)
        g = g + change
    return w, g, h, own


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("a", [0.0, 0.3])
def test_drift_and_correction_on_linear_regression(engine, a):
    federation, rows = regression()
    learner, w = line(batch=16, epochs=EPOCHS)
    method = FedDC(replace(learner, decay=DECAY), a)
    got = toy.play_rounds(
        method, federation, engine, len(COHORTS), cohort=lambda number: COHORTS[number], score=False
    )
    w, g, h, own = by_hand(w, rows, a, COHORTS)
    near = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(flat(got.state.model), w, **near)
    np.testing.assert_allclose(flat(got.state.g), LR * g, **near)
    np.testing.assert_allclose(flat(got.state.h), np.mean(list(h.values()), axis=0), **near)
    for who, memory in got.memories.items():
        np.testing.assert_allclose(flat(memory["h"]), h[who], **near)
        np.testing.assert_allclose(flat(memory["g"]), LR * own[who], **near)
    assert got.state.rows == pytest.approx(19 / 3)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_the_first_round_goes_twice_as_far_as_fedavg(engine):
    # Nobody has drifted yet: v is FedAvg's, and the mean of h is the mean of v - w once more.
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation)
    plain = toy.play_rounds(FedAvg(learner, "uniform"), federation, engine, 1, score=False).state.model
    got = toy.play_rounds(FedDC(learner, 0.0), federation, engine, 1, score=False).state.model
    names = [name for name, _ in learner.module.named_parameters()]
    for name, leaf in got.items():
        wanted = 2 * plain[name] - learner.first[name] if name in names else plain[name]
        assert tensor_difference(leaf, wanted, 1e-5) == "", name


def test_the_gradient_of_a_client_is_what_moved_it_per_step():
    federation, rows = regression()
    learner, _ = line(batch=4, epochs=2)
    got = toy.play_rounds(FedDC(learner, 0.0), federation, rounds=1, score=False)
    for who, memory in got.memories.items():
        steps = 2 * -(-len(rows[who][0]) // 4)
        np.testing.assert_allclose(flat(memory["g"]), -flat(memory["h"]) / steps, rtol=1e-5, atol=1e-7)
        assert np.abs(flat(memory["h"])).max() > 0.01


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_plain_steps_are_counted_by_walking(momentum):
    for count in (1, 2, 7, 40):
        place, speed = 0.0, 0.0
        for _ in range(count):
            speed = momentum * speed + 1.0
            place += speed
        assert float(plain_steps(torch.tensor(count), momentum)) == pytest.approx(place, rel=1e-4)


def test_with_momentum_a_client_still_knows_its_gradient():
    """Hardly moving, so that the gradient stays: g_i is the slope at the start, however steps are taken."""
    federation, _ = regression()
    slopes = []
    for optimiser in (SGD(), SGD(momentum=0.9)):
        learner, _ = line(batch=16, epochs=EPOCHS)
        slow = replace(learner, optimiser=optimiser, lr=1e-4)
        got = toy.play_rounds(FedDC(slow), federation, "loop", 1, score=False)
        slopes.append(np.concatenate([flat(memory["g"]) for memory in got.memories.values()]))
    np.testing.assert_allclose(slopes[1], slopes[0], rtol=5e-3, atol=1e-7)


def test_who_takes_no_step_keeps_its_gradient():
    federation = toy.ragged()  # one client has a single row, on which BatchNorm can not train
    method = FedDC(toy.learner("tiny_cnn", federation))
    single = toy.NAMES[toy.ROWS.index(1)]
    memories = toy.play_rounds(method, federation, rounds=2, score=False).memories
    assert not any(leaf.any() for leaf in memories[single]["g"].values())
    assert all(any(leaf.any() for leaf in m["g"].values()) for c, m in memories.items() if c != single)


def test_a_negative_penalty_is_refused():
    with pytest.raises(KinfolkError, match=r"algorithm.a = -1"):
        FedDC(toy.learner("mlp", toy.ragged()), a=-1)
