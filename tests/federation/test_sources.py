from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from kinfolk.errors import KinfolkError
from kinfolk.federation.assemble import from_groups
from kinfolk.federation.datasets.digits import scikit_digits
from kinfolk.federation.federation import Federation
from kinfolk.federation.partition.choose_tests import TEST_SPLITS
from kinfolk.federation.pool import pool_of
from kinfolk.federation.soundness import check
from kinfolk.federation.sources import SOURCES, DataSpec, Source, build
from kinfolk.streams import Seed

BASE = 1797
SMALL = DataSpec(clients=10, rows=40, groups=4, alpha=5.0, valid=0.2, ragged=0.5)


def digits(test_fraction=0.25, seed=Seed(0)):  # noqa: B008 - a Seed never changes
    return pool_of(scikit_digits(), DataSpec(test_fraction=test_fraction), seed)


def images(f: Federation, split: str) -> set[bytes]:
    return {f.x[r].numpy().tobytes() for r in f.splits[split].row.unique().tolist()}


# On the embedded digits; test_apart.py has every combination of the tables.
ABLE = ["none", "rotation"], ["iid", "dirichlet"]


@pytest.mark.parametrize(("shift", "partition", "test"), list(product(*ABLE, TEST_SPLITS)))
def test_test_rows_never_appear_in_training(shift, partition, test):
    f = build(replace(SMALL, shift=shift, partition=partition, test=test), Seed(4))
    learnt = torch.cat([f.splits["train"].row, f.splits["valid"].row]) % BASE
    tested = f.splits["test"].row % BASE  # the image before it was turned
    assert not set(learnt.tolist()) & set(tested.tolist())
    assert not (images(f, "train") | images(f, "valid")) & images(f, "test")
    assert (f.splits["test"].counts() > 0).all()
    for i in range(len(f.clients)):
        own = f.splits["train"].rows(i), f.splits["valid"].rows(i)
        assert not set(own[0].tolist()) & set(own[1].tolist())


@pytest.mark.parametrize(("clients", "groups"), [(24, 4), (10, 4), (7, 3), (4, 4), (5, 1), (1, 1)])
def test_groups_are_as_equal_as_can_be(clients, groups):
    f = build(DataSpec(clients=clients, groups=groups, rows=5), Seed(0))
    sizes = f.truth.bincount(minlength=groups)
    assert sizes.sum() == clients
    assert sizes.max() - sizes.min() <= 1


def test_names_do_not_tell_the_group():
    truths = [build(DataSpec(rows=2), Seed(s)).truth.tolist() for s in range(4)]
    assert all(truth != sorted(truth) for truth in truths)
    assert all(truth != [i % 4 for i in range(24)] for truth in truths)
    assert len({tuple(truth) for truth in truths}) == 4


def test_each_group_sees_its_own_turn_in_training_and_in_tests():
    f = build(DataSpec(clients=8, rows=20), Seed(2))
    pool = digits(0.25, Seed(2))
    for i, g in enumerate(f.truth.tolist()):
        for name in ("train", "test"):
            rows = f.splits[name].rows(i)
            upright = pool.x[rows % BASE].numpy()
            assert np.array_equal(f.x[rows].numpy(), np.rot90(upright, g, axes=(2, 3)))
            assert torch.equal(f.y[rows], pool.y[rows % BASE])


def test_group_law_is_the_whole_balanced_test_pool_stored_once():
    f = build(DataSpec(clients=8, rows=20), Seed(2))
    pool, test = digits(0.25, Seed(2)), f.splits["test"]
    fewest = np.bincount(pool.labels[pool.test]).min()
    assert len(test.start) == 5
    assert len(test.row) == 4 * 10 * fewest
    for i in range(8):
        assert f.y[test.rows(i)].bincount().tolist() == [fewest] * 10
        assert set((test.rows(i) % BASE).tolist()) <= set(pool.test.tolist())
    assert torch.equal(test.of, f.truth)


