"""Secure sums are the means of what clients train, to a stated rounding, whatever the engine and masks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from summing import ADDITIVE, SHAMIR, first_state, flat, server, trained

from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.feddane import FedDANE
from kinfolk.algorithms.feddist import FedDist
from kinfolk.algorithms.fedem import FedEM
from kinfolk.algorithms.fedprox import FedProx
from kinfolk.algorithms.fedsgd import FedSGD
from kinfolk.algorithms.ifca import IFCA
from kinfolk.algorithms.split import FedPer, FedRep
from kinfolk.contract import toy

FEDERATION = toy.ragged()
LEARNER = toy.learner("mlp", FEDERATION)
METHODS = {
    "fedavg": FedAvg(LEARNER),
    "fedprox": FedProx(LEARNER),
    "feddist": FedDist(LEARNER),
    "feddane": FedDANE(LEARNER),
    "fedsgd": FedSGD(LEARNER),
    "fedem": FedEM(LEARNER, k=2),
    "fedper": FedPer(LEARNER),
    "fedrep": FedRep(LEARNER),
    "ifca": IFCA(LEARNER, k=1),
    "ifca on one body": IFCA(LEARNER, k=1, aggregate=Aggregator(share="body")),
    "ifca of several starts": IFCA(LEARNER, k=1, restarts=2, restart_rounds=1),
}
BITS = {"additive64": 32, "shamir61": 24}


def rounded(spec, members: int, values: np.ndarray) -> np.ndarray:
    """How far a sum may lie from the mean: a half unit of each member's last bit, and one of float32's."""
    return members * 2.0 ** -(BITS[spec.scheme] + 1) + np.spacing(np.abs(values).astype(np.float32))


def played(method, spec, engine="loop", rounds=2):
    state = first_state(method, FEDERATION)
    with server(method, FEDERATION, spec, engine) as stage:
        for number in range(rounds):
            state = stage.round(state, number)
        return state, stage


@pytest.mark.parametrize("spec", [ADDITIVE, SHAMIR], ids=lambda spec: spec.scheme)
@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_a_mean_is_that_of_numpy(weights, spec):
    method = FedAvg(LEARNER, weights=weights)
    models = trained(method, FEDERATION, "update", {"model": LEARNER.first})
    rows = models.size.numpy() if weights == "size" else None
    found = played(method, spec, rounds=1)[0].model
    for name, leaf in models.tree("model").items():
        mean = np.average(leaf.numpy().astype(np.float64), axis=0, weights=rows)
        assert (np.abs(found[name].numpy() - mean) <= rounded(spec, len(models), mean)).all(), name
        assert not torch.equal(found[name], LEARNER.first[name])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_goes_on_as_with_plain_means(name):
    method = METHODS[name]
    (plain, _), (secure, stage) = (played(method, spec) for spec in (None, ADDITIVE))
    fields = [key for key, value in vars(plain).items() if isinstance(value, dict)]
    began = flat(vars(first_state(method, FEDERATION))[fields[0]])
    moved = float((flat(vars(plain)[fields[0]]) - began).abs().max())
    for key in fields:
        apart = flat(vars(secure)[key]) - flat(vars(plain)[key])
        assert float(apart.abs().max()) <= 1e-3 * moved
    assert stage.asked.count("sums.end") >= 2
    assert not stage.told("no_sum")


@pytest.mark.parametrize("spec", [ADDITIVE, SHAMIR], ids=lambda spec: spec.scheme)
def test_runs_differ_in_their_masks_and_end_alike(spec):
    method = METHODS["fedavg"]
    runs = [played(method, spec, engine) for engine in ("loop", "loop", "wire")]
    for state, stage in runs[1:]:
        assert torch.equal(flat(state.model), flat(runs[0][0].model))
        for who, answer in stage.answers().items():
            assert not torch.equal(answer["sum"], runs[0][1].answers()[who]["sum"])


def test_in_one_call_for_many_clients():
    method = IFCA(LEARNER, k=2)
    loop, batched = (played(method, ADDITIVE, engine)[0] for engine in ("loop", "batched"))
    assert torch.equal(loop.member, batched.member)
    assert float((flat(loop.centres) - flat(batched.centres)).abs().max()) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedem"])
def test_in_several_processes(name):
    key = {"fedavg": "model", "fedem": "components"}[name]
    loop, workers = (played(METHODS[name], ADDITIVE, engine)[0] for engine in ("loop", "workers"))
    assert float((flat(vars(loop)[key]) - flat(vars(workers)[key])).abs().max()) < 1e-4


def test_whole_numbers_are_the_largest_and_go_in_the_clear():
    learner = toy.learner("tiny_cnn", FEDERATION)
    method = FedAvg(learner)
    counters = {n for n, t in learner.first.items() if not t.is_floating_point()}
    assert counters
    plain, secure = (played(method, spec, rounds=1)[0].model for spec in (None, ADDITIVE))
    assert all(torch.equal(plain[n], secure[n]) and int(secure[n]) > 0 for n in counters)
    assert [secure[n].dtype for n in secure] == [learner.first[n].dtype for n in secure]


def test_a_group_of_too_few_keeps_its_model_and_it_is_said():
    method = IFCA(LEARNER, k=3)
    state = first_state(method, FEDERATION)
    with server(method, FEDERATION) as stage:
        after = stage.round(state)
    sizes = after.member.bincount(minlength=3).tolist()
    assert 0 < min(size for size in sizes if size) < 3 <= max(sizes)
    for group, size in enumerate(sizes):
        kept = all(torch.equal(after.centres[n][group], t[group]) for n, t in state.centres.items())
        assert kept == (size < 3)
    told = {facts["group"]: facts["reason"] for facts in stage.told("no_sum")}
    assert told == {
        g: f"{n} of the 3 members that are needed; it keeps its model"
        for g, n in enumerate(sizes)
        if 0 < n < 3
    }


def test_weights_that_are_one_clients_are_no_sum():
    rows = toy.grouped([200, 2, 3, 2], side=3, noise=0.5)
    method = FedAvg(toy.learner("mlp", rows))
    with server(method, rows) as stage:
        after = stage.round(first_state(method, rows))
    assert torch.equal(flat(after.model), flat(method.learner.first))
    assert "exceeds 0.5 of the sum" in stage.told("no_sum")[0]["reason"]
