"""A learner's scores, and two networks trained in turn, against PyTorch written out by hand."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from by_hand import CE, DATA, ENGINES, SIZES, asked, by_hand, federation, mlp, rows_of, seeded
from fast_learner import Learner
from torch import Tensor, nn
from torch.func import functional_call

from kinfolk.engines.memory import Memories
from kinfolk.learning import metrics
from kinfolk.learning.learner import own_model
from kinfolk.learning.optim import SGD, Adam
from kinfolk.learning.plan import batches
from kinfolk.streams import Seed
from kinfolk.task import Batch, Carry, Fit, Plan, Task, TrainStep
from kinfolk.types import Client, Message, Tree, map_leaves


def noise(rows: Tensor) -> Tensor:
    """What a generator starts from: the same for the same rows, so that nothing is drawn inside."""
    return torch.stack([torch.sin(rows + 1.0), torch.cos(3.0 * rows)], 1)


class Pair:
    """Two networks against each other: `a` makes rows out of noise, `b` tells them from real ones."""

    def __init__(self) -> None:
        self.a = seeded(lambda: nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 4)))
        self.b = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)))

    def tell(self, b: Tree, batch: Batch, carry: Carry) -> Tensor:
        made = functional_call(self.a, carry["a"], (noise(batch.row),)).detach()
        real, fake = (functional_call(self.b, b, (x,)).squeeze(1) for x in (batch.x, made))
        return batch.mean(F.softplus(-real) + F.softplus(fake))

    def fool(self, a: Tree, batch: Batch, carry: Carry) -> Tensor:
        fake = functional_call(self.b, carry["b"], (functional_call(self.a, a, (noise(batch.row),)),))
        return batch.mean(F.softplus(-fake.squeeze(1)))

    def task(self) -> Task:
        names = {part: tuple(n for n, _ in getattr(self, part).named_parameters()) for part in "ab"}
        fit = Fit(
            (
                TrainStep(self.tell, Adam((0.5, 0.9)), names["b"], 0.02, part="b"),
                TrainStep(self.fool, SGD(0.9), names["a"], 0.05, part="a", clip=0.1),
            ),
            Plan(8, 3),
        )
        return Task(
            start=lambda message, memory, facts: dict(message),
            finish=lambda carry: (
                {"a": carry["a"], "b": carry["b"], "seen": carry["optimiser.0.first"]},
                None,
            ),
            passes=(fit,),
        )

    def by_hand(self, who: str) -> tuple[Tree, Tree]:
        a, b = copy.deepcopy(self.a), copy.deepcopy(self.b)
        for_b = torch.optim.Adam(b.parameters(), 0.02, (0.5, 0.9))
        for_a = torch.optim.SGD(a.parameters(), 0.05, momentum=0.9)
        x, _ = rows_of(DATA, who)
        for rows in batches(Plan(8, 3), len(x), Seed(3).numpy("batch", 0, who, 0)):
            start = noise(torch.from_numpy(rows))
            for_b.zero_grad()
            said = b(x[rows]), b(a(start).detach())
            (F.softplus(-said[0]) + F.softplus(said[1])).mean().backward()
            for_b.step()
            for_a.zero_grad()
            F.softplus(-b(a(start))).mean().backward()
            nn.utils.clip_grad_norm_(a.parameters(), 0.1)
            for_a.step()
        return a.state_dict(), b.state_dict()


@pytest.mark.parametrize("engine", ENGINES)
def test_two_networks_trained_in_turn_equal_a_loop_written_by_hand(engine):
    pair = Pair()
    sent = {part: dict(getattr(pair, part).state_dict()) for part in "ab"}
    kept = map_leaves(torch.clone, sent)
    got = asked(engine, pair.task(), sent)
    for who in SIZES:
        for part, expected in zip("ab", pair.by_hand(who), strict=True):
            model = got.row(who)[part]
            for name in expected:
                torch.testing.assert_close(model[name], expected[name], rtol=1e-3, atol=5e-5)
                assert not torch.equal(model[name], sent[part][name])
    assert all(torch.equal(kept[p][n], sent[p][n]) for p in "ab" for n in sent[p])
    assert list(got.tree("seen")) == list(sent["b"])


def tallies(module: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    with torch.no_grad():
        out = module.eval()(x)
    said = out.argmax(1)
    count = [[int(v) for v in np.bincount(t, minlength=3)] for t in (y[said == y], said, y)]
    return {
        "rows": len(x),
        "loss": F.cross_entropy(out, y, reduction="sum").item(),
        "lost": 0,
        "correct": int((said == y).sum()),
        **dict(zip(("hit", "said", "true"), count, strict=True)),
    }


def assert_tallies(got: Message, expected: dict[str, Any]) -> None:
    assert list(got) == list(expected)
    for name, value in expected.items():
        assert got[name].tolist() == pytest.approx(value, rel=1e-5, abs=1e-9), name


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("norm", [[], [nn.BatchNorm1d(6)], [nn.BatchNorm1d(6, track_running_stats=False)]])
def test_scores_are_tallies_of_the_test_rows(engine, norm):
    data = federation(tests={"ann": 2, "bob": 9, "cat": 0, "dan": 3})
    learner = Learner(mlp(*norm), CE, 3, score_batch=4)
    if norm and norm[0].track_running_stats:
        learner.module[1].running_mean.add_(0.3)
        learner = replace(learner)
    if norm and not norm[0].track_running_stats:  # scored by the batch, so the batch must be the whole
        learner = replace(learner, score_batch=50)
    got = asked(engine, learner.score(), {"model": learner.first}, data)
    for who in data.clients:
        x, y = rows_of(data, who, "test")
        nobody = {n: [0] * 3 if n in ("hit", "said", "true") else 0 for n in got.body}
        assert_tallies(got.row(who), tallies(copy.deepcopy(learner.module), x, y) if len(x) else nobody)
    assert list(learner.score().reply) == list(got.body)


@pytest.mark.parametrize("engine", ENGINES)
def test_scoring_after_tuning_changes_no_memory_and_equals_training_by_hand(engine):
    learner = Learner(mlp(nn.BatchNorm1d(6)), CE, 3, SGD(0.9), Plan(8, 5))
    memories = Memories(lambda who: {"model": learner.first})
    memories[Client("bob")] = {
        "model": {n: t + 0.1 if t.is_floating_point() else t for n, t in learner.first.items()}
    }
    kept = {who: map_leaves(torch.clone, memories[who]) for who in DATA.clients}
    got = asked(engine, learner.score(own_model, learner.tuning(2)), {}, memories=memories)
    assert set(memories) == {"bob"}
    for who in DATA.clients:
        assert all(torch.equal(t, memories[who]["model"][n]) for n, t in kept[who]["model"].items())
    for who in SIZES:
        theirs = copy.deepcopy(learner.module)
        theirs.load_state_dict(kept[Client(who)]["model"])
        plan = Plan(8, 2, drop_single=True)
        start = Learner(theirs, CE, 3, plan=plan)
        theirs.load_state_dict(
            by_hand(start, who, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), stream="tune", plan=plan)
        )
        assert_tallies(got.row(who), tallies(theirs, *rows_of(DATA, who, "test")))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_diverged_model_is_scored_as_infinitely_bad_and_not_left_out(engine):
    learner = Learner(mlp(), CE, 3)
    broken = {n: torch.full_like(t, torch.nan) for n, t in learner.first.items()}
    memories = Memories(lambda who: {"model": broken if who == "bob" else learner.first})
    got = asked(engine, learner.score(own_model), {}, memories=memories)
    assert all(leaf.isfinite().all() for leaf in got.body.values()), "tallies are replies: finite"
    found = metrics.scores(got.body)
    assert found["loss"][1] == np.inf
    assert np.isfinite(found["loss"][[0, 2, 3]]).all()
    assert np.isfinite(found["accuracy"]).all()
