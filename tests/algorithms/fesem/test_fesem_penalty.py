"""FeSEM's penalty: the paper's by hand, and clients of two rows beside clients of two thousand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from kinfolk.algorithms.blocks.start import Start
from kinfolk.algorithms.fesem.fesem import FeSEM
from kinfolk.algorithms.fesem.fesem_ma import FeSEMMA
from kinfolk.contract import toy
from kinfolk.learning.optim import SGD, Adam
from kinfolk.script import Ask, play
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Batch, ClientInfo
from kinfolk.types import Client

METHODS = (FeSEM, FeSEMMA)


def by_hand(learner, x, y, start, pull, rate, steps):
    """w <- (w - rate grad F(w) + 2 rate pull c) / (1 + 2 rate pull) from w = c, in float64."""
    c = {n: t.double() for n, t in start.items()}
    w = dict(c)
    for _ in range(steps):
        leaves = {n: t.requires_grad_() for n, t in w.items()}
        loss = cross_entropy(learner.apply(leaves, x.double()), y)
        grads = torch.autograd.grad(loss, list(leaves.values()))
        w = {
            n: ((w[n] - rate * g + 2 * rate * pull * c[n]) / (1 + 2 * rate * pull)).detach()
            for n, g in zip(w, grads, strict=True)
        }
    return w


def updates(method, federation, engine, number=0):
    """What everybody sends in a round that begins at the first model."""
    state = method.init(method.learner.first, federation.clients, Seed(0))
    context, seen = RoundContext(Seed(0), number, federation.clients), []
    with toy.coordinated(method, federation, engine) as coordinator:

        def perform(request):
            if request.task == "update":
                seen.append(coordinator.perform(replace(request, fold=None), context))
            return coordinator.perform(request, context)

        play(method.round(state, federation.clients, context), perform)
    return seen[0]


@pytest.mark.parametrize(
    ("kind", "scaling", "engine"),
    [
        *((FeSEM, "normalised", engine) for engine in ("loop", "batched", "workers", "wire")),
        (FeSEM, "plain", "batched"),
        (FeSEMMA, "normalised", "batched"),
        (FeSEMMA, "plain", "loop"),
    ],
)
def test_a_round_takes_the_papers_penalty_by_implicit_steps(kind, scaling, engine):
    """lambda / (N a_i) = lambda n / (N n_i): the mean number of rows over one's own."""
    federation = toy.ragged()
    learner = toy.learner("mlp", federation, lr=0.2, momentum=0.0, weight_decay=0.0, batch=64, epochs=3)
    learner = replace(learner, decay=0.5)
    method = kind(learner, k=1, lam=0.7, prox_scaling=scaling, start=Start("random_partition"))
    sent = updates(method, federation, engine, number=1)
    rows = federation.splits["train"].counts().tolist()
    for i, who in enumerate(federation.clients):
        pull = 0.7 * (sum(rows) / len(rows) / rows[i] if scaling == "normalised" else 1)
        x, y = federation.take(federation.splits["train"].rows(i))
        wanted = by_hand(learner, x, y, learner.first, pull, 0.2 * 0.5, 3)
        apart = max(float((wanted[n] - t).abs().max()) for n, t in sent.row(who)["model"].items())
        moved = max(float((wanted[n] - learner.first[n]).abs().max()) for n in wanted)
        assert apart < 1e-3 * moved, who


@pytest.mark.parametrize("kind", METHODS)
def test_the_objective_is_the_papers_over_the_share_of_rows(kind):
    """F_i(w) + lambda / (N a_i) |w - c|^2, its value and its gradient, not half of the penalty."""
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    method = kind(learner, k=1, lam=0.3)
    x, y = federation.take(federation.splits["train"].rows(2))
    message = {"model": learner.first, "pull": torch.tensor(method.lam * 12.0)}
    carry = method.begin(message, {}, ClientInfo(torch.tensor(3), torch.tensor(1), 0))
    w = {n: (t + 0.1).requires_grad_() for n, t in learner.first.items()}
    batch = Batch(x, y, torch.arange(len(y)), None)
    found, plain = method.objective(w, batch, carry), cross_entropy(learner.apply(w, x), y)
    size = sum(t.numel() for t in w.values())
    assert float((found - plain).detach()) == pytest.approx(0.3 * 12 / 3 * 0.1**2 * size, rel=1e-3)
    got, without = (torch.autograd.grad(v, w["head.bias"], retain_graph=True)[0] for v in (found, plain))
    assert torch.allclose(got - without, torch.tensor(2 * 0.3 * 12 / 3 * 0.1), rtol=1e-3)


