"""Traced gradients have the bits of those that are not, and what can not be traced is computed as ever."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kinfolk.engines import trace
from kinfolk.engines.steps import gradients
from kinfolk.engines.trace import WORTH_TRACING, Traces
from kinfolk.learning.learner import Learner
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
            _, grads = by(descent, {"model": mine, "centre": centre}, buffers, rows, whole)
            found.append([*grads.values(), *buffers.values()])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True)), step
    assert [run is not None for run in traces._known.values()] == [True]


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
        _, wanted = gradients(descent, carry, {}, rows, True)
        for _ in range(WORTH_TRACING + 1):
            _, got = traces.gradients(descent, carry, {}, rows, True)
        assert all(torch.equal(got[n], wanted[n]) for n in wanted)
    assert [run is not None for run in traces._known.values()] == [True, True]


def test_what_can_not_be_traced_is_computed_as_ever(monkeypatch):
    learner, model, rows = setting("mlp")
    monkeypatch.setattr(trace, "make_fx", lambda f: 1 / 0)
    traces = Traces()
    for _ in range(WORTH_TRACING + 1):
        _, grads = traces.gradients(learner.descent(), {"model": model}, {}, rows, True)
        assert set(grads) == set(learner.names)


def test_traces_are_counted_and_the_oldest_go(monkeypatch):
    monkeypatch.setattr(trace, "MOST_TRACES", 2)
    monkeypatch.setattr(trace, "WORTH_TRACING", 1)
    learner, model, rows = setting("mlp")
    descent, traces = learner.descent(), Traces()
    for n in (2, 3, 4, 5):
        traces.gradients(descent, {"model": model}, {}, tuple(t[:, :n] for t in rows), True)
    assert len(traces._known) == 2


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
        _, ours = traces.gradients(descent, {"model": model}, {}, rows, True)
    _, theirs = gradients(descent, {"model": model}, {}, rows, True)
    assert all(torch.equal(ours[n], theirs[n]) for n in theirs)
