"""The server's work on inputs: Adam against PyTorch's, layouts against the usual ones, cores."""

import copy
from contextlib import nullcontext

import pytest
import torch
from small_networks import learner_of, seeded, several
from torch import nn
from torch.nn import functional as F

from kinfolk.learning.inputs import descend_rows, probabilities
from kinfolk.learning.inputs.layout import rows_innermost, rows_last
from kinfolk.learning.inputs.minimise import Adam, minimise
from kinfolk.learning.inputs.models import costs_of, in_one_call
from kinfolk.learning.models import LeNet, TinyCNN


def cross_entropy(outputs, x, y):
    return F.cross_entropy(outputs, y, reduction="none")


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
def test_costs_of_many_models_are_those_of_each_alone_in_evaluation_mode(make):
    module = seeded(make)
    learner = learner_of(module, 4)
    models = several(learner, 3)
    shape = (1, 28, 28) if isinstance(module, LeNet) else (3, 8, 8)
    x = torch.randn(3, 4, *shape, generator=torch.Generator().manual_seed(0))
    y = torch.arange(4).expand(3, 4)
    cost = lambda outputs, x, y: cross_entropy(outputs, x, y) + x.flatten(1).norm(dim=1)  # noqa: E731
    apart = costs_of(learner, models, cost, x)(x, y)
    torch.testing.assert_close(in_one_call(learner, models, cost, x, y), apart)
    said = probabilities(learner, models, x[0])
    for k in range(3):
        alone = copy.deepcopy(module).eval()
        alone.load_state_dict({n: t[k] for n, t in models.items()})
        wanted = cost(alone(x[k]), x[k], y[k])
        torch.testing.assert_close(apart[k], wanted.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(said[k], alone(x[0]).softmax(-1).detach(), rtol=1e-4, atol=1e-5)


def test_a_row_does_not_depend_on_how_many_there_are():
    learner = learner_of(seeded(lambda: nn.Linear(5, 3)))
    models, y = several(learner, 1), torch.arange(3).repeat_interleave(4)
    start = torch.randn(1, 12, 5, generator=torch.Generator().manual_seed(0))
    some, all_ = (
        descend_rows(learner, models, start[:, :n], y[:n], cross_entropy, lr=0.1, steps=5) for n in (2, 12)
    )
    torch.testing.assert_close(some, all_[:, :2], rtol=0, atol=1e-5)


def test_what_follows_a_step_is_done_after_each():
    x, seen = torch.tensor([4.0]), []
    minimise(lambda leaves: leaves[0].square().sum(), [x], 0.5, 3, after=lambda: seen.append(float(x)))
    assert len(seen) == 3
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == float(x)


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


def test_rows_and_outputs_have_the_same_bits_on_any_number_of_cores(monkeypatch):
    learner = learner_of(seeded(lambda: LeNet(1, 4, 28)), 4)
    models, found, before = several(learner, 3), [], torch.get_num_threads()
    start, y = (
        torch.randn(3, 360, 1, 28, 28, generator=torch.Generator().manual_seed(0)),
        torch.arange(360) % 4,
    )
    for cores in (1, 2, 5):
        monkeypatch.setattr("os.sched_getaffinity", lambda pid, n=cores: set(range(n)), raising=False)
        x = descend_rows(learner, models, start, y, cross_entropy, lr=0.1, steps=2)
        found.append((x, probabilities(learner, models, x.flatten(0, 1))))
    for x, said in found[1:]:
        assert torch.equal(x, found[0][0])
        assert torch.equal(said, found[0][1])
    assert torch.get_num_threads() == before
    # Rows of a model are moved by its own weights, whatever else is at work.
    alone = {n: t[2:] for n, t in models.items()}
    again = descend_rows(learner, alone, start[2:], y, cross_entropy, lr=0.1, steps=2)
    torch.testing.assert_close(found[0][0][2:], again, rtol=0, atol=1e-6)


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