def test_without_a_penalty_nothing_is_divided():
    """The bits of plain training: lambda = 0 gives the learner's own objective."""
    federation = toy.ragged()
    method = FeSEM(toy.learner("mlp", federation), k=1, lam=0.0)
    x, y = federation.take(federation.splits["train"].rows(2))
    batch = Batch(x, y, torch.arange(len(y)), None)
    message = {"model": method.learner.first, "pull": torch.tensor(0.0)}
    carry = method.begin(message, {}, ClientInfo(torch.tensor(3), torch.tensor(1), 0))
    plain = method.learner.objective(method.learner.first, batch, {})
    assert torch.equal(method.implicit(method.learner.first, batch, carry), plain)


NAMES = tuple(Client(f"c{i:02}") for i in range(12))
OPTIMISERS = {
    "sgd": (SGD(), 0.1, 0.0),
    "momentum": (SGD(momentum=0.9, weight_decay=1e-3), 0.1, 0.0),
    "clipped": (SGD(weight_decay=1e-3), 0.1, 1.0),
    "adam": (Adam(), 0.01, 0.0),
}


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_clients_of_two_rows_beside_clients_of_two_thousand_stay_near_their_centre(optimiser):
    """lambda n / (N n_i) is 25 for them: an explicit step of 0.1 throws them five times as far each time."""
    how, rate, clip = OPTIMISERS[optimiser]
    federation = toy.grouped((2000,) * 6 + (2,) * 6, side=8, noise=2.0, names=NAMES)
    learner = toy.learner("mlp", federation, lr=rate, batch=200, epochs=5)
    learner = replace(learner, optimiser=how, clip=clip)
    outcome = toy.play_rounds(FeSEM(learner, k=2, patience=0), federation, "batched", rounds=3)
    assert outcome.state.spread < 10
    correct = sum(right for right, _ in outcome.scores["centre"].values())
    assert correct > 33, "of 66 rows; what has diverged guesses, 16"


@pytest.mark.parametrize(
    ("engine", "momentum"), [("loop", 0.0), ("batched", 0.0), ("batched", 0.9), ("workers", 0.9)]
)
def test_whoever_is_held_firmly_ends_near_the_centre_in_every_engine(engine, momentum):
    """However strong the pull: with lambda n / (N n_i) of 1e4 a client hardly leaves, and never diverges."""
    federation = toy.ragged()
    learner = toy.learner("mlp", federation, lr=0.1, momentum=momentum, epochs=20)
    sent = updates(FeSEM(learner, k=1, lam=1e4, start=Start("random_partition")), federation, engine)
    for name, t in sent.tree("model").items():
        assert float((t - learner.first[name]).abs().max()) < 1e-2, name


def test_the_personal_model_is_trained_by_the_same_steps():
    federation = toy.ragged()
    learner = toy.learner("mlp", federation, lr=0.1, epochs=20)
    method = FeSEM(learner, k=1, lam=1e4, start=Start("random_partition"))
    state = toy.play_rounds(method, federation, rounds=1, score=False).state
    shared, each = method.eval_inputs(state, federation.clients)
    with toy.coordinated(method, federation) as coordinator:
        context = RoundContext(Seed(0), 1, federation.clients)
        got, centre = (
            coordinator.perform(Ask(f"score.{kind}", federation.clients, shared, each), context)
            for kind in ("personal", "centre")
        )
    assert torch.allclose(got.tensor("loss"), centre.tensor("loss"), rtol=0.05)
