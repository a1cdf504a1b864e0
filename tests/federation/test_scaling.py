"""Standardisation: the statistics of training rows and no others, combined without moving a row."""

import json
import re
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
import torch

from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.own_data.columns import Columns
from kinfolk.federation.own_data.loaded import LoadedClients, federate
from kinfolk.federation.own_data.report import inspect
from kinfolk.federation.own_data.store import read_store, write_store
from kinfolk.federation.own_data.tables import read_frame
from kinfolk.federation.scaling import Moments, Scaling, combined, standardized, uneven, with_scaling
from kinfolk.federation.sources import DataSpec, build
from kinfolk.streams import Seed

FAR = np.array([1e-6, 1.0, 3e7])  # columns of very unequal size, with means that dwarf their deviations


def clients(rows=(40, 1, 7, 120), targets=False, seed=0):
    draw = np.random.default_rng(seed)
    found = {}
    for i, n in enumerate(rows):
        x = (draw.normal(size=(n, 3)) + 50 + i) * FAR
        y = draw.normal(4e5 + 100 * i, 3e3, n) if targets else draw.integers(0, 2, n)
        found[f"c{i}"] = (x.astype(np.float32), y)
    return found


def train(f, i):
    return f.x[f.splits["train"].rows(i)].double().numpy()


@pytest.mark.parametrize("parts", [(1, 1, 1), (5, 1, 900), (4096, 4097)])
def test_moments_of_parts_are_those_of_the_whole(parts):
    whole = (np.random.default_rng(1).normal(size=(sum(parts), 4)) + 1e6) * [1e-8, 1.0, 1e8, 7.0]
    found = combined(Moments.of(part) for part in np.split(whole, np.cumsum(parts)[:-1]))
    assert found.count == len(whole)
    np.testing.assert_allclose(found.mean, whole.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.squares / found.count, whole.var(0), rtol=1e-9)
    assert found.statistics().std == pytest.approx(whole.std(0), rel=1e-9)


def test_sums_of_squares_would_lose_what_the_update_keeps():
    x = 1e9 + np.array([[0.0], [1.0], [2.0], [3.0]])
    naive = (x**2).mean() - x.mean() ** 2
    kept = combined([Moments.of(x[:1]), Moments.of(x[1:])]).statistics().std[0] ** 2
    assert kept == pytest.approx(1.25, rel=1e-9)
    assert naive != pytest.approx(1.25, rel=0.1)


def test_global_statistics_are_those_of_all_training_rows_together():
    raw = from_arrays(clients(), valid=0.2)
    f = standardized(raw, "global")
    pool = raw.x[raw.splits["train"].row].double().numpy()
    found = f.scaling.rows[""]
    np.testing.assert_allclose(found.mean, pool.mean(0), rtol=1e-9)
    np.testing.assert_allclose(found.std, pool.std(0), rtol=1e-9)
    together = f.x[f.splits["train"].row].double()
    assert together.mean(0).abs().max() < 1e-5
    assert (together.std(0, correction=0) - 1).abs().max() < 1e-5


def test_a_clients_own_statistics_are_its_own():
    raw = from_arrays(clients(), valid=0.2)
    f = standardized(raw, "client")
    for i, who in enumerate(raw.clients):
        np.testing.assert_allclose(f.scaling.rows[who].mean, train(raw, i).mean(0), rtol=1e-9)
        if raw.splits["train"].count(i) > 1:
            np.testing.assert_allclose(f.scaling.rows[who].std, train(raw, i).std(0), rtol=1e-9)
    assert f.x[f.splits["train"].rows(1)].tolist() == [[0.0, 0.0, 0.0]]  # a single row is its own mean
    assert f.scaling.bytes_up == 0


@pytest.mark.parametrize("by", ["global", "client"])
@pytest.mark.parametrize("split", ["valid", "test"])
def test_rows_that_are_not_for_training_do_not_count(by, split):
    raw = from_arrays(clients(targets=True), valid=0.2)
    x, y = raw.x.clone(), raw.y.clone()
    x[raw.splits[split].row] += 1e4
    y[raw.splits[split].row] -= 1e8
    before, after = standardized(raw, by), standardized(replace(raw, x=x, y=y), by)
    assert before.scaling == after.scaling
    rows = raw.splits["train"].row
    assert torch.equal(before.x[rows], after.x[rows])
    assert torch.equal(before.y[rows], after.y[rows])


def test_targets_are_standardised_and_come_back():
    raw = from_arrays(clients(targets=True))
    f = standardized(raw, "global")
    own = raw.y[raw.splits["train"].row].double()
    assert f.scaling.target.mean[0] == pytest.approx(float(own.mean()), rel=1e-9)
    assert f.scaling.target.std[0] == pytest.approx(float(own.std(correction=0)), rel=1e-9)
    torch.testing.assert_close(f.scaling.target.undo(f.y), raw.y.double(), rtol=1e-6, atol=0)
    assert standardized(raw, "global", "none").y is raw.y
    alone = standardized(raw, "none", "global")
    assert alone.x is raw.x
    assert alone.scaling.rows == {}


