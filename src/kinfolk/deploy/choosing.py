"""At a newcomer's site: which of a run's models fits its rows best, found there and by the method's own rule.

`kinfolk assign` asks the same of rows that are at hand (`kinfolk.experiment.assign`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from kinfolk.algorithms.blocks.near_centre import squared_distances
from kinfolk.engines import one
from kinfolk.experiment.asking import middle
from kinfolk.experiment.assign import tasks
from kinfolk.streams import RoundContext
from kinfolk.task import Task
from kinfolk.types import Message, Tree, tensor_of

if TYPE_CHECKING:
    from kinfolk.deploy.site import Begun


def chosen(begun: Begun, centres: Tree, context: RoundContext) -> int:
    """The place of the model, of K (every leaf [K, ...]), that the method would assign this client to."""
    return int(_misfit(begun, centres, context).nan_to_num(torch.inf).argmin())


def _misfit(begun: Begun, centres: Tree, context: RoundContext) -> Tensor:
    """[K]: losses on the training rows, or squared distances to what one local pass makes of their mean."""
    parts, known = begun.parts, cast(Mapping[str, Task], tasks(begun.parts))

    def asked(task: str, model: Tree) -> Message:
        return one.perform(known[task], {"model": model}, {}, begun.rows, begun.who, context)[0]

    if getattr(parts.algorithm, "assign_by", "loss") == "distance":
        names = getattr(parts.algorithm, "names", parts.learner.names)
        model: Tree = asked("train", middle(centres))["model"]
        apart = squared_distances({name: t[None] for name, t in model.items()}, centres, names)[0]
        if apart.isfinite().all():
            return apart
    each = ({name: t[k] for name, t in centres.items()} for k in range(len(next(iter(centres.values())))))
    return torch.stack([tensor_of(asked("loss", model), "loss") for model in each])
