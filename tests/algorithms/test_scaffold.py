"""SCAFFOLD against its paper's Algorithm 1 (option II) in float64, and against FedAvg where they meet."""

from dataclasses import replace

import numpy as np
import pytest
from test_feddane import LR, flat, line, regression

from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.scaffold import SCAFFOLD
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.errors import KinfolkError
from kinfolk.learning.optim import SGD

EPOCHS, DECAY, ETA_G = 3, 0.8, 0.7
COHORTS = (("ada", "ben", "cleo"), ("ben", "cleo"), ("ada",), ("ada", "ben", "cleo"))


def by_hand(x, rows, eta_g):
    """(x, c, c_i) in float64 after a round for each cohort; F_i is the mean squared error."""
    wide = {k: np.column_stack([a, np.ones(len(a))]).astype(np.float64) for k, (a, _) in rows.items()}
    c, own = np.zeros_like(x), dict.fromkeys(rows, 0 * x)
    for t, cohort in enumerate(COHORTS):
        eta, ends, change = LR * DECAY**t, [], []
        for k in cohort:
            y = x.copy()
            for _ in range(EPOCHS):
                slope = 2 / len(wide[k]) * wide[k].T @ (wide[k] @ y - rows[k][1])
                y = y - eta * (slope - own[k] + c)
            new = own[k] - c + (x - y) / (EPOCHS * eta)
            ends.append(y - x)
            change.append(new - own[k])
            own[k] = new
        x = x + eta_g * np.mean(ends, axis=0)
        c = c + len(cohort) / len(rows) * np.mean(change, axis=0)
    return x, c, own


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("eta_g", [1.0, ETA_G])
def test_control_variates_on_linear_regression(engine, eta_g):
    federation, rows = regression()
    learner, x = line(batch=16, epochs=EPOCHS)
    method = SCAFFOLD(replace(learner, decay=DECAY), server_lr=eta_g)
    got = toy.play_rounds(method, federation, engine, 4, cohort=lambda t: COHORTS[t], score=False)
    x, c, own = by_hand(x, rows, eta_g)
    near = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(flat(got.state.model), x, **near)
    np.testing.assert_allclose(flat(got.state.c), LR * c, **near)
    for who, memory in got.memories.items():
        np.testing.assert_allclose(flat(memory["c"]), LR * own[who], **near)
    assert np.abs(c).max() > 0.1


def test_the_common_variate_is_the_mean_of_all_clients_own():
    """As |S| / N makes it: whoever is asked, c stays the mean of c_i over all N."""
    federation = toy.ragged()
    method = SCAFFOLD(toy.learner("mlp", federation))
    got = toy.play_rounds(method, federation, "batched", 4, participation=0.4, score=False)
    for name, c in got.state.c.items():
        own = np.mean([m["c"][name].double().numpy() for m in got.memories.values()], axis=0)
        np.testing.assert_allclose(c.numpy(), own, rtol=1e-3, atol=1e-6)


def test_the_first_round_is_fedavg_with_equal_weights():
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation)
    plain = toy.play_rounds(FedAvg(learner, "uniform"), federation, rounds=1, score=False).state.model
    got = toy.play_rounds(SCAFFOLD(learner), federation, rounds=1, score=False).state.model
    assert message_difference(got, plain, 1e-5) == ""


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_drift_is_corrected(engine):
    """Full steps on unlike lines: FedAvg stops beside the common optimum, SCAFFOLD at it."""
    federation, rows = regression()
    wide = [np.column_stack([x, np.ones(len(x))]).astype(np.float64) for x, _ in rows.values()]
    scaled = [w / np.sqrt(len(w)) for w in wide]
    targets = [y / np.sqrt(len(y)) for _, y in rows.values()]
    best = np.linalg.lstsq(np.vstack(scaled), np.concatenate(targets), rcond=None)[0]
    learner, _ = line(batch=16, epochs=8)
    plain, got = (
        flat(toy.play_rounds(method, federation, engine, 150, score=False).state.model)
        for method in (FedAvg(learner, "uniform"), SCAFFOLD(learner))
    )
    assert np.abs(got - best).max() < 0.01
    assert np.abs(plain - best).max() > 0.1


def test_with_momentum_a_client_still_knows_its_gradient():
    federation, _ = regression()
    slopes = []
    for optimiser in (SGD(), SGD(momentum=0.9)):
        learner, _ = line(batch=16, epochs=EPOCHS)
        slow = replace(learner, optimiser=optimiser, lr=1e-4)
        got = toy.play_rounds(SCAFFOLD(slow), federation, "loop", 1, score=False)
        slopes.append(np.concatenate([flat(memory["c"]) for memory in got.memories.values()]))
    np.testing.assert_allclose(slopes[1], slopes[0], rtol=5e-3, atol=1e-7)


def test_who_takes_no_step_keeps_its_variate():
    federation = toy.ragged()  # one client has a single row, on which BatchNorm can not train
    single = toy.NAMES[toy.ROWS.index(1)]
    method = SCAFFOLD(toy.learner("tiny_cnn", federation))
    memories = toy.play_rounds(method, federation, rounds=2, score=False).memories
    assert not any(leaf.any() for leaf in memories[single]["c"].values())
    assert all(any(leaf.any() for leaf in m["c"].values()) for c, m in memories.items() if c != single)


def test_what_it_is_not_about_is_refused():
    learner = toy.learner("mlp", toy.ragged())
    with pytest.raises(KinfolkError, match=r"algorithm.server_lr = -1"):
        SCAFFOLD(learner, server_lr=-1)
    with pytest.raises(KinfolkError, match=r"scaffold needs the same rate in all steps"):
        SCAFFOLD(replace(learner, by_step=lambda at, of: 1.0))
