"""Rows made out of models: gradients in closed form, Adam against PyTorch's, what the rows look like."""

import copy
import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kinfolk.algorithms.mdicfl.back_search import Adam, BackSearch, Prior, labels, losses, probabilities
from kinfolk.algorithms.mdicfl.generator import TRAINED, Generators, alikeness
from kinfolk.algorithms.mdicfl.input_gradient import rows_innermost, rows_last
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.models import LeNet, TinyCNN
from kinfolk.streams import RoundContext, Seed

TURN = RoundContext(Seed(3), 2, ())


def seeded(make):
    with Seed(0).borrowed("init"):
        return make()


def learner_of(module, outputs=3):
    return Learner(module, find_loss("cross_entropy"), outputs)


def several(learner, k, spread=0.3):
    """K different models."""
    draw = torch.Generator().manual_seed(1)

    def one(t):
        if not t.is_floating_point():
            return t.expand(k, *t.shape).clone()
        return t + spread * t.abs().mean() * torch.randn(k, *t.shape, generator=draw)

    return {n: one(t).abs() if n.endswith("running_var") else one(t) for n, t in learner.first.items()}


def closed_form(w, b, x, c, prior):
    """The gradient of CE + prior of a linear softmax model at one row, in float64."""
    z = w @ x + b
    p = np.exp(z - z.max())
    p /= p.sum()
    p[c] -= 1
    away = x - prior.mean
    pull = prior.weight * away
    if prior.norm == "l2":
        pull = prior.weight / 2 * away / np.sqrt(away @ away + 1e-12)
    return w.T @ p + pull


@pytest.mark.parametrize("prior", [Prior(), Prior(0.5, 0.4), Prior(-0.2, 0.3, "squared")])
@pytest.mark.parametrize("iterations", [1, 3])
def test_a_step_of_the_search_is_that_of_the_closed_form(prior, iterations):
    learner = learner_of(seeded(lambda: nn.Linear(5, 3)))
    models, y = several(learner, 2), labels(3, 2)
    start = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0))
    got = BackSearch(iterations=iterations, prior=prior).search(learner, models, start, y)
    for k in range(2):
        w, b = (models[n][k].double().numpy() for n in ("weight", "bias"))
        for i, c in enumerate(y.tolist()):
            x = start[k, i].double().numpy()
            first, second = np.zeros(5), np.zeros(5)
            for t in range(1, iterations + 1):  # Adam by its definition
                g = closed_form(w, b, x, c, prior)
                first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
                x = x - 0.1 * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
            np.testing.assert_allclose(got[k, i].numpy(), x, atol=2e-5)


def test_adam_is_that_of_pytorch():
    draw = torch.Generator().manual_seed(2)
    ours = [torch.randn(3, 4, generator=draw), torch.randn(2, generator=draw)]
    theirs = [t.clone().requires_grad_() for t in ours]
    mine, other = Adam(ours, 0.1), torch.optim.Adam(theirs, lr=0.1)
    for _ in range(7):
        grads = [torch.randn(t.shape, generator=draw) for t in ours]
        for t, g in zip(theirs, grads, strict=True):
            t.grad = g.clone()
        mine.step(grads)
        other.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("make", [lambda: LeNet(1, 4, 28), lambda: TinyCNN(3, 4, norm="bn")])
