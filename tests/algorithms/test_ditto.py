"""Ditto against its paper's Algorithm 1 in float64, and against FedAvg and Local where they meet."""

import numpy as np
import pytest
from test_feddane import LR, flat, line, regression

from kinfolk.algorithms.ditto import Ditto
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.local import Local
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.errors import KinfolkError

EPOCHS, LAM = 3, 0.6
COHORTS = (("ada", "ben", "cleo"), ("ben", "cleo"), ("ada",))


def by_hand(w, rows):
    """(w, v_i) in float64 after a round for each cohort; F_i is the mean squared error."""
    wide = {c: np.column_stack([x, np.ones(len(x))]).astype(np.float64) for c, (x, _) in rows.items()}
    own = {c: w.copy() for c in rows}

    def slope(at, c):
        return 2 / len(wide[c]) * wide[c].T @ (wide[c] @ at - rows[c][1])

    for cohort in COHORTS:
        ends = []
        for c in cohort:
            mine = w.copy()
            for _ in range(EPOCHS):
                mine = mine - LR * slope(mine, c)
                own[c] = own[c] - LR * (slope(own[c], c) + LAM * (own[c] - w))
            ends.append(mine)
        w = np.average(ends, axis=0, weights=[len(wide[c]) for c in cohort])
    return w, own


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_common_and_personal_models_on_linear_regression(engine):
    federation, rows = regression()
    learner, w = line(batch=16, epochs=EPOCHS)
    got = toy.play_rounds(
        Ditto(learner, LAM), federation, engine, len(COHORTS), cohort=lambda t: COHORTS[t], score=False
    )
    w, own = by_hand(w, rows)
    np.testing.assert_allclose(flat(got.state.model), w, rtol=1e-4, atol=1e-5)
    for who, memory in got.memories.items():
        np.testing.assert_allclose(flat(memory["model"]), own[who], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("network", ["mlp", "tiny_cnn"])
def test_the_common_model_is_fedavgs_whatever_lambda(network, engine):
    federation = toy.ragged()
    learner = toy.learner(network, federation)
    plain = toy.play_rounds(FedAvg(learner), federation, engine, score=False).state.model
    for lam in (0.0, 2.0):
        got = toy.play_rounds(Ditto(learner, lam), federation, engine, score=False).state.model
        assert message_difference(got, plain, 1e-5) == ""


def test_without_a_pull_personal_models_are_those_of_clients_alone():
    """Batches of all rows, since the order of a second pass is another."""
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation, batch=64)
    alone = toy.play_rounds(Local(learner), federation, score=False).memories
    free = toy.play_rounds(Ditto(learner, 0.0), federation, score=False).memories
    held = toy.play_rounds(Ditto(learner, 5.0), federation, score=False).memories
    for who in federation.clients:
        assert message_difference(free[who]["model"], alone[who]["model"], 1e-4) == ""
    apart = [message_difference(held[c]["model"], alone[c]["model"], 1e-3) for c in federation.clients]
    assert all(apart[i] for i in range(len(apart)) if toy.ROWS[i] > 1)


def test_a_negative_pull_is_refused():
    with pytest.raises(KinfolkError, match=r"algorithm.lam = -1"):
        Ditto(toy.learner("mlp", toy.ragged()), lam=-1)