def test_several_targets_have_statistics_each():
    draw = np.random.default_rng(0)
    y = draw.normal(size=(60, 2)) * [1e-3, 1e5] + [0, 7e5]
    raw = from_arrays({"ann": (draw.normal(size=(60, 3)), y)})
    found = standardized(raw, "none", "global").scaling.target
    own = raw.y[raw.splits["train"].row].double().numpy()
    np.testing.assert_allclose([found.mean, found.std], [own.mean(0), own.std(0)], rtol=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e30, 12345.678])
def test_constant_columns_become_zeros(value):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(50, 2)).astype(np.float32)
    x[:, 1] = value
    f = standardized(from_arrays({"ann": (x, np.arange(50) % 2), "bob": (x, np.arange(50) % 2)}), "global")
    assert f.x[:, 1].abs().max() < 1e-3
    assert f.scaling.rows[""].std[1] == 1.0


def test_large_numbers_do_not_overflow():
    x = np.array([[3e38], [-3e38], [1e38], [2e38], [0.0]] * 4, dtype=np.float32)
    f = standardized(from_arrays({"ann": (x, np.arange(20) % 2)}), "global")
    assert f.x.isfinite().all()
    assert f.x[f.splits["train"].row].double().std(correction=0).item() == pytest.approx(1, rel=1e-5)


def test_a_test_row_that_float32_cannot_hold_is_named():
    few = (np.array([[0.0], [1e-30]] * 5), np.arange(10) % 2)
    raw = from_arrays({"ann": few}, test={"ann": (np.array([[1e20]]), np.array([0]))})
    with pytest.raises(KinfolkError, match=r"data\.ann\.x\[0\] = 'infinite': a value too far"):
        standardized(raw, "global")


def test_images_are_standardised_by_channel_from_bytes():
    raw = build(DataSpec(clients=4, rows=20), Seed(0))
    assert raw.scaling is None
    f = build(DataSpec(clients=4, rows=20, standardize="global"), Seed(0))
    pool = raw.take(raw.splits["train"].row)[0].double()
    assert f.scaling.rows[""].mean == pytest.approx(pool.mean((0, 2, 3)).tolist(), rel=1e-9)
    assert f.scaling.pixels == raw.scale
    assert f.x.dtype == torch.float32


def test_bytes_are_standardised_by_channel_as_they_are_trained_on():
    pool = np.random.default_rng(0).integers(0, 256, (40, 3, 4, 4)).astype(np.uint8)
    pool[:, 1] //= 9
    loaded = LoadedClients({"ann": (pool, np.arange(40) % 2)}, ("no", "yes"), scale=(2 / 255, -1.0))
    raw = federate(loaded)
    assert standardized(raw) is raw
    f = standardized(raw, "global")
    seen = raw.take(raw.splits["train"].row)[0].double()
    assert f.scaling.rows[""].mean == pytest.approx(seen.mean((0, 2, 3)).tolist(), rel=1e-9)
    assert f.scaling.rows[""].std == pytest.approx(seen.std((0, 2, 3), correction=0).tolist(), rel=1e-9)
    assert (f.scaling.pixels, f.scale) == ((2 / 255, -1.0), None)
    assert torch.equal(f.take(torch.arange(40))[0], f.scaling.rows[""].apply(raw.take(torch.arange(40))[0]))


def test_published_rows_keep_their_bits():
    plain, none = (build(DataSpec(clients=6, rows=20, standardize=by), Seed(3)) for by in ("auto", "none"))
    assert plain.fingerprint() == none.fingerprint()
    assert plain.scaling is None
    other = build(DataSpec(clients=6, rows=20, standardize="global"), Seed(3))
    assert other.fingerprint() != plain.fingerprint()


def test_tables_with_names_are_standardised_unless_told_otherwise():
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"who": ["a", "b"] * 30, "pay": draw.normal(5e4, 9e3, 60), "sex": ["f", "m", "m"] * 20}
    )
    frame["y"] = draw.normal(1e5, 1e4, 60)
    f = federate(read_frame(frame, "who", "y", columns=Columns(categorical="sex")))
    assert f.scaling is None  # reading leaves rows as they came
    done = standardized(f)
    assert done.scaling.by == "global"
    assert done.scaling.target is not None
    # Indicators of categories stay 0 and 1.
    assert set(done.x[:, 1:].unique().tolist()) == {0.0, 1.0}
    assert done.scaling.rows[""].std[1:] == (1.0, 1.0)
    assert standardized(done) is done
    assert standardized(f, "none") is f
    arrays = from_arrays(clients())
    assert standardized(arrays) is arrays