def test_losses_of_many_models_are_those_of_each_alone_in_scoring_mode(make):
    module = seeded(make)
    learner = learner_of(module, 4)
    models, prior = several(learner, 3), Prior(0.1)
    shape = (1, 28, 28) if isinstance(module, LeNet) else (3, 8, 8)
    x = torch.randn(3, 4, *shape, generator=torch.Generator().manual_seed(0))
    y = torch.arange(4).expand(3, 4)
    apart = losses(learner, models, x, y, prior, together=False)
    torch.testing.assert_close(losses(learner, models, x, y, prior, together=True), apart)
    said = probabilities(learner, models, x[0])
    for k in range(3):
        alone = copy.deepcopy(module).eval()
        alone.load_state_dict({n: t[k] for n, t in models.items()})
        pull = 0.05 * (x[k] - 0.1).flatten(1).norm(dim=1)
        wanted = nn.functional.cross_entropy(alone(x[k]), y[k], reduction="none") + pull
        torch.testing.assert_close(apart[k], wanted.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(said[k], alone(x[0]).softmax(-1).detach(), rtol=1e-4, atol=1e-5)


def test_a_row_does_not_depend_on_how_many_are_searched_for():
    learner = learner_of(seeded(lambda: nn.Linear(5, 3)))
    models, y = several(learner, 1), labels(3, 4)
    start = torch.randn(1, 12, 5, generator=torch.Generator().manual_seed(0))
    search = BackSearch(iterations=5)
    some = search.search(learner, models, start[:, :2], y[:2])
    torch.testing.assert_close(some, search.search(learner, models, start, y)[:, :2], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("channels", "size"), [(1, 5), (3, 3)])
def test_the_input_gradient_with_rows_innermost_is_the_usual_one(channels, size):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4, channels, 9, 8, generator=draw, dtype=torch.float64, requires_grad=True)
    w = torch.randn(6, channels, size, size, generator=draw, dtype=torch.float64)
    bias = torch.randn(6, generator=draw, dtype=torch.float64)
    usual = torch.conv2d(x, w, bias)
    with rows_innermost():
        out = torch.conv2d(x, w, bias, 1, 0)
        others = [
            torch.conv2d(x, w, None, 2),
            torch.conv2d(x, w, None, 1, 1),
            torch.conv2d(x, w[:, :1], groups=channels),
        ]
    assert "_Conv" in type(out.grad_fn).__name__
    torch.testing.assert_close(out, usual)
    wanted = torch.autograd.grad(usual.square().sum(), x)[0]
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), x)[0], wanted)
    assert all("_Conv" not in type(o.grad_fn).__name__ for o in others[:2])
    torch.testing.assert_close(others[0], torch.conv2d(x, w, None, 2))


PIECES = {
    "pool": lambda t: F.max_pool2d(t, 2),
    "pool in words": lambda t: F.max_pool2d(t, kernel_size=(2, 2), stride=2),
    "relu and pool": lambda t: F.max_pool2d(F.relu(t), 2),
    "relu, used twice": lambda t: (lambda r: F.max_pool2d(r, 2).sum() + r.square().sum())(F.relu(t)),
    "laid out by hand": lambda t: t.contiguous(memory_format=torch.contiguous_format).view(5, -1),
    "pool by three": lambda t: F.max_pool2d(t, 3),
    "odd": lambda t: F.max_pool2d(t[:, :, 1:], 2),
    "border": lambda t: F.pad(t, [1, 2, 3, 0], mode="replicate"),
    "zeros around": lambda t: F.pad(t, [1, 1, 1, 1]),
}


@pytest.mark.parametrize("piece", PIECES)
def test_pools_and_borders_with_rows_innermost_are_the_usual_ones(piece):
    draw = torch.Generator().manual_seed(0)
    # Few different values, so that there are ties: the first of the largest has the gradient.
    x = torch.randint(-2, 3, (5, 2, 6, 8), generator=draw).double()
    found = []
    for mode, start in ((nullcontext(), x), (rows_innermost(), rows_last(x))):
        leaf = start.detach().requires_grad_()
        with mode:
            out = PIECES[piece](leaf)
        shares = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        found.append((out, torch.autograd.grad((out * shares).sum(), leaf)[0]))
    for usual, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, usual)


