"""The formulas of benchmarks/similarity.py, against loops and scikit-learn."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score

from kinfolk.algorithms.slfed.similarity import MEASURES
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.streams import Seed

PATH = Path(__file__).parents[3] / "benchmarks" / "similarity.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("similarity_benchmark", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_area_is_that_of_scikit_learn(benchmark):
    draw = Seed(1).numpy("area")
    values, positive = draw.integers(0, 9, 60).astype(float), draw.random(60) < 0.3  # with ties
    assert benchmark.auc(values, positive) == pytest.approx(roc_auc_score(positive, values))
    assert np.isnan(benchmark.auc(values, np.zeros(60, bool)))


def test_rank_correlations_are_those_of_ranks(benchmark):
    draw = Seed(3).numpy("ranks")
    values, other = draw.integers(0, 9, 40).astype(float), (draw.random(40) < 0.5).astype(float)
    by_hand = np.corrcoef(rankdata(values), rankdata(other))[0, 1]
    assert benchmark.rank_correlation(values, other) == pytest.approx(by_hand)
    assert np.isnan(benchmark.rank_correlation(values, np.zeros(40)))


@pytest.mark.parametrize("compare", MEASURES)
def test_every_pair_is_compared_on_both_clients_images(benchmark, compare):
    draw = Seed(2).torch("pairs")
    learner = Learner(torch.nn.Linear(4, 3), find_loss("cross_entropy"), outputs=3)
    models = [
        {"weight": torch.randn(3, 4, generator=draw), "bias": torch.randn(3, generator=draw)}
        for _ in range(4)
    ]
    images = [torch.randint(0, 256, (30, 4), generator=draw).to(torch.uint8) for _ in range(4)]
    labels = benchmark.seen_by_all(learner, models, [{"images": one} for one in images])
    got = benchmark.all_pairs(labels, MEASURES[compare](3, 30)).numpy()

    def classes(model, pictures):
        x = pictures.numpy() / 127.5 - 1
        logits = x @ model["weight"].numpy().T + model["bias"].numpy()
        return logits.argmax(1)

    def alike(a, b):
        if compare == "images":
            return np.mean(a == b)
        a, b = (np.bincount(one, minlength=3) for one in (a, b))
        return a @ b / np.sqrt((a @ a) * (b @ b))

    for a in range(4):
        for b in range(4):
            on = [alike(classes(models[a], images[c]), classes(models[b], images[c])) for c in (a, b)]
            assert got[a, b] == pytest.approx(np.mean(on), abs=1e-9)
    assert len(np.unique(got.round(9))) > 5
