"""Sketches of replies: near enough for a picture, the same from every engine, and no trace in a round."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.ifca import IFCA
from kinfolk.codec import decode, encode
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.engines import rpc, sketched
from kinfolk.engines.cohort import Limits
from kinfolk.engines.coordinator import fold_part
from kinfolk.engines.sketched import WIDTH, Projection, Sketched, Sketches, fold_from
from kinfolk.experiment.state import to_message
from kinfolk.fold import Mean
from kinfolk.script import Ask
from kinfolk.streams import Few, RoundContext, Seed
from kinfolk.types import Client, Stack

ENGINES = ("loop", "batched", "workers", "wire")


def played(method, federation, engine, rounds=2, sketching=True):
    """(state, sketches of the last round, ledger) of some rounds."""
    with toy.coordinated(method, federation, engine) as coordinator:
        state = method.init(toy.first_model(method), federation.clients, Seed(0))
        for number in range(rounds):
            sketches = Sketches(Seed(0), method.learner.names, Few(Seed(0), federation.clients))
            coordinator.sketches = sketches if sketching else None
            context = RoundContext(Seed(0), number, federation.clients)
            state = toy.play_one(method, state, federation.clients, coordinator, context)
        return state, sketches.found, coordinator.ledger


def test_distances_between_sketches_are_near_those_between_models():
    draw = np.random.Generator(np.random.PCG64(3))
    common = {"w": draw.normal(size=(1, 40, 30)), "b": draw.normal(size=(1, 30))}
    apart = {name: t + 0.1 * draw.normal(size=(60, *t.shape[1:])) for name, t in common.items()}
    models = {name: torch.tensor(t, dtype=torch.float32) for name, t in apart.items()}
    exact = np.concatenate([t.reshape(60, -1) for t in apart.values()], axis=1)
    sketch = Projection(Seed(0), ("w", "b")).of(models).double().numpy()
    pairs = np.triu_indices(60, 1)
    ratios = [((x[pairs[0]] - x[pairs[1]]) ** 2).sum(1) for x in (sketch, exact)]
    ratio = ratios[0] / ratios[1]
    assert sketch.shape == (60, WIDTH)
    assert abs(ratio.mean() - 1) < 0.1, "a factor of two would be far off"
    assert 0.5 < np.sqrt((ratio - 1).var() / (2 / WIDTH)) < 1.5, "the variance is about 2 / WIDTH"


def test_a_sketch_is_linear_and_the_same_for_one_model_and_for_many():
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(4, 7, 9, generator=draw, dtype=torch.float64) for _ in range(2))
    maps = Projection(Seed(5), ("w",))
    both = maps.of({"w": a + 2 * b})
    torch.testing.assert_close(both, maps.of({"w": a}) + 2 * maps.of({"w": b}), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(maps.of({"w": a[:1]}), maps.of({"w": a})[:1], rtol=1e-6, atol=1e-6)


def test_a_sketch_folds_signed_coordinates_into_sums(monkeypatch):
    """Against the definition: coordinate j of a leaf is added to sum j mod WIDTH with its sign."""
    leaf = torch.randn(3, 200, generator=torch.Generator().manual_seed(1))
    signs = Seed(2).numpy("sketched", "w").integers(0, 2, 200, dtype="int8") * 2.0 - 1
    expected = np.zeros((3, WIDTH))
    for j in range(200):
        expected[:, j % WIDTH] += leaf[:, j].double().numpy() * signs[j]
    np.testing.assert_allclose(Projection(Seed(2), ("w",)).of({"w": leaf}), expected, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(sketched, "_BLOCK", 200)  # one model at a time
    np.testing.assert_allclose(Projection(Seed(2), ("w",)).of({"w": leaf}), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", [FedAvg, IFCA])
def test_engines_sketch_what_clients_have_sent(method):
    federation = toy.ragged()
    algorithm = method(toy.learner("mlp", federation))
    found = {engine: played(algorithm, federation, engine) for engine in ENGINES}
    _, loop, _ = found["loop"]
    assert sorted(loop) == sorted(federation.clients)
    for engine, (_, sketches, _) in found.items():
        assert sorted(sketches) == sorted(federation.clients), engine
        for who, sketch in sketches.items():
            assert float((sketch - loop[who]).norm()) < 1e-4 * float(loop[who].norm()), (engine, who)


def test_the_mean_of_the_sketches_is_the_sketch_of_the_mean():
    """FedAvg's model is the mean by rows of what was sent: so it is with their sketches."""
    federation = toy.ragged()
    algorithm = FedAvg(toy.learner("mlp", federation))
    state, sketches, _ = played(algorithm, federation, "workers")
    rows = federation.splits["train"].counts().double()
    stacked = torch.stack([sketches[c].double() for c in federation.clients])
    mean = (rows[:, None] * stacked).sum(0) / rows.sum()
    one = Projection(Seed(0), algorithm.learner.names).of({n: t[None] for n, t in state.model.items()})
    torch.testing.assert_close(one[0].double(), mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_has_the_same_bits_with_and_without_sketches(engine):
    federation = toy.ragged()
    algorithm = FedAvg(toy.learner("tiny_cnn", federation))
    one, _, seen = played(algorithm, federation, engine)
    other, none, unseen = played(algorithm, federation, engine, sketching=False)
    assert message_difference(to_message(one)[0], to_message(other)[0], 0) == ""
    assert none == {}
    assert seen.bytes == unseen.bytes, "no byte more is sent"
    assert "pictures" in seen.seconds
    assert "pictures" not in unseen.seconds


def test_a_part_that_was_folded_elsewhere_brings_its_sketches():
    federation = toy.ragged()
    algorithm = FedAvg(toy.learner("mlp", federation))
    some = federation.clients[1:4]
    fold = Sketched(Mean("model", {}), Projection(Seed(0), algorithm.learner.names), some)
    request = Ask("update", federation.clients, {"model": algorithm.learner.first})
    context = RoundContext(Seed(0), 0, federation.clients)
    with toy.coordinated(algorithm, federation) as coordinator:
        part = fold_part(coordinator.engine, request, fold_from(fold.spec()), context, Limits())
        plain = fold_part(coordinator.engine, request, Mean("model", {}), context, Limits())
    back = rpc.unpack_part(*decode(encode(*rpc.pack_part(part))))
    sketches = Sketches(Seed(0), algorithm.learner.names, Few(Seed(0), federation.clients))
    sketches.few = Few(Seed(0), some)
    (total,) = sketches.seen(iter([back.total]), some)
    assert message_difference(total, plain.total, 0) == "", "nothing is left of them in the total"
    assert sorted(sketches.found) == sorted(some)


def test_of_very_many_clients_the_same_few_are_sketched(monkeypatch):
    monkeypatch.setattr(sketched, "MOST_CLIENTS", 3)
    federation = toy.ragged()
    algorithm = FedAvg(toy.learner("mlp", federation))
    once, again = (
        played(algorithm, federation, engine, rounds)[1] for engine, rounds in (("loop", 1), ("workers", 2))
    )
    assert len(once) == 3
    assert sorted(once) == sorted(again)


def test_replies_without_a_model_leave_no_sketch():
    maps = Projection(Seed(0), ("w",))
    losses = Stack.of({Client("a"): (1, {"loss": torch.tensor(1.0)})})
    other = Stack.of({Client("a"): (1, {"model": {"v": torch.ones(2)}})})
    assert sketched.sketched(maps, losses, {Client("a")}) == {}
    assert sketched.sketched(maps, other, {Client("a")}) == {}
    assert not Projection(Seed(0), ()).fits({"w": torch.ones(2)})
