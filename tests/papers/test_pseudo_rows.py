"""Pseudo rows of a finished run: confidences and nearness against NumPy, and copies that are found out."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from small_runs import go

from kinfolk.algorithms.mdicfl.output_distance import Probe
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import plain
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.inputs import probabilities
from kinfolk.papers import pseudo_rows as room
from kinfolk.papers.pseudo_rows import (
    confidences,
    look_at,
    nearest,
    pictures,
    pseudo_rows,
    reopened,
    write_facts,
)
from kinfolk.streams import RoundContext

MDICFL = ("algorithm.name=mdicfl", "algorithm.k=2", "algorithm.pseudo.samples=4", "run.rounds=7")
FAST = (
    "algorithm.search.iterations=20", "algorithm.start.name=warm_kmeans", "algorithm.start.on=models",
    "algorithm.generator.iterations=20",
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small run of two clusters, with what it returned."""
    return go(tmp_path_factory.mktemp("runs") / "mine", *MDICFL, *FAST)


def test_confidences_are_the_means_that_a_loop_finds():
    draw = np.random.default_rng(0)
    said = draw.dirichlet(np.ones(3), size=(2, 4, 6))
    y = np.repeat(np.arange(3), 2)
    by_hand = np.zeros((2, 4, 3))
    for j, k, c in np.ndindex(by_hand.shape):
        by_hand[j, k, c] = np.mean([said[j, k, r, c] for r in range(6) if y[r] == c])
    assert confidences(torch.from_numpy(said), torch.from_numpy(y)).numpy() == pytest.approx(by_hand)


def test_nearness_is_that_of_brute_force_whatever_the_chunks(monkeypatch):
    draw = np.random.default_rng(1)
    train = draw.normal(size=(23, 1, 3, 3)).astype(np.float32)
    rows = draw.normal(size=(7, 1, 3, 3)).astype(np.float32)
    rows[2] = train[5]
    ann = torch.from_numpy(train), torch.arange(23) % 2
    one = torch.from_numpy(rows), torch.zeros(7, dtype=torch.int64)
    federation = from_arrays({"ann": ann}, test={"ann": one}, classes=2)
    monkeypatch.setattr(room, "AT_A_TIME", 9 * 5)
    distance, correlation = nearest(torch.from_numpy(rows), federation)
    flat = rows.reshape(7, -1).astype(float), train.reshape(23, -1).astype(float)
    assert distance.numpy() == pytest.approx(cdist(*flat).min(1), abs=1e-5)
    assert distance[2] == 0
    both = np.corrcoef(np.concatenate(flat))[:7, 7:]
    assert correlation.numpy() == pytest.approx(both.max(1), abs=1e-5)


def test_a_run_opened_again_tells_what_its_state_tells(finished):
    facts = pseudo_rows(finished.folder)
    parts, state, round, _ = reopened(finished.folder)
    assert round == finished.rounds
    assert all(torch.equal(t, finished.state.centres[n]) for n, t in state.centres.items())
    again = look_at(parts, finished.state, finished.rounds)
    assert facts == {"run": str(finished.folder), "warnings": [], **again}
    one = facts["samplers"]["back_search"]
    _, probe = parts.algorithm.probe(state, RoundContext(parts.seed, round, state.clients))
    c = parts.federation.classes
    for j in range(2):
        model = {n: t[j : j + 1] for n, t in state.centres.items()}
        for k in range(2):
            said = probabilities(parts.learner, model, probe.x[k])[0].double().numpy()
            meant = said[np.arange(4 * c), np.repeat(np.arange(c), 4)]
            assert one["confidence"][j][k] == pytest.approx(meant.mean(), abs=1e-5)
            if j == k:
                means = np.stack([said[4 * i : 4 * i + 4].mean(0) for i in range(c)])
                assert np.array(one["own"][k]) == pytest.approx(means, abs=1e-5)
    assert sum(facts["members"]) == 4


