"""Row plans: every row once an epoch, as many steps as promised, drawn from the client's own stream."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.learning.plan import batches, step_count
from kinfolk.streams import Seed
from kinfolk.task import Plan

PLANS = st.builds(
    Plan,
    batch=st.integers(1, 12),
    epochs=st.integers(0, 4),
    steps=st.integers(0, 25),
    shuffle=st.booleans(),
    drop_single=st.booleans(),
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
    plan = replace(plan, steps=0)
    found = drawn(plan, n, seed)
    assert all(1 <= len(b) <= plan.batch for b in found)
    per_epoch = len(found) // plan.epochs if plan.epochs else 0
    for e in range(plan.epochs):
        epoch = found[e * per_epoch : (e + 1) * per_epoch]
        rows = [r for b in epoch for r in b]
        assert len(set(rows)) == len(rows)
        # What is missing is at most the one row that BatchNorm could not use.
        alone = plan.drop_single and (n == 1 or (plan.batch > 1 and n % min(plan.batch, n or 1) == 1))
        assert len(rows) == n - alone
        assert set(rows) <= set(range(n))
        assert all(len(b) == min(plan.batch, n) for b in epoch[:-1])
        if not plan.shuffle:
            assert rows == sorted(rows)
    if plan.drop_single and plan.batch > 1:
        assert all(len(b) > 1 for b in found)


@settings(deadline=None)
@given(PLANS, st.integers(2, 40))
def test_steps_go_round_the_rows_as_epochs_would(plan, n):
    plan = replace(plan, steps=max(1, plan.steps))
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
