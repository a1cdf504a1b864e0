"""Schedules against torch.optim.lr_scheduler, and what is refused of a user's."""

from __future__ import annotations

import pytest
import torch
from torch.optim import lr_scheduler

from kinfolk.errors import KinfolkError
from kinfolk.learning.schedules import factor, find_schedule

OF = 13
FLAT = [
    ("cosine", {"end": 0.2}, lambda o: lr_scheduler.CosineAnnealingLR(o, OF, eta_min=0.2)),
    ("linear", {"end": 0.5}, lambda o: lr_scheduler.LinearLR(o, 1.0, 0.5, OF)),
    ("step", {"every": 4, "factor": 0.3}, lambda o: lr_scheduler.StepLR(o, 4, 0.3)),
]


def theirs(make) -> list[float]:
    one = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule, found = make(one), []
    for _ in range(OF):
        found.append(one.param_groups[0]["lr"])
        one.step()
        schedule.step()
    return found


@pytest.mark.parametrize(("name", "options", "make"), FLAT, ids=lambda v: v if isinstance(v, str) else "")
def test_as_torch_has_them(name, options, make):
    ours = find_schedule("local.schedule", name, options)
    assert [ours(at, OF) for at in range(OF)] == pytest.approx(theirs(make), rel=1e-9)
    warm = find_schedule("local.schedule", name, {**options, "warmup": 4})
    assert [warm(at, OF + 4) for at in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert [warm(at + 4, OF + 4) for at in range(OF)] == pytest.approx(theirs(make), rel=1e-9)
    assert warm(OF + 9, OF + 4) == warm(OF + 3, OF + 4), "beyond the end, the rate of the end"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("cosin", {}, r"local.schedule = 'cosin': did you mean 'cosine'\?.*import path"),
        ("cosine", {"ends": 1.0}, "local.schedule_options.ends = 1.0.*did you mean 'end'"),
        ("step", {"every": 0}, "local.schedule_options.every = 0: give 1 or more"),
        ("nowhere:mine", {}, "code of nowhere, which nobody has allowed"),
    ],
)
def test_what_is_wrong_is_named(name, options, words):
    with pytest.raises(KinfolkError, match=words):
        find_schedule("local.schedule", name, options)


def test_a_users_schedule_that_fails_is_named():
    with pytest.raises(KinfolkError, match=r"local.schedule: failed at 0 of 3: ZeroDivisionError"):
        factor("local.schedule", lambda at, of: 1 / at, 0, 3)
    with pytest.raises(KinfolkError, match="must be a number of 0 or more"):
        factor("local.schedule", lambda at, of: float("nan"), 0, 3)
