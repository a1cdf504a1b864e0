"""Models taken out of a run are those that were scored: predictions give the recorded scores, to the row."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from small_runs import digits, equal, go, saved
from torch import nn

from kinfolk.algorithms import ALGORITHMS
from kinfolk.api import run as api_run
from kinfolk.errors import KinfolkError
from kinfolk.experiment.outline import Outline
from kinfolk.experiment.predict import rows_for
from kinfolk.experiment.spec import load as load_spec
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.trained import load

IMAGES = ["algorithm.images.kind=noise", "algorithm.images.count=20", "algorithm.shares.scheme=plain"]
OPTIONS = {
    "fesem": ["algorithm.k=2", "algorithm.start.warm_epochs=1", "run.rounds=4"],  # one round is the start
    "fesem_ma": ["algorithm.k=2", "model.name=mlp", "run.rounds=4", "algorithm.start.warm_epochs=1"],
    "fesem_shared": ["algorithm.k=2", "run.rounds=4"],
    "mdicfl": [
        "algorithm.k=2", "algorithm.start.name=random_partition", "algorithm.final_reassign=true",
        "algorithm.pseudo.samples=2", "algorithm.search.iterations=4", "run.participation=0.5",
    ],
    "ifca": ["algorithm.k=3", "run.participation=0.25"],  # choices of rounds are stale when all are scored
    "hypcluster": ["algorithm.k=2", "run.participation=0.5", "run.rounds=3"],
    "robust": ["algorithm.k=2", "run.rounds=8"],
    "local": ["run.participation=0.5"],
    "fedavg_tuned": ["model.name=tiny_cnn", "model.norm=bn"],  # buffers are part of a model
    "slfed": IMAGES,
    "slfed_similar": IMAGES,
    # A body besides the head; a round of fedrep is worth two.
    **{name: ["model.name=mlp"] for name in ("fedper", "fedbabu", "lg_fedavg")},
    "fedrep": ["model.name=mlp", "run.rounds=4"],
}  # fmt: skip
QUICK = ("fedavg_tuned", "fesem", "fedem", "ifca", "mdicfl", "majority_label")


def run_of(folder, name, *more):
    changes = [f"algorithm.name={name}", "run.rounds=2", *OPTIONS.get(name, []), *more]
    go(folder, *changes)
    return load(folder)


def rows_of(run, split="test"):
    """{client: (x, y)} of a split, by hand."""
    spec = load_spec(run.path / "spec.toml")
    federation = digits(spec.data, spec.run.seed)
    pool = federation.splits[split]
    return {who: federation.take(pool.rows(i)) for i, who in enumerate(federation.clients)}


def assert_recorded(run, round="last"):
    """Every model that was scored gives its recorded accuracy again."""
    rows = rows_of(run)
    number = run._kept.round(round)
    scores = run.scores[(run.scores["round"] == number) & (run.scores["score"] == "accuracy")]
    assert len(scores) == len(run.models) * len(rows)
    for kind in run.models:
        networks = run.models_of(list(rows), kind=kind, round=round)
        for _, one in scores[scores["model"] == kind].iterrows():
            x, y = rows[one["client"]]
            with torch.no_grad():
                right = int((networks[one["client"]](x).argmax(1) == y).sum())
            assert right / len(y) == one["value"], (kind, one["client"])
    who = next(iter(rows))
    x, y = rows[who]
    first = scores[(scores["model"] == run.models[0]) & (scores["client"] == who)]["value"].item()
    assert (run.predict(x, client=who, round=round) == y.numpy()).mean() == first


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS]
)
def test_predictions_of_every_kind_of_model_are_the_recorded_ones(name, tmp_path):
    assert_recorded(run_of(tmp_path / "run", name))


@pytest.mark.parametrize(
    "engine",
    [
        "batched",
        pytest.param("wire", marks=pytest.mark.slow),
        pytest.param("workers", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", ["fesem", pytest.param("fedavg_tuned", marks=pytest.mark.slow)])
def test_models_that_are_trained_again_are_the_same_in_every_engine(engine, name, tmp_path):
    assert_recorded(run_of(tmp_path / "run", name, f"engine.name={engine}", "engine.processes=2"))


def test_a_model_is_a_plain_network_of_its_own(tmp_path):
    run = run_of(tmp_path / "run", "fedavg_tuned")
    first, second = (run.model("client-00", kind="centre") for _ in range(2))
    assert type(first).__name__ == "TinyCNN"
    assert not first.training
    assert {type(layer).__module__.partition(".")[0] for layer in first.modules()} <= {"torch", "kinfolk"}
    assert not [m for m in first.modules() if "engines" in type(m).__module__ or "Row" in type(m).__name__]
    assert float(first.norm1.running_mean.abs().sum()) > 0
    before = {name: t.clone() for name, t in second.state_dict().items()}
    with torch.no_grad():
        for t in first.state_dict().values():
            t.zero_()
    again = run.model("client-00", kind="centre").state_dict()
    assert all(torch.equal(before[name], again[name]) and torch.equal(t, again[name]) for name, t in
               second.state_dict().items())  # fmt: skip


def test_the_model_of_a_group_is_that_of_its_members(tmp_path):
    run = run_of(tmp_path / "run", "ifca")
    groups = run._kept.groups(2)
    assert saved(run.path)[1]["served"], "or rounds chose as everybody does now"
    assert sorted(who for members in groups.values() for who in members) == list(run.outline.clients)
    for number, members in groups.items():
        mine, theirs = run.model(group=number).state_dict(), run.model(members[-1]).state_dict()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    nobody = max(groups) + 1
    with pytest.raises(KinfolkError, match=f"group = {nobody}: no such group, or nobody is in it; there are"):
        run.model(group=nobody)


def clients_of_sorts():
    make = torch.Generator().manual_seed(3)
    rows = {}
    for who in ("ann", "bob", "cleo"):
        x = torch.randn(40, 3, generator=make)
        rows[who] = (x.numpy(), np.where(x[:, 0] > 0, "up", "down"))
    return rows


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def test_rows_given_in_python_are_needed_only_where_models_are_trained_again(tmp_path):
    """And a network that was given with weights is found again with these weights."""
    rows, mine = clients_of_sorts(), net()
    api_run(mine, rows, "fedavg_tuned", rounds=2, folder=tmp_path / "run")
    bare = load(tmp_path / "run")
    with pytest.raises(KinfolkError, match=r"cannot be built again .*give it as kinfolk.load\(..., network="):
        bare.model(kind="centre")
    run = load(tmp_path / "run", network=net)
    assert set(run.predict(rows["ann"][0], kind="centre")) <= {"up", "down"}
    assert run.predict(rows["ann"][0], kind="centre", proba=True).sum(1) == pytest.approx(np.ones(40))
    assert run.class_names == ("down", "up")
    with pytest.raises(KinfolkError, match=r"'fine-tuned' models are trained again .*clients="):
        run.model("ann", kind="fine-tuned")
    with pytest.raises(KinfolkError, match="these are not the rows of the run"):
        load(tmp_path / "run", network=net, clients={**rows, "ann": rows["bob"]}).model("ann")
    whole = load(tmp_path / "run", network=net, clients=rows)
    scores = whole.scores[(whole.scores["round"] == 2) & (whole.scores["score"] == "accuracy")]
    held = from_arrays(rows, test_fraction=0.2)
    for who in rows:
        x, y = held.take(held.splits["test"].rows(held.place(who)))
        said = whole.predict(x, who, kind="fine-tuned")
        want = scores[(scores["client"] == who) & (scores["model"] == "fine-tuned")]["value"].item()
        assert (said == np.array(["down", "up"])[y]).mean() == want
    with pytest.raises(KinfolkError, match=r"is not the network of the run: 0\.bias is"):
        load(tmp_path / "run", network=lambda: nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))).model()


def test_a_client_who_was_never_asked_has_the_first_model_as_it_was_given(tmp_path):
    mine = net()
    settings = {"run.participation": 0.3}
    api_run(mine, clients_of_sorts(), "local", rounds=1, folder=tmp_path / "run", settings=settings)
    run = load(tmp_path / "run", network=net)
    networks = run.models_of(["ann", "bob", "cleo"])
    untouched = [
        who for who, one in networks.items() if equal(dict(one.state_dict()), dict(mine.state_dict()))
    ]
    assert len(untouched) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"client": "klient-00"}, "client = 'klient-00': no such client; did you mean 'client-00'?"),
        ({}, "clients of ifca have models of their own; say whose: client=... or group=..."),
        ({"client": "client-00", "kind": "personal"}, "ifca has no such model; it has centre"),
        ({"client": "client-00", "group": 0}, "leave out it or 'client-00'"),
        ({"client": "client-00", "round": 0}, "round = 0: is not kept; there are 1, 2 (run.keep=last;"),
        ({"client": "client-00", "round": "first"}, "give 'last', 'best' or a number"),
        ({"client": "client-00", "round": "best"}, "run with run.keep=best and data.valid above 0"),
    ],
)
def test_what_is_not_there_is_named(words, told, ifca):
    with pytest.raises(KinfolkError) as caught:
        ifca.model(**words)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("x", "told"),
    [
        (np.zeros((3, 8, 8)), "x = [3, 8, 8]: give rows of shape [rows, 1, 8, 8]"),
        (np.zeros((1, 8, 8)), "put one row into a list: x[None]"),
        (np.full((2, 1, 8, 8), np.nan), "x = 'row 1': holds NaN or infinity"),
        (np.array(["a"]), "give rows of numbers"),
        ([[1], [2, 3]], "give an array, a tensor or a data frame"),
    ],
)
def test_rows_that_do_not_fit_are_refused(x, told, ifca):
    with pytest.raises(KinfolkError) as caught:
        ifca.predict(x, client="client-00")
    assert told in str(caught.value)


def test_a_folder_that_is_no_run_and_one_of_a_newer_version_are_refused(ifca, tmp_path):
    with pytest.raises(KinfolkError, match="is not a run folder"):
        load(tmp_path)
    newer = {**json.loads((ifca.path / "run.json").read_text()), "format": 2}
    (tmp_path / "run.json").write_text(json.dumps({**newer, "versions": {"kinfolk": "9.1"}}))
    with pytest.raises(KinfolkError, match=r"is of format 2, this version reads 1; use kinfolk 9\.1"):
        load(tmp_path)


def test_columns_are_found_by_name_and_bytes_are_scaled_as_in_training():
    table = Outline((), (2,), 2, 2, (), ("age", "size"), None, "")
    frame = pd.DataFrame({"size": [2, 4], "y": ["a", "b"], "age": [1, 3]})
    assert rows_for(frame, table).tolist() == [[1, 2], [3, 4]]
    for wrong, told in (
        (frame.rename(columns={"size": "sise"}), "'size': this column of the run is missing; did you mean"),
        (frame.assign(age=["1", "x"]), "x.age = .*: give a column of numbers"),
        (frame.assign(age=[1.0, None]), "x.age = 'row 2': is missing"),
    ):
        with pytest.raises(KinfolkError, match=told):
            rows_for(wrong, table)
    pixels = Outline((), (1, 1, 2), 2, 2, (), (), (2 / 255, -1.0), "")
    raw = np.array([[[[0, 255]]]], dtype=np.uint8)
    want = torch.tensor([[[[-1.0, 1.0]]]])
    assert torch.equal(rows_for(raw, pixels), want)
    assert torch.equal(rows_for(raw.astype(np.int64), pixels), want)
    assert torch.equal(rows_for(want, pixels), want)
    with pytest.raises(KinfolkError, match="scaled rows lie from -1 to 1; give bytes"):
        rows_for(raw.astype(np.float32), pixels)


def test_models_of_attackers_are_not_given(tmp_path):
    run = run_of(tmp_path / "run", "fedavg", "run.attack=sign_flip", "run.attackers=0.25")
    (eve,) = run.facts["attackers"]
    with pytest.raises(KinfolkError, match="is an attacker in this run"):
        run.model(eve)
    assert run.model() is not None


@pytest.fixture(scope="module")
def ifca(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("runs") / "ifca", "ifca")
