"""Newcomers: rows of the same four rotations that nobody trained on find their group, by either rule."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from kinfolk.algorithms import ALGORITHMS
from kinfolk.algorithms.blocks.many_models import in_use
from kinfolk.errors import KinfolkError
from kinfolk.experiment.asking import middle
from kinfolk.experiment.assign import assign
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.newcomers import in_terms_of, open_run, read_newcomers
from kinfolk.experiment.run import run
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import override
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.sources import build
from kinfolk.streams import Seed

SETS = ["data.clients=8", "model.name=logistic", "local.epochs=2", "engine.name=batched", "run.rounds=7"]


def spec_of(*more):
    return override(Experiment(), [*SETS, *more])


def turned(federation):
    """Two newcomers of each rotation, out of the test rows of its groups."""
    clients = {}
    for group in range(4):
        x, y = federation.take(federation.splits["test"].rows(federation.truth.tolist().index(group)))
        for part in range(2):
            clients[f"turn-{group}-{part}"] = x[part::2], y[part::2]
    return from_arrays(clients)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run folders by algorithm."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("fesem", "ifca"):
        run(spec_of(f"algorithm.name={name}", "algorithm.k=4"), folder / name)
    run(spec_of("run.rounds=1"), folder / "fedavg")
    return folder


@pytest.fixture(scope="module")
def newcomers():
    return turned(build(spec_of().data, Seed(0)))


@pytest.mark.parametrize("by", [None, "loss"])
def test_newcomers_find_the_group_of_their_rotation(runs, newcomers, by):
    trained = open_run(runs / "fesem")
    found = assign(trained, newcomers, by=by)
    assert found["by"] == (by or "distance")
    truth = dict(zip(trained.clients, build(trained.spec.data, Seed(0)).truth.tolist(), strict=True))
    member = json_member(runs / "fesem", trained)
    home = {truth[who]: group for who, group in member.items()}
    assert len(set(home.values())) == 4
    for row in found["newcomers"]:
        assert row["group"] == home[int(row["newcomer"].split("-")[1])], row
        assert row["centre"] > row["one_model"] + 0.1
        assert row["worst_centre"] <= row["one_model"]
        assert row["group"] == int(np.argmin(row["fit"]))
    assert np.mean([row["fine_tuned"] for row in found["newcomers"]]) > 0.6


def json_member(folder, trained):
    from kinfolk.experiment.checkpoint import load_latest
    from kinfolk.experiment.spec import dump, load

    loaded, _ = load_latest(folder / "checkpoints", dump(load(folder / "spec.toml")))
    return dict(zip(trained.clients, loaded.tensors["state"]["member"].tolist(), strict=True))


def test_losses_and_scores_are_those_of_the_models(runs, newcomers):
    trained = open_run(runs / "ifca")
    found = assign(trained, newcomers)
    assert found["by"] == "loss"
    learner = build_parts(trained.spec, newcomers).learner

    def logits(model, split, who):
        x, y = newcomers.take(newcomers.splits[split].rows(who))
        return learner.apply(model, x).double(), y

    for i, row in enumerate(found["newcomers"]):
        models = [{n: t[k] for n, t in trained.centres.items()} for k in range(4)]
        losses = [torch.nn.functional.cross_entropy(*logits(m, "train", i)).item() for m in models]
        assert row["fit"] == pytest.approx(losses, rel=1e-4)
        hits = [(out.argmax(1) == y).double().mean() for out, y in (logits(m, "test", i) for m in models)]
        assert row["centre"] == pytest.approx(float(hits[int(np.argmin(losses))]))
        assert row["worst_centre"] == pytest.approx(float(min(hits)))
        out, y = logits(middle(trained.centres), "test", i)
        assert row["one_model"] == pytest.approx(float((out.argmax(1) == y).double().mean()))


# Every algorithm with a model for each group, and what parts eight clients in seven rounds with the start.
CLUSTERED = {
    "fesem": ("distance", "k=4"),
    "fesem_shared": ("distance", "k=4", "start.shared_most=1"),
    "fesem_ma": ("distance", "k=4"),
    "robust": ("distance", "k=4"),
    "ifca": ("loss", "k=4"),
    "hypcluster": ("loss", "k=4"),
    "mdicfl": ("loss", "k=4", "start.shared_rounds=1"),
    "clustered_fl": ("loss", "eps1=1e9", "eps2=0", "split_after=1"),
    "clustered_hdbscan": ("loss",),
    "fl_hc": ("loss", "cluster_after=1", "threshold=0.3"),
}


def test_no_clustered_algorithm_is_forgotten():
    mixtures = {"fedem"}  # every client has all components
    assert set(CLUSTERED) == {name for name, kind in ALGORITHMS.items() if hasattr(kind, "groups")} - mixtures


@pytest.mark.parametrize("name", CLUSTERED)
def test_every_clustered_algorithm_takes_newcomers(runs, newcomers, tmp_path, name):
    rule, *options = CLUSTERED[name]
    folder = runs / name
    if not folder.is_dir():
        folder = tmp_path / name
        run(spec_of(f"algorithm.name={name}", *(f"algorithm.{one}" for one in options)), folder)
    trained = open_run(folder)
    member = json_member(folder, trained)
    assert trained.groups == tuple(sorted(set(member.values())))
    found = assign(trained, newcomers)
    assert found["by"] == rule
    rows = found["newcomers"]
    assert all(row["group"] == int(np.nanargmin(row["fit"])) for row in rows)
    assert {row["group"] for row in rows} <= set(trained.groups)
    gain = np.mean([row["centre"] - row["one_model"] for row in rows])
    assert gain > 0.1, gain


def test_places_without_members_are_no_groups(runs, newcomers):
    trained = open_run(runs / "fesem")
    member = json_member(runs / "fesem", trained)
    gone = member["client-00"]
    left = tuple(k for k in range(4) if k != gone)
    state = {
        "centres": {n: t.new_zeros(4, *t.shape[1:]) for n, t in trained.centres.items()},
        "member": torch.tensor([g if g != gone else left[0] for g in member.values()]),
    }
    for name, leaf in trained.centres.items():
        state["centres"][name][list(left)] = leaf[list(left)]
    centres, groups = in_use(state)
    assert groups == left
    found = assign(replace(trained, centres=centres, groups=groups), newcomers)
    for row in found["newcomers"]:
        assert row["group"] in left
        assert np.flatnonzero(np.isnan(row["fit"])).tolist() == ([gone] if gone < max(left) else [])
    whole = {row["newcomer"]: row for row in assign(trained, newcomers)["newcomers"]}
    for row in found["newcomers"]:
        before = whole[row["newcomer"]]
        if before["group"] != gone:
            assert row["centre"] == before["centre"], "the same model under the same number"
    assert in_use({"model": {}}) == ({}, ())


def test_a_run_with_everybody_in_one_group_has_nothing_to_choose(runs, newcomers):
    trained = open_run(runs / "fesem")
    one = replace(trained, centres={n: t[:1] for n, t in trained.centres.items()}, groups=(0,))
    with pytest.raises(KinfolkError, match="all clients in one group: there is nothing to choose"):
        assign(one, newcomers)


def test_what_is_no_clustered_run(runs, tmp_path):
    with pytest.raises(KinfolkError, match="fedavg has no groups: there is nothing to choose"):
        open_run(runs / "fedavg")
    with pytest.raises(KinfolkError, match="is no run folder"):
        open_run(tmp_path)
    shutil.copytree(runs / "fesem", tmp_path / "begun")
    shutil.rmtree(tmp_path / "begun/checkpoints")
    with pytest.raises(KinfolkError, match="no checkpoint yet"):
        open_run(tmp_path / "begun")


def test_a_run_that_is_not_finished_serves_with_a_warning(runs, tmp_path):
    shutil.copytree(runs / "fesem", tmp_path / "cut")
    facts = json.loads((tmp_path / "cut/run.json").read_text())
    (tmp_path / "cut/run.json").write_text(json.dumps({**facts, "status": "running"}))
    (warning,) = open_run(tmp_path / "cut").warnings
    assert "not finished" in warning
    assert "round 4" in warning  # of seven: the start took the others


@pytest.mark.parametrize(
    ("x", "y", "line"),
    [
        ((9, 1, 4, 4), [0, 1, 2] * 3, "rows of this shape do not fit"),
        ((9, 1, 8, 8), [0, 1, 12] * 3, "label = '12': the run knows no such class"),
        ((9, 1, 8, 8), [0.5] * 9, "the run has 10 classes"),
        ((1, 1, 8, 8), [0], "nobody has test rows"),
    ],
)
def test_rows_that_do_not_fit_the_run_are_one_line(runs, x, y, line):
    trained = open_run(runs / "fesem")
    with pytest.raises(KinfolkError, match=line) as error:
        assign(trained, in_terms_of(from_arrays([(np.zeros(x), np.array(y))]), (), trained))
    assert "\n" not in str(error.value)


def test_a_rule_that_there_is_not(runs, newcomers):
    with pytest.raises(KinfolkError, match="did you mean 'loss'"):
        assign(open_run(runs / "fesem"), newcomers, by="los")


def test_names_that_were_in_training_are_told(runs, newcomers):
    trained = open_run(runs / "fesem")
    again = replace(newcomers, clients=("client-00", *newcomers.clients[1:]))
    (warning,) = assign(trained, again)["warnings"]
    assert "client-00" in warning


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A run on own tables whose labels are words, and the folder of its data."""
    folder = tmp_path_factory.mktemp("words")
    draw = np.random.default_rng(0)
    names = np.array(["cold", "mild", "warm"])
    for who in range(6):
        write(folder / "sites" / f"site-{who}.csv", draw.normal(size=(40, 2)), who % 2, names)
    data = ("data.name=own", f"data.path={folder / 'sites'}", "algorithm.name=fesem", "algorithm.k=2")
    plain = [one for one in SETS if not one.startswith("data.")]
    run(override(Experiment(), [*plain, "run.rounds=5", "local.lr=0.3", *data]), folder / "run")
    return folder


