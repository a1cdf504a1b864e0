"""Clients that clip and add noise themselves: alike in every engine, and nothing leaves without."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from toys import context, empty, federation, largest_difference, learner, together

from kinfolk.engines.batched import Batched
from kinfolk.engines.loop import Loop
from kinfolk.engines.wire import Wire
from kinfolk.engines.workers import Workers
from kinfolk.privacy import gaussian
from kinfolk.privacy.local import noisy, trees
from kinfolk.privacy.mechanism import Mechanism
from kinfolk.privacy.spec import PrivacySpec
from kinfolk.script import Ask
from kinfolk.streams import Seed
from kinfolk.task import Fit, Task
from kinfolk.types import Client, Tree

DATA, ONE = federation(), learner()
MODEL: Tree = {n: t + 1 for n, t in ONE.first.items()}


def armed(noise: float, clip: float = 0.5) -> dict[str, Task]:
    table = Mechanism(PrivacySpec("local", clip=clip), noise, 4).armed({"update": ONE.train()})
    return {name: task for name, task in table.items() if isinstance(task, Task)}


def replies(kind, table, **options):
    engine = kind(DATA, table, empty(), **options)
    try:
        return together(engine, Ask("update", DATA.clients, {"model": MODEL}), context(DATA))
    finally:
        engine.close()


def lengths(stack) -> list[float]:
    moved = {n: (stack.tree("model")[n] - t).double().flatten(1) for n, t in MODEL.items()}
    return torch.cat(list(moved.values()), 1).norm(dim=1).tolist()


@pytest.mark.parametrize("kind", [Loop, Batched, Wire, Workers], ids=lambda k: k.name)
def test_every_engine_clips_alike(monkeypatch, kind):
    monkeypatch.setattr(gaussian, "normal", lambda count: torch.zeros(count, dtype=torch.float64))
    # Processes are forked, and so know of noise that is left out.
    options = {"processes": 2} if kind is Workers else {}
    got = replies(kind, armed(1.0), **options)
    free = replies(Loop, {"update": ONE.train()})
    assert max(lengths(free)) > 0.55 > 0.45 > min(lengths(free))
    assert list(got.body) == ["model"]
    for name, was in MODEL.items():
        leaf, trained = got.tree("model")[name], free.tree("model")[name]
        for i, length in enumerate(lengths(free)):
            wanted = was + (trained[i] - was) * min(1.0, 0.5 / length)
            assert torch.allclose(leaf[i], wanted, atol=1e-5)


@pytest.mark.parametrize("kind", [Loop, Batched, Wire, Workers], ids=lambda k: k.name)
def test_every_engine_adds_noise_of_its_own_to_every_reply(kind):
    got, again = (
        replies(kind, armed(8.0), **({"processes": 2} if kind is Workers else {})) for _ in range(2)
    )
    assert largest_difference(got, again) > 0.1
    moved = torch.cat([(t - MODEL[n]).double().flatten(1) for n, t in got.tree("model").items()], 1)
    # z x twice the clip, beside which updates of half over 43 numbers are small.
    assert float(moved.std()) == pytest.approx(8.0 * 2 * 0.5, rel=0.3)
    assert float((moved[0] - moved[1]).abs().min()) > 0


def test_noise_hides_the_widest_change_of_rows_that_there_is():
    """Any two data sets of a client: their updates over the noise are as far apart as the account says."""
    z, clip, table = 2.0, 0.25, {}
    far = 100 * torch.ones_like(MODEL["0.bias"])
    for sign in (1.0, -1.0):
        end = {"model": {**MODEL, "0.bias": MODEL["0.bias"] + sign * far}}
        whole = Task(lambda m, _, facts: {"model": m["model"]}, lambda c, end=end: (end, None), reply=end)
        done = Mechanism(PrivacySpec("local", clip=clip), z, 4).armed({"update": whole})["update"]
        drawn = torch.stack([replies_of(done)["0.bias"] - MODEL["0.bias"] for _ in range(2000)]).double()
        table[sign] = drawn.mean(0), drawn.std(0).mean()
    apart = float((table[1.0][0] - table[-1.0][0]).norm() / table[1.0][1])
    assert apart == pytest.approx(1 / z, rel=0.15)


def replies_of(task: Task) -> Tree:
    carry = task.start({"model": MODEL}, {}, None)  # type: ignore[arg-type]
    reply, _ = task.finish(carry)
    assert task.conclude is not None
    concluded = task.conclude(reply)
    assert list(concluded) == ["model"]
    return concluded["model"]


def test_all_trees_of_a_reply_are_clipped_together_and_those_that_began_nowhere_as_they_are(monkeypatch):
    monkeypatch.setattr(gaussian, "normal", lambda count: torch.zeros(count, dtype=torch.float64))
    one = {"w": torch.tensor([3.0])}
    body = {"model": {"w": torch.tensor([6.0])}, "change": {"w": torch.tensor([4.0])}}
    task = noisy(Task(lambda m, _, facts: {}, lambda carry: (dict(body), None), reply=body), 1.0, 1.0)
    reply, _ = task.finish(task.start({"model": one}, {}, None))  # type: ignore[arg-type]
    got = task.conclude(reply)  # type: ignore[misc]
    assert got["model"]["w"].item() == pytest.approx(3 + 0.6)
    assert got["change"]["w"].item() == pytest.approx(0.8)


def test_a_model_that_is_not_finite_counts_as_one_that_has_not_moved():
    broken = {"model": {n: torch.full_like(t, math.nan) for n, t in MODEL.items()}}
    task = noisy(Task(lambda m, _, facts: {}, lambda carry: (broken, None), reply=broken), 1.0, 0.0)
    assert all(torch.equal(t, MODEL[n]) for n, t in replies_of(task).items())


def test_whole_numbers_are_no_tree_that_noise_can_hide():
    task = ONE.train()
    counted = {"model": {**ONE.first, "batches": torch.tensor(3)}}
    assert trees(task).keys() == {"model"}
    assert trees(replace(task, reply=counted)) == {}
    assert isinstance(task.passes[0], Fit)


def test_noise_of_a_client_does_not_follow_from_the_seed_of_its_stream():
    task = armed(1.0)["update"]
    engine = Loop(DATA, {"update": task}, empty())
    ask, at = Ask("update", (Client("dan"),), {"model": MODEL}), context(DATA)
    drawn = []
    for _ in range(2):
        with Seed(5).borrowed("inside"):
            np.random.seed(5)
            drawn.append(together(engine, ask, at))
    assert largest_difference(*drawn) > 0.01
