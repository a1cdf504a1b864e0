"""Models taken out of a run are those that were scored: predictions give the recorded scores, to the row."""

from __future__ import annotations

import pytest
import torch
from small_runs import digits, go

from kinfolk.algorithms import ALGORITHMS
from kinfolk.experiment.spec import load as load_spec
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
    "ifca": ["algorithm.k=2", "run.participation=0.5"],
    "hypcluster": ["algorithm.k=2", "run.participation=0.5", "run.rounds=3"],
    "robust": ["algorithm.k=2", "run.rounds=8"],
    "local": ["run.participation=0.5"],
    "fedavg_tuned": ["model.name=tiny_cnn", "model.norm=bn"],  # buffers are part of a model
    "slfed": IMAGES,
    "slfed_similar": IMAGES,
}  # fmt: skip
QUICK = ("local", "fedavg_tuned", "fesem", "fedem", "ifca", "mdicfl", "majority_label")


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


@pytest.mark.parametrize("engine", ["batched", "wire", pytest.param("workers", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["fesem", pytest.param("fedavg_tuned", marks=pytest.mark.slow)])
def test_models_that_are_trained_again_are_the_same_in_every_engine(engine, name, tmp_path):
    assert_recorded(run_of(tmp_path / "run", name, f"engine.name={engine}", "engine.processes=2"))
