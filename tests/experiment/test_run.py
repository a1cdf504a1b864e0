"""One run from spec to folder: when it ends, what it writes, what makes a round void."""

from __future__ import annotations

import hashlib
import json
import math
import random
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import SPEC, assert_same_end, equal, flat, go, rounds_of, saved
from torch import nn

from kinfolk.algorithms.blocks import one_model
from kinfolk.allowed import allow_imports
from kinfolk.engines.coordinator import drop_outs
from kinfolk.engines.fast.choices import KernelChoices
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.record import read_audit, read_scores
from kinfolk.experiment.run import run
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import dump, override, parse
from kinfolk.federation.sources import build
from kinfolk.fold import Mean
from kinfolk.learning.learner import Learner
from kinfolk.script import Script, ask, fold
from kinfolk.streams import RoundContext, Seed, round_half_up, sample
from kinfolk.task import Carry, IntSpec, Table, Task
from kinfolk.types import Client, Message, Tree


def test_a_run_leaves_a_whole_folder(tmp_path):
    seen: list[str] = []
    result = go(tmp_path / "r", "run.evaluate_every=2", watch=lambda event, facts: seen.append(event))
    assert (result.rounds, result.reason, result.title) == (3, "3 rounds done", "fedavg")
    scored, unscored = ["checkpoint", "round", "evaluate"], ["checkpoint", "round"]
    assert seen == ["engine", *scored, *unscored, *scored, *scored, "end"]
    facts = rounds_of(tmp_path / "r")
    assert [f["round"] for f in facts] == [0, 1, 2, 3]
    assert ["summary" in f for f in facts] == [True, False, True, True], "every other round, and the last"
    size = 4 * (64 * 10 + 10)
    assert facts[0]["bytes"] == {}, "scoring is not part of the method"
    assert all(f["bytes"] == {"update": {"down": 4 * size, "up": 4 * size}} for f in facts[1:])
    assert all((f["cohort"], f["answered"], f["void"]) == (4, 4, False) for f in facts[1:])
    scores = read_scores(tmp_path / "r")
    assert sorted(set(scores["round"])) == [0, 2, 3]
    last = scores[(scores["round"] == 3) & (scores["score"] == "accuracy")]
    assert last["client"].tolist() == ["client-00", "client-01", "client-02", "client-03"]
    assert result.summary["centre"]["accuracy"]["macro"] == pytest.approx(last["value"].mean())
    weighted = np.average(last["value"], weights=last["rows"])
    assert result.summary["centre"]["accuracy"]["micro"] == pytest.approx(weighted)
    told = json.loads((tmp_path / "r/run.json").read_text())
    assert (told["status"], told["rounds"], told["model"]["parameters"]) == ("finished", 3, 650)
    assert parse((tmp_path / "r/spec.toml").read_text()) == override(SPEC, ["run.evaluate_every=2"])
    number, tensors, _ = saved(tmp_path / "r")
    assert number == 3
    assert equal(tensors["state"], {"model": result.state.model})


def test_no_global_generator_is_touched_and_settings_are_put_back(tmp_path):
    def now() -> tuple[Any, ...]:
        threads = torch.get_num_threads()
        return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist(), threads

    before = now()
    for engine in ("loop", "batched"):
        go(tmp_path / engine, f"engine.name={engine}", "run.rounds=1", "model.name=mlp", "model.hidden=[4]")
    assert now() == before


def test_the_seed_decides_and_nothing_else(tmp_path):
    first = go(tmp_path / "a", "run.participation=0.5")
    torch.rand(3), np.random.rand(3)
    go(tmp_path / "b", "run.participation=0.5")
    assert_same_end(tmp_path / "a", tmp_path / "b")
    other = go(tmp_path / "c", "run.participation=0.5", "run.seed=1")
    assert not equal({"m": first.state.model}, {"m": other.state.model})


@pytest.mark.parametrize(
    ("count", "share", "expected"), [(24, 0.1, 2), (5, 0.5, 3), (3, 0.01, 1), (7, 1.0, 7)]
)
def test_the_cohort_has_its_size(count, share, expected):
    clients = tuple(Client(f"c{i:02d}") for i in range(count))
    cohorts = [sample(Seed(1), r, clients, share) for r in range(30)]
    assert {len(c) for c in cohorts} == {expected}
    assert all(list(c) == sorted(set(c)) for c in cohorts)
    assert cohorts == [sample(Seed(1), r, clients, share) for r in range(30)]
    if 1 < expected < count:
        assert len(set(cohorts)) > 1
        assert set(clients) == {
            c for cohort in [sample(Seed(1), r, clients, share) for r in range(200)] for c in cohort
        }


