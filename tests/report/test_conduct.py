"""Free riders and outliers by what the coordinator sees of updates: who is named, in every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from small_runs import go
from torch import nn
from toys import context, learner

from kinfolk.contract.spoil import Passing
from kinfolk.engines.batched import Batched
from kinfolk.engines.conduct import WIDTH, cosines, sketch
from kinfolk.engines.coordinator import Coordinator
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.engines.wire import Wire
from kinfolk.engines.workers import Workers
from kinfolk.experiment.conduct import record_conduct
from kinfolk.experiment.conduct_files import read_conduct
from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.fold import Mean
from kinfolk.report.conduct import Rule, conduct, conduct_lines, everyone, judged
from kinfolk.report.page.charts.conduct import updates
from kinfolk.report.read import load_run
from kinfolk.script import Ask
from kinfolk.types import Client, Stack


def _rows(draw: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of three classes that can be learnt."""
    y = np.arange(count) % 3
    return (np.eye(3, 4)[y] * 2 + draw.normal(size=(count, 4))).astype(np.float32), y


def _data() -> Federation:
    draw = np.random.default_rng(7)
    train = {name: _rows(draw, 30 + i) for i, name in enumerate("abcdefgh")}
    return from_arrays(train, test={name: _rows(draw, 3) for name in train}, classes=3)


DATA = _data()
ONE = learner(nn.Linear(5, 60), nn.Tanh(), nn.Linear(60, 5), lr=0.01)
TABLE = {"train": ONE.train()}


class Rider:
    """What client c replies instead of what it has trained, in each of several ways."""

    def __init__(self, how: str) -> None:
        self.how, self.first, self.sent, self.step = how, None, None, None

    def __call__(self, request: Ask[Any], reply: Stack) -> Stack:
        if "c" not in reply.clients:
            return reply
        i, model, sent = reply.clients.index(Client("c")), reply.tree("model"), request.shared["model"]
        own = {n: t[i] - sent[n] for n, t in model.items()}
        if self.sent is None:
            self.first, self.step = own, own
        else:
            self.step = {n: sent[n] - self.sent[n] for n in sent}
        draw = torch.Generator().manual_seed(
            1000 + round(float(sum(t.sum() for t in sent.values())) * 1e6) % 997
        )
        bad = {
            "unchanged": lambda n: sent[n],
            "free_noise": lambda n: sent[n] + own[n].std() * torch.randn(own[n].shape, generator=draw),
            "replayed update": lambda n: sent[n] + self.first[n],
            "last step": lambda n: sent[n] + self.step[n],
            "sign_flip": lambda n: sent[n] - own[n],
            "scaled": lambda n: sent[n] + 10 * own[n],
            "tiny": lambda n: sent[n] + own[n] / 1000,
            "honest": lambda n: model[n][i],
        }[self.how]
        self.sent = sent
        rows = torch.arange(len(reply)) == i
        body = {n: torch.where(rows.reshape(-1, *[1] * (t.dim() - 1)), bad(n), t) for n, t in model.items()}
        return Stack(reply.clients, reply.size, {"model": body})


def played(folder: Path, engine: Any, rounds: int = 6) -> pd.DataFrame:
    """Some rounds of plain averaging; who is named at their end."""
    coordinator, model = Coordinator(engine), ONE.first
    clients = DATA.clients
    try:
        for number in range(1, rounds + 1):
            coordinator.begin()
            ask = Ask("train", clients, {"model": model}, fold=Mean("model", model))
            model = coordinator.perform(ask, context(DATA, number))
            record_conduct(folder, number, coordinator.looks, None, None, clients)  # type: ignore[arg-type]
    finally:
        engine.close()
    return judged(read_conduct(folder), Rule())


def riding(kind: Any, how: str) -> Any:
    def inner(memories: Memories) -> Any:
        return Passing(Loop(DATA, TABLE, memories), Rider(how))

    memories = Memories(lambda who: {})
    if kind is Workers:
        return Workers(DATA, TABLE, memories, processes=2, inner=inner)
    return Passing(kind(DATA, TABLE, memories), Rider(how))


SIGN = {
    "unchanged": "idle",
    "tiny": "idle",
    "free_noise": "astray",
    "replayed update": "repeats",
    "last step": "repeats",
    "sign_flip": "astray",
    "scaled": "long",
}