def test_a_search_has_the_same_bits_on_any_number_of_cores(monkeypatch):
    learner = learner_of(seeded(lambda: LeNet(1, 4, 28)), 4)
    models, found, before = several(learner, 3), [], torch.get_num_threads()
    for cores in (1, 2, 5):
        monkeypatch.setattr("os.sched_getaffinity", lambda pid, n=cores: set(range(n)), raising=False)
        x, _ = BackSearch(samples=90, iterations=2).draw(learner, models, (1, 28, 28), TURN, {})
        found.append((x, probabilities(learner, models, x.flatten(0, 1))))
    for x, said in found[1:]:
        assert torch.equal(x, found[0][0])
        assert torch.equal(said, found[0][1])
    assert torch.get_num_threads() == before
    # Rows of a model are searched for by its own weights, whoever else is at work.
    alone = {n: t[2:] for n, t in models.items()}
    again = BackSearch(samples=90, iterations=2).search(learner, alone, start_of(3, 360)[2:], labels(4, 90))
    torch.testing.assert_close(found[0][0][2:], again, rtol=0, atol=1e-6)


def start_of(k, rows):
    """Where the rows of `TURN` begin."""
    draws = [torch.randn(rows, 1, 28, 28, generator=TURN.seed.torch("pseudo", 2, j)) for j in range(k)]
    return torch.stack(draws)


def test_gradients_of_a_whole_network_are_the_usual_ones():
    learner = learner_of(seeded(lambda: LeNet(1, 4, 28)), 4)
    x = torch.randn(7, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    grads = []
    for mode in (nullcontext(), rows_innermost()):
        leaf = x.clone().requires_grad_()
        with mode:
            out = learner.apply(learner.first, leaf)
        grads.append(torch.autograd.grad(out[:, 1].sum(), leaf)[0])
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-6)


def test_rows_of_a_class_are_taken_for_it_and_follow_from_seed_round_and_model():
    learner = learner_of(seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))))
    models = several(learner, 2)
    search = BackSearch(samples=5)
    x, kept = search.draw(learner, models, (6,), TURN, {})
    assert x.shape == (2, 15, 6)
    assert kept == {}
    for k in range(2):
        said = probabilities(learner, {n: t[k : k + 1] for n, t in models.items()}, x[k])[0]
        assert (said.argmax(1) == labels(3, 5)).all()
    assert torch.equal(search.draw(learner, models, (6,), TURN, {})[0], x)
    assert not torch.equal(search.draw(learner, models, (6,), RoundContext(Seed(3), 1, ()), {})[0], x)
    assert not torch.equal(x[0], x[1])
    held, _ = BackSearch(samples=5, clip_to_range=True).draw(learner, models, (6,), TURN, {})
    assert held.abs().max() <= 1 < x.abs().max()


@pytest.mark.parametrize(("shape", "wanted"), [((1, 32, 32), 270_592), ((3, 32, 32), 1_590_784)])
def test_generators_have_the_published_size(shape, wanted):
    nets = Generators().first(2, 10, shape, TURN)
    assert sum(nets[n][0].numel() for n in (*TRAINED, "bias1")) == wanted


def by_module(nets, k, shape):
    """One of the generators as an ordinary network."""
    hidden, inputs = nets["weight1"].shape[1:]
    out = math.prod(shape)
    net = nn.Sequential(
        nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, out), nn.Tanh()
    )
    names = {"0.weight": "weight1", "0.bias": "bias1", "1.weight": "scale", "1.bias": "shift"}
    names |= {"1.running_mean": "mean", "1.running_var": "variance", "3.weight": "weight2", "3.bias": "bias2"}
    net.load_state_dict({theirs: nets[ours][k] for theirs, ours in names.items()}, strict=False)
    return net


def test_a_generator_is_the_network_that_it_should_be():
    how = Generators(noise=3, hidden=7)
    nets = how.first(2, 4, (2, 3), TURN)
    noise = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([[0, 1, 2, 3, 0], [3, 3, 1, 0, 2]])
    modules = [by_module(nets, k, (2, 3)).train() for k in range(2)]
    z = torch.cat([noise, nn.functional.one_hot(y, 4).float()], -1)
    for training in (True, False):
        got = how.rows(nets, noise, y, 4, (2, 3), training)
        for k, net in enumerate(modules):
            wanted = net.train(training)(z[k]).reshape(5, 2, 3)
            torch.testing.assert_close(got[k], wanted.detach())
            torch.testing.assert_close(nets["mean"][k], net[1].running_mean)
            torch.testing.assert_close(nets["variance"][k], net[1].running_var)


