"""A learner's training against plain PyTorch: modules, optimisers and loops by hand, in both engines."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import CE, DATA, ENGINES, SIZES, asked, assert_models, by_hand, mlp, seeded
from fast_learner import Learner
from torch import Tensor, nn

from kinfolk.algorithms.feddane import FedDANE
from kinfolk.algorithms.fedsgd import FedSGD
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import override
from kinfolk.learning.dropout import kept
from kinfolk.learning.learner import keep_model, own_model
from kinfolk.learning.models import build_model
from kinfolk.learning.optim import SGD, Adam
from kinfolk.streams import Seed
from kinfolk.task import Batch, Carry, ClientInfo, Plan
from kinfolk.types import Message, Stack, Tree, map_leaves

CASES = {
    "no last batch": (
        Learner(mlp(), CE, 3, plan=Plan(8, 2, drop_last=True)),
        lambda p: torch.optim.SGD(p, 0.1),
    ),
    "sgd": (Learner(mlp(), CE, 3, plan=Plan(8, 2)), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (
        Learner(mlp(), CE, 3, SGD(0.9, 0.01), Plan(8, 2), 0.05),
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    ),
    "adam": (Learner(mlp(), CE, 3, Adam(), Plan(5, 3), 0.01), lambda p: torch.optim.Adam(p, 0.01)),
    "steps": (Learner(mlp(), CE, 3, plan=Plan(6, steps=9)), lambda p: torch.optim.SGD(p, 0.1)),
    "batch norm": (
        Learner(mlp(nn.BatchNorm1d(6)), CE, 3, SGD(0.5), Plan(8, 2)),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.5),
    ),
    "cumulative batch norm": (
        Learner(mlp(nn.BatchNorm1d(6, momentum=None)), CE, 3, plan=Plan(8, 2)),
        lambda p: torch.optim.SGD(p, 0.1),
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_training_equals_a_loop_written_by_hand(engine, case):
    learner, make = CASES[case]
    before = {n: t.clone() for n, t in learner.module.state_dict().items()}
    sent = learner.first
    got = asked(engine, learner.train(), {"model": sent})
    # Division by a tiny moment makes Adam's first steps sensitive to the last bit of a gradient.
    assert_models(got, {who: by_hand(learner, who, make) for who in SIZES}, 2e-5 if case == "adam" else 2e-6)
    assert got.size.tolist() == [1, 7, 20, 41]
    assert all(torch.equal(before[n], t) for n, t in learner.module.state_dict().items())
    assert all(torch.equal(before[n], t) for n, t in sent.items()), "what was sent is not written to"
    if "norm" in case:  # a single row leaves the model and its counters alone
        alone = got.row("ann")["model"]
        assert all(torch.equal(alone[n], t) for n, t in sent.items())
        assert got.row("dan")["model"]["1.num_batches_tracked"] == 10, "41 rows by 8, the last one left out"


def test_names_and_buffers():
    learner = Learner(mlp(nn.BatchNorm1d(6)), CE, 3)
    assert learner.names == ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias")
    assert list(learner.first) == list(learner.module.state_dict())
    assert set(learner.first) - set(learner.names) == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }
    assert list(learner.params(learner.first)) == list(learner.names)
    assert learner.plan.drop_single
    assert not Learner(mlp(), CE, 3).plan.drop_single
    learner.first["0.bias"].add_(1)
    assert torch.equal(learner.first["0.bias"], learner.module.state_dict()["0.bias"])
    assert not learner.first["0.bias"].requires_grad


@pytest.mark.parametrize("engine", ENGINES)
def test_frozen_parameters_stay(engine):
    network = mlp()
    network[0].weight.requires_grad_(False)
    learner = Learner(network, CE, 3, SGD(0.9), Plan(8, 2))
    assert learner.names == ("0.bias", "2.weight", "2.bias")
    got = asked(engine, learner.train(), {"model": learner.first})
    assert_models(
        got, {w: by_hand(learner, w, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)) for w in SIZES}
    )
    assert "0.weight" not in got.tree("model")  # every site has it


class Tied(nn.Module):
    """One matrix, used forwards twice, and one bias that is the same as another."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.b(torch.tanh(self.a(x)))))


