"""Advice on small federations: what is written, that it is the same again, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import kinfolk
from kinfolk.advice.advise import FILE, SPEC, advise, prepare
from kinfolk.advice.plan import Effort, Plan
from kinfolk.errors import KinfolkError
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import load, override
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.report.read import load_runs
from kinfolk.streams import Seed

SETS = ("data.name=own", "model.name=logistic", "local.batch=40", "local.epochs=5", "engine.name=batched")
SPEC_ = override(Experiment(), SETS)
# Fewer seeds and numbers of groups than usual: seconds.
SHORT = Plan(rounds=12, most_groups=3, start=1, seeds=3)


def clients(count=12, rows=60, flipped=True, seed=0, noise=0.3):
    """Six columns and the sign of their sum, or its opposite for every other client."""
    draw = np.random.default_rng(seed)
    made = {}
    for i in range(count):
        x = draw.normal(size=(rows, 6)).astype("float32")
        y = (x.sum(1) + noise * draw.normal(size=rows) > 0) ^ bool(flipped and i % 2)
        made[f"c{i:02}"] = x, y.astype(int)
    return from_arrays(made, seed=Seed(0))


def short(folder, federation, plan=SHORT, **how):
    return replace(prepare(SPEC_, folder, federation=federation, **how), plan=plan)


def told(facts):
    """What must be equal between equal seeds: all but seconds."""
    return {
        **{name: facts[name] for name in ("advice", "look", "plan", "groups", "settings", "rounds", "spent")},
        "evidence": [{**one, "seconds_per_round": 0} for one in facts["evidence"]],
    }


@pytest.fixture(scope="module")
def opposite(tmp_path_factory):
    folder = tmp_path_factory.mktemp("opposite") / "a"
    return folder, short(folder, clients()).go()


def test_two_groups_of_opposite_labels_are_found(opposite):
    _, facts = opposite
    advice = facts["advice"]
    assert (advice["answer"], advice["k"]) == ("groups", 2), facts
    assert advice["method"] == "fesem_shared k=2"
    by = {one["answer"]: one for one in facts["evidence"] if one["against"] or one["chosen"]}
    assert set(by) == {"local", "fedavg", "fine-tuned", "groups"}
    assert by["fedavg"]["mean"] < 0.65 < 0.85 < by["groups"]["mean"]
    assert by["fedavg"]["against"]["apart"]


def test_the_trials_are_a_comparison_on_validation_rows_alone(opposite):
    folder, facts = opposite
    runs = load_runs(folder)
    titles = dict.fromkeys(run.title for run in runs)
    assert len(runs) == SHORT.seeds * len(titles)
    assert all(set(run.scores["split"]) == {"valid"} for run in runs)
    assert {run.spec["run"]["rounds"] for run in runs} == {SHORT.rounds}
    # Every seed holds other rows out.
    prints = {run.seed: run.facts["federation"]["fingerprint"] for run in runs}
    assert len(set(prints.values())) == SHORT.seeds
    assert {(folder / name).exists() for name in ("tune/tune.json", "choose-k/choose-k.json")} == {True}
    counted = json.loads((folder / "choose-k/choose-k.json").read_text())
    searched = json.loads((folder / "tune/tune.json").read_text())
    assert set(searched["seeds"]).isdisjoint(prints)
    assert facts["groups"]["recommended"] == counted["recommended"]


def test_what_is_spent_was_planned(opposite):
    _, facts = opposite
    assert facts["status"] == "finished"
    assert facts["spent"]["count"] == facts["plan"]["count"]
    assert sum(facts["spent"].values()) <= facts["plan"]["cost"]


def test_the_file_is_an_experiment_of_the_advice(opposite):
    folder, facts = opposite
    ready = load(folder / SPEC)
    assert (ready.algorithm.name, ready.algorithm.options) == ("fesem_shared", {"k": 2})
    assert ready.run == replace(SPEC_.run, rounds=20), "rules as given; rounds at least as in the trials"
    assert ready.data == SPEC_.data
    assert ready.local.lr == facts["settings"]["lr"]
    chosen = json.loads((folder / "tune/tune.json").read_text())["methods"][1]["settings"]
    assert facts["settings"]["lr"] == chosen.get("local.lr", SPEC_.local.lr)
    assert json.loads((folder / FILE).read_text()) == facts


@pytest.mark.slow
def test_equal_seeds_give_equal_advice_and_test_rows_play_no_part(opposite, tmp_path):
    _, facts = opposite
    made = clients()
    tests = torch.unique(made.splits["test"].row)
    y = made.y.clone()
    y[tests] = 1 - y[tests]
    assert told(short(tmp_path / "a", replace(made, y=y)).go()) == told(facts)


@pytest.mark.slow
def test_an_interrupted_advice_says_so_and_goes_on_to_the_same_end(opposite, tmp_path):
    _, facts = opposite
    made, folder = clients(), tmp_path / "a"
    for stop_at in ("settings of local", "K = 2", "fedavg_tuned"):

        def listen(name, rounds, stop_at=stop_at):
            def hear(event, told):
                if event == "round" and name.startswith(stop_at):
                    raise KeyboardInterrupt

            return hear

        with pytest.raises(KeyboardInterrupt):
            short(folder, made, resume=folder.exists()).go(listen)
        found = json.loads((folder / FILE).read_text())
        assert found["status"] == "stopped"
        assert "no advice yet" in found["told"]
        assert "advice" not in found
        assert not (folder / SPEC).exists()
    again = prepare(SPEC_, folder, federation=made, resume=True)
    assert again.plan == SHORT, "the plan is that of the first start"
    assert told(again.go()) == told(facts)


def test_too_little_data_is_said_without_spending_anything(tmp_path):
    facts = advise(SPEC_, tmp_path / "a", federation=clients(6, 8))
    assert facts["advice"]["answer"] == "unclear"
    assert facts["advice"]["confidence"] == "low"
    assert "Cannot say: too little data: there are 6 validation rows in all" in facts["advice"]["reason"]
    assert facts["spent"] == {}
    assert {path.name for path in (tmp_path / "a").iterdir()} == {FILE, SPEC}
    assert load(tmp_path / "a" / SPEC).algorithm.name == "fedavg"


def test_labels_without_sense_teach_nothing(tmp_path):
    plan = Plan(rounds=12, most_groups=1, start=1, seeds=3)
    made = clients(8, 60)
    draw = np.random.default_rng(5)
    random = replace(made, y=torch.from_numpy(draw.integers(0, 2, len(made.y))))
    facts = short(tmp_path / "a", random, plan).go()
    assert facts["advice"]["answer"] == "unclear"
    assert "nothing is learned" in facts["advice"]["reason"]


def test_rates_that_all_diverge_are_said(tmp_path):
    spec = override(SPEC_, ["local.lr=1e30"])
    plan = Plan(rounds=12, most_groups=1, start=1, seeds=2)
    rows = replace(clients(4, 100), classes=0, y=torch.randn(400, generator=Seed(0).torch("y")))
    facts = replace(prepare(spec, tmp_path / "a", federation=rows), plan=plan).go()
    assert facts["advice"]["answer"] == "unclear"
    assert "diverged in every trial" in facts["advice"]["reason"]


def test_a_folder_in_use_is_refused_and_so_are_other_questions(tmp_path):
    made = clients(6, 8)
    advise(SPEC_, tmp_path / "a", federation=made)
    with pytest.raises(KinfolkError, match="is not empty"):
        advise(SPEC_, tmp_path / "a", federation=made)
    with pytest.raises(KinfolkError, match=r"something else: local\.epochs: 5 there, 1 here"):
        advise(override(SPEC_, ["local.epochs=1"]), tmp_path / "a", federation=made, resume=True)
    (tmp_path / "a" / FILE).write_text("{")
    with pytest.raises(KinfolkError, match="cannot be read"):
        advise(SPEC_, tmp_path / "a", federation=made, resume=True)


@pytest.mark.parametrize(
    ("count", "rows", "change", "line"),
    [
        (1, 60, (), "data.clients = 1"),
        (6, 60, ("engine.name=distributed",), "one process"),
        (6, 60, ("model.name=lenet",), "lenet takes images"),
    ],
)
def test_what_cannot_be_advised_on_is_refused_and_nothing_is_written(count, rows, change, line, tmp_path):
    with pytest.raises(KinfolkError, match=line):
        prepare(override(SPEC_, list(change)), tmp_path / "a", federation=clients(count, rows))
    assert not (tmp_path / "a").exists()


def test_too_small_a_budget_writes_nothing(tmp_path):
    with pytest.raises(KinfolkError, match="budget = 10: trials of 12 rounds need"):
        prepare(SPEC_, tmp_path / "a", Effort(budget=10), federation=clients())
    assert not (tmp_path / "a").exists()


def test_a_sample_of_many_clients_takes_part(tmp_path):
    advisor = prepare(SPEC_, tmp_path / "a", Effort(sample=5), federation=clients(30, 100))
    assert advisor.look.facts["clients"] == 5
    assert advisor.look.notes[0] == "5 of 30 clients, drawn evenly, take part"
    assert advisor.plan.most_groups == 2


def test_validation_rows_that_are_there_are_used(tmp_path):
    draw = np.random.default_rng(0)
    rows = [(draw.normal(size=(60, 6)).astype("float32"), np.arange(60) % 2) for _ in range(6)]
    made = from_arrays(rows, valid=0.3)
    bench = prepare(SPEC_, tmp_path / "a", federation=made).bench
    assert bench.rows(Seed(0)) is bench.rows(Seed(7))
    assert "the same for all seeds" in bench.note


def test_advice_from_python(tmp_path):
    rows = [(torch.randn(8, 3), torch.arange(8) % 2) for _ in range(4)]
    found = kinfolk.advise(lambda: torch.nn.Linear(3, 2), rows, folder=tmp_path / "a")
    assert (found.answer, found.k, found.confidence) == ("unclear", 1, "low")
    assert found.reason in " ".join(str(found).split())
    assert found.reason in found._repr_html_()
    assert repr(found).startswith("<Advice: unclear, confidence low")