def test_generators_learn_to_make_rows_of_every_class():
    learner = learner_of(seeded(lambda: nn.Linear(6, 3)))
    models = several(learner, 2)
    before = {n: t.clone() for n, t in models.items()}
    how = Generators(samples=4, iterations=150, batch=20, hidden=16, warm_start=True)
    x, kept = how.draw(learner, models, (6,), TURN, {})
    assert x.shape == (2, 12, 6)
    assert x.abs().max() <= 1
    for k in range(2):
        said = probabilities(learner, {n: t[k : k + 1] for n, t in models.items()}, x[k])[0]
        assert (said.argmax(1) == labels(3, 4)).float().mean() > 0.9
    assert all(torch.equal(models[n], t) for n, t in before.items())
    assert torch.equal(how.draw(learner, models, (6,), TURN, {})[0], x)
    again, on = how.draw(learner, models, (6,), TURN, kept)
    assert not torch.equal(again, x)
    assert not torch.equal(on["weight1"], kept["weight1"])
    wide, nothing = Generators(2, 3, batch=5, hidden=4, output="none").draw(learner, models, (6,), TURN, {})
    assert nothing == {}
    assert wide.shape == (2, 6, 6)


def test_rows_are_drawn_by_running_means_or_by_those_of_the_batch():
    learner = learner_of(seeded(lambda: nn.Linear(6, 3)))
    models, rows = several(learner, 2), {}
    for statistics in ("running", "batch"):
        how = Generators(4, 10, batch=20, hidden=8, warm_start=True, statistics=statistics)
        rows[statistics], kept = how.draw(learner, models, (6,), TURN, {})
        y = labels(3, 4)
        for k in range(2):
            noise = torch.randn(12, 16, generator=TURN.seed.torch("pseudo", TURN.round, k, "draw"))
            net = by_module(kept, k, (6,)).train(statistics == "batch")
            wanted = net(torch.cat([noise, F.one_hot(y, 3).float()], 1)).detach()
            torch.testing.assert_close(rows[statistics][k], wanted)
    assert not torch.allclose(rows["running"], rows["batch"], atol=1e-3)


def test_diversity_parts_rows_that_are_alike():
    draw = torch.Generator().manual_seed(0)
    x, noise = torch.randn(2, 4, 3, generator=draw), torch.randn(2, 4, 5, generator=draw)
    for k, got in enumerate(alikeness(x, noise).tolist()):
        pairs = [
            float((x[k, i] - x[k, j]).abs().mean() * (noise[k, i] - noise[k, j]).square().mean())
            for i in range(4)
            for j in range(4)
        ]
        assert got == pytest.approx(math.exp(-sum(pairs) / 16), rel=1e-5)
    learner = learner_of(seeded(lambda: nn.Linear(6, 3)))
    models, spread = several(learner, 1), []
    for weight in (0.0, 20.0):
        how = Generators(10, 60, batch=20, hidden=8, diversity_weight=weight)
        rows = how.draw(learner, models, (6,), TURN, {})[0][0, :10]
        spread.append(float(rows.std(0).mean()))
    assert spread[1] > spread[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_recorded_steps_give_what_plain_ones_give():
    learner = learner_of(seeded(lambda: LeNet(1, 4, 28)), 4)
    models = several(learner, 2)
    there = {n: t.cuda() for n, t in models.items()}
    for how in (BackSearch(samples=2, iterations=6), Generators(2, 6, batch=5, hidden=8)):
        here, _ = how.draw(learner, models, (1, 28, 28), TURN, {})
        got, _ = how.draw(learner, there, (1, 28, 28), TURN, {})
        torch.testing.assert_close(got.cpu(), here, rtol=1e-3, atol=2e-2)
