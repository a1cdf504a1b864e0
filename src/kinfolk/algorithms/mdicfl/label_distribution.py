"""Label distributions p_i: told by clients once where privacy is weak, used by clients where it is strong."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from kinfolk.algorithms.blocks.label_counts import label_scan, no_labels
from kinfolk.algorithms.mdicfl.state import State
from kinfolk.script import Request, ask
from kinfolk.task import Carry, FloatSpec, Info, Task
from kinfolk.types import Client

# How far from 1 the sum of a label distribution may be.
SLACK = 1e-3


def distribution_task(classes: int, batch: int) -> Task:
    """A task: the label distribution p_i of the client's training rows."""
    finish = lambda carry: ({"labels": distribution(carry)}, None)  # noqa: E731
    return Task(no_labels(classes), finish, (label_scan(batch),), {"labels": FloatSpec((classes,), 0, 1)})


def distribution(carry: Carry) -> Tensor:
    """Counts over the number of rows."""
    shares: Tensor = carry["counts"] / carry["rows"].clamp(min=1)
    return shares


def hear_labels(state: State, cohort: Sequence[Client]) -> Generator[Request, Any, tuple[State, Info]]:
    """The state with the label distributions of all who tell a usable one; and who did not."""
    new = [c for c, known in zip(cohort, state.has_labels(cohort), strict=True) if not known]
    if not new:
        return state, {"bad_labels": []}
    got = yield from ask("labels", new)
    told = got.tensor("labels").cpu().float()
    good = (told.double().sum(1) - 1).abs() <= SLACK
    usable = [c for c, fine in zip(got.clients, good.tolist(), strict=True) if fine]
    held = state.labels.cpu().index_copy(0, state.places(usable), told[good])
    return replace(state, labels=held), {"bad_labels": sorted(set(got.clients) - set(usable))}
