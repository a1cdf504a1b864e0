"""Laws by which one method becomes another, or plain PyTorch; each side is computed independently."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.feddist import FedDist, FedDWS
from kinfolk.algorithms.fedprox import FedProx
from kinfolk.algorithms.fedsgd import FedSGD
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference, tensor_difference
from kinfolk.engines.choose import ENGINES
from kinfolk.fold import Mean
from kinfolk.learning.optim import SGD, Adam
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Client, Stack


def model_after(algorithm, federation, engine="loop", rounds=2, participation=0.8):
    return toy.play_rounds(algorithm, federation, engine, rounds, participation=participation).state.model


def replies_to(algorithm, federation, task):
    """What every client answers to one task when it is sent the first model."""
    with toy.coordinated(algorithm, federation) as coordinator:
        request = Ask(task, federation.clients, {"model": algorithm.learner.first})
        return coordinator.perform(request, RoundContext(Seed(0), 0, federation.clients))


@pytest.mark.parametrize("network", ["mlp", "tiny_cnn"])
@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_fedprox_without_a_penalty_is_fedavg(engine, network):
    federation = toy.ragged()
    learner = toy.learner(network, federation)
    plain = model_after(FedAvg(learner), federation, engine)
    assert message_difference(model_after(FedProx(learner, mu=0.0), federation, engine), plain, 0) == ""
    assert message_difference(model_after(FedProx(learner, mu=1.0), federation, engine), plain, 1e-4) != ""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_whole_step_of_reptile_is_fedavg(engine):
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation)
    uniform = model_after(FedAvg(learner, "uniform"), federation, engine)
    by_size = model_after(FedAvg(learner, "size"), federation, engine)
    assert message_difference(model_after(FedDist(learner, 1.0), federation, engine), uniform, 1e-5) == ""
    assert message_difference(model_after(FedDWS(learner, 1.0), federation, engine), by_size, 1e-5) == ""
    assert message_difference(uniform, by_size, 1e-3) != ""


def test_half_a_step_of_reptile_is_half_way():
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    there = model_after(FedAvg(learner, "uniform"), federation, rounds=1)
    for name, got in model_after(FedDist(learner, 0.5), federation, rounds=1).items():
        half = (learner.first[name].double().numpy() + there[name].double().numpy()) / 2
        np.testing.assert_allclose(got.numpy(), half, rtol=1e-5, atol=1e-7)


def alone(rows):
    """A federation of one client, called ada."""
    return toy.grouped((rows,), side=8, noise=1.0)


def by_hand(learner, federation, optimiser, rounds, epochs, batch):
    """The learner's network trained with PyTorch's own module and optimiser, rows in the seed's order."""
    network = copy.deepcopy(learner.module).train()
    mine = federation.splits["train"].rows(0)
    x, y = federation.x[mine], federation.y[mine]
    single = any(isinstance(m, nn.BatchNorm2d) for m in network.modules())
    for number in range(rounds):
        steps = optimiser(network.parameters())  # a fresh one each round, as in a federation
        draw = Seed(0).numpy("batch", number, "ada", 0)
        for _ in range(epochs):
            order = torch.from_numpy(draw.permutation(len(mine)))
            for rows in order.split(batch):
                if len(rows) == 1 and single:
                    continue
                steps.zero_grad()
                nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
                steps.step()
    return network.state_dict()