def test_rounding_is_ordinary():
    assert [round_half_up(v) for v in (0.4, 0.5, 1.5, 2.5, 2.4)] == [0, 1, 2, 3, 2]


def test_a_target_ends_the_run_and_the_end_is_saved(tmp_path):
    result = go(tmp_path / "r", "run.rounds=50", "run.target=0.2", "run.checkpoint_every=20", "local.lr=0.05")
    assert 0 < result.rounds < 50
    assert result.reason == "accuracy reached 0.2"
    scores = read_scores(tmp_path / "r")
    macro = scores[scores["score"] == "accuracy"].groupby("round")["value"].mean()
    assert macro[result.rounds] >= 0.2
    assert (macro[1 : result.rounds - 1] < 0.2).all(), "not a round too late"
    number, tensors, _ = saved(tmp_path / "r")
    assert number == result.rounds, "saved, although no checkpoint was due"
    assert equal(tensors["state"], {"model": result.state.model})
    again = go(
        tmp_path / "r",
        "run.rounds=50",
        "run.target=0.2",
        "run.checkpoint_every=20",
        "local.lr=0.05",
        resume=True,
    )
    assert (again.rounds, again.reason) == (result.rounds, result.reason)


def test_a_target_for_a_loss_is_reached_from_above(tmp_path):
    result = go(tmp_path / "r", "run.rounds=50", "run.target=2.2", "run.target_score=loss")
    assert result.reason == "loss reached 2.2"
    assert result.summary["centre"]["loss"]["macro"] <= 2.2


@dataclass(frozen=True)
class State:
    model: Tree
    best: float = math.inf
    count: int = 0


@dataclass(frozen=True)
class Own:
    """An algorithm of the test's own: it stops after a while, and its clients can be made to fail.

    `spoil` names the round from which the second reply of every client is NaN.
    """

    learner: Learner
    stop: int = 99
    spoil: int = 99

    eval_inputs, eval_tasks = one_model.eval_inputs, one_model.eval_tasks

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        return State(first)

    def init_client(self, who: Client) -> Message:
        return {"asked": torch.tensor(0)}

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        hello = yield from ask("hello", cohort)
        mean = Mean("model", keep=state.model)
        bad = torch.tensor(math.nan if context.round >= self.spoil else 0.0)
        model = yield from fold(mean, "update", hello.clients, shared={"model": state.model, "bad": bad})
        return State(model, state.best, state.count + 1), {"said": hello.tensor("n")}

    def tasks(self) -> Table:
        def hello(message: Message, memory: Message, facts: Any) -> Carry:
            return {"asked": memory["asked"] + 1}

        def update(message: Message, memory: Message, facts: Any) -> Carry:
            return {"model": message["model"], "bad": message["bad"]}

        def finish(carry: Carry) -> tuple[Message, None]:
            return {"model": {n: t + carry["bad"] for n, t in carry["model"].items()}}, None

        return {
            "hello": Task(
                hello, lambda c: ({"n": c["asked"]}, {"asked": c["asked"]}), reply={"n": IntSpec(0, 100)}
            ),
            "update": self.learner.train(start=update, finish=finish),
        }

    def finished(self, state: State) -> str:
        return f"{state.count} is enough" if state.count >= self.stop else ""


allow_imports(__name__)
OWN = "algorithm.name=test_run:Own"


def test_an_algorithm_may_end_the_run_itself(tmp_path):
    result = go(tmp_path / "r", OWN, "algorithm.stop=2", "run.rounds=9")
    assert (result.rounds, result.reason) == (2, "2 is enough")
    assert result.title == "Own stop=2"
    assert {c: int(m["asked"]) for c, m in result.memories.items()} == dict.fromkeys(result.memories, 2)


def test_state_of_every_kind_survives_a_resume(tmp_path):
    whole = go(tmp_path / "a", OWN, "run.rounds=4")
    go(tmp_path / "b", OWN, "run.rounds=1")
    rest = go(tmp_path / "b", OWN, "run.rounds=4", resume=True)
    assert rest.state.best == whole.state.best == math.inf
    assert rest.state.count == whole.state.count == 4
    assert equal({"m": rest.state.model}, {"m": whole.state.model})
    assert {c: int(m["asked"]) for c, m in rest.memories.items()} == dict.fromkeys(whole.memories, 4)
    assert rounds_of(tmp_path / "a") == rounds_of(tmp_path / "b")