def test_what_clients_told_is_counted():
    f = standardized(from_arrays(clients(targets=True)), "global")
    # Of each of 4 clients a count, and mean and squares of 3 columns and a target; back mean and deviation.
    assert f.scaling.bytes_up == 4 * 8 * (1 + 2 * 4)
    assert f.scaling.bytes_down == 4 * 8 * 2 * 4
    assert "sum of squared deviations" in f.scaling.tells


def test_newcomers_get_the_statistics_of_the_run_or_their_own():
    run, new = from_arrays(clients()), from_arrays({"zoe": clients((30,), seed=9)["c0"]})
    shared = standardized(run, "global").scaling
    assert torch.equal(with_scaling(new, shared).x, shared.rows[""].apply(new.x))
    own = with_scaling(new, replace(standardized(run, "client").scaling, rows={}))
    np.testing.assert_allclose(own.scaling.rows["zoe"].mean, train(new, 0).mean(0), rtol=1e-9)
    assert own.scaling.of("zoe") == own.scaling.rows["zoe"]


def test_a_scaling_is_the_same_after_json():
    one = standardized(from_arrays(clients(targets=True)), "client").scaling
    assert Scaling.from_dict(json.loads(json.dumps(asdict(one)))) == one


def test_a_standardised_federation_is_not_stored(tmp_path):
    frame = pd.DataFrame({"who": ["a", "b"] * 20, "p": np.arange(40.0), "y": [0, 1, 1, 0] * 10})
    loaded = read_frame(frame, "who", "y")
    with pytest.raises(KinfolkError, match="store them as they came"):
        write_store(standardized(federate(loaded)), tmp_path / "s", inspect(loaded))
    write_store(federate(loaded), tmp_path / "s", inspect(loaded))
    assert torch.equal(standardized(read_store(tmp_path / "s")).x, standardized(federate(loaded)).x)


MISTAKES = {
    "word": (lambda f: standardized(f, "clients"), "data.standardize = 'clients': did you mean 'client'"),
    "target word": (
        lambda f: standardized(f, "auto", "client"),
        r"data.standardize_target = 'client': .*known",
    ),
    "classes": (lambda f: standardized(f, "auto", "global"), "have no numbers to predict"),
    "twice": (lambda f: standardized(standardized(f, "global"), "client"), "standardised already"),
    "made": (
        lambda f: build(DataSpec("linear", shift="source", standardize="global"), Seed(0)),
        "are made when",
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_one_line(what):
    do, line = MISTAKES[what]
    with pytest.raises(KinfolkError, match=line):
        do(from_arrays(clients()))


def test_a_row_of_two_clients_has_no_statistics_of_its_own():
    with pytest.raises(KinfolkError, match="rows that another client has too; use 'global'"):
        build(DataSpec(clients=24, rows=200, standardize="client", test="global"), Seed(0))


@pytest.mark.parametrize(
    ("size", "shift", "target", "line"),
    [
        ([1, 1], 0, 1, ""),
        ([1, 90], 0, 1, ""),
        ([1, 150], 0, 1, "columns differ.*data.standardize=global"),
        ([1, 1], 8, 1, ""),
        ([1, 1], 14, 1, "columns have means.*data.standardize=global"),
        ([1, 1], 0, 1e4, "targets and outputs differ.*data.standardize_target=global"),
    ],
)
def test_uneven_sizes_are_told_with_a_remedy(size, shift, target, line):
    draw = np.random.default_rng(0)
    x = (draw.normal(size=(400, 2)) + shift) * size
    raw = from_arrays({"ann": (x, target * draw.normal(size=400))})
    told = uneven(raw)
    assert bool(told) == bool(line)
    if line:
        assert re.search(line, told)
        assert uneven(standardized(raw, "global")) == ""


def test_whole_numbers_in_arrays_are_standardised_if_asked_for():
    x = np.arange(200).reshape(50, 4) * [1, 10, 100, 1000]
    raw = from_arrays({"ann": (x, np.arange(50) % 2)})
    f = standardized(raw, "global")
    own = raw.x[raw.splits["train"].row].double().numpy()
    np.testing.assert_allclose(f.scaling.rows[""].std, own.std(0), rtol=1e-9)
    assert f.x.dtype == torch.float32


@pytest.mark.parametrize(
    ("y", "target"),
    [
        (np.linspace(0, 1, 50), False),  # probabilities
        (np.linspace(0, 3, 50), True),
        (np.tile([[0.0, 1.0], [1.0, 1.0]], (25, 1)), False),  # several labels
        (np.stack([np.arange(50.0), np.arange(50.0) % 2], 1), False),  # a time and the mark of an event
    ],
)
def test_only_targets_that_look_like_measurements_are_standardised_unasked(y, target):
    raw = from_arrays({"ann": (np.random.default_rng(0).normal(size=(50, 2)), y.astype(np.float32))})
    assert (standardized(raw, "global").scaling.target is not None) == target
    assert standardized(raw, "global", "global").scaling.target is not None
