"""Traced gradients have the bits of those that are not, and what can not be traced is computed as ever."""

from __future__ import annotations

import pytest
import torch
from fast_learner import Learner
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from kinfolk.engines.fast import trace
from kinfolk.engines.fast.steps import gradients
from kinfolk.engines.fast.trace import WORTH_TRACING, Traces, move_by_products
from kinfolk.learning.losses import find_loss
from kinfolk.learning.models import build_model
from kinfolk.streams import Seed


def setting(name: str, clients: int = 3, rows: int = 6):
    shape = {"mlp": (5,), "lenet": (1, 28, 28), "tiny_cnn": (1, 8, 8)}[name]
    options = {"norm": "bn"} if name == "tiny_cnn" else {}
    with Seed(0).borrowed("init"):
        learner = Learner(build_model(name, shape, 4, options), find_loss("cross_entropy"), 4)
    draw = Seed(1).torch("rows")
    model = {
        n: t.expand(clients, *t.shape).clone() + (0.01 * torch.randn(clients, *t.shape, generator=draw))
        if t.is_floating_point()
        else t.expand(clients, *t.shape).clone()
        for n, t in learner.first.items()
    }
    x = torch.randn(clients, rows, *shape, generator=draw)
    y = torch.randint(4, (clients, rows), generator=draw)
    weight = torch.ones(clients, rows)
    weight[0, -2:] = 0
    return learner, model, (x, y, torch.zeros_like(y), weight)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", ["mlp", "lenet", "tiny_cnn"])
def test_the_bits_are_the_same_and_buffers_move_once(name, whole):
    learner, model, rows = setting(name)

    def pulled(tree, batch, carry):  # an objective that consults the carry, as proximal methods do
        pull = sum(((tree[n] - carry["centre"][n]) ** 2).sum() for n in learner.names)
        return learner.objective(tree, batch, carry) + 0.1 * pull

    descent = learner.descent(pulled)
    centre = {n: t * 0.9 if t.is_floating_point() else t for n, t in model.items()}
    traces = Traces()
    for step in range(WORTH_TRACING + 2):
        found = []
        for by in (gradients, traces.gradients):
            mine = {n: t.clone() for n, t in model.items()}
            buffers = {n: t for n, t in mine.items() if n not in descent.names}
            _, grads, _ = by(descent, {"model": mine, "centre": centre}, buffers, rows, whole)
            found.append([*grads.values(), *buffers.values()])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True)), step
    assert [made is not None for made in traces._made.values()] == [True]


def test_a_model_that_stands_for_all_clients_keeps_its_layout():
    learner, model, rows = setting("lenet")
    teacher = learner.first

    def taught(tree, batch, carry):
        return (learner.apply(tree, batch.x) - learner.apply(carry["teacher"], batch.x)).square().mean()

    descent, traces = learner.descent(taught), Traces()
    for held in (
        {n: t.expand(3, *t.shape) for n, t in teacher.items()},
        {n: t.expand(3, *t.shape).clone() for n, t in teacher.items()},
    ):
        carry = {"model": model, "teacher": held}
        _, wanted, _ = gradients(descent, carry, {}, rows, True)
        for _ in range(WORTH_TRACING + 1):
            _, got, _ = traces.gradients(descent, carry, {}, rows, True)
        assert all(torch.equal(got[n], wanted[n]) for n in wanted)
    assert [made is not None for made in traces._made.values()] == [True, True]


def test_what_can_not_be_traced_is_computed_as_ever(monkeypatch):
    learner, model, rows = setting("mlp")
    monkeypatch.setattr(trace, "make_fx", lambda f: 1 / 0)
    traces = Traces()
    for _ in range(WORTH_TRACING + 1):
        _, grads, _ = traces.gradients(learner.descent(), {"model": model}, {}, rows, True)
        assert set(grads) == set(learner.names)


def test_traces_are_counted_and_the_oldest_go(monkeypatch):
    monkeypatch.setattr(trace, "MOST_TRACES", 2)
    monkeypatch.setattr(trace, "WORTH_TRACING", 1)
    learner, model, rows = setting("mlp")
    descent, traces = learner.descent(), Traces()
    for n in (2, 3, 4, 5):
        traces.gradients(descent, {"model": model}, {}, tuple(t[:, :n] for t in rows), True)
    assert len(traces._made) == len(traces._known) == 2


def test_a_learner_of_ones_own_layers_is_traced():
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(5, 4)

        def forward(self, x):
            return self.head(torch.sigmoid(x) * x)

    _, _, rows = setting("mlp")
    learner = Learner(Gate(), find_loss("cross_entropy"), 4)
    model = {n: t.expand(3, *t.shape).clone() for n, t in learner.first.items()}
    traces, descent = Traces(), learner.descent()
    for _ in range(WORTH_TRACING + 1):
        _, ours, _ = traces.gradients(descent, {"model": model}, {}, rows, True)
    _, theirs, _ = gradients(descent, {"model": model}, {}, rows, True)
    assert all(torch.equal(ours[n], theirs[n]) for n in theirs)


