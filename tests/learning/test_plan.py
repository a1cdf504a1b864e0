"""Row plans: every row once an epoch, as many steps as promised, drawn from the client's own stream."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.contract import toy
from kinfolk.engines.one import client_batches
from kinfolk.engines.padded import padded
from kinfolk.learning.plan import batches, step_count
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan, Scan

PLANS = st.builds(
    Plan,
    batch=st.integers(1, 12),
    epochs=st.integers(0, 4),
    steps=st.integers(0, 25),
    shuffle=st.booleans(),
    drop_single=st.booleans(),
    drop_last=st.booleans(),
    rows=st.sampled_from([0, 0, 1, 2, 9]),
    share=st.sampled_from([1.0, 1.0, 0.1, 0.5, 0.8]),
)


def drawn(plan: Plan, n: int, seed: int = 0) -> list[list[int]]:
    return [b.tolist() for b in batches(plan, n, Seed(seed).numpy("plan"))]


@settings(deadline=None, max_examples=300)
@given(PLANS, st.integers(0, 40))
def test_step_count_is_the_number_of_batches(plan, n):
    assert step_count(plan, n) == len(drawn(plan, n))


@settings(deadline=None, max_examples=300)
@given(PLANS, st.integers(0, 40), st.integers(0, 5))
def test_every_row_once_an_epoch_and_no_batch_too_large(plan, n, seed):
    plan = replace(plan, steps=0, rows=0, share=1.0)
    found = drawn(plan, n, seed)
    assert all(1 <= len(b) <= plan.batch for b in found)
    per_epoch = len(found) // plan.epochs if plan.epochs else 0
    for e in range(plan.epochs):
        epoch = found[e * per_epoch : (e + 1) * per_epoch]
        rows = [r for b in epoch for r in b]
        assert len(set(rows)) == len(rows)
        # What is missing is the one row that BatchNorm could not use, or what fills no batch.
        left = n % min(plan.batch, n or 1)
        alone = plan.drop_single and (n == 1 or (plan.batch > 1 and left == 1))
        assert len(rows) == n - (left if plan.drop_last and left else alone)
        assert not plan.drop_last or all(len(b) == min(plan.batch, n) for b in epoch)
        assert set(rows) <= set(range(n))
        assert all(len(b) == min(plan.batch, n) for b in epoch[:-1])
        if not plan.shuffle:
            assert rows == sorted(rows)
    if plan.drop_single and plan.batch > 1:
        assert all(len(b) > 1 for b in found)


@settings(deadline=None)
@given(PLANS, st.integers(2, 40))
def test_steps_go_round_the_rows_as_epochs_would(plan, n):
    plan = replace(plan, steps=max(1, plan.steps), rows=max(plan.rows, 2) if plan.rows else 0, share=1.0)
    found = drawn(plan, n)
    assert len(found) == plan.steps
    many = drawn(replace(plan, steps=0, epochs=plan.steps), n)
    assert found == many[: plan.steps], "the same stream, cut after the last step"


@pytest.mark.parametrize(
    ("plan", "n", "expected"),
    [
        (Plan(4, shuffle=False), 1, [[0]]),
        (Plan(4, shuffle=False, drop_single=True), 1, []),
        (Plan(4, steps=3, drop_single=True), 1, []),
        (Plan(4, steps=3, shuffle=False), 1, [[0]] * 3),
        (Plan(4, shuffle=False), 3, [[0, 1, 2]]),
        (Plan(2, shuffle=False, drop_single=True), 5, [[0, 1], [2, 3]]),
        (Plan(1, shuffle=False, drop_single=True), 3, [[0], [1], [2]]),
        (Plan(2, shuffle=False, drop_last=True), 5, [[0, 1], [2, 3]]),
        (Plan(3, steps=3, shuffle=False, drop_last=True), 5, [[0, 1, 2]] * 3),
        (Plan(4, shuffle=False, drop_last=True), 3, [[0, 1, 2]]),
        (Plan(4, shuffle=False, drop_last=True), 8, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (Plan(4, steps=3), 0, []),
        (Plan(4, epochs=0), 9, []),
    ],
)
def test_known_plans(plan, n, expected):
    assert drawn(plan, n) == expected
    assert step_count(plan, n) == len(expected)


def test_a_shuffle_is_a_new_one_every_epoch_and_follows_the_stream():
    first, second = (b.tolist() for b in batches(Plan(30, epochs=2), 30, Seed(1).numpy("x")))
    assert first != second
    assert sorted(first) == sorted(second) == list(range(30))
    again = [b.tolist() for b in batches(Plan(30, epochs=2), 30, Seed(1).numpy("x"))]
    assert again == [first, second]
    # Against NumPy's own permutation of the same stream.
    stream = Seed(1).numpy("x")
    assert first == stream.permutation(30).tolist()
    assert second == stream.permutation(30).tolist()


def test_rows_are_int64():
    for plan in (Plan(3), Plan(3, shuffle=False)):
        assert {b.dtype for b in batches(plan, 7, Seed(0).numpy("x"))} == {np.dtype(np.int64)}


def test_the_first_row_of_a_shuffle_is_any_row_alike():
    firsts = [drawn(Plan(5), 5, seed)[0][0] for seed in range(500)]
    counts = np.bincount(firsts, minlength=5)
    assert counts.min() > 60


@settings(deadline=None)
@given(PLANS, st.integers(0, 40), st.integers(0, 5))
def test_a_limit_keeps_a_few_rows_for_the_whole_pass_and_treats_them_as_all(plan, n, seed):
    found = drawn(plan, n, seed)
    seen = {r for b in found for r in b}
    most = n if plan.share == 1 else min(n, max(1, int(n * plan.share)))
    most = min(most, plan.rows) if plan.rows else most
    assert len(seen) <= most
    assert seen <= set(range(n))
    assert [len(b) for b in found] == [len(b) for b in drawn(replace(plan, rows=0, share=1.0), most, seed)]
    if not plan.shuffle:
        assert seen <= set(range(most))


def test_the_few_rows_are_any_and_others_each_time():
    plan = Plan(4, epochs=3, rows=10)
    counts = np.zeros(40)
    for seed in range(400):
        rows = [r for b in drawn(plan, 40, seed) for r in b]
        assert sorted(rows) == sorted(sorted(set(rows)) * 3)
        counts[sorted(set(rows))] += 1
    assert counts.sum() == 4000
    assert abs(counts - 100).max() < 4.5 * np.sqrt(100 * 0.75)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("rows", "share"), [(0, 1.0), (3, 1.0), (12, 1.0), (0, 0.5), (9, 0.7)])
def test_the_plans_of_many_are_those_of_each(shuffle, rows, share):
    """Laid out for a chunk of clients of 1 to 30 rows, step by step."""
    federation = toy.ragged()
    plan = Plan(5, epochs=2, shuffle=shuffle, drop_single=True, rows=rows, share=share)
    one = Scan(lambda carry, batch: carry, plan)
    context = RoundContext(Seed(2), 7, federation.clients)
    many = padded(one, 1, "gan", federation, federation.clients, context, torch.device("cpu"))
    for i, who in enumerate(federation.clients):
        alone = [b.row.tolist() for b in client_batches(one, 1, "gan", federation, who, context)]
        here = [many.row[t, i][many.weight[t, i] > 0].tolist() for t in range(len(many)) if many.active[t, i]]
        assert here == alone