@pytest.mark.parametrize("engine", ENGINES)
def test_tied_weights_stay_tied_and_travel_once(engine):
    learner = Learner(seeded(Tied), CE, 3, SGD(0.9), Plan(8, 2))
    assert list(learner.first) == ["a.weight", "a.bias", "b.bias", "head.weight", "head.bias"]
    got = asked(engine, learner.train(), {"model": learner.first})
    expected = {w: by_hand(learner, w, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)) for w in SIZES}
    assert_models(got, expected)
    module = copy.deepcopy(learner.module).eval()
    module.load_state_dict(expected["dan"])
    torch.testing.assert_close(learner.apply(got.row("dan")["model"], DATA.x[:9]), module(DATA.x[:9]))


class SharedNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.again = self.norm

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.again(torch.tanh(self.norm(x))))


@pytest.mark.parametrize("engine", ENGINES)
def test_one_norm_in_two_places(engine):
    learner = Learner(seeded(SharedNorm), CE, 3, plan=Plan(8, 2))
    got = asked(engine, learner.train(), {"model": learner.first})
    expected = {w: by_hand(learner, w, lambda p: torch.optim.SGD(p, 0.1)) for w in SIZES}
    assert_models(got, expected)
    assert got.row("dan")["model"]["norm.num_batches_tracked"] == 2 * 10


def generators() -> tuple[Any, ...]:
    return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()


def test_dropout_follows_from_the_seed_and_touches_no_global_generator():
    learner = Learner(mlp(nn.Dropout(0.5)), CE, 3, plan=Plan(8, 2))
    before = generators()
    first = asked(Loop, learner.train(), {"model": learner.first})
    assert generators() == before
    torch.rand(3), np.random.rand(3)
    again = asked(Loop, learner.train(), {"model": learner.first})
    assert all(torch.equal(t, again.tree("model")[n]) for n, t in first.tree("model").items())
    # The client's own stream, whoever else is asked; another seed or round drops other units.
    few = asked(Loop, learner.train(), {"model": learner.first}, to=("dan", "bob"))
    assert few.clients == ("bob", "dan")
    assert all(torch.equal(t, first.at(few.clients).tree("model")[n]) for n, t in few.tree("model").items())
    without = Learner(mlp(), CE, 3, plan=Plan(8, 2))
    for other in (
        asked(Loop, learner.train(), {"model": learner.first}, run=4),
        asked(Loop, learner.train(), {"model": learner.first}, round=1),
        asked(Loop, without.train(), {"model": without.first}),
    ):
        rows = zip(first.tree("model")["0.weight"], other.tree("model")["0.weight"], strict=True)
        assert not any(torch.equal(a, b) for a, b in rows)


def test_dropout_equals_a_loop_written_by_hand():
    """The same masks, multiplied by hand, whichever engine."""

    class Masked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            mask = kept(torch.tensor(next(self.keys)), (41, 6), 0.25)[
                : len(x)
            ]  # whatever the size of the batch
            return x * mask / 0.75

    learner = Learner(mlp(nn.Dropout(0.25)), CE, 3, plan=Plan(8, 2))
    assert learner.plan.draws
    assert not Learner(mlp(), CE, 3).plan.draws
    plain = Learner(mlp(Masked()), CE, 3, plan=Plan(8, 2))
    for engine in ENGINES:
        got = asked(engine, learner.train(), {"model": learner.first})
        for who in SIZES:
            Masked.keys = iter(Seed(3).numpy("inside", "batch", 0, who, 0).integers(2**62, size=99))
            expected = by_hand(plain, who, lambda p: torch.optim.SGD(p, 0.1))
            assert_models(got.at([who]), {who: expected})


