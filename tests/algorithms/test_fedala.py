"""FedALA against its paper's Algorithm 1 in float64, on a network of two linear layers."""

import numpy as np
import pytest
import torch
from test_feddane import LR, regression
from torch import nn

from kinfolk.algorithms.fedala import FedALA
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.engines.work import trained_by
from kinfolk.errors import KinfolkError
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.optim import SGD, WithinUnit
from kinfolk.streams import Seed
from kinfolk.task import ClientInfo, Plan

EPOCHS, ETA, FIRST = 2, 3.0, 4
FACTS = ClientInfo(torch.tensor(4), torch.tensor(1), 4)
COHORTS = (("ada", "ben", "cleo"), ("ben", "cleo"), ("ada", "cleo"), ("ada", "ben", "cleo"))


def two_layers(batch=16):
    """A learner of y = b (A x + a) + c without a bend, and its numbers in float64."""
    with Seed(0).borrowed("two layers"):
        module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    learner = Learner(module, find_loss("mse"), 1, SGD(), Plan(batch, EPOCHS), lr=LR, score_batch=4)
    return learner, numbers(learner.first)


def numbers(model):
    return {n: t.double().numpy().copy() for n, t in model.items()}


def gradients(m, x, y):
    """Of the mean squared error, by the chain rule."""
    inner = x @ m["0.weight"].T + m["0.bias"]
    off = 2 / len(x) * (inner @ m["1.weight"].T + m["1.bias"] - y[:, None])
    back = off @ m["1.weight"]
    return {
        "0.weight": back.T @ x, "0.bias": back.sum(0), "1.weight": off.T @ inner, "1.bias": off.sum(0),
    }  # fmt: skip


def by_hand(w, rows, higher, cohorts):
    """(w, theta_i, W_i, theta^_i) in float64 after a round for each cohort, on all rows."""
    own = dict.fromkeys(rows, w)
    take = {c: {n: np.ones_like(w[n]) for n in higher} for c in rows}
    begun = set()

    def mixed(c):
        return {**w, **{n: own[c][n] + (w[n] - own[c][n]) * take[c][n] for n in higher}}

    for t, cohort in enumerate(cohorts):
        ends = {}
        for c in cohort:
            x, y = (v.astype(np.float64) for v in rows[c])
            first = t > 0 and c not in begun
            begun |= {c} if t else set()
            for _ in range((FIRST if first else 0) + 1):
                slope = gradients(mixed(c), x, y)
                step = {n: ETA * slope[n] * (w[n] - own[c][n]) for n in higher}
                take[c] = {n: np.clip(take[c][n] - step[n], 0, 1) for n in higher}
            model = mixed(c)
            for _ in range(EPOCHS):
                slope = gradients(model, x, y)
                model = {n: v - LR * slope[n] for n, v in model.items()}
            ends[c] = model
        n = [len(rows[c][0]) for c in cohort]
        own = {**own, **ends}
        w = {k: np.average([ends[c][k] for c in cohort], axis=0, weights=n) for k in w}
    return w, own, take, {c: mixed(c) for c in rows}


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("layers", [1, 2])
def test_learned_mixtures_on_two_layers(engine, layers):
    federation, rows = regression()
    learner, w = two_layers()
    method = FedALA(learner, layers=layers, share=1.0, eta=ETA, first_epochs=FIRST)
    got = toy.play_rounds(method, federation, engine, len(COHORTS), cohort=lambda t: COHORTS[t], score=False)
    w, own, take, served = by_hand(w, rows, method.higher, COHORTS)
    near = {"rtol": 1e-3, "atol": 1e-4}
    for n, leaf in got.state.model.items():
        np.testing.assert_allclose(leaf, w[n], **near)
    for who, memory in got.memories.items():
        for n, leaf in memory["take"].items():
            np.testing.assert_allclose(leaf, take[who][n], **near)
        begun = method.eval_tasks()["personal"].start({"model": got.state.model}, memory, FACTS)["model"]
        for n in w:
            np.testing.assert_allclose(memory["model"][n], own[who][n], **near)
            np.testing.assert_allclose(begun[n], served[who][n], **near)
    learned = np.concatenate([v.ravel() for t in take.values() for v in t.values()])
    assert learned.min() == 0, "or nothing was put back"
    assert learned.max() > 0.5


def test_nothing_is_learned_in_round_0_and_at_length_once():
    federation = toy.ragged()
    method = FedALA(toy.learner("mlp", federation))
    asked = []

    def note(engine):
        class Noting:
            def __getattr__(self, name):
                return getattr(engine, name)

            def replies(self, request, context):
                asked.append((context.round, request.task, tuple(request.to)))
                return engine.replies(request, context)

        return Noting()

    cohorts = [toy.NAMES[:4], toy.NAMES[2:6], toy.NAMES[2:6], toy.NAMES]
    toy.play_rounds(method, federation, rounds=4, cohort=lambda t: cohorts[t], wrap=note, score=False,
                    absent=lambda context, who: context.round == 1 and who == toy.NAMES[2])  # fmt: skip
    first = [(t, set(who)) for t, task, who in asked if task == "adapt"]
    answered = set(toy.NAMES[3:6])
    assert [t for t, _ in first] == [1, 2, 3]
    assert first[0][1] >= answered
    assert first[1][1] == {toy.NAMES[2]}, "who did not answer in round 1"
    assert first[2][1] == set(toy.NAMES) - set(toy.NAMES[2:6])


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_first_round_is_fedavg(engine):
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation, batch=64)
    plain = toy.play_rounds(FedAvg(learner), federation, engine, rounds=1, score=False).state.model
    got = toy.play_rounds(FedALA(learner), federation, engine, rounds=1, score=False).state.model
    assert message_difference(got, plain, 1e-5) == ""


def test_lower_layers_and_buffers_are_the_common_models():
    federation = toy.ragged()
    method = FedALA(toy.learner("tiny_cnn", federation))
    got = toy.play_rounds(method, federation, rounds=3, score=False)
    assert set(method.higher) == {"head.weight", "head.bias"}
    begun = method.eval_tasks()["personal"].start
    served = [begun({"model": got.state.model}, m, FACTS)["model"] for m in got.memories.values()]
    for name, leaf in got.state.model.items():
        same = [torch.equal(one[name], leaf) for one in served]
        assert all(same) if name not in method.higher else not all(same), name


def test_a_share_of_the_rows_is_gone_over():
    federation = toy.ragged()
    learner = toy.learner("mlp", federation, batch=4)
    who = federation.clients
    counts = np.array([toy.ROWS[toy.NAMES.index(c)] for c in who])
    task = FedALA(learner, share=0.5).tasks()["adapt"]
    wanted = 11 * np.maximum(counts // 2, 1)
    assert [trained_by("adapt", task, [c], (), federation).visits for c in who] == wanted.tolist()


def test_shares_are_put_back_into_0_to_1():
    params, grads = ({"w": torch.tensor(v)} for v in ([0.5, 0.5, 0.5], [1.0, -1.0, 0.1]))
    moved, kept = WithinUnit().update(params, grads, {}, 0, 1.0, 1)
    torch.testing.assert_close(moved["w"], torch.tensor([0.0, 1.0, 0.4]))
    assert kept == {}


def test_what_can_not_be_is_refused():
    learner = toy.learner("mlp", toy.ragged())
    for wrong in ({"layers": 0}, {"share": 0.0}, {"share": 1.5}, {"eta": -1.0}, {"first_epochs": 0}):
        with pytest.raises(KinfolkError, match=next(iter(wrong))):
            FedALA(learner, **wrong)
