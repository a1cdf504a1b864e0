"""What a recorded pass holds for each client and what it holds once for all."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from toys import context, federation, learner

from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.engines.fast import capture
from kinfolk.engines.fast.capture import Recorded, _fixed, changing
from kinfolk.engines.fast.lanes import CudaLane
from kinfolk.engines.fast.steps import scan_step
from kinfolk.engines.one import perform
from kinfolk.engines.padded import padded
from kinfolk.federation.sources import DataSpec, build
from kinfolk.learning.augment import FlipCrop
from kinfolk.learning.optim import SGD, Adam
from kinfolk.streams import Seed
from kinfolk.task import Fit, Plan, Scan, Task
from kinfolk.types import Client

CPU = torch.device("cpu")


def test_a_recording_has_room_for_somewhat_longer_plans():
    """Clients come from short to long, and each recording takes time."""
    data, one = federation(), learner(plan=Plan(4))
    fit = one.train().passes[0]
    assert isinstance(fit, Fit)

    def plan(epochs: int):
        longer = replace(fit, plan=replace(fit.plan, epochs=epochs))
        return padded(longer, 0, "batch", data, data.clients, context(data), CPU)

    carry = {"model": {n: t.expand(len(data.clients), *t.shape) for n, t in one.first.items()}}
    first = plan(3)
    made = Recorded(fit, carry, first, CudaLane(CPU, True))
    room = len(made.pool)
    assert len(first) <= room < 2 * len(first)
    assert made.fits(plan(3))
    assert not made.fits(plan(1 + room * 3 // len(first)))


def test_what_a_sweep_changes_is_each_clients_own_and_the_model_stays_one():
    data = federation()
    who = tuple(data.clients[1:])
    sweep = Scan(
        lambda carry, batch: {**carry, "sum": carry["sum"] + batch.sum(batch.x).sum()}, Plan(4, shuffle=False)
    )
    plan = padded(sweep, 0, "batch", data, who, context(data), CPU)
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
        new = scan_step(sweep, held, plan.batch(step), active, plan.whole[step])
        assert all(new["model"][n] is t for n, t in held["model"].items())
        held["sum"].copy_(new["sum"])
    split = data.splits["train"]
    wanted = [float(data.x[split.rows(data.place(Client(c)))].sum()) for c in who]
    assert torch.allclose(held["sum"], torch.tensor(wanted), atol=1e-4)


def test_a_fit_changes_what_it_trains():
    data = federation()
    fit = learner().train().passes[0]
    plan = padded(fit, 0, "batch", data, data.clients, context(data), CPU)
    carry = {"model": {}, "centre": {}}
    assert changing(fit, carry, plan) == ({"model"}, {})


def test_a_part_that_a_sweep_adds_has_a_place():
    data = federation()
    sweep = Scan(lambda carry, batch: {**carry, "last": batch.sum(batch.x).sum()}, Plan(4, shuffle=False))
    plan = padded(sweep, 0, "batch", data, data.clients, context(data), CPU)
    changed, added = changing(sweep, {"sum": torch.zeros(len(data.clients))}, plan)
    assert changed == {"last"}
    assert added["last"].shape == (len(data.clients),)


def unrecorded(recorded):
    """On the host a recording can not be made; what it would record is run instead.

    Says how often each recording was replayed, in the order that they were made.
    """
    replayed = []

    def record(body):
        mine = len(replayed)
        replayed.append(0)

        def replay():
            replayed[mine] += 1
            body()

        return SimpleNamespace(replay=replay)

    recorded._warm_up, recorded._record = lambda body: None, record
    return replayed


def test_what_a_recording_does_is_the_pass_itself_with_changed_rows_too():
    data = toy.ragged()
    network = toy.learner("tiny_cnn", data)
    for augment in (FlipCrop(2), None):
        plan = Plan(4, 2, drop_single=True, augment=augment)
        fit = Fit((network.descent(),), plan)
        task = Task(lambda message, memory, facts: {}, lambda carry: (carry, None), (fit,))
        whole = padded(fit, 0, "batch", data, data.clients, context(data), CPU)
        carry = {"model": {n: t.expand(len(data.clients), *t.shape) for n, t in network.first.items()}}
        recorded = Recorded(fit, carry, whole, CudaLane(CPU, True))
        unrecorded(recorded)
        end = recorded.run(carry, whole, [network.lr])[0]["model"]
        task = replace(task, start=lambda message, memory, facts: {"model": network.first})
        for i, who in enumerate(data.clients):
            alone = perform(task, {}, {}, data, who, context(data))[0]["model"]
            for name, leaf in alone.items():
                torch.testing.assert_close(end[name][i], leaf, rtol=1e-4, atol=5e-5)


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
        plan = padded(fit, 0, "batch", rows, who, context(data), CPU)
        carry = {"model": {n: t.expand(5, *t.shape) for n, t in one.first.items()}}
        if recorded is None:
            recorded = Recorded(fit, carry, plan, CudaLane(CPU, True), made=True)
            unrecorded(recorded)
        assert recorded.fits(plan)
        end = recorded.run(carry, plan, [one.lr])[0]["model"]
        for i, client in enumerate(who):
            alone = perform(one.train(), {"model": one.first}, {}, data, client, context(data))[0]["model"]
            for name, leaf in alone.items():
                torch.testing.assert_close(end[name][i], leaf, rtol=1e-4, atol=1e-5)
        seen.append(end)
    assert not torch.equal(*(next(iter(end.values())) for end in seen))
    few = padded(fit, 0, "batch", data.among(data.clients[:5]), data.clients[:5], context(data), CPU)
    longer = padded(
        learner(plan=Plan(4, 3)).train().passes[0], 0, "batch", few.data, data.clients[:5], context(data), CPU
    )
    assert not recorded.fits(longer), "nor for so many steps"
    larger = Recorded(fit, carry, longer, CudaLane(CPU, True), made=True, before=recorded)
    assert larger.fits(longer)
    assert larger.fits(few)
    everyone = padded(fit, 0, "batch", data.among(data.clients), data.clients, context(data), CPU)
    assert not recorded.fits(everyone), "there is no room for so many rows"


def passes(one, data, model, rounds=4):
    """(carry, plan) of some rounds: clients of unequal size, other models and other rows each time."""
    for number in range(rounds):
        plan = padded(one, 0, "batch", data, data.clients, context(data, number), CPU)
        start = {n: (t + number / 8).expand(len(data.clients), *t.shape) for n, t in model.items()}
        yield {"model": start, "tally": torch.zeros(()).expand(len(data.clients))}, plan


def tallied(carry, batch):
    """A sweep whose outcome depends on the order of the rows."""
    return {**carry, "tally": carry["tally"] / 2 + batch.sum(batch.x).sum()}


@pytest.mark.parametrize("optimiser", [SGD(), SGD(0.9, 1e-3), Adam(), None], ids=str)
def test_a_pass_recorded_as_a_whole_is_its_steps_one_by_one(optimiser, monkeypatch):
    data, network = federation(), learner(plan=Plan(4, 2))
    fit = replace(network, optimiser=optimiser or SGD()).train().passes[0]
    one = fit if optimiser else Scan(tallied, Plan(4, 2))
    found = []
    monkeypatch.setattr(capture, "WORTH_WHOLE", 1)
    monkeypatch.setattr(capture, "LONGEST_WHOLE", 64)
    for most in (0, capture.MOST_WHOLE):
        monkeypatch.setattr(capture, "MOST_WHOLE", most)
        recorded, ends = None, []
        for number, (carry, plan) in enumerate(passes(one, data, network.first)):
            if recorded is None:
                recorded = Recorded(one, carry, plan, CudaLane(CPU, True))
                replayed = unrecorded(recorded)
            ends.append(recorded.run(carry, plan, [0.1 / (number + 1)] if optimiser else []))
        kinds = set(zip(plan.whole, plan.everyone, strict=True))
        assert len(kinds) > 1, "with padding and idle clients"
        # Step by step in the first round alone, then at one stroke.
        assert len(recorded.wholes) == bool(most)
        assert replayed[len(kinds) :] == ([3] if most else [])
        assert sum(replayed[: len(kinds)]) == len(plan) * (1 if most else 4)
        found.append(ends)
    for (carry, states), (other, others) in zip(*found, strict=True):
        for part, same in zip((carry, *states), (other, *others), strict=True):
            assert message_difference(part, same, 0) == "", "not a bit"


def test_few_patterns_are_recorded_as_a_whole_and_none_that_is_long(monkeypatch):
    data, network = federation(), learner(plan=Plan(4))
    fit = network.train().passes[0]
    [(carry, plan)] = passes(fit, data, network.first, rounds=1)
    recorded = Recorded(fit, carry, plan, CudaLane(CPU, True))
    replayed = unrecorded(recorded)

    def of(steps):
        """The plan's beginning: a pattern of its own."""
        return replace(
            plan,
            **{name: getattr(plan, name)[:steps] for name in ("pool", "row", "weight", "active")},
            whole=plan.whole[:steps],
            everyone=plan.everyone[:steps],
        )

    monkeypatch.setattr(capture, "LONGEST_WHOLE", 6)
    monkeypatch.setattr(capture, "WORTH_WHOLE", 1)
    for _ in range(4):
        for steps in (7, 6, 5, 4, 3, 2, 1):
            recorded.run(carry, of(steps), [0.1])
    assert [len(pattern) for pattern in recorded.wholes] == [6, 5, 4, 3]
    # Each of the four was gone through step by step once; the others, too long or too late, every time.
    kinds = len(recorded.graphs)
    assert replayed[kinds:] == [3] * capture.MOST_WHOLE
    assert sum(replayed[:kinds]) == 4 * (7 + 2 + 1) + 6 + 5 + 4 + 3


def test_a_pass_is_recorded_as_a_whole_when_it_has_come_often_and_counts_begin_anew_after_many_patterns(
    monkeypatch,
):
    monkeypatch.setattr(capture, "LONGEST_WHOLE", 64)
    data, network = federation(), learner(plan=Plan(4))
    fit = network.train().passes[0]
    [(carry, plan)] = passes(fit, data, network.first, rounds=1)
    recorded = Recorded(fit, carry, plan, CudaLane(CPU, True))
    unrecorded(recorded)
    for _ in range(capture.WORTH_WHOLE):
        recorded.run(carry, plan, [0.1])
        assert not recorded.wholes
    for number in range(capture._COUNTED):
        recorded.came[((True, True),) * number] += 1
    pattern = tuple(zip(plan.whole, plan.everyone, strict=True))
    recorded.came[pattern] -= 1
    recorded.run(carry, plan, [0.1])
    assert not recorded.wholes
    assert recorded.came == {pattern: 1}
    recorded.came[pattern] = capture.WORTH_WHOLE
    recorded.run(carry, plan, [0.1])
    assert list(recorded.wholes) == [pattern]
