"""Row plans: which rows each step sees, drawn before the loop so that nothing inside it is random."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kinfolk.task import Plan

Rows = npt.NDArray[np.int64]


def batches(plan: Plan, n: int, draw: np.random.Generator) -> list[Rows]:
    """The batches of a plan over `n` rows: positions 0..n-1, the last incomplete batch kept or dropped.

    >>> [b.tolist() for b in batches(Plan(batch=2, shuffle=False), 5, np.random.default_rng(0))]
    [[0, 1], [2, 3], [4]]
    >>> len(batches(Plan(batch=2, steps=7), 5, np.random.default_rng(0)))
    7
    """
    kept = few(plan, n, draw)
    if kept is not None:
        return [kept[drawn] for drawn in batches(unlimited(plan), len(kept), draw)]
    out: list[Rows] = []
    size = min(plan.batch, max(n, 1))
    usable = n > 0 and not (plan.drop_single and n == 1)
    epoch = 0
    while usable and (len(out) < plan.steps if plan.steps else epoch < plan.epochs):
        out.extend(_epoch(plan, n, size, draw))
        epoch += 1
    return out[: plan.steps] if plan.steps else out


def _epoch(plan: Plan, n: int, size: int, draw: np.random.Generator) -> list[Rows]:
    """One pass over all rows, without a last batch that is to be dropped."""
    order = draw.permutation(n) if plan.shuffle else np.arange(n)
    cuts = [order[i : i + size] for i in range(0, n, size)]
    last = len(cuts[-1])
    if (plan.drop_last and last < size) or (plan.drop_single and size > 1 and last == 1):
        cuts.pop()
    return cuts


def few(plan: Plan, n: int, draw: np.random.Generator) -> Rows | None:
    """The rows that a plan with a limit keeps out of `n`, the first ones if it does not shuffle; else None.

    >>> few(Plan(batch=2, rows=3, shuffle=False), 5, np.random.default_rng(0))
    array([0, 1, 2])
    """
    some = plan.kept(n)
    if some == n:
        return None
    return (draw.permutation(n) if plan.shuffle else np.arange(n))[:some]


def unlimited(plan: Plan) -> Plan:
    """A plan over all of the rows that there are: of those that a limit has kept.

    >>> unlimited(Plan(batch=2, rows=3)) == unlimited(Plan(batch=2, share=0.5)) == Plan(batch=2)
    True
    """
    return replace(plan, rows=0, share=1.0) if plan.rows or plan.share < 1 else plan


def step_count(plan: Plan, n: int) -> int:
    """How many steps `batches` gives, without drawing.

    >>> step_count(Plan(batch=2, epochs=3), 5)
    9
    """
    plan, n = unlimited(plan), plan.kept(n)
    if n == 0 or (plan.drop_single and n == 1):
        return 0
    if plan.steps:
        return plan.steps
    size = min(plan.batch, n)
    last = n % size
    dropped = (plan.drop_last and last > 0) or (plan.drop_single and size > 1 and last == 1)
    return (-(-n // size) - dropped) * plan.epochs


def row_visits(plan: Plan, n: int) -> int:
    """How many rows the batches of `batches` have together, without drawing.

    >>> row_visits(Plan(batch=2, epochs=3), 5), row_visits(Plan(batch=2, steps=4), 5)
    (15, 7)
    """
    plan, n = unlimited(plan), plan.kept(n)
    steps = step_count(plan, n)
    if not steps:
        return 0
    size = min(plan.batch, n)
    epoch = step_count(replace(plan, epochs=1, steps=0), n)
    whole, more = divmod(steps, epoch)
    return whole * min(epoch * size, n) + more * size