def test_models_are_surest_of_their_own_rows_and_nothing_is_a_copy(finished):
    facts = pseudo_rows(finished.folder, ["back_search", "generator"], images=2)
    assert list(facts["samplers"]) == ["back_search", "generator"]
    sure = np.array(facts["samplers"]["back_search"]["confidence"])
    assert np.diag(sure).min() > sure[~np.eye(2, dtype=bool)].max()
    for one in facts["samplers"].values():
        assert np.shape(one["images"]) == (2, 10, 2, 8, 8)
        assert len(one["distance"]) == 2 * 10 * 4
        assert one["near"]["share"] == np.mean(np.array(one["distance"]) < one["near"]["bound"]) == 0
        assert one["near"]["bound"] == pytest.approx(np.quantile(facts["test"]["distance"], 0.01))
        assert one["alike"]["bound"] == pytest.approx(np.quantile(facts["test"]["correlation"], 0.99))
        assert one["alike"]["share"] == np.mean(np.array(one["correlation"]) > one["alike"]["bound"])


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_copies_are_found_out(finished, monkeypatch, noise):
    parts, state, round, _ = reopened(finished.folder)
    held = parts.federation
    copied = held.take(held.splits["train"].row[:40])[0]
    jitter = torch.randn(copied.shape, generator=parts.seed.torch("jitter"))
    x = torch.stack([copied, copied]) + noise * jitter
    monkeypatch.setattr(type(parts.algorithm), "probe", lambda self, state, context: (state, Probe(x, x)))
    one = look_at(parts, state, round)["samplers"]["back_search"]
    assert one["near"]["share"] == 1
    assert one["alike"]["share"] > 0.9
    assert max(one["distance"]) == 0 or noise


def test_images_keep_their_colours_and_rows_without_pixels_have_none():
    x = torch.linspace(-1, 1, 2 * 6 * 3 * 2 * 2).reshape(2, 6, 3, 2, 2)
    shown = np.array(pictures(x, 2, 3, (-1.0, 1.0)))
    assert shown.shape == (2, 3, 2, 2, 2, 3)
    assert shown[1, 2, 1, 1, 0, 2] == round((float(x[1, 5, 2, 1, 0]) + 1) / 2 * 255)
    assert pictures(torch.zeros(2, 6, 4), 2, 3, (-1.0, 1.0)) == []


def test_what_is_written_is_what_was_found(finished, tmp_path):
    facts = pseudo_rows(finished.folder)
    assert json.loads(write_facts(tmp_path / "new", facts).read_text()) == facts == plain(facts)


def test_what_will_not_do_is_one_line(finished, tmp_path):
    go(tmp_path / "fedavg", "run.rounds=1")
    go(tmp_path / "early", *MDICFL, "run.rounds=1")
    for folder, told in (
        (tmp_path / "fedavg", "is a run of fedavg; only mdicfl makes pseudo rows"),
        (tmp_path / "early", "has not split its clients in 1 rounds"),
        (tmp_path, "is no run folder"),
    ):
        with pytest.raises(KinfolkError, match=told):
            pseudo_rows(folder)
    with pytest.raises(KinfolkError, match=r"--sampler = 'generater': .*generator"):
        pseudo_rows(finished.folder, ["generater"])
    with pytest.raises(KinfolkError, match="--images"):
        pseudo_rows(finished.folder, images=0)
    parts, state, round, _ = reopened(finished.folder)
    nobody = replace(parts.federation.splits["test"], row=torch.zeros(0, dtype=torch.int64))
    bare = replace(parts.federation, splits={**parts.federation.splits, "test": nobody})
    with pytest.raises(KinfolkError, match="nobody has test rows"):
        look_at(replace(parts, federation=bare), state, round)


def test_other_data_than_the_runs_are_refused(finished, monkeypatch):
    built = room.build
    monkeypatch.setattr(room, "build", lambda data, seed: built(data, room.Seed(99)))
    with pytest.raises(KinfolkError, match="not those the run began with"):
        reopened(finished.folder)


def test_a_run_that_was_stopped_is_looked_at_with_a_warning(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "stopped")
    told = tmp_path / "stopped/run.json"
    told.write_text(told.read_text().replace('"finished"', '"running"'))
    assert "not finished" in reopened(tmp_path / "stopped")[3][0]
