"""What a recorded pass holds for each client and what it holds once for all."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import torch
from toys import federation, learner, turn

from kinfolk.contract import toy
from kinfolk.engines.capture import Recorded, _fixed, changing
from kinfolk.engines.lanes import Lane
from kinfolk.engines.one import perform
from kinfolk.engines.padded import padded
from kinfolk.engines.steps import sweep_step
from kinfolk.federation.sources import DataSpec, build
from kinfolk.learning.augment import FlipCrop
from kinfolk.streams import Seed
from kinfolk.task import Fit, Plan, Sweep, Task
from kinfolk.types import Client

CPU = torch.device("cpu")


def test_a_recording_has_room_for_somewhat_longer_plans():
    """Clients come from short to long, and each recording takes time."""
    data, one = federation(), learner(plan=Plan(4))
    fit = one.train().passes[0]
    assert isinstance(fit, Fit)

    def plan(epochs: int):
        longer = replace(fit, plan=replace(fit.plan, epochs=epochs))
        return padded(longer, 0, "batch", data, data.clients, turn(data), CPU)

    carry = {"model": {n: t.expand(len(data.clients), *t.shape) for n, t in one.first.items()}}
    first = plan(3)
    made = Recorded(fit, carry, first, Lane(CPU, True))
    room = len(made.pool)
    assert len(first) <= room < 2 * len(first)
    assert made.fits(plan(3))
    assert not made.fits(plan(1 + room * 3 // len(first)))


def test_what_a_sweep_changes_is_each_clients_own_and_the_model_stays_one():
    data = federation()
    who = tuple(data.clients[1:])
    sweep = Sweep(
        lambda carry, batch: {**carry, "sum": carry["sum"] + batch.sum(batch.x).sum()}, Plan(4, shuffle=False)
    )
    plan = padded(sweep, 0, "batch", data, who, turn(data), CPU)
    model = {n: t.expand(len(who), *t.shape) for n, t in learner().first.items()}
    carry = {"model": model, "sum": torch.zeros(()).expand(len(who))}
    changed, added = changing(sweep, carry, plan)
    assert (changed, added) == ({"sum"}, {})
    held = _fixed(carry, changed)
    assert all(t.stride(0) == 0 for t in held["model"].values())
    assert held["sum"].stride(0) == 1
    # By the same steps as a recording takes: each client ends with the sum of its own rows.
    for step in range(len(plan)):
        active = None if plan.everyone[step] else plan.active[step]
        new = sweep_step(sweep, held, plan.batch(step), active, plan.whole[step])
        assert all(new["model"][n] is t for n, t in held["model"].items())
        held["sum"].copy_(new["sum"])
    split = data.splits["train"]
    wanted = [float(data.x[split.rows(data.place(Client(c)))].sum()) for c in who]
    assert torch.allclose(held["sum"], torch.tensor(wanted), atol=1e-4)


def test_a_fit_changes_what_it_trains():
    data = federation()
    fit = learner().train().passes[0]
    plan = padded(fit, 0, "batch", data, data.clients, turn(data), CPU)
    carry = {"model": {}, "centre": {}}
    assert changing(fit, carry, plan) == ({"model"}, {})


def test_a_part_that_a_sweep_adds_has_a_place():
    data = federation()
    sweep = Sweep(lambda carry, batch: {**carry, "last": batch.sum(batch.x).sum()}, Plan(4, shuffle=False))
    plan = padded(sweep, 0, "batch", data, data.clients, turn(data), CPU)
    changed, added = changing(sweep, {"sum": torch.zeros(len(data.clients))}, plan)
    assert changed == {"last"}
    assert added["last"].shape == (len(data.clients),)


def unrecorded(recorded):
    """On the host a recording can not be made; what it would record is run instead, step after step."""
    recorded._record = lambda *kind: SimpleNamespace(replay=lambda: recorded._body(*kind))


def test_what_a_recording_does_is_the_pass_itself_with_changed_rows_too():
    data = toy.ragged()
    network = toy.learner("tiny_cnn", data)
    for augment in (FlipCrop(2), None):
        plan = Plan(4, 2, drop_single=True, augment=augment)
        fit = Fit((network.descent(),), plan)
        task = Task(lambda message, memory, facts: {}, lambda carry: (carry, None), (fit,))
        whole = padded(fit, 0, "batch", data, data.clients, turn(data), CPU)
        carry = {"model": {n: t.expand(len(data.clients), *t.shape) for n, t in network.first.items()}}
        recorded = Recorded(fit, carry, whole, Lane(CPU, True))
        unrecorded(recorded)
        end = recorded.run(carry, whole, [network.lr])[0]["model"]
        task = replace(task, start=lambda message, memory, facts: {"model": network.first})
        for i, who in enumerate(data.clients):
            alone = perform(task, {}, {}, data, who, turn(data))[0]["model"]
            for name, leaf in alone.items():
                torch.testing.assert_close(end[name][i], leaf, rtol=1e-5, atol=1e-5)


def test_rows_that_are_made_on_demand_are_brought_to_where_a_recording_reads_them():
    spec = DataSpec(name="gaussians", clients=12, rows=24, groups=2, features=4, classes=3, shift="source")
    data = build(spec, Seed(0))
    assert data.maker is not None
    one = learner(plan=Plan(4, 2))
    fit = one.train().passes[0]
    recorded, seen = None, []
    # Chunks of one shape: the second has other rows, and must not be given the first one's.
    for who in (data.clients[:5], data.clients[5:10]):
        rows = data.among(who)
        plan = padded(fit, 0, "batch", rows, who, turn(data), CPU)
        carry = {"model": {n: t.expand(5, *t.shape) for n, t in one.first.items()}}
        if recorded is None:
            recorded = Recorded(fit, carry, plan, Lane(CPU, True), made=True)
            unrecorded(recorded)
        assert recorded.fits(plan)
        end = recorded.run(carry, plan, [one.lr])[0]["model"]
        for i, client in enumerate(who):
            alone = perform(one.train(), {"model": one.first}, {}, data, client, turn(data))[0]["model"]
            for name, leaf in alone.items():
                torch.testing.assert_close(end[name][i], leaf, rtol=1e-5, atol=1e-6)
        seen.append(end)
    assert not torch.equal(*(next(iter(end.values())) for end in seen))
    few = padded(fit, 0, "batch", data.among(data.clients[:5]), data.clients[:5], turn(data), CPU)
    longer = padded(
        learner(plan=Plan(4, 3)).train().passes[0], 0, "batch", few.data, data.clients[:5], turn(data), CPU
    )
    assert not recorded.fits(longer), "nor for so many steps"
    larger = Recorded(fit, carry, longer, Lane(CPU, True), made=True, before=recorded)
    assert larger.fits(longer)
    assert larger.fits(few)
    everyone = padded(fit, 0, "batch", data.among(data.clients), data.clients, turn(data), CPU)
    assert not recorded.fits(everyone), "there is no room for so many rows"