@pytest.mark.parametrize("how", SIGN)
def test_each_kind_of_rider_is_named_by_its_sign_and_nobody_else(tmp_path, how):
    named = played(tmp_path, riding(Loop, how))
    assert set(named["client"]) == {"c"}
    assert SIGN[how] in set(named["sign"])


@pytest.mark.parametrize("kind", [Loop, Batched, Wire, Workers], ids=lambda k: k.name)
def test_honest_clients_are_not_named_and_engines_see_the_same(tmp_path, kind):
    named = played(tmp_path / "honest", riding(kind, "honest"), rounds=4)
    assert named.empty
    (_, here), *_ = read_conduct(tmp_path / "honest")
    played(tmp_path / "loop", riding(Loop, "honest"), rounds=1)
    (_, there), *_ = read_conduct(tmp_path / "loop")
    here, there = (one.sort_values("client").reset_index(drop=True) for one in (here, there))
    assert list(here["client"]) == list(DATA.clients)
    pd.testing.assert_frame_equal(here, there, rtol=1e-3, atol=1e-4)


def test_a_sketch_keeps_lengths_and_angles_and_misses_no_factor_of_two():
    draw = torch.Generator().manual_seed(0)
    one = torch.randn(200, 40, 90, generator=draw)
    like = {"w": torch.zeros(40, 90), "b": torch.zeros(())}
    other = 0.6 * one + 0.8 * torch.randn(200, 40, 90, generator=draw)
    zero = torch.zeros(200)
    a, b = (sketch({"w": w, "b": zero}, like) for w in (one, other))
    want = (one.flatten(1) * other.flatten(1)).sum(1).double()
    assert float((a.norm(dim=1) ** 2).mean()) == pytest.approx(3600, rel=0.05)
    assert float((a * b).sum(1).mean()) == pytest.approx(float(want.mean()), rel=0.1)
    assert torch.equal(sketch({"w": 2 * one, "b": zero}, like), 2 * a)


def test_cosines_are_those_to_the_mean_direction_of_the_others_of_the_group():
    draw = torch.Generator().manual_seed(0)
    rows, group = torch.randn(12, WIDTH, generator=draw), torch.tensor([5, 5, 5, 5, 9, 9, 9, 9, 9, 7, 7, 5])
    rows[3] = 0
    got = cosines(rows, group)
    for i in range(12):
        others = [j for j in range(12) if j != i and group[j] == group[i] and rows[j].norm() > 0]
        if i == 3 or len(others) < 2:
            assert got[i].isnan()
            continue
        mean = torch.stack([rows[j] / rows[j].norm() for j in others]).mean(0)
        want = torch.nn.functional.cosine_similarity(rows[i], mean, dim=0)
        assert float(got[i]) == pytest.approx(float(want), abs=1e-5)


def facts(lengths: list[float], cosine: list[float] | float = 0.5, **more: Any) -> pd.DataFrame:
    """One round of made-up facts, whose marks never repeat."""
    names = [f"client-{i:02}" for i in range(len(lengths))]
    draw = np.random.default_rng(round(1000 * sum(lengths)) + more.pop("salt", 0))
    marks = {f"mark{i}": draw.normal(size=len(names)) for i in range(4)}
    return pd.DataFrame(
        {
            "task": "train",
            "client": names,
            "group": -1,
            "rows": 30,
            "length": lengths,
            "cosine": cosine,
            **marks,
            **more,
        }
    )


EVEN = [1.0 + 0.02 * i for i in range(8)]