def test_group_law_takes_fewer_rows_where_it_is_asked_to_and_the_global_law_does_not():
    spec = DataSpec(clients=8, rows=30, test="group", test_rows=47)
    f, whole = build(spec, Seed(3)), build(replace(spec, test_rows=0), Seed(3))
    for i in range(8):
        rows, every = (fed.splits["test"].rows(i) for fed in (f, whole))
        assert f.y[rows].bincount(minlength=10).tolist() == [4] * 10
        assert set(rows.tolist()) < set(every.tolist())
    one_each, most = (build(replace(spec, test_rows=n), Seed(3)).splits["test"] for n in (3, 10**6))
    assert one_each.counts().tolist() == [10] * 8
    assert torch.equal(most.row, whole.splits["test"].row)
    both = [build(replace(spec, test="global", test_rows=n), Seed(3)).splits["test"].row for n in (0, 47)]
    assert torch.equal(*both)


def test_global_law_is_the_union_of_the_groups():
    spec = DataSpec(clients=8, rows=20)
    by_group = build(spec, Seed(2)).splits["test"]
    shared = build(replace(spec, test="global"), Seed(2)).splits["test"]
    assert len(shared.start) == 2
    assert sorted(shared.row.tolist()) == sorted(by_group.row.tolist())
    assert all(torch.equal(shared.rows(i), shared.row) for i in range(8))


