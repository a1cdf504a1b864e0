"""Rates that change within a round, and optimisers, in every engine; the loop by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from toys import ROUNDING, SIZES, context, empty, federation, learner, together

from kinfolk.engines.batched import Batched
from kinfolk.engines.fast.capture import Recorded
from kinfolk.engines.fast.lanes import CudaLane
from kinfolk.engines.fast.passes import rates_of
from kinfolk.engines.loop import Loop
from kinfolk.engines.padded import padded
from kinfolk.engines.workers import Workers
from kinfolk.learning.optim import SGD, Adagrad, Adam, AdamW, RMSprop
from kinfolk.learning.schedules import Cosine
from kinfolk.script import Ask
from kinfolk.task import Plan

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Plain:
    """An optimiser of a user, who has never heard of clients."""

    def init(self, params):
        return {"count": {n: torch.zeros_like(p) for n, p in params.items()}}

    def update(self, params, grads, state, step, lr, rows):
        count = {n: t + 1 for n, t in state["count"].items()}
        return {n: p - lr * grads[n] / count[n] for n, p in params.items()}, {"count": count}


OPTIMISERS = [
    SGD(), SGD(0.9, 0.01, True), Adam(eps=1e-2), AdamW(eps=1e-2, weight_decay=0.1), Adagrad(eps=1e-2),
    RMSprop(eps=1e-2), Plain(),
]  # fmt: skip


def made(optimiser, by_step):
    return replace(learner(plan=Plan(8, 2), lr=0.05, decay=0.9), optimiser=optimiser, by_step=by_step)


@pytest.mark.parametrize("by_step", [None, Cosine(end=0.1)], ids=["constant", "cosine"])
@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=lambda o: type(o).__name__)
def test_engines_agree_and_the_rate_goes_by_each_clients_own_steps(optimiser, by_step):
    data, one = federation(), made(optimiser, by_step)
    table, first = {"update": one.train()}, {"model": one.first}
    at = context(data, round=3)
    loop = together(Loop(data, table, empty()), Ask("update", data.clients, first), at)
    for chunk in (3, 64):
        other = together(Batched(data, table, empty(), chunk), Ask("update", data.clients, first), at)
        for name, leaf in loop.tree("model").items():
            torch.testing.assert_close(other.tree("model")[name], leaf, rtol=ROUNDING, atol=ROUNDING)
    if by_step is not None:
        plain = made(optimiser, None)
        flat = together(
            Loop(data, {"update": plain.train()}, empty()), Ask("update", data.clients, first), at
        )
        moved = [(flat.tree("model")[n] - t)[1:].abs().max() for n, t in loop.tree("model").items()]
        assert max(moved) > 1e-3, "the schedule changes something"


def test_the_loop_takes_the_rates_that_the_schedule_gives():
    data = federation()
    seen: list[tuple[int, float]] = []

    class Noting(SGD):
        def update(self, params, grads, state, step, lr, rows):
            seen.append((step, lr))
            return super().update(params, grads, state, step, lr, rows)

    one = made(Noting(), lambda at, of: (at + 1) / of)
    ask = Ask("update", ("cat",), {"model": one.first})
    together(Loop(data, {"update": one.train()}, empty()), ask, context(data, 2))
    steps = 2 * -(-SIZES["cat"] // 8)
    assert seen == [(i, pytest.approx(0.05 * 0.9**2 * (i + 1) / steps)) for i in range(steps)]


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=lambda o: type(o).__name__)
def test_a_recorded_pass_reads_the_rate_of_each_step_and_client(optimiser, monkeypatch):
    """What is recorded on a GPU is played here step by step at the same fixed places."""

    class Played:
        def __init__(self, body):
            self.replay = body

    monkeypatch.setattr(Recorded, "_record", lambda self, body: Played(body))
    monkeypatch.setattr(Recorded, "_warm_up", lambda self, body: None)
    data, one = federation(), made(optimiser, Cosine(end=0.1))
    fit = one.train().passes[0]
    at = context(data, round=3)
    ask = Ask("update", data.clients, {"model": one.first})
    loop = together(Loop(data, {"update": one.train()}, empty()), ask, at)
    plan = padded(fit, 0, "batch", data, data.clients, at, CPU)
    carry = {"model": {n: t.expand(len(data.clients), *t.shape) for n, t in one.first.items()}}
    recorded = Recorded(fit, carry, plan, CudaLane(CPU, True))
    for _ in range(2):  # what the first pass has left changes nothing
        found, _ = recorded.run(carry, plan, [rates_of(d, 3, plan) for d in fit.descents])
        for name, leaf in loop.tree("model").items():
            torch.testing.assert_close(found["model"][name], leaf, rtol=ROUNDING, atol=ROUNDING)


def test_workers_take_the_same_rates():
    data, one = federation(), made(SGD(0.9), Cosine())
    table, at = {"update": one.train()}, context(data, 1)
    ask = Ask("update", data.clients, {"model": one.first})
    loop = together(Loop(data, table, empty()), ask, at)
    workers = Workers(data, table, empty(), 2)
    try:
        other = together(workers, ask, at)
    finally:
        workers.close()
    for name, leaf in loop.tree("model").items():
        torch.testing.assert_close(other.tree("model")[name], leaf, rtol=ROUNDING, atol=ROUNDING)