@pytest.mark.parametrize("engine", ENGINES)
def test_the_learning_rate_decays_by_round(engine):
    learner = Learner(mlp(), CE, 3, plan=Plan(8), lr=0.2, decay=0.5)
    assert [learner.descent().rate(r) for r in range(3)] == [0.2, 0.1, 0.05]
    got = asked(engine, learner.train(), {"model": learner.first}, round=3)
    assert_models(got, {w: by_hand(learner, w, lambda p: torch.optim.SGD(p, 0.025), 3) for w in SIZES})


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_are_clipped_client_by_client(engine):
    learner = Learner(mlp(), CE, 3, plan=Plan(8, 2), lr=0.5, clip=0.05)
    got = asked(engine, learner.train(), {"model": learner.first})
    expected = {w: by_hand(learner, w, lambda p: torch.optim.SGD(p, 0.5), clip=0.05) for w in SIZES}
    assert_models(got, expected, 2e-5)
    free = asked(engine, replace(learner, clip=0.0).train(), {"model": learner.first})
    assert not torch.allclose(got.tree("model")["0.weight"], free.tree("model")["0.weight"], atol=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_client_keeps_is_its_own(engine):
    learner = Learner(mlp(), CE, 3, plan=Plan(8))
    memories = Memories(lambda who: {"model": learner.first})
    task = learner.train(start=own_model, finish=keep_model, reply={})
    first = asked(engine, task, {}, memories=memories)
    assert first.body == {}
    assert set(memories) == set(DATA.clients)
    assert_models(
        Stack.of({who: (1, memories[who]) for who in memories}),
        {who: by_hand(learner, who, lambda p: torch.optim.SGD(p, 0.1)) for who in SIZES},
    )
    kept = {who: map_leaves(torch.clone, memories[who]) for who in memories}
    asked(engine, task, {}, memories=memories, round=1)
    assert not any(torch.equal(memories[w]["model"]["0.bias"], kept[w]["model"]["0.bias"]) for w in kept)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_knows_its_rows_its_steps_and_the_round(engine):
    def start(message: Message, memory: Message, facts: ClientInfo) -> Carry:
        return {
            "model": message["model"],
            "facts": torch.stack([facts.rows, facts.steps]),
            "r": facts.rows * 0 + facts.round,
        }

    learner = Learner(mlp(nn.BatchNorm1d(6)), CE, 3, plan=Plan(8, 2))
    task = learner.train(start=start, finish=lambda carry: ({"facts": carry["facts"], "r": carry["r"]}, None))
    got = asked(engine, task, {"model": learner.first}, round=5)
    assert got.tensor("facts").tolist() == [[1, 0], [7, 2], [20, 6], [41, 10]]
    assert got.tensor("r").tolist() == [5] * 4


@pytest.mark.parametrize("engine", ENGINES)
def test_training_goes_on_where_gradients_were_switched_off(engine):
    learner = Learner(mlp(), CE, 3, plan=Plan(8))
    usual = asked(engine, learner.train(), {"model": learner.first})
    with torch.no_grad():
        within = asked(engine, learner.train(), {"model": learner.first})
    assert all(torch.equal(t, within.tree("model")[n]) for n, t in usual.tree("model").items())
    assert not any(t.requires_grad for t in usual.tree("model").values())


def test_modes_apply_to_copies_only():
    module = mlp(nn.BatchNorm1d(6)).eval()
    learner = Learner(module, CE, 3)
    assert not module.training
    assert learner.training_module.training
    assert isinstance(module[1], nn.BatchNorm1d)
    out = learner.apply(learner.first, DATA.x[:3])
    assert torch.equal(out, module(DATA.x[:3]))


def test_a_teacher_that_is_only_consulted_is_not_written_to():
    learner = Learner(mlp(nn.BatchNorm1d(6)), CE, 3, plan=Plan(8))

    def distil(model: Tree, batch: Batch, carry: Carry) -> Tensor:
        return learner.objective(model, batch, carry) + learner.objective(carry["teacher"], batch, carry)

    def start(message: Message, memory: Message, facts: ClientInfo) -> Carry:
        return {"model": message["model"], "teacher": message["model"]}

    sent = learner.first
    asked(Loop, learner.train(distil, start), {"model": sent})
    assert all(torch.equal(t, sent[n]) for n, t in learner.first.items())


def test_buffers_outside_of_the_state_follow_the_rows():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)
            self.register_buffer("mask", torch.tensor([1.0, 0, 1, 0]), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x * self.mask)

    learner = Learner(seeded(Masked), CE, 3, plan=Plan(8, 2))
    assert list(learner.first) == ["head.weight", "head.bias"]
    for engine in ENGINES:
        got = asked(engine, learner.train(), {"model": learner.first})
        assert_models(got, {w: by_hand(learner, w, lambda p: torch.optim.SGD(p, 0.1)) for w in SIZES})
    elsewhere = {n: t.to("meta") for n, t in learner.first.items()}
    assert learner.apply(elsewhere, DATA.x[:3].to("meta")).device.type == "meta"


