"""MD-ICFL's second message and unusual clients: answers that are none, one class only, rows of a table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from mdicfl_options import DISTINCT, DRAWN, FEW, mdicfl
from test_mdicfl import altered, one_round, started
from torch import nn
from turned import turned

from kinfolk.clustering.agreement import agreement
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference, state_difference
from kinfolk.contract.spoil import Passing
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import override
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.optim import SGD
from kinfolk.script import play
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan

K = 3
ANSWERS = {
    "-1": lambda body: {"choice": body["choice"] * 0 - 1},
    "K": lambda body: {"choice": body["choice"] * 0 + K},
    "1.5": lambda body: {"choice": body["choice"] * 0 + 1.5},
    "no number": lambda body: {"choice": body["choice"] + float("nan")},
    "two": lambda body: {"choice": body["choice"][:, None].expand(-1, 2)},
    "another word": lambda body: {"answer": body["choice"]},
}


def logged(method, state, federation, wrap):
    """(state, the log) of one round."""
    log, context = [], RoundContext(Seed(0), 0, federation.clients)
    note = lambda event, **facts: log.append((event, facts))  # noqa: E731
    with toy.coordinated(method, federation, wrap=wrap, log=note) as coordinator:
        script = method.round(state, federation.clients, context)
        new, _ = play(script, lambda request: coordinator.perform(request, context))
    return new, log


def says_nothing(client):
    """A wrapper by which one client gives no answer to "choose"."""

    def mute(request, reply):
        return reply.at([]) if request.task == "choose" and reply.clients[0] == client else reply

    return lambda engine: Passing(engine, mute)


@pytest.mark.parametrize("answer", [*ANSWERS, "nothing"])
def test_who_makes_no_valid_choice_keeps_its_cluster_and_is_logged(answer):
    federation, _ = turned(K)
    bad = federation.clients[5]
    method = mdicfl(toy.learner("mlp", federation), k=K, **DISTINCT, privacy="strong", **FEW)
    state = started(method, federation)
    wrap = says_nothing(bad) if answer == "nothing" else altered(bad, "choose", ANSWERS[answer])
    new, log = logged(method, state, federation, wrap)
    without = [c for c in federation.clients if c != bad]
    wanted, _, _ = one_round(method, state, federation, cohort=without)
    assert message_difference(new.centres, wanted.centres, 1e-5) == ""
    assert torch.equal(new.of([bad]), state.of([bad]))
    ((event, facts),) = log
    assert event == ("silent" if answer == "nothing" else "rejected")
    assert (facts["client"], facts["round"], facts["task"]) == (bad, 0, "choose")


@pytest.mark.slow
@pytest.mark.parametrize(("network", "sampler"), [("mlp", "generator"), ("tiny_cnn", "back_search")])
def test_weak_and_strong_privacy_come_to_the_same_from_the_default_start(network, sampler):
    federation, _ = turned(K)
    few = {"pseudo.samples": 3, "search.iterations": 5, "generator.iterations": 5, "generator.hidden": 8}
    few |= {"start.shared_rounds": 1, "start.plateau": 0.0, "start.confidence": 0.0}
    weak = mdicfl(
        toy.learner(network, federation), k=K, **{"pseudo.sampler": sampler, "start.warm_epochs": 2}, **few
    )
    one, other = (
        toy.play_rounds(method, federation, "batched", rounds=3, participation=0.75, score=False)
        for method in (weak, replace(weak, privacy="strong"))
    )
    assert one.groups == other.groups
    assert one.state.assigned
    assert other.state.assigned
    known = {
        "labels": one.state.labels,
        "margin": one.state.margin,
    }  # what a server of strong privacy is not told
    assert state_difference(one.state, replace(other.state, **known), 1e-5) == ""
    assert not len(other.state.margin)


def of_one_class():
    """Six clients of class 0, six of class 1; either class looks otherwise in the other half of them."""
    draw, rows = np.random.default_rng(0), {}
    for i in range(12):
        label, group = i % 2, i // 2 % 2
        x = draw.normal(size=(30, 6)) + 3 * np.eye(6)[2 * label + group]
        rows[f"c{i:02}"] = x.astype("float32"), np.full(30, label)
    return from_arrays(rows, test=rows, classes=2)


@pytest.mark.parametrize("privacy", ["weak", "strong"])
def test_clients_of_one_class_are_placed_by_that_class_alone(privacy):
    federation = of_one_class()
    with Seed(1).borrowed("init"):
        module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    learner = Learner(module, find_loss("cross_entropy"), 2, SGD(), Plan(10, 2), lr=0.1)
    method = mdicfl(learner, k=2, privacy=privacy, **DRAWN, **FEW)
    state, _, _ = one_round(method, started(method, federation), federation)
    said = {}

    def watch(request, reply):
        if request.task == "update":
            said[reply.clients[0]] = reply.tree("model")
        return reply

    new, _, _ = one_round(method, state, federation, 1, wrap=lambda engine: Passing(engine, watch))
    _, probe = method.probe(state, RoundContext(Seed(0), 1, federation.clients))
    for i, who in enumerate(federation.clients):
        only = int(federation.y[federation.splits["train"].rows(i)][0])
        apart = probe.distances(learner, said[who])[0, :, only]
        assert int(new.member[i]) == int(np.argmin(apart.numpy()))
    assert all(torch.isfinite(t).all() for t in new.centres.values())


def test_a_table_with_groups_is_split_too():
    draw, rows = np.random.default_rng(3), {}
    for i in range(12):  # the label is the largest of three numbers, in half of the clients the smallest
        x = draw.normal(size=(60, 3)).astype("float32")
        rows[f"c{i:02}"] = x, (x if i % 2 else -x).argmax(1)
    federation = from_arrays(rows, test=rows, classes=3)
    with Seed(0).borrowed("init"):
        learner = Learner(nn.Linear(3, 3), find_loss("cross_entropy"), 3, SGD(), Plan(10, 3), lr=0.1)
    for sampler in ("back_search", "generator"):
        generator = {"generator.iterations": 60, "generator.hidden": 16, "generator.output": "none"}
        few = {"pseudo.sampler": sampler, "pseudo.samples": 6, "search.iterations": 30, **generator}
        method = mdicfl(learner, k=2, **few)
        groups = toy.play_rounds(method, federation, "batched", rounds=6, score=False).groups
        assert agreement(list(groups), torch.arange(12) % 2)["ari"] == 1.0


def test_regression_is_refused_before_anything_runs():
    sets = ["data.name=linear", "data.shift=source", "data.test=local", "data.groups=2", "data.features=4"]
    spec = override(Experiment(), [*sets, "algorithm.name=mdicfl", "model.name=logistic"])
    with pytest.raises(KinfolkError, match="loss = 'mse': mdicfl compares the probabilities of classes"):
        build_parts(spec)
