"""The common start: what clients tell of the common model, when it is over, and what that gives away."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from kinfolk.algorithms.blocks.common_start import IGNORES, WORST, WithBlind, telling
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.fold import Mean
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan
from kinfolk.types import Client, Stack


class Asking:
    """An algorithm of which only the client half is wanted."""

    def __init__(self, learner):
        self.learner = learner

    def tasks(self):
        return {"common": telling(self.learner, self.learner.train()), "update": self.learner.train()}

    def eval_tasks(self):
        return {}


def told(learner, federation, model, task="common", engine="loop"):
    with toy.coordinated(Asking(learner), federation, engine) as coordinator:
        context = RoundContext(Seed(0), 0, federation.clients)
        return coordinator.perform(Ask(task, federation.clients, {"model": model}), context)


def in_float64(learner, federation, models):
    """Loss over the loss of the mean answer for each client, by definition."""
    found, network = [], copy.deepcopy(learner.module).eval()
    for i, who in enumerate(federation.clients):
        network.load_state_dict(models.row(who)["model"])
        rows = federation.splits["train"].rows(i)
        x, y = federation.x[rows], federation.y[rows].numpy()
        out = network(x).detach().double().numpy()
        if not learner.loss.classification:
            y = y.reshape(len(y), -1)
            found.append(((out - y) ** 2).mean() / ((out.mean(0) - y) ** 2).mean())
            continue
        p = np.exp(out - out.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        seeing = -np.log(p[np.arange(len(y)), y]).mean()
        found.append(seeing / -np.log(p.mean(0)[y]).mean())
    return found


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_clients_tell_their_loss_over_that_of_the_mean_answer(engine):
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    got = told(learner, federation, learner.first, engine=engine)
    wanted = in_float64(learner, federation, got)
    np.testing.assert_allclose(got.at(federation.clients).tensor("blind").numpy(), wanted, rtol=1e-4)
    assert max(wanted) - min(wanted) > 0.05, "numbers that are alike would show nothing"
    # The model is that of a plain update: what is told of it changes no draw.
    plain = told(learner, federation, learner.first, "update", engine)
    assert message_difference(got.tree("model"), plain.tree("model"), 0) == ""


def test_in_a_regression_too():
    draw = np.random.default_rng(0)
    rows = {f"c{i}": (draw.normal(size=(7, 3)).astype("float32"), draw.normal(size=7)) for i in range(3)}
    federation = from_arrays(rows, test=rows)
    torch.manual_seed(0)
    learner = Learner(nn.Linear(3, 1), find_loss("mse"), 1, plan=Plan(4), score_batch=4)
    got = told(learner, federation, learner.first)
    wanted = in_float64(learner, federation, got)
    np.testing.assert_allclose(got.at(federation.clients).tensor("blind").numpy(), wanted, rtol=1e-4)


@pytest.mark.parametrize("bias", [[0.0, 0.0, 0.0, 0.0], [9.0, -9.0, 0.0, 3.0]])
def test_a_constant_answer_is_told_as_one_whatever_the_labels(bias):
    """By the mean loss, which would be -p . log q, a server could solve for the label distribution p."""
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    dead = {n: torch.zeros_like(t) for n, t in learner.first.items()} | {"head.bias": torch.tensor(bias)}
    assert told(learner, federation, dead).tensor("blind").tolist() == pytest.approx([1.0] * 8, abs=1e-5)


def test_a_model_without_a_loss_is_told_as_the_worst():
    federation = toy.ragged()
    learner = toy.learner("mlp", federation, lr=0.0)
    wild = {n: t * 1e30 for n, t in learner.first.items()}
    got = told(learner, federation, wild)
    assert all(0 <= b <= WORST for b in got.tensor("blind").tolist())


def test_the_start_ends_by_the_median_that_few_can_not_move():
    reply = lambda b: (1, {"model": {"w": torch.zeros(1)}, "blind": torch.tensor(b)})  # noqa: E731
    fold = WithBlind(Mean("model", {"w": torch.zeros(1)}))
    assert fold.end(fold.begin())[1] == IGNORES
    parts = [0.8, WORST, 0.85, 0.0, 0.82]
    chunks = [Stack.of({Client(f"c{i}"): reply(b)}) for i, b in enumerate(parts)]
    total = fold.begin()
    for chunk in chunks:
        total = fold.add(total, chunk)
    assert fold.end(total)[1] == pytest.approx(0.82)
