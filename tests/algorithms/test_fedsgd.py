"""FedSGD is full-batch descent on everybody's rows at once, whatever the batch size and the optimiser."""

import copy

import pytest
import torch
from torch import nn

from kinfolk.algorithms.fedsgd import FedSGD
from kinfolk.contract import checks, toy
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.optim import SGD, Adam
from kinfolk.task import Plan

OURS = {
    "sgd": SGD(),
    "momentum and decay": SGD(0.9, 0.05),
    "adam": Adam(weight_decay=0.05),
}
THEIRS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "momentum and decay": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.05),
    "adam": lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.05),
}


def method(optimiser="sgd", clip=0.0, batch=64, federation=None):
    module = toy.learner("mlp", federation or toy.ragged()).module
    return FedSGD(
        Learner(
            module, find_loss("cross_entropy"), toy.CLASSES, OURS[optimiser], Plan(batch), lr=0.05, clip=clip
        )
    )


def model_after(algorithm, federation, rounds, **how):
    return toy.play_rounds(algorithm, federation, rounds=rounds, score=False, **how).state.model


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("name", OURS)
def test_it_is_the_optimiser_of_torch_on_all_rows_at_once(name, engine):
    federation = toy.ragged()
    algorithm = method(name, batch=4)
    network = copy.deepcopy(algorithm.learner.module)
    rows = federation.splits["train"].row
    steps = THEIRS[name](network.parameters())
    for _ in range(4):
        steps.zero_grad()
        nn.functional.cross_entropy(network(federation.x[rows]), federation.y[rows]).backward()
        steps.step()
    got = model_after(algorithm, federation, 4, engine_name=engine)
    for leaf, wanted in network.state_dict().items():
        torch.testing.assert_close(got[leaf], wanted, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_the_batch_size_does_not_matter_where_gradients_are_clipped(engine):
    """Each batch clipped by itself moved the model by 39 % less or more."""
    federation = toy.ragged()
    found = [model_after(method(clip=0.1, batch=n), federation, 3, engine_name=engine) for n in (64, 4, 1)]
    first = toy.first_model(method())
    moved = torch.cat([(found[0][n] - first[n]).flatten() for n in first]).norm()
    for other in found[1:]:
        apart = torch.cat([(found[0][n] - other[n]).flatten() for n in first]).norm()
        assert apart < 1e-3 * moved


def test_a_clients_whole_gradient_is_no_longer_than_the_limit():
    federation = toy.ragged()
    free, held = (toy.play_rounds(method(clip=c), federation, rounds=1).state.model for c in (0.0, 0.1))
    first = toy.first_model(method())
    network, rows = copy.deepcopy(method().learner.module), federation.splits["train"]
    total, wanted = int(rows.counts().sum()), {n: torch.zeros_like(t) for n, t in first.items()}
    for i in range(len(federation.clients)):
        mine = rows.rows(i)
        loss = nn.functional.cross_entropy(network(federation.x[mine]), federation.y[mine])
        g = torch.autograd.grad(loss, list(network.parameters()))
        length = torch.cat([t.flatten() for t in g]).norm()
        for (n, _), t in zip(network.named_parameters(), g, strict=True):
            wanted[n] += len(mine) / total * t * min(1.0, 0.1 / float(length))
    for n in first:
        torch.testing.assert_close(held[n], first[n] - 0.05 * wanted[n], rtol=1e-3, atol=1e-6)
    assert any(not torch.allclose(free[n], held[n], atol=1e-4) for n in first), "or nothing was clipped"


@pytest.mark.parametrize("name", ["momentum and decay", "adam"])
def test_a_round_that_nobody_answers_is_no_step(name):
    federation = toy.ragged()
    algorithm = method(name)
    before = toy.play_rounds(algorithm, federation, rounds=2, score=False)
    after = toy.play_rounds(
        algorithm, federation, rounds=3, score=False, absent=lambda context, who: context.round == 2
    )
    assert all(torch.equal(t, after.state.model[n]) for n, t in before.state.model.items())
    assert (before.state.steps, after.state.steps) == (2, 2)


@pytest.mark.parametrize("check", ["resume", "state_is_plain", "survives_nobody"])
def test_the_optimisers_state_is_kept_like_any_other(check):
    def make(learner):
        assert learner.optimiser == SGD(0.9, 1e-3) or check == "resume"
        return FedSGD(learner)

    checks.CHECKS[check](make)