OPTIMISERS = {
    "sgd": (SGD(0.9, 1e-2), lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-2)),
    "adam": (Adam(weight_decay=1e-2), lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=1e-2)),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("network", ["mlp", "tiny_cnn"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_one_client_alone_is_plain_pytorch(engine, network, name):
    federation = alone(rows=17)  # two batches of eight and one row left over
    ours, theirs = OPTIMISERS[name]
    learner = replace(toy.learner(network, federation, epochs=2, lr=0.01), optimiser=ours)
    got = model_after(FedAvg(learner), federation, engine, rounds=2)
    wanted = by_hand(learner, federation, theirs, rounds=2, epochs=2, batch=8)
    assert list(got) == list(wanted)
    # A bias before BatchNorm has no gradient but rounding, which Adam scales up to a step like any other.
    tolerance = 1e-3 if (name, network) == ("adam", "tiny_cnn") else 1e-6
    for leaf, value in wanted.items():
        assert tensor_difference(got[leaf], value, tolerance) == "", leaf
        assert not torch.equal(value, learner.first[leaf])


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_one_full_step_of_fedavg_is_fedsgd(weights):
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation, momentum=0.0, weight_decay=0.0, batch=64)
    one = model_after(FedAvg(learner, weights), federation)
    other = model_after(FedSGD(learner, weights), federation)
    assert message_difference(other, one, 1e-5) == ""


@pytest.mark.parametrize("batch", [64, 4])
def test_fedsgd_sends_the_gradient_of_all_rows(batch):
    federation = toy.ragged()
    algorithm = FedSGD(toy.learner("mlp", federation, batch=batch))
    got = replies_to(algorithm, federation, "gradient")
    for i, who in enumerate(federation.clients):
        mine = federation.splits["train"].rows(i)
        network = algorithm.learner.module
        loss = nn.functional.cross_entropy(network(federation.x[mine]), federation.y[mine])
        wanted = torch.autograd.grad(loss, list(network.parameters()))
        for (name, _), value in zip(network.named_parameters(), wanted, strict=True):
            torch.testing.assert_close(got.row(who)["gradient"][name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_the_mean_of_a_model_with_itself_is_that_model(weights):
    model = toy.learner("tiny_cnn", toy.ragged()).first
    model["norm1.num_batches_tracked"] += 7
    model["norm1.running_var"] *= 3.7
    fold = Mean("model", keep={n: torch.zeros_like(t) for n, t in model.items()}, weights=weights)
    total = fold.begin()
    for names in (("a",), ("b", "c")):
        total = fold.add(total, Stack.of({Client(c): (ord(c), {"model": model}) for c in names}))
    assert message_difference(fold.end(total), model, 0) == ""


@pytest.mark.parametrize("engine", ENGINES)
def test_fedavg_is_the_weighted_mean_of_parameters_and_buffers(engine):
    federation = toy.ragged()
    algorithm = FedAvg(toy.learner("tiny_cnn", federation))
    got = replies_to(algorithm, federation, "update").tree("model")
    rows = np.array([toy.ROWS[toy.NAMES.index(c)] for c in federation.clients], dtype=np.float64)
    for name, value in model_after(algorithm, federation, engine, rounds=1, participation=1.0).items():
        leaf = got[name].numpy()
        if leaf.dtype.kind == "i":
            assert value.item() == leaf.max() == 4
        else:
            mean = np.tensordot(rows / rows.sum(), leaf.astype(np.float64), axes=1)
            np.testing.assert_allclose(value.numpy(), mean, rtol=1e-4, atol=1e-6)
    assert len({tuple(v) for v in got["norm1.running_mean"].tolist()}) > 4


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_fedprox_pays_half_of_mu_times_the_square(engine):
    """Two steps over all rows by PyTorch on F_i(v) + (mu / 2) |v - w|^2; mu would pull twice as hard."""
    federation, mu = toy.alike(), 4.0
    learner = toy.learner("mlp", federation, batch=64, epochs=2, momentum=0.0, weight_decay=0.0)
    got = model_after(FedProx(learner, mu, "uniform"), federation, engine, rounds=1, participation=1.0)
    ends = {factor: [] for factor in (0.5, 1.0)}
    for factor, found in ends.items():
        for i in range(len(federation.clients)):
            network = copy.deepcopy(learner.module)
            w = [p.detach().clone() for p in network.parameters()]
            steps = torch.optim.SGD(network.parameters(), learner.lr)
            mine = federation.splits["train"].rows(i)
            for _ in range(2):
                steps.zero_grad()
                loss = nn.functional.cross_entropy(network(federation.x[mine]), federation.y[mine])
                apart = sum(((p - q) ** 2).sum() for p, q in zip(network.parameters(), w, strict=True))
                (loss + factor * mu * apart).backward()
                steps.step()
            found.append(network.state_dict())
    half, whole = ({n: torch.stack([m[n] for m in found]).mean(0) for n in got} for found in ends.values())
    assert message_difference(got, half, 1e-5) == ""
    assert message_difference(got, whole, 1e-3) != "", "or the two could not be told apart"
