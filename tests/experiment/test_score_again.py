"""Finished runs scored on other test rows: the same numbers as a run of its own, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pandas as pd
import pytest
import torch
from small_runs import SPEC, digits, equal, go

from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import read_audit, read_rounds, read_scores
from kinfolk.experiment.score_again import same_training, score_again
from kinfolk.experiment.spec import load, override
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.sources import build
from kinfolk.federation.spec import DataSpec
from kinfolk.papers import reproduce as room
from kinfolk.papers.paper import load_paper
from kinfolk.papers.reproduce import reproduce, rounds_of
from kinfolk.papers.reproduction import cells, load_tables, markdown, table_figure
from kinfolk.streams import Seed

METHODS = {
    "fedavg_tuned": [],
    "fesem": ["algorithm.k=2", "algorithm.start.warm_epochs=1", "run.rounds=4"],  # one round is the start
    "slfed": ["algorithm.images.kind=noise", "algorithm.images.count=20", "algorithm.shares.scheme=plain"],
    "fedem": [],
    "local": ["run.participation=0.5"],
    "mdicfl": [
        "algorithm.k=2", "algorithm.start.name=random_partition", "algorithm.final_reassign=true",
        "algorithm.pseudo.samples=2", "algorithm.search.iterations=4", "run.participation=0.5",
    ],
}  # fmt: skip


def method(name):
    return [f"algorithm.name={name}", *METHODS[name]]


def last_scores(folder):
    frame = read_scores(folder)
    return frame[frame["round"] == frame["round"].max()].reset_index(drop=True)


def same(a, b):
    pd.testing.assert_frame_equal(last_scores(a), last_scores(b), check_exact=True)


@pytest.mark.parametrize("name", METHODS)
def test_other_test_rows_give_what_a_run_on_them_would_have_given(name, tmp_path):
    """And with nothing changed, bit by bit what the run had."""
    local = go(tmp_path / "local", *method(name), "data.test=local")
    whole = go(tmp_path / "global", *method(name), "data.test=global")
    spec = load(tmp_path / "local" / "spec.toml")
    score_again(tmp_path / "local", spec, tmp_path / "as-it-was")
    same(tmp_path / "as-it-was", tmp_path / "local")
    made = score_again(tmp_path / "local", override(spec, ["data.test=global"]), tmp_path / "again")
    same(tmp_path / "again", tmp_path / "global")
    assert last_scores(tmp_path / "global")["rows"].max() > last_scores(tmp_path / "local")["rows"].max()
    assert made.summary == whole.summary != local.summary
    assert made.rounds == 3
    assert all(equal(made.memories[who], local.memories[who]) for who in local.memories)
    (fact,) = read_rounds(tmp_path / "again")
    end = read_rounds(tmp_path / "global")[-1]
    assert (fact["round"], fact["summary"], fact.get("groups")) == (3, end["summary"], end.get("groups"))
    assert not (tmp_path / "again" / "checkpoints").exists()
    told = json.loads((tmp_path / "again" / "run.json").read_text())
    assert (told["status"], told["reason"]) == ("finished", "models of local, scored again")
    assert told["federation"]["name"].endswith("global test")
    assert [line["event"] for line in read_audit(tmp_path / "again")] == ["start", "again"]


@pytest.mark.parametrize("engine", ["auto", "batched", "workers", "wire"])
def test_every_engine_scores_again_as_it_has_run(engine, tmp_path):
    changes = [*method("fesem"), f"engine.name={engine}", "engine.processes=2", "run.rounds=2"]
    go(tmp_path / "run", *changes)
    score_again(tmp_path / "run", override(SPEC, changes), tmp_path / "again")
    same(tmp_path / "again", tmp_path / "run")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_models_are_scored_again_on_a_gpu(tmp_path):
    changes = [*method("fesem"), "engine.name=batched", "engine.device=cuda", "run.rounds=2"]
    go(tmp_path / "run", *changes)
    score_again(tmp_path / "run", override(SPEC, changes), tmp_path / "again")
    same(tmp_path / "again", tmp_path / "run")


@pytest.mark.parametrize(
    "data",
    [
        DataSpec(clients=4, rows=12, groups=2, valid=0.25),
        DataSpec(clients=4, rows=12, groups=2, ragged=0.5, partition="iid"),
        DataSpec(clients=3, shift="none", partition="dist3", scale_rows=0.01),
        DataSpec(clients=4, shift="none", partition="dirichlet_split", alpha=0.6),
        DataSpec("gaussians", clients=4, rows=8, features=3, shift="source", ragged=0.4),
    ],
    ids=lambda data: f"{data.name}-{data.partition}",
)
def test_the_test_law_leaves_the_training_rows_alone(data):
    """Read out by hand, since everything else relies on it."""
    held = [build(replace(data, test=test), Seed(5)) for test in ("local", "group", "global")]
    for other in held[1:]:
        assert other.fingerprint() != held[0].fingerprint()
        assert same_training(held[0], other)
        for who in held[0].clients:
            a, b = held[0].only(who), other.only(who)
            for split in ("train", "valid"):
                pair = [f.x[f.splits[split].rows(0)] for f in (a, b)]
                assert torch.equal(*pair)
    assert not same_training(held[0], build(replace(data, test="local"), Seed(6)))


def test_one_label_or_one_client_more_is_another_training():
    x, y = torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 0, 1, 0, 1])
    flipped = torch.tensor([0, 1, 0, 1, 0, 0])
    clients = {"ann": (x, y), "bob": (x + 1, y)}
    tests = dict.fromkeys(clients, (x[:1], y[:1]))
    base = from_arrays(clients, test=tests, classes=2)
    assert same_training(base, from_arrays(clients, test=clients, classes=2))
    wrong = {**clients, "bob": (x + 1, flipped)}
    assert not same_training(base, from_arrays(wrong, test=tests, classes=2))
    assert not same_training(base, from_arrays({"ann": (x, y)}, test={"ann": tests["ann"]}, classes=2))


def test_own_rows_are_given_with_those_of_the_run(tmp_path):
    x, y = torch.arange(32.0).reshape(16, 2) / 32, torch.arange(16) % 2
    clients = {"ann": (x, y), "bob": (x + 1, y)}
    first = from_arrays(clients, test=dict.fromkeys(clients, (x[:3], y[:3])), classes=2)
    other = from_arrays(clients, test=dict.fromkeys(clients, (x[3:8], y[3:8])), classes=2)
    go(tmp_path / "run", federation=first)
    score_again(tmp_path / "run", SPEC, tmp_path / "again", federation=other, trained=first)
    assert set(last_scores(tmp_path / "again")["rows"]) == {5}
    with pytest.raises(KinfolkError, match="its data are not those it was trained on"):
        score_again(tmp_path / "run", SPEC, tmp_path / "b", federation=other)
    third = from_arrays(dict.fromkeys(clients, (x, 1 - y)), test=clients, classes=2)
    with pytest.raises(KinfolkError, match="federation: changes the rows that clients train on"):
        score_again(tmp_path / "run", SPEC, tmp_path / "b", federation=third, trained=first)
    assert not (tmp_path / "b").exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    go(folder, "data.test=local")
    return folder


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ("local.lr=0.05", r"^local\.lr: 0\.1 there, 0\.05 here; only data\.test, "),
        ("run.seed=1", r"^run\.seed: 0 there, 1 here; only"),
        ("data.clients=5", r"^data\.clients: 4 there, 5 here; only"),
        ("run.rounds=4", r"^run\.rounds: 3 there, 4 here; only"),
        ("data.test_fraction=0.5", r"^data\.test_fraction: changes the rows that clients train on"),
        ("run.split=valid", r"^run\.split = 'valid': the federation has no such rows"),
    ],
)
def test_another_training_is_refused_in_one_line(trained, change, match, tmp_path):
    spec = override(load(trained / "spec.toml"), [change])
    with pytest.raises(KinfolkError, match=match) as told:
        score_again(trained, spec, tmp_path / "again")
    assert "\n" not in str(told.value)
    assert not (tmp_path / "again").exists()


def _unfinished(run):
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "status": "running"}))


def _damaged(run):
    (run / "checkpoints" / "round-000003" / "state.safetensors").write_bytes(b"")


@pytest.mark.parametrize(
    ("harm", "match"),
    [
        (_unfinished, "is running, not finished; go on with"),
        (lambda run: shutil.rmtree(run / "checkpoints"), "has no checkpoint, so no models to score"),
        (_damaged, "lacks the models of its end .*round-000003 is skipped"),
        (lambda run: (run / "run.json").unlink(), "is no run folder; name one"),
    ],
)
def test_a_run_without_its_last_models_is_refused(trained, harm, match, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    harm(tmp_path / "run")
    with pytest.raises(KinfolkError, match=match):
        score_again(tmp_path / "run", load(trained / "spec.toml"), tmp_path / "again")


def test_scores_take_the_place_of_scores_and_never_of_a_run(trained, tmp_path):
    spec = override(load(trained / "spec.toml"), ["data.test=global"])
    shutil.copytree(trained, tmp_path / "other")
    with pytest.raises(KinfolkError, match="a run is there already"):
        score_again(trained, spec, tmp_path / "other")
    score_again(trained, spec, tmp_path / "again")
    score_again(trained, load(trained / "spec.toml"), tmp_path / "again")
    same(tmp_path / "again", trained)
    with pytest.raises(KinfolkError, match="has scores alone; name the run itself, run"):
        score_again(tmp_path / "again", spec, tmp_path / "third")


def test_the_command_shows_what_show_shows(trained, kinfolk, tmp_path):
    code, out, err = kinfolk("score", trained, "--set", "data.test=global", "--out", tmp_path / "again")
    assert code == 0, err
    code, shown, _ = kinfolk("show", tmp_path / "again")
    assert (code, out) == (0, shown.rpartition("verdict:")[0])
    assert "models of run, scored again" in out
    assert "after round 3" in out
    code, text, _ = kinfolk("score", trained, "--set", "run.models=first", "--json")
    told = json.loads(text)
    assert (code, len(told["rows"])) == (0, 1)
    assert str(trained) in told["folder"]
    code, out, err = kinfolk("score", trained, "--set", "local.lr=9", "--out", tmp_path / "b")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: local.lr: 0.1 there, 9.0 here; only")


OURS = """
[[tables.rows]]
label = "Ours"
run = "fesem,k=2"
[[tables.rows]]
label = "Ours, personal"
run = "fesem,k=2"
model = "personal"
"""
PAPER = f"""
title = "A paper"
[[tables]]
name = "own"
title = "Own law"
spec = "tiny.toml"
set = ["data.test=local"]
columns = [["accuracy", "worst"], ["ari", ""]]
{OURS}[[tables.rows]]
label = "Mean"
run = "fedavg"
[[tables]]
name = "all"
title = "All rows"
spec = "tiny.toml"
again = "own"
set = ["data.test=global"]
columns = [["accuracy", "worst"], ["ari", ""]]
{OURS}"""
TINY = '[data]\nclients = 4\nrows = 12\ngroups = 2\n[model]\nname = "logistic"\n'
TINY += "[local]\nepochs = 5\n[run]\nrounds = 3\n"  # FeSEM's start is as long as a round


def written(folder, text=PAPER):
    (folder / "tiny.toml").write_text(TINY)
    (folder / "reproduce.toml").write_text(text)
    return load_paper(folder / "reproduce.toml")


@pytest.fixture
def calls(monkeypatch):
    """What was trained and what was scored again, by folder."""
    seen = {"run": [], "score_again": []}
    for name, place in (("run", 1), ("score_again", 2)):
        real = getattr(room, name)

        def call(*given, real=real, name=name, place=place, **more):
            seen[name].append("/".join(given[place].parts[-2:]))
            return real(*given, **more)

        monkeypatch.setattr(room, name, call)
    return seen


def test_a_table_that_is_scored_again_trains_nothing(tmp_path, calls):
    paper = written(tmp_path)
    assert rounds_of(paper, 2, tmp_path, False, []) == 2 * 2 * 3
    reproduce(paper, tmp_path / "out", tmp_path, seeds=2, changes=["data.rows=10"])
    ours = [f"fesem-k=2-seed{k}" for k in (0, 1)]
    assert sorted(calls["run"]) == sorted(f"own/{n}" for n in [*ours, "fedavg-seed0", "fedavg-seed1"])
    assert calls["score_again"] == [f"all/{n}" for n in ours]
    tables = {table.folder.name: table for table in load_tables(tmp_path / "out")}
    spec = override(load(tmp_path / "tiny.toml"), ["data.rows=10", "data.test=global", "run.seed=1"])
    alone = go_alone(tmp_path / "alone", override(spec, ["algorithm.name=fesem", "algorithm.k=2"]))
    same(alone, tmp_path / "out" / "all" / ours[1])
    first, personal = cells(tables["all"])
    assert (first["model"], personal["model"]) == ("centre", "personal")
    assert [n["seeds"] for n in first["numbers"]] == [2, 2]
    assert first["numbers"][1] == cells(tables["own"])[0]["numbers"][1], "groups are those of training"
    assert pd.isna(first["seconds"])
    assert "- all rows: the models of own, scored again on these test rows" in markdown(tables["all"])
    assert table_figure(tables["all"], tmp_path / "all.png") is None, "one point is no curve"
    assert table_figure(tables["own"], tmp_path / "own.png") is not None


def go_alone(folder, spec):
    room.run(spec, folder, federation=digits(spec.data, spec.run.seed))
    return folder


def test_a_table_asked_for_alone_has_the_other_trained_and_is_left_when_done(tmp_path, calls):
    whole = written(tmp_path)
    alone = whole.only(["all"])
    assert rounds_of(alone, 1, tmp_path, False, []) == 3, "not the row that it does not have"
    reproduce(alone, tmp_path / "out", tmp_path, seeds=1)
    assert (calls["run"], calls["score_again"]) == (["own/fesem-k=2-seed0"], ["all/fesem-k=2-seed0"])
    assert [table.folder.name for table in load_tables(tmp_path / "out")] == ["all"]
    reproduce(alone, tmp_path / "out", tmp_path, seeds=1)
    assert len(calls["score_again"]) == 1, "what is there is left as it is"
    reproduce(alone, tmp_path / "out", tmp_path, seeds=1, changes=["run.rounds=4"])
    assert len(calls["score_again"]) == 2, "the run has gone on"
    assert last_scores(tmp_path / "out/all/fesem-k=2-seed0")["round"].max() == 3


def test_a_run_that_broke_down_is_told_in_both_tables(tmp_path):
    text = PAPER.replace('"data.test=', '"local.lr=1e30", "run.rounds=9", "data.test=')
    reproduce(written(tmp_path, text), tmp_path / "out", tmp_path, seeds=1, only=["Ours"])
    for table in load_tables(tmp_path / "out"):
        row = cells(table)[0]
        assert (row["obtained"], row["why"]) == (["-", "-"], "broke down in 1 of 1 seeds")


def test_what_was_trained_in_that_place_before_stays(tmp_path, calls):
    reproduce(written(tmp_path, PAPER.replace('again = "own"\n', "")), tmp_path / "out", tmp_path, seeds=1)
    before = read_scores(tmp_path / "out/all/fesem-k=2-seed0")
    reproduce(written(tmp_path), tmp_path / "out", tmp_path, seeds=1)
    pd.testing.assert_frame_equal(read_scores(tmp_path / "out/all/fesem-k=2-seed0"), before)
    assert calls["score_again"] == []


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('again = "own"', 'again = "won"', "all: again = 'won': did you mean 'own'"),
        ('again = "own"', 'again = "all"', "all: again = 'all': known: own"),
        ('spec = "tiny.toml"\nset = ["data.test=l', 'again = "all"\nspec = "tiny.toml"\nset = ["data.test=l',
         "own: again = 'all': trains nothing itself; name own"),
        ('again = "own"', 'again = "own"\ncosts = ["up"]', "are about training; give them to own"),
        ('run = "fesem,k=2"', 'run = "fesem,k=3"', "all: row = 'Ours': own has no row of this label"),
    ],
)  # fmt: skip
def test_a_faulty_table_is_one_line(old, new, match, tmp_path):
    with pytest.raises(KinfolkError, match=match):
        written(tmp_path, PAPER.replace(old, new, 1))


def test_settings_must_be_those_of_the_other_table(tmp_path):
    other = written(tmp_path, PAPER.replace('"data.test=global"', '"data.test=global", "local.lr=0.3"'))
    for work in (rounds_of, lambda *given: reproduce(given[0], tmp_path / "out", tmp_path, seeds=1)):
        with pytest.raises(KinfolkError, match=r"local\.lr: 0\.1 there, 0\.3 here; only data\.test"):
            work(other, 1, tmp_path, False, [])
    assert not (tmp_path / "out").exists(), "before anything was trained"
