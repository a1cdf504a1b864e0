"""Natural clients: who takes part, what is left out, and that tests stay inside the client."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kinfolk.errors import KinfolkError
from kinfolk.federation.assemble import from_rows
from kinfolk.federation.datasets.rows import CENTRED, PLAIN, Rows
from kinfolk.federation.partition.holdout import by_owner, hold_out, stratified
from kinfolk.federation.pool import pool_of, sample
from kinfolk.federation.spec import DataSpec
from kinfolk.federation.summary import federation_notes, row_notes
from kinfolk.streams import Seed

NAMES = ("zoe", "ann", "eve", "bob", "dan", "cat")
COUNTS = (30, 12, 8, 1, 20, 9)
SPEC = DataSpec("made", clients=0, partition="natural", shift="none", test="local", test_fraction=0.2)


def make(block: np.ndarray | None = None) -> Rows:
    rng = np.random.default_rng(0)
    client = rng.permutation(np.repeat(np.arange(6), COUNTS))
    x = rng.integers(0, 256, (80, 1, 4, 4)).astype(np.uint8)
    y = rng.integers(0, 3, 80)
    return Rows(x, y, 3, CENTRED, rng.random(80) < 0.3, client, NAMES, block=block)


def test_each_client_has_its_own_rows_and_is_tested_on_its_own():
    rows = make()
    f = from_rows(rows, SPEC, Seed(1))
    assert f.clients == tuple(sorted(NAMES))
    for i, who in enumerate(f.clients):
        mine = np.flatnonzero(rows.client == NAMES.index(who))
        train, test = (f.splits[s].rows(i).tolist() for s in ("train", "test"))
        assert sorted(train + test) == mine.tolist()
        # 80/20, at least one for each side where there are two.
        assert len(test) == {30: 6, 12: 2, 8: 2, 1: 0, 20: 4, 9: 2}[len(mine)]
    assert f.x.dtype == torch.uint8
    assert np.array_equal(f.x.numpy(), rows.x)
    assert f.scale == CENTRED


def test_small_clients_are_left_out_and_counted():
    rows, spec = make(), replace(SPEC, min_rows=9)
    f = from_rows(rows, spec, Seed(1))
    assert f.clients == ("ann", "cat", "dan", "zoe")
    assert len(f.x) == 71
    assert "natural (4 of 6 clients, 9 rows left out)" in f.name
    assert row_notes(rows, spec, Seed(1)) == ["left out 2 clients with fewer than 9 rows (9 rows)"]


def test_some_clients_are_drawn_by_the_seed():
    rows, spec = make(), replace(SPEC, clients=2, min_rows=9)
    drawn = {from_rows(rows, spec, Seed(s)).clients for s in range(30)}
    assert len(drawn) == 6  # every pair of four
    assert {who for pair in drawn for who in pair} == {"ann", "cat", "dan", "zoe"}
    found = sample(rows, spec, Seed(0))
    taken = sum(COUNTS[i] for i in found.who)
    assert (found.few, found.undrawn) == ((2, 9), (2, 71 - taken))
    assert row_notes(rows, spec, Seed(0))[1] == f"left out 2 clients not drawn ({71 - taken} rows)"


def test_the_numbering_of_clients_does_not_matter():
    rows = make()
    order = np.array([3, 5, 0, 1, 4, 2])
    other = replace(rows, client=order[rows.client], client_names=tuple(NAMES[i] for i in np.argsort(order)))
    for spec in (SPEC, replace(SPEC, clients=3, min_rows=8, shift="rotation", groups=2, valid=0.3)):
        assert from_rows(rows, spec, Seed(5)).fingerprint() == from_rows(other, spec, Seed(5)).fingerprint()


def test_who_else_takes_part_does_not_change_a_clients_split():
    rows = make()
    everybody, few = (from_rows(rows, replace(SPEC, min_rows=m), Seed(2)) for m in (1, 12))
    for who in few.clients:
        for split in ("train", "test"):
            a, b = (f.x[f.splits[split].rows(f.place(who))] for f in (everybody, few))
            assert torch.equal(a, b)


def test_natural_clients_fall_into_groups_and_see_their_groups_turn():
    rows = make()
    f = from_rows(rows, replace(SPEC, shift="rotation", groups=3, min_rows=8), Seed(3))
    n = len(f.x) // 3
    assert f.truth.bincount().tolist() == [2, 2, 1]
    for i, g in enumerate(f.truth.tolist()):
        for split in ("train", "test"):
            own = f.splits[split].rows(i)
            assert (own // n == g).all()
            assert np.array_equal(f.x[own].numpy(), np.rot90(f.x[own % n].numpy(), g, axes=(2, 3)))


def test_group_law_uses_what_all_clients_held_out():
    rows = make()
    local, group = (from_rows(rows, replace(SPEC, test=t), Seed(1)) for t in ("local", "group"))
    held = set(local.splits["test"].row.tolist())
    assert set(group.splits["test"].row.tolist()) <= held
    assert len(set(group.y[group.splits["test"].row].bincount().tolist())) == 1
    assert torch.equal(local.splits["train"].row, group.splits["train"].row)


def test_a_number_of_test_rows_is_drawn_from_the_clients_own():
    rows = make()
    every, some = (from_rows(rows, replace(SPEC, test_rows=n), Seed(1)) for n in (0, 3))
    assert some.splits["test"].counts().tolist() == [
        min(3, n) for n in every.splits["test"].counts().tolist()
    ]
    for i in range(len(some.clients)):
        own, drawn = (f.splits["test"].rows(i).tolist() for f in (every, some))
        assert set(drawn) <= set(own)
        assert len(set(drawn)) == len(drawn)
    assert some.splits["test"].counts().max() == 3


FAULTS = [
    (
        replace(SPEC, clients=7),
        "clients",
        "6 of its 6 clients have 1 rows or more; give at most 6, 0 for all",
    ),
    (replace(SPEC, clients=5, min_rows=9), "clients", "4 of its 6 clients have 9 rows or more"),
    (replace(SPEC, min_rows=31), "min_rows", "the largest client has 30 rows"),
    (replace(SPEC, groups=5, shift="noise", min_rows=9), "groups", "no more groups than the 4 clients"),
]


@pytest.mark.parametrize(("spec", "field", "remedy"), FAULTS)
def test_too_many_or_too_large_clients_are_refused(spec, field, remedy):
    with pytest.raises(KinfolkError, match=remedy) as caught:
        from_rows(make(), spec, Seed(0))
    assert (caught.value.field, caught.value.value) == (f"data.{field}", getattr(spec, field))


def test_a_source_without_owners_is_refused():
    with pytest.raises(
        KinfolkError, match=r"data\.partition = 'natural': 'made' does not say whose row is whose"
    ):
        from_rows(replace(make(), client=None), SPEC, Seed(0))


def test_published_test_rows_are_the_test_pool():
    rows, spec = make(), replace(SPEC, partition="iid", clients=3, rows=5)
    pool = pool_of(rows, spec, Seed(0))
    assert pool.test.tolist() == np.flatnonzero(rows.test).tolist()
    assert pool.train.tolist() == np.flatnonzero(~rows.test).tolist()
    free = pool_of(replace(rows, test=None), spec, Seed(0))
    assert np.bincount(rows.y[free.test]).tolist() == [round(0.2 * n) for n in np.bincount(rows.y).tolist()]


def test_rows_of_one_recording_stay_on_one_side():
    rows = make(np.arange(80) // 3)
    for spec in (replace(SPEC, valid=0.3), replace(SPEC, partition="iid", clients=3, rows=30, valid=0.3)):
        f = from_rows(replace(rows, test=None), spec, Seed(1))
        for i in range(len(f.clients)):
            sides = [set((f.splits[s].rows(i) // 3).tolist()) for s in ("train", "valid", "test")]
            assert sides[0]
            assert not sides[0] & sides[1]
            assert not (sides[0] | sides[1]) & sides[2]


def test_blocks_are_held_out_whole():
    block = np.array([0, 0, 1, 1, 1, 2, 3, 3])
    kept, held = hold_out(np.arange(8), 0.5, np.random.default_rng(0), block)
    assert len(set(block[held])) == 2
    assert not set(block[kept]) & set(block[held])
    kept, held = stratified(np.array([0, 0, 1, 1, 1, 1, 0, 0]), 0.5, np.random.default_rng(0), block)
    assert sorted([*kept, *held]) == list(range(8))
    assert not set(block[kept]) & set(block[held])
    assert [p.tolist() for p in by_owner(np.array([2, 0, 2, 2]), 4)] == [[1], [], [0, 2, 3], []]


def test_floats_are_stored_as_they_are_trained_on():
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    x.flags.writeable = False
    rows = Rows(x, np.arange(6) % 2, 2, PLAIN)
    spec = replace(SPEC, partition="iid", clients=2, rows=2)
    f = from_rows(rows, spec, Seed(0))
    assert f.scale is None
    assert np.array_equal(f.x.numpy(), x)
    doubled = from_rows(replace(rows, scale=(2.0, 1.0)), spec, Seed(0))
    assert np.array_equal(doubled.x.numpy(), 2 * x + 1)
    assert doubled.scale is None


def test_what_the_loader_did_is_told():
    rows = replace(make(), left_out={"torn": 1200, "blank": 1}, filled={"a": 3, "b": 1})
    spec = replace(SPEC, partition="iid", clients=3, rows=5)
    assert row_notes(rows, spec, Seed(0)) == [
        "left out 1,200 rows: torn",
        "left out 1 row: blank",
        "filled in 4 missing values in 2 columns (a, b)",
    ]


def test_unusual_clients_and_idle_rows_are_told():
    rows = replace(make(), y=np.where(make().client == 0, 1, make().y))
    notes = federation_notes(from_rows(rows, SPEC, Seed(1)))
    assert notes == [
        "1 client has no test rows",
        "1 client has a single training row",
        "1 client has several training rows and a single class",
    ]
    spec = replace(SPEC, partition="quantity", clients=3, rows=5)
    f = from_rows(make(), spec, Seed(1))
    idle = 80 - len(set(torch.cat([s.row for s in f.splits.values()]).tolist()))
    assert f"{idle} rows of 80 in the pool are unassigned" in federation_notes(f)
