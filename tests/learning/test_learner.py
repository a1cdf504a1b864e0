"""A learner against plain PyTorch: modules, optimisers and loops written out by hand, in both engines."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from kinfolk.engines.batched import Batched
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.federation.federation import Federation
from kinfolk.federation.own import from_arrays
from kinfolk.learning import metrics
from kinfolk.learning.learner import Learner, keep_model, own_model
from kinfolk.learning.losses import find_loss
from kinfolk.learning.optim import SGD, Adam
from kinfolk.learning.plan import batches
from kinfolk.script import Ask
from kinfolk.streams import Seed, Turn
from kinfolk.task import Batch, Carry, Descent, Facts, Fit, Plan, Task
from kinfolk.types import Client, Message, Stack, Tree, map_leaves

SIZES = {"ann": 1, "bob": 7, "cat": 20, "dan": 41}
ENGINES = [Loop, Batched]
CE = find_loss("cross_entropy")


def federation(sizes: Mapping[str, int] = SIZES, tests: Mapping[str, int] | None = None) -> Federation:
    draw = np.random.default_rng(5)

    def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
        return draw.normal(size=(n, 4)).astype(np.float32), draw.integers(0, 3, n)

    held = {who: rows((tests or {}).get(who, 5)) for who in sizes}
    return from_arrays({w: rows(n) for w, n in sizes.items()}, test=held, classes=3)


DATA = federation()


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with Seed(0).borrowed("init"):
        return make()


def mlp(*inside: nn.Module) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 6), *inside, nn.Tanh(), nn.Linear(6, 3)))


def asked(
    engine: type,
    task: Task,
    shared: Message,
    data: Federation = DATA,
    round: int = 0,
    memories: Memories | None = None,
    run: int = 3,
    to: tuple[str, ...] = (),
) -> Stack:
    memories = Memories(lambda who: {}) if memories is None else memories
    turn = Turn(Seed(run), round, data.clients)
    request = Ask[Any]("task", tuple(map(Client, to)) or data.clients, shared)
    return Stack.join(list(engine(data, {"task": task}, memories).replies(request, turn)))


def rows_of(data: Federation, who: str, split: str = "train") -> tuple[Tensor, Tensor]:
    own = data.splits[split].rows(data.place(who))
    return data.x[own], data.y[own]


def by_hand(
    learner: Learner,
    who: str,
    make: Callable[[Any], torch.optim.Optimizer],
    round: int = 0,
    clip: float = 0.0,
    stream: str = "batch",
    plan: Plan | None = None,
) -> Tree:
    """An ordinary loop over an ordinary module, fed with the rows in the client's own order."""
    module = copy.deepcopy(learner.module).train()
    optimiser = make([p for p in module.parameters() if p.requires_grad])
    x, y = rows_of(DATA, who)
    for rows in batches(plan or learner.plan, len(x), Seed(3).numpy(stream, round, who, 0)):
        optimiser.zero_grad()
        F.cross_entropy(module(x[rows]), y[rows]).backward()
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimiser.step()
    return module.state_dict()


def assert_models(got: Stack, expected: Mapping[str, Tree], tolerance: float = 2e-6) -> None:
    assert set(got.clients) == set(expected)
    for who, tree in expected.items():
        model = got.row(who)["model"]
        for name in model:
            torch.testing.assert_close(
                model[name], tree[name], rtol=1e-5, atol=tolerance, msg=f"{who} {name}"
            )


CASES = {
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
    frozen = learner.first["0.weight"]
    assert all(torch.equal(t, frozen) for t in got.tree("model")["0.weight"])


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
    learner = Learner(mlp(nn.Dropout(0.5)), CE, 3, plan=Plan(8, 2))
    got = asked(Loop, learner.train(), {"model": learner.first})
    for who in SIZES:
        with Seed(3).borrowed("inside", "batch", 0, who):
            expected = by_hand(learner, who, lambda p: torch.optim.SGD(p, 0.1))
        assert_models(got.at([who]), {who: expected})
    assert learner.draws == "1"
    assert Learner(mlp(), CE, 3).draws == ""


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
                Descent(self.tell, Adam((0.5, 0.9)), names["b"], 0.02, part="b"),
                Descent(self.fool, SGD(0.9), names["a"], 0.05, part="a", clip=0.1),
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
        "top5": len(x),
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
    got = asked(engine, learner.score(own_model, tune_epochs=2), {}, memories=memories)
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
    def start(message: Message, memory: Message, facts: Facts) -> Carry:
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