def write(path, x, context, names, columns=("a", "b")):
    """A table of a client that reads its first column as a temperature, or its negative."""
    y = names[np.digitize((1 - 2 * context) * x[:, 0], [-0.5, 0.5])]
    path.parent.mkdir(exist_ok=True)
    rows = "".join(f"{a},{b},{label}\n" for (a, b), label in zip(x, y, strict=True))
    path.write_text(",".join([*columns, "y"]) + "\n" + rows)


def test_labels_are_matched_by_name_not_by_number(words, tmp_path):
    x = np.abs(np.random.default_rng(1).normal(size=(30, 2))) + 0.6
    for context, who in enumerate(
        ("ann", "bob")
    ):  # only "warm" at ann's, only "cold" at bob's: both number 0
        x[:15, 0] = 0.0  # and "mild" at both
        write(tmp_path / "new" / f"{who}.csv", x, context, np.array(["cold", "mild", "warm"]))
    trained = open_run(words / "run")
    assert trained.class_names == ("cold", "mild", "warm")
    (tmp_path / "new/bob.csv").unlink()
    made = read_newcomers(tmp_path / "new", trained)
    assert made.classes == 3
    assert sorted(set(made.y.tolist())) == [1, 2]
    (row,) = assign(trained, made, by="loss")["newcomers"]
    member = json_member(words / "run", trained)
    assert row["group"] == member["site-0"] != member["site-1"]


@pytest.mark.parametrize(
    ("names", "columns", "line"),
    [
        (("cold", "mild", "hot"), ("a", "b"), "label = 'hot': the run knows no such class; it has cold"),
        (("cold", "mild", "warm"), ("a", "c"), "data.ann.columns = 'b': no such column"),
    ],
)
def test_other_words_and_other_columns_are_one_line(words, tmp_path, names, columns, line):
    write(
        tmp_path / "new" / "ann.csv",
        np.random.default_rng(1).normal(size=(30, 2)),
        0,
        np.array(names),
        columns,
    )
    with pytest.raises(KinfolkError, match=line):
        read_newcomers(tmp_path / "new", open_run(words / "run"))
