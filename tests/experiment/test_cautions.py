"""SLFed before it starts: lists that are too short and rows that are cut are told with their numbers."""

import numpy as np
import pytest

from kinfolk.experiment.build import build_parts
from kinfolk.experiment.cautions import cautions, share_outside
from kinfolk.experiment.choice import chosen
from kinfolk.experiment.run import run
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import override
from kinfolk.federation.own_data.arrays import from_arrays

SETS = ["data.rows=12", "data.groups=1", "data.shift=none", "model.name=logistic", "engine.name=loop"]


def told(*changes, federation=None, name="slfed"):
    spec = override(Experiment(), [*SETS, f"algorithm.name={name}", *changes])
    return cautions(build_parts(spec, federation))


def test_lists_that_can_never_be_sent_are_told_with_the_numbers():
    (line,) = told("data.clients=6")
    assert line.startswith("6 clients list at most 2 peers each and a sum by additive64 needs 3:")
    assert "no model is ever mixed" in line
    assert "have 7 clients or more" in line
    assert "algorithm.shares.scheme=plain" in line
    assert told("data.clients=6", "algorithm.shares.scheme=plain") == []
    assert "no model is ever mixed" in told("data.clients=2", "algorithm.shares.scheme=plain")[0]
    assert "needs 5" in told("data.clients=9", "algorithm.shares.min_members=5")[0]


def test_lists_that_are_often_too_short_are_told_too():
    (line,) = told("data.clients=8")
    assert line.startswith("8 clients list at most 3 peers each and a sum by additive64 needs 3: many lists")
    assert told("data.clients=13") == []
    (line,) = told("data.clients=40", "run.participation=0.1")
    assert line.startswith("40 clients, 4 a round, list at most 3 peers")


def test_other_algorithms_are_not_warned():
    assert told("data.clients=6", name="fedavg") == []
    assert told("data.clients=6", name="slfed_similar") != []


@pytest.fixture(scope="module")
def table():
    draw = np.random.default_rng(0)
    return from_arrays({f"c{i:02d}": (draw.normal(size=(50, 4)), np.arange(50) % 2) for i in range(14)})


def test_values_out_of_range_are_told_with_their_share(table):
    train = table.x[table.splits["train"].row.unique()].numpy()
    share = float((np.abs(train) > 1).mean())
    assert share_outside(table, -1.0, 1.0) == pytest.approx(share)
    (line,) = told("algorithm.images.ranges=fixed", federation=table)
    assert line.startswith(f"{100 * share:.1f}% of the numbers in training rows lie outside")
    assert "set algorithm.images.ranges=own" in line
    assert told(federation=table) == told("algorithm.images.ranges=own", federation=table) == []
    assert (
        told(
            "algorithm.images.ranges=fixed",
            "algorithm.images.high=9",
            "algorithm.images.low=-9",
            federation=table,
        )
        == []
    )


def test_warnings_reach_the_run_and_its_audit_log(tmp_path):
    spec = override(Experiment(), [*SETS, "data.clients=6", "algorithm.name=slfed", "run.rounds=1"])
    spec = override(spec, ["algorithm.images.kind=noise", "algorithm.images.count=10"])
    assert "no model is ever mixed" in chosen(build_parts(spec), None).warning
    heard = []
    run(spec, tmp_path / "r", watch=lambda event, facts: heard.append((event, facts)))
    assert "no model is ever mixed" in dict(heard)["engine"]["warning"]
    assert "no model is ever mixed" in (tmp_path / "r" / "audit.jsonl").read_text()