@pytest.mark.parametrize("norm", ["none", "bn", "gn"])
def test_half_precision_is_near_and_everything_kept_is_float32(norm):
    with Seed(0).borrowed("init"):
        module = build_model("tiny_cnn", (1, 8, 8), 4, {"norm": norm})
    exact, coarse = (Learner(module, CE, 4, half=half) for half in (False, True))
    draw = Seed(1).torch("rows")
    x, y = torch.randn(12, 1, 8, 8, generator=draw), torch.randint(4, (12,), generator=draw)
    weight = torch.ones(12)
    weight[-2:] = 0
    for padding in (None, weight):
        batch = Batch(x, y, torch.arange(12), padding)
        models = [
            {n: t.clone().requires_grad_(n in exact.names) for n, t in exact.first.items()} for _ in "ab"
        ]
        losses = [one.objective(model, batch, {}) for one, model in zip((exact, coarse), models, strict=True)]
        assert losses[1].dtype == torch.float32
        assert 0 < abs(float(losses[0].detach() - losses[1].detach())) < 0.02
        a, b = (
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, [model[n] for n in exact.names])])
            for loss, model in zip(losses, models, strict=True)
        )
        assert b.dtype == torch.float32
        assert (a - b).norm() < 0.1 * a.norm()  # ten products, each to 1/256
    assert coarse.apply(exact.first, x).dtype == torch.float32


def test_rows_that_fill_no_batch_are_left_out_where_that_is_asked_for_and_never_of_a_gradient():
    spec = override(Experiment(), ["local.drop_last=true", "local.batch=7", "run.rounds=1"])
    learner = build_parts(spec).learner
    assert learner.plan.drop_last
    assert learner.tuning(3).plan == replace(learner.plan, epochs=3)
    every_row = (FedSGD(learner), FedDANE(learner))
    assert [method.tasks()["gradient"].passes[0].plan.drop_last for method in every_row] == [False, False]


@pytest.mark.parametrize("name", ["fedavg_tuned", "fesem", "fesem_ma"])
def test_fine_tuning_may_have_a_rate_of_its_own(name):
    def rates(*sets):
        spec = override(Experiment(), [f"algorithm.name={name}", "local.lr=0.2", "local.decay=0.5", *sets])
        task = build_parts(spec).algorithm.eval_tasks()["fine-tuned"]
        return [task.passes[0].descents[0].rate(t) for t in (0, 2)]

    assert rates() == [0.2, 0.05], "that of the round, unless it is set"
    assert rates("local.tune_lr=0.01") == [0.01, 0.01]
    with pytest.raises(KinfolkError, match=r"local\.tune_lr = -1\.0: give 0 or more"):
        override(Experiment(), ["local.tune_lr=-1.0"])


@pytest.mark.parametrize("name", ["fedavg_tuned", "fesem", "fesem_ma"])
def test_fine_tuning_may_have_epochs_of_its_own(name):
    def epochs(*sets):
        spec = override(Experiment(), [f"algorithm.name={name}", "local.epochs=3", *sets])
        return build_parts(spec).algorithm.eval_tasks()["fine-tuned"].passes[0].plan.epochs

    assert epochs() == 1, "as the method has it, unless it is set"
    assert epochs("local.tune_epochs=4") == 4
    with pytest.raises(KinfolkError, match=r"local\.tune_epochs = -1: give 0 or more"):
        override(Experiment(), ["local.tune_epochs=-1"])
