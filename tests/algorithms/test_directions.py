"""Clients are split by where they go from a common model: not by how far, nor by their labels alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from mdicfl_options import WARM, changed, mdicfl

from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.algorithms.blocks.common_start import WithBlind
from kinfolk.algorithms.blocks.warm_start import Points, directions_from, warm_kmeans, without_head
from kinfolk.clustering.agreement import agreement
from kinfolk.contract import toy
from kinfolk.contract.spoil import Passing
from kinfolk.script import play
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Client, Stack

NAMES = tuple(Client(f"c{i:02}") for i in range(12))
FEW = {"k": 2, "start.shared_rounds": 2, "start.plateau": 0.0, "pseudo.samples": 3, "search.iterations": 5}
STANDS, SHORT = {"start.confidence": 1.0}, {"start.warm_epochs": 3}


def unequal():
    """Twelve clients of two groups; in either half of them have eight times as many rows as the others."""
    rows = [8 if i % 4 < 2 else 64 for i in range(12)]
    turns = [i % 2 for i in range(12)]
    return toy.grouped(rows, side=8, noise=0.3, names=NAMES, turned=turns), torch.tensor(turns)


def test_rows_are_directions_of_length_one():
    draw = torch.Generator().manual_seed(0)
    first = {"a": torch.randn(3, 2, generator=draw), "b": torch.randn(4, generator=draw)}
    models = {n: t + torch.randn(5, *t.shape, generator=draw) for n, t in first.items()}
    models["b"][4], models["a"][4] = first["b"], first["a"]
    stack = Stack(NAMES[:5], torch.ones(5, dtype=torch.int64), {"model": models})
    points = Points(("a", "b"), None)
    got = directions_from(points.row(first), points.rows(stack)).numpy()
    for i in range(4):
        away = np.concatenate([(models[n][i] - first[n]).double().numpy().ravel() for n in ("a", "b")])
        np.testing.assert_allclose(got[i], away / np.sqrt(away @ away), atol=1e-6)
    assert not got[4].any(), "who has not moved has no direction"
    assert np.allclose(directions_from(None, points.rows(stack))[4, :6].numpy(), first["a"].flatten().numpy())


def test_clients_with_many_rows_and_with_few_are_of_one_group():
    federation, truth = unequal()
    learner = toy.learner("mlp", federation, momentum=0.0, weight_decay=0.0)
    method = mdicfl(learner, **STANDS, **SHORT, **FEW)
    held = toy.play_rounds(method, federation, "batched", rounds=3, score=False)
    assert agreement(list(held.groups), truth)["ari"] == 1.0
    by_length = toy.play_rounds(changed(method, **WARM), federation, "batched", rounds=1, score=False)
    assert agreement(list(by_length.groups), truth)["ari"] < 0.5, "whose lengths count"


def test_a_sample_decides_and_the_others_join_the_nearest_direction(monkeypatch):
    federation, truth = unequal()
    learner = toy.learner("mlp", federation, momentum=0.0, weight_decay=0.0)
    method = mdicfl(learner, **SHORT, **FEW)
    monkeypatch.setattr("kinfolk.algorithms.blocks.warm_start.MOST", 8)
    context = RoundContext(Seed(0), 0, federation.clients)

    def script():
        found = yield from warm_kmeans(
            learner.first, without_head(learner), 2, 5, context, Aggregator(), directions=True
        )
        return found, {}

    with toy.coordinated(method, federation, "batched") as coordinator:
        (_, labels), _ = play(script(), lambda request: coordinator.perform(request, context))
    assert sorted(labels) == list(federation.clients)
    assert agreement([labels[c] for c in federation.clients], truth)["ari"] == 1.0


def test_the_last_layer_has_no_part_in_it():
    federation, _ = unequal()
    learner = toy.learner("mlp", federation)
    assert without_head(learner) == tuple(n for n in learner.names if not n.startswith("head."))
    assert len(without_head(learner)) < len(learner.names)
    method = mdicfl(learner, **STANDS, **FEW)
    plain = toy.play_rounds(method, federation, rounds=3, score=False).groups

    def shuffled(request, reply):
        """Last layers that would split clients in another way."""
        if request.task != "warm":
            return reply
        far = 100.0 * (1 if reply.clients[0] in NAMES[:6] else -1)
        model = {n: t + far if n.startswith("head.") else t for n, t in reply.tree("model").items()}
        return replace(reply, body={"model": model})

    other = toy.play_rounds(
        method, federation, rounds=3, wrap=lambda e: Passing(e, shuffled), score=False
    ).groups
    assert agreement(list(other), torch.tensor(plain))["ari"] == 1.0


@pytest.mark.parametrize("told", [[], [0.5]])
def test_one_or_nobody_tells(told):
    class Nothing:
        begin, add, end = (lambda self: None), (lambda self, total, chunk: None), (lambda self, total: "made")

    fold = WithBlind(Nothing())
    total = fold.begin()
    for i, blind in enumerate(told):
        total = fold.add(total, Stack.of({NAMES[i]: (1, {"blind": torch.tensor(blind)})}))
    assert fold.end(total) == ("made", 0.5 if told else 1.0)