def test_too_few_answers_make_a_round_void(tmp_path):
    rule = drop_outs(0.4)
    assert rule is not None
    clients = tuple(Client(f"client-0{i}") for i in range(4))

    def present(seed: int) -> list[int]:
        return [sum(not rule(RoundContext(Seed(seed), r, clients), c) for c in clients) for r in range(10)]

    def suits(there: list[int]) -> bool:
        """Somewhere nobody answers, and never three void rounds in a row."""
        return 0 in there and all(max(there[r : r + 3]) > 2 for r in range(8))

    seed = next(seed for seed in range(500) if suits(present(seed)))
    there = present(seed)
    changes = ["run.absent=0.4", "run.quorum=0.75", "run.rounds=10", f"run.seed={seed}"]
    result = go(tmp_path / "r", OWN, *changes)
    assert set(result.memories) <= set(clients)
    facts = rounds_of(tmp_path / "r")[1:]
    assert [f["answered"] for f in facts] == there
    assert [f["void"] for f in facts] == [n < 3 for n in there]
    assert 0 < sum(f["void"] for f in facts) < 10
    # A void round counts as a round and changes nothing: neither scores nor state nor memories.
    scores = read_scores(tmp_path / "r")
    for fact in facts:
        before, after = (scores[scores["round"] == fact["round"] - d]["value"].tolist() for d in (1, 0))
        assert (before == after) == fact["void"]
    assert result.state.count == sum(not f["void"] for f in facts)
    asked = sum(f["answered"] for f in facts if not f["void"])
    assert sum(int(m["asked"]) for m in result.memories.values()) == asked
    void = [line["round"] for line in read_audit(tmp_path / "r") if line["event"] == "void"]
    assert void == [f["round"] - 1 for f in facts if f["void"]]
    assert scores.groupby("round")["client"].nunique().eq(4).all(), "drop-outs are scored all the same"


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_training_that_diverges_ends_in_an_error_with_the_models_unchanged(tmp_path, engine):
    changes = ["model.name=mlp", "model.hidden=[4]", "local.lr=1e30", "local.epochs=5", "run.rounds=9"]
    changes += [f"engine.name={engine}"]
    with pytest.raises(
        KinfolkError, match=r"3 rounds in a row brought 0 usable replies of 4; see audit\.jsonl"
    ):
        go(tmp_path / "r", *changes)
    first = build_parts(override(SPEC, changes)).learner.first
    number, tensors, facts = saved(tmp_path / "r")
    assert (number, facts["voids"]) == (2, 2)
    assert equal(tensors["state"], {"model": first})
    assert [f["void"] for f in rounds_of(tmp_path / "r")[1:]] == [True, True]
    reasons = {line["reason"] for line in read_audit(tmp_path / "r") if line["event"] == "rejected"}
    assert len(reasons) >= 1
    assert all("is not finite" in r for r in reasons)
    with pytest.raises(KinfolkError, match="3 rounds in a row"):
        go(tmp_path / "r", *changes, resume=True)
    assert saved(tmp_path / "r")[0] == 2


def test_clients_that_fail_in_their_second_answer_count_as_missing(tmp_path):
    with pytest.raises(KinfolkError, match="3 rounds in a row brought 0 usable replies of 4"):
        go(tmp_path / "r", OWN, "algorithm.spoil=1", "run.rounds=9")
    number, tensors, facts = saved(tmp_path / "r")
    assert number == 3
    assert facts["state"]["count"] == 1
    assert {k: int(v) for k, v in tensors["memory"].items()} == {f"{i}.asked": 1 for i in range(4)}


def test_a_model_of_ones_own_that_diverges_is_scored_as_infinite(tmp_path):
    result = go(tmp_path / "r", "algorithm.name=local", "model.name=mlp", "local.lr=1e30", "local.epochs=5")
    assert result.summary["personal"]["loss"]["macro"] == math.inf
    last = read_scores(tmp_path / "r").query("round == 3 and score == 'loss'")
    assert len(last) == 4, "nobody is left out"
    assert np.isinf(last["value"]).any()


def test_more_rounds_later_equal_as_many_at_once(tmp_path):
    for name in ("fedavg", "local"):
        changes = [f"algorithm.name={name}", "run.participation=0.5"]
        go(tmp_path / f"{name}-a", *changes, "run.rounds=4")
        go(tmp_path / f"{name}-b", *changes, "run.rounds=2")
        go(tmp_path / f"{name}-b", *changes, "run.rounds=4", "engine.name=workers", resume=True)
        assert_same_end(tmp_path / f"{name}-a", tmp_path / f"{name}-b")


def test_resuming_a_finished_run_does_nothing(tmp_path):
    first = go(tmp_path / "r")
    lines = (tmp_path / "r/rounds.jsonl").read_text()
    again = go(tmp_path / "r", resume=True)
    assert (again.rounds, again.reason, again.summary) == (first.rounds, first.reason, first.summary)
    assert (tmp_path / "r/rounds.jsonl").read_text() == lines