def test_local_law_has_the_clients_own_proportions():
    f = build(DataSpec(clients=12, rows=40, alpha=3.0, test="local", ragged=0.4), Seed(6))
    for i, who in enumerate(f.clients):
        own, tested = (f.y[f.splits[s].rows(i)].bincount(minlength=10) for s in ("train", "test"))
        rows = f.splits["test"].rows(i)
        assert len(rows.unique()) == len(rows) == max(1, round(0.25 * int(own.sum()))), who
        assert ((tested - own * len(rows) / own.sum()).abs() < 1).all()
        assert (rows // BASE == f.truth[i]).all()


def test_local_law_takes_a_number_of_rows_where_it_is_asked_for():
    spec = DataSpec(clients=12, rows=60, alpha=3.0, test="local", test_rows=25)
    f, other = build(spec, Seed(6)), build(replace(spec, test_rows=0), Seed(6))
    assert torch.equal(f.splits["train"].row, other.splits["train"].row)
    assert f.splits["test"].counts().tolist() == [25] * 12
    for i in range(12):
        own, tested = (f.y[f.splits[s].rows(i)].bincount(minlength=10) for s in ("train", "test"))
        assert ((tested - own * 25 / 60).abs() < 1).all()
    most = build(replace(spec, test_rows=5000), Seed(6)).splits["test"].counts()
    assert ((most > 25) & (most < 5000)).all()


def test_a_class_without_test_rows_is_left_out_of_the_local_law():
    pool = digits()
    lame = replace(pool, test=pool.test[pool.labels[pool.test] != 3])
    spec = DataSpec(clients=6, rows=40, groups=1, test="local")
    f = from_groups([lame], spec, Seed(0))
    for i in range(6):
        own, tested = (f.y[f.splits[s].rows(i)].bincount(minlength=10) for s in ("train", "test"))
        assert tested.sum() == 10
        assert tested[3] == 0
        rest = own.clone()
        rest[3] = 0
        assert ((tested - rest * 10 / rest.sum()).abs() < 1).all()


def test_local_law_shrinks_when_a_class_runs_out():
    f = build(DataSpec(clients=4, rows=900, alpha=1.0, test="local", test_fraction=0.2), Seed(1))
    own, tested = (
        torch.stack([f.y[f.splits[s].rows(i)].bincount(minlength=10) for i in range(4)]).float()
        for s in ("train", "test")
    )
    assert (tested.sum(1) < 180).any()
    assert (tested.sum(1) >= 1).all()
    # Scaled down as a whole, so the proportions are still the client's.
    quota = own / own.sum(1, keepdim=True) * tested.sum(1, keepdim=True)
    assert ((tested - quota).abs() < 1).all()


def test_rows_and_validation_are_counted_as_asked():
    f = build(DataSpec(rows=40, valid=0.25), Seed(0))
    assert f.splits["train"].counts().tolist() == [30] * 24
    assert f.splits["valid"].counts().tolist() == [10] * 24
    assert build(DataSpec(rows=40), Seed(0)).splits["valid"].counts().sum() == 0


def test_validation_rows_come_out_of_the_training_rows():
    plain, held = (build(replace(SMALL, valid=v), Seed(0)) for v in (0.0, 0.3))
    for i in range(10):
        parts = torch.cat([held.splits[s].rows(i) for s in ("train", "valid")])
        assert sorted(parts.tolist()) == sorted(plain.splits["train"].rows(i).tolist())


def test_one_row_is_for_training():
    f = build(DataSpec(clients=4, rows=1, valid=0.9, test="local"), Seed(0))
    assert f.splits["train"].counts().tolist() == [1] * 4
    assert f.splits["valid"].counts().tolist() == [0] * 4
    assert f.splits["test"].counts().tolist() == [1] * 4


def test_ragged_sizes_are_log_normal_with_the_mean_asked_for():
    f = build(DataSpec(clients=2000, rows=50, shift="none", partition="iid", ragged=0.5), Seed(0))
    counts = f.splits["train"].counts().double()
    assert counts.min() >= 1
    assert counts.mean().item() == pytest.approx(50, rel=0.05)
    assert counts.log().std().item() == pytest.approx(0.5, rel=0.06)


def test_rows_repeat_within_a_client_only_when_the_pool_is_too_small():
    f = build(DataSpec(clients=4, rows=300, alpha=1e6), Seed(0))
    assert all(len(f.splits["train"].rows(i).unique()) == 300 for i in range(4))
    f = build(DataSpec(clients=2, groups=2, rows=3000, partition="iid", valid=0.2), Seed(0))
    for i in range(2):
        both = torch.cat([f.splits[s].rows(i) for s in ("train", "valid")])
        assert len(both) == 3000
        assert len(both.unique()) == len(digits().train)


def test_same_seed_same_bits_and_other_seed_other_bits():
    assert build(SMALL, Seed(3)).fingerprint() == build(SMALL, Seed(3)).fingerprint()
    assert build(SMALL, Seed(3)).fingerprint() != build(SMALL, Seed(4)).fingerprint()
    fixed = replace(SMALL, seed=3)
    assert build(fixed, Seed(8)).fingerprint() == build(SMALL, Seed(3)).fingerprint()


def test_building_leaves_the_global_generators_alone():
    torch_before, numpy_before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    build(SMALL, Seed(3))
    assert torch.equal(torch.random.get_rng_state(), torch_before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)


def test_no_shift_is_one_group_whatever_groups_says():
    f = build(DataSpec(clients=2, groups=4, shift="none", rows=5), Seed(0))
    assert f.truth.tolist() == [0, 0]
    assert len(f.x) == BASE
    assert "one group" in f.name


def test_a_device_holds_its_own_rows_and_no_truth():
    f = build(SMALL, Seed(1))
    one = f.only(f.clients[3])
    assert one.truth is None
    assert len(one.x) < BASE
    assert torch.equal(one.x[one.splits["train"].rows(0)], f.x[f.splits["train"].rows(3)])
    check(one)


def test_pools_of_different_sizes_can_be_groups():
    pool = digits()
    half = replace(pool, x=pool.x[:900], y=pool.y[:900], train=pool.train[pool.train < 900],
                   test=pool.test[pool.test < 900])  # fmt: skip
    f = from_groups([half, pool], replace(SMALL, groups=2, test="local"), Seed(0))
    for i, g in enumerate(f.truth.tolist()):
        rows = torch.cat([split.rows(i) for split in f.splits.values()])
        assert ((rows >= 900) == bool(g)).all()


def test_a_source_is_added_by_one_line(monkeypatch):
    whole = build(SMALL, Seed(0))
    monkeypatch.setitem(SOURCES, "mine", Source("made for a test", lambda spec, seed: whole))
    assert build(DataSpec(name="mine"), Seed(0)) is whole
    assert all(entry.line for entry in SOURCES.values())


NAN = float("nan")
FAULTS = [
    ("groups", {"groups": 0}, "at least one group"),
    ("groups", {"groups": 5}, "at most 4 groups"),
    ("groups", {"groups": 4, "clients": 3}, "no more groups than the 3 clients"),
    ("clients", {"clients": 0}, "at least one client"),
    ("rows", {"rows": 0}, "at least one row"),
    ("alpha", {"alpha": 0.0}, "positive"),
    ("alpha", {"alpha": -3.0}, "positive"),
    ("alpha", {"alpha": NAN}, "positive"),
    ("alpha", {"alpha": float("inf")}, "positive"),
    ("name", {"name": "digit"}, "did you mean 'digits'"),
    ("shift", {"shift": "rotate"}, "did you mean 'rotation'"),
    ("partition", {"partition": "dirichlet_"}, "did you mean 'dirichlet'"),
    ("test", {"test": "globl"}, "did you mean 'global'"),
    ("alpha_means", {"alpha_means": "totl"}, "did you mean 'total'"),
    ("alpha_means", {"alpha_means": "?"}, "known: each, total"),
    ("valid", {"valid": 1.0}, "fraction"),
    ("valid", {"valid": -0.1}, "fraction"),
    ("valid", {"valid": NAN}, "fraction"),
    ("test_fraction", {"test_fraction": 0.0}, "fraction"),
    ("test_fraction", {"test_fraction": 1.0}, "fraction"),
    ("ragged", {"ragged": -0.1}, "spread"),
    ("ragged", {"ragged": 9.0}, "spread"),
    ("seed", {"seed": -2}, "seed"),
    ("rows", {"rows": 0, "partition": "iid"}, "at least one row"),
    ("rows", {"rows": -1, "partition": "shards"}, "at least one row"),
    ("clients", {"clients": -1, "partition": "natural"}, "at least one client"),
    ("shards", {"shards": 0}, "at least one piece"),
    ("shards", {"shards": 61, "partition": "shards"}, "no more pieces than the 60 rows"),
    ("min_rows", {"min_rows": 0}, "at least one row"),
    ("scale_rows", {"scale_rows": 0.0}, "positive"),
    ("scale_rows", {"scale_rows": NAN}, "positive"),
    ("test_rows", {"test_rows": -1}, "give 0"),
    ("noise", {"noise": -0.1}, "0 or more"),
    ("noise", {"noise": NAN}, "0 or more"),
    ("noise", {"noise": 0.0, "shift": "noise"}, "the groups do not differ"),
    ("contrast", {"contrast": 1.0}, "above 0 and below 1"),
    ("contrast", {"contrast": 0.0}, "above 0 and below 1"),
    ("features", {"features": 0}, "at least one feature"),
    ("classes", {"classes": 1}, "at least two classes"),
    ("separation", {"separation": 0.0}, "positive"),
    ("separation", {"separation": float("inf")}, "positive"),
    ("leaf_alpha", {"leaf_alpha": -1.0}, "variance"),
    ("leaf_beta", {"leaf_beta": NAN}, "variance"),
    ("groups", {"groups": 7, "shift": "colour"}, "at most 6 groups"),
    ("groups", {"groups": 5, "shift": "label_swap"}, "at most 4 groups"),
    ("groups", {"name": "multi_source", "groups": 5, "shift": "source"}, "at most 4 groups"),
    (
        "shift",
        {"name": "multi_source", "shift": "rotation"},
        "'multi_source' makes its groups itself; use 'source'",
    ),
    ("shift", {"name": "multi_source", "shift": "none"}, "use 'source'"),
    (
        "shift",
        {"name": "gaussians", "shift": "rotation"},
        "'gaussians' makes its groups itself; use 'source'",
    ),
    ("shift", {"name": "leaf_synthetic", "shift": "source", "test": "local"}, "no groups; use 'none'"),
    ("shift", {"shift": "source"}, "'digits' is one source; use 'multi_source'"),
    ("shift", {"shift": "label_swop"}, "did you mean 'label_swap'"),
    ("partition", {"partition": "dist4"}, "did you mean 'dist"),
    ("partition", {"name": "linear", "shift": "source", "partition": "shards"}, "no rows to deal"),
    ("partition", {"partition": "natural"}, "'digits' does not say whose row is whose"),
    ("test", {"name": "leaf_synthetic", "shift": "none", "test": "group"}, "no groups; use 'local'"),
    ("rows", {"name": "linear", "shift": "source", "rows": 0}, "at least one row"),
    ("name", {"name": "femnst"}, "did you mean 'femnist'"),
    ("name", {"name": "gausians"}, "did you mean 'gaussians'"),
]


@pytest.mark.parametrize(("field", "changed", "remedy"), FAULTS)
def test_a_bad_table_is_refused_by_field_value_and_remedy(field, changed, remedy):
    with pytest.raises(KinfolkError, match=remedy) as caught:
        build(DataSpec(**changed), Seed(0))
    assert caught.value.field == f"data.{field}"
    assert repr(changed[field]) in str(caught.value)