def one_step(descent, model, rows, traces, over):
    """A plain step by the gradient, and the same by moves: (wanted, got, what was moved)."""
    _, grads, _ = gradients(descent, {"model": model}, {}, rows, True)
    wanted = {n: model[n] - 0.1 * g for n, g in grads.items()}
    mine = {n: t.clone() for n, t in model.items()} if over else model
    params, left, moved = traces.gradients(descent, {"model": mine}, {}, rows, True, 0.1, over)
    assert all((moved[n] is mine[n]) == over for n in moved)
    return wanted, {**moved, **{n: params[n] - 0.1 * g for n, g in left.items()}}, set(moved)


def assert_near(got, wanted):
    for n, t in wanted.items():
        torch.testing.assert_close(got[n], t, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("over", [True, False])
@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_products_move_their_weights_and_the_rest_is_left(name, over, monkeypatch):
    monkeypatch.setattr(trace, "WORTH_MOVING", 1)
    learner, model, rows = setting(name)
    before = {n: t.clone() for n, t in model.items()}
    wanted, got, moved = one_step(learner.descent(), model, rows, Traces(), over)
    assert moved == {n for n, t in learner.first.items() if t.dim() == 2}
    assert_near(got, wanted)
    assert all(torch.equal(model[n], t) for n, t in before.items())


def test_one_trace_serves_a_model_for_all_and_models_of_ones_own(monkeypatch):
    monkeypatch.setattr(trace, "WORTH_MOVING", 1)
    learner, _, rows = setting("mlp")
    traces, descent = Traces(), learner.descent()
    for_all = {n: t.expand(3, *t.shape) for n, t in learner.first.items()}
    for model, over in ((for_all, False), ({n: t.clone() for n, t in for_all.items()}, True)):
        wanted, got, moved = one_step(descent, model, rows, traces, over)
        assert len(moved) == 2
        assert_near(got, wanted)
    assert len(traces._made) == 1


@pytest.mark.parametrize("over", [True, False])
def test_a_weight_in_the_gradient_of_another_is_read_before_it_moves(over):
    draw = Seed(3).torch("matrices")
    a, b, x = (torch.randn(2, 3, 3, generator=draw) for _ in range(3))
    made = make_fx(lambda a, b, x: [b.transpose(1, 2).bmm(x), a.bmm(x), x.bmm(x)])(a, b, x)
    # Of a and b each is a side of the other's product; x is a side of its own.
    assert move_by_products(made.graph, [0, 1, 2], over) == []
    made.recompile()
    wanted = [b.transpose(1, 2) @ x, a @ x, x @ x]
    assert all(torch.equal(*pair) for pair in zip(made(a, b, x, 1.0), wanted, strict=True))

    made = make_fx(lambda a, b, x: [x.bmm(x), a.bmm(x)])(a, b, x)
    assert move_by_products(made.graph, [0, 1], over) == [0]
    made.recompile()
    wanted = [a + 2 * x @ x, a @ x]
    for got, want in zip(made(a, b, x, 2.0), wanted, strict=True):
        torch.testing.assert_close(got, want)


def test_a_layout_that_a_trace_can_not_serve_is_computed_as_ever(monkeypatch):
    monkeypatch.setattr(trace, "WORTH_MOVING", 1)
    learner, model, rows = setting("mlp")
    name = next(n for n, t in learner.first.items() if t.dim() == 2)

    def flat(tree, batch, carry):  # a view of a weight in order, a copy of one that is not
        return learner.objective(tree, batch, carry) + tree[name].reshape(-1).square().sum()

    traces, descent = Traces(), learner.descent(flat)
    turned = {**model, name: model[name].transpose(1, 2).contiguous().transpose(1, 2)}
    for mine, served in ((model, True), (turned, False)):
        wanted, got, moved = one_step(descent, mine, rows, traces, False)
        assert bool(moved) == served
        assert_near(got, wanted)


def test_moves_do_not_depend_on_how_often_a_step_was_asked_for():
    """Another process may have been asked more often: bits must not tell."""
    learner, model, rows = setting("lenet")
    assert sum(t.numel() for t in learner.first.values()) > trace.WORTH_MOVING
    traces, descent = Traces(), learner.descent()
    found = [one_step(descent, model, rows, traces, True)[1] for _ in range(WORTH_TRACING + 1)]
    assert all(torch.equal(found[0][n], one[n]) for one in found for n in one)


def test_a_small_model_is_moved_by_its_optimiser():
    learner, model, rows = setting("mlp")
    wanted, got, moved = one_step(learner.descent(), model, rows, Traces(), False)
    assert not moved
    assert all(torch.equal(got[n], wanted[n]) for n in wanted)
