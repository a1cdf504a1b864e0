"""APFL against its paper's Algorithm 1 in float64, and against FedAvg and Local where they meet."""

import numpy as np
import pytest
import torch
from test_feddane import LR, flat, line, regression

from kinfolk.algorithms.apfl import APFL
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.local import Local
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.errors import KinfolkError
from kinfolk.task import ClientInfo

EPOCHS = 3
FACTS = ClientInfo(torch.tensor(4), torch.tensor(1), 4)
COHORTS = (("ada", "ben", "cleo"), ("ben", "cleo"), ("ada",), ("ada", "ben", "cleo"))


def by_hand(w, rows, alpha, adaptive):
    """(w, v_i, alpha_i) in float64 after a round for each cohort; F_i is the mean squared error."""
    wide = {c: np.column_stack([x, np.ones(len(x))]).astype(np.float64) for c, (x, _) in rows.items()}
    own, share = {c: w.copy() for c in rows}, dict.fromkeys(rows, alpha)

    def slope(at, c):
        return 2 / len(wide[c]) * wide[c].T @ (wide[c] @ at - rows[c][1])

    for cohort in COHORTS:
        ends = []
        for c in cohort:
            mine, v = w.copy(), own[c]
            if adaptive:
                mixed = share[c] * v + (1 - share[c]) * mine
                share[c] = np.clip(share[c] - LR * (v - mine) @ slope(mixed, c), 0, 1)
            for _ in range(EPOCHS):
                mixed = share[c] * v + (1 - share[c]) * mine
                v, mine = v - LR * share[c] * slope(mixed, c), mine - LR * slope(mine, c)
            own[c] = v
            ends.append(mine)
        w = np.average(ends, axis=0, weights=[len(wide[c]) for c in cohort])
    return w, own, share


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize(("alpha", "adaptive"), [(0.3, False), (0.3, True), (0.9, True)])
def test_mixtures_on_linear_regression(engine, alpha, adaptive):
    federation, rows = regression()
    learner, w = line(batch=16, epochs=EPOCHS)
    method = APFL(learner, alpha, adaptive)
    got = toy.play_rounds(method, federation, engine, 4, cohort=lambda t: COHORTS[t], score=False)
    w, own, share = by_hand(w, rows, alpha, adaptive)
    np.testing.assert_allclose(flat(got.state.model), w, rtol=1e-4, atol=1e-5)
    for who, memory in got.memories.items():
        np.testing.assert_allclose(flat(memory["own"]), own[who], rtol=1e-4, atol=1e-5)
        assert float(memory["alpha"]) == pytest.approx(share[who], abs=1e-4)
        mixed = share[who] * own[who] + (1 - share[who]) * w  # with the common model, which all are served
        served = method.eval_tasks()["personal"].start({"model": got.state.model}, memory, FACTS)["model"]
        np.testing.assert_allclose(flat(served), mixed, rtol=1e-4, atol=1e-5)
    moved = [abs(s - alpha) for s in share.values()]
    assert (min(moved) > 0.01) == adaptive


def test_a_share_stays_a_share():
    """A rate so large that a step leaves 0 to 1."""
    federation, _ = regression()
    learner, _ = line(batch=16, epochs=1)
    got = toy.play_rounds(APFL(learner, 0.5), federation, rounds=1, score=False)
    method = APFL(learner, 0.5)
    memory = got.memories["ada"]
    far = {n: 40 * t for n, t in memory["own"].items()}
    with toy.coordinated(method, federation) as coordinator:
        coordinator.engine.memories["ada"] = {"own": far, "alpha": torch.tensor(0.5)}
        toy.play_one(
            method,
            got.state,
            ("ada",),
            coordinator,
            toy.RoundContext(toy.Seed(0), 1, federation.clients),
        )
        assert float(coordinator.engine.memories["ada"]["alpha"]) in (0.0, 1.0)


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("network", ["mlp", "tiny_cnn"])
def test_the_ends_are_fedavg_and_clients_alone(network, engine):
    federation = toy.ragged()
    learner = toy.learner(network, federation, batch=64)
    plain = toy.play_rounds(FedAvg(learner), federation, engine)
    alone = toy.play_rounds(Local(learner), federation, engine)
    common, own = (toy.play_rounds(APFL(learner, a, False), federation, engine) for a in (0.0, 1.0))
    for got in (common, own):
        assert message_difference(got.state.model, plain.state.model, 1e-5) == ""
    for who in federation.clients:
        if network == "mlp":  # or BatchNorm's statistics are those of its own rows
            assert common.scores["personal"][who][1] == pytest.approx(
                plain.scores["centre"][who][1], rel=1e-4
            )
        assert own.scores["personal"][who][1] == pytest.approx(alone.scores["personal"][who][1], rel=1e-3)


def test_what_is_no_share_is_refused():
    for wrong in (-0.1, 1.1):
        with pytest.raises(KinfolkError, match=r"algorithm.alpha"):
            APFL(toy.learner("mlp", toy.ragged()), alpha=wrong)