@pytest.mark.parametrize(
    ("lengths", "more", "named"),
    [
        ([*EVEN, 1.1], {}, {}),
        ([*EVEN, 2.6], {}, {}),  # of a median of 1.08: less than 2.5 times as long
        ([*EVEN, 2.8], {}, {"client-08": "long"}),
        ([*EVEN, 0.4], {}, {"client-08": "short"}),
        ([*EVEN, 0.009], {}, {"client-08": "idle"}),
        ([*EVEN, 0.0], {}, {"client-08": "idle"}),
        ([0.0] * 9, {}, {}),
        # Lengths as different within a group as that: nobody stands out.
        ([0.1, 0.3, 0.7, 1.0, 1.2, 2.0, 3.0, 4.0, 5.0], {}, {}),
        # A group of its own kind is judged by itself.
        ([*EVEN, *[9 * one for one in EVEN]], {"group": [0] * 8 + [1] * 8}, {}),
        # Who is in a group of few is held to everybody's lengths.
        ([*EVEN, 9.0], {"group": [0] * 8 + [1]}, {"client-08": "long"}),
        (
            [*EVEN, 1.1],
            {"cosine": [0.5, 0.52, 0.48, 0.55, 0.45, 0.5, 0.51, 0.5, -0.3]},
            {"client-08": "astray"},
        ),
        # As long as their rows are many, but one is not.
        (
            [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 1.1, 2.1, 4.1, 8.1],
            {"rows": [9, 18, 36, 72, 144, 288, 9, 18, 36, 72]},
            {},
        ),
        (
            [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 1.1, 2.1, 4.1, 100.0],
            {"rows": [9, 18, 36, 72, 144, 288, 9, 18, 36, 72]},
            {"client-09": "long"},
        ),
        # Where honest updates have little in common, none of them is told from noise.
        ([*EVEN, 1.1], {"cosine": [0.2, 0.22, 0.18, 0.25, 0.15, 0.2, 0.21, 0.2, -0.6]}, {}),
        # However much the others' directions differ: noise has less in common with them than any.
        (
            [*EVEN, 1.1],
            {"cosine": [0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.36, 0.37, 0.02]},
            {"client-08": "astray"},
        ),
        # Low for its group, but it has much in common with the others.
        ([*EVEN, 1.1], {"cosine": [0.9, 0.92, 0.88, 0.95, 0.85, 0.9, 0.91, 0.9, 0.3]}, {}),
    ],
)
def test_signs_by_the_rule_as_it_is_stated(lengths, more, named):
    found = judged([(n, facts(lengths, salt=n, **more)) for n in range(1, 5)], Rule())
    assert dict(zip(found["client"], found["sign"], strict=True)) == named


def test_a_sign_must_last():
    def rounds(odd: int, of: int) -> pd.DataFrame:
        return judged(
            [(n, facts([*EVEN, 9.0 if n <= odd else 1.1], salt=n)) for n in range(1, of + 1)], Rule()
        )

    assert rounds(2, 2).empty
    assert rounds(3, 7).empty
    assert rounds(3, 6)[["rounds", "of"]].values.tolist() == [[3, 6]]


def test_who_is_sent_the_same_model_again_may_answer_the_same():
    one = facts(EVEN).assign(mark0=1.0, mark1=0.5, mark2=3.0, mark3=2.0)
    assert judged([(n, one) for n in range(1, 6)], Rule()).empty


def test_a_run_has_it_on_record_and_shows_it_and_an_older_run_says_nothing(tmp_path):
    changes = "data.clients=12", "run.rounds=4", "run.attack=scaled", "run.attackers=0.1"
    go(tmp_path / "run", *changes)
    run = load_run(tmp_path / "run")
    (attacker,) = run.facts["attackers"]
    assert [number for number, _ in read_conduct(run.path)] == [1, 2, 3, 4]
    assert run.conduct[["client", "looks like", "sign"]].values.tolist() == [[attacker, "outlier", "long"]]
    (line,) = conduct_lines(run)
    assert line == f"outlier? updates far longer than its group's: {attacker} (4 of 4 rounds)"
    (chart,) = updates([run])
    assert attacker in chart.says
    told = everyone(run).set_index("client").loc[attacker]
    assert 5 < told["length"] < 20
    for path in (tmp_path / "run" / "conduct").iterdir():
        path.unlink()
    old = load_run(tmp_path / "run")
    assert (conduct_lines(old), updates([old]), conduct(old).empty) == ([], [], True)


def test_without_a_server_nothing_is_on_record(tmp_path):
    go(tmp_path / "run", "algorithm.name=local")
    assert conduct_lines(load_run(tmp_path / "run")) == []


def test_the_guard_may_be_off_and_updates_are_on_record_all_the_same(tmp_path):
    go(tmp_path / "run", "guard.norm=0", "run.rounds=1")
    (number, frame), *_ = read_conduct(tmp_path / "run")
    assert (number, len(frame), bool((frame["length"] > 0).all())) == (1, 4, True)