def test_lazy_layers_are_seeded_too(tmp_path):
    before = torch.get_rng_state()
    ends = [go(tmp_path / n, network=lambda: flat(nn.LazyLinear(10))).state.model for n in "ab"]
    assert equal({"m": ends[0]}, {"m": ends[1]})
    assert torch.equal(torch.get_rng_state(), before)


def test_a_network_that_can_not_be_batched_is_run_anyway_with_a_warning(tmp_path):
    told: list[Any] = []
    network = flat(nn.Linear(64, 8), nn.AlphaDropout(0.2), nn.Linear(8, 10))
    go(
        tmp_path / "r",
        "engine.name=batched",
        "run.rounds=1",
        network=network,
        watch=lambda event, facts: told.append(facts),
    )
    assert "layer 2 (AlphaDropout) draws random numbers" in told[0]["warning"]
    assert told[0]["note"].startswith("loop")
    assert any("Dropout" in line["text"] for line in read_audit(tmp_path / "r") if line["event"] == "warning")


def test_the_default_folder_follows_from_the_spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(replace(override(SPEC, ["run.rounds=1"]), algorithm=Experiment().algorithm))
    assert result.folder.parent == Path("runs")
    assert result.folder.name.startswith("fedavg-")
    assert (tmp_path / result.folder / "spec.toml").read_text() == dump(override(SPEC, ["run.rounds=1"]))


def test_only_the_first_of_several_models_may_be_scored(tmp_path):
    fesem = ("algorithm.name=fesem", "algorithm.k=2", "run.rounds=6")
    every = go(tmp_path / "all", *fesem).summary
    first = go(tmp_path / "first", *fesem, "run.models=first").summary
    assert (list(every), list(first)) == (["centre", "personal", "fine-tuned"], ["centre"])
    assert first["centre"] == every["centre"]
    with pytest.raises(KinfolkError, match=r"run\.models"):
        go(tmp_path / "r", "run.models=last")


def test_last_batches_too_small_for_batch_norm_are_warned_of(tmp_path):
    small = ["model.name=tiny_cnn", "model.norm=bn", "local.batch=12", "run.rounds=1"]

    def warned(name, *changes):
        go(tmp_path / name, *small, *changes)
        return [line["text"] for line in read_audit(tmp_path / name) if line["event"] == "warning"]

    (text,) = warned("two rows are left", "data.rows=14")
    assert "4 clients end an epoch with a batch of 2 or a few more rows" in text
    assert "local.drop_last=true" in text
    for name, changes in {
        "left out": ["data.rows=14", "local.drop_last=true"],
        "none left": ["data.rows=24"],
        "one left, which is skipped": ["data.rows=13"],
        "enough left": ["data.rows=15"],
        "no BatchNorm": ["data.rows=14", "model.norm=none"],
    }.items():
        assert warned(name, *changes) == [], name


def test_a_run_hashes_its_data_once(tmp_path, monkeypatch):
    """Not at every checkpoint: 369 MB take 0.6 s."""
    taken, sha256 = [], hashlib.sha256
    counted = SimpleNamespace(sha256=lambda *given: taken.append(1) or sha256(*given))
    monkeypatch.setattr("kinfolk.federation.federation.hashlib", counted)
    rows = build(SPEC.data, Seed(0))
    go(tmp_path / "run", "run.rounds=3", federation=rows)
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 2
    assert len(taken) == 1
    go(tmp_path / "other", "run.rounds=1", "algorithm.name=local", federation=rows)
    assert len(taken) == 1, "a comparison hashes each federation once"


def test_kernels_that_were_chosen_by_timing_are_followed_when_a_run_is_resumed(tmp_path, monkeypatch):
    """A trial on a GPU may end otherwise the next time, and another kernel rounds otherwise."""
    conv, trials = "conv 2x3 by 2x3", ({"columns": 1.0, "grouped": 2.0}, {"columns": 2.0, "grouped": 1.0})
    first, second = KernelChoices(), KernelChoices()
    assert first.pick(conv, tuple(trials[0]), lambda: trials[0]) == "columns"
    for writes_or_reads in ("saving", "run"):
        monkeypatch.setattr(f"kinfolk.experiment.{writes_or_reads}.KERNELS", first)
    go(tmp_path / "run", "run.rounds=1")
    for writes_or_reads in ("saving", "run"):
        monkeypatch.setattr(f"kinfolk.experiment.{writes_or_reads}.KERNELS", second)
    go(tmp_path / "run", "run.rounds=2", resume=True)
    assert second.pick(conv, tuple(trials[1]), lambda: trials[1]) == "columns", "slower now, but the same"
    assert second.pick(conv, ("grouped",), lambda: {"grouped": 1.0}) == "grouped", (
        "of what this machine can do"
    )
