"""Labels that a loss leaves out, by its option `ignore_index`: no score counts them either.

When a run begins, positions with such a label get the label -100, PyTorch's own, which losses, scores and a
user's metrics all know; rows whose one label it is are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation, Split
from kinfolk.learning.losses import ignored_label
from kinfolk.types import IGNORED


def left_out(federation: Federation, options: Mapping[str, Any]) -> tuple[Federation, str]:
    """The federation without labels that `options` of a loss name, and what there is to say of that.

    A mark above all classes, as 255, is no class; one among them stays one that nothing is asked of.

    >>> from kinfolk.federation.own_data.arrays import from_arrays
    >>> rows = from_arrays({"ann": (torch.zeros(2, 3, 1), torch.tensor([[0, 1, 255], [1, 255, 255]]))})
    >>> without, _ = left_out(rows, {"ignore_index": 255})
    >>> rows.classes, without.classes, without.y.tolist()
    (256, 2, [[0, 1, -100], [1, -100, -100]])
    """
    y, mark = federation.y, ignored_label(options)
    if not federation.classes or isinstance(y, dict) or federation.maker is not None:
        return federation, ""
    _check_negative(federation, y, mark)
    here = y == mark
    if mark == IGNORED or not here.any() or here.all():
        return federation, ""
    known = y[~here & (y >= 0)]
    if mark == federation.classes - 1 and len(known):
        classes = int(known.max()) + 1
        federation = replace(federation, classes=classes, class_names=federation.class_names[:classes])
    if y.dim() > 1:
        return replace(federation, y=torch.where(here, IGNORED, y)), ""
    splits = {name: _without(split, here) for name, split in federation.splits.items()}
    for who, count in zip(federation.clients, splits["train"].counts().tolist(), strict=True):
        if not count:
            remedy = "all its training rows have this label, which the loss leaves out; give it others"
            raise KinfolkError(f"data.{who}.y", mark, remedy)
    before, after = (
        sum(int(s.counts().sum()) for s in held.values()) for held in (federation.splits, splits)
    )
    said = f"{before - after} rows with the label {mark}, which the loss leaves out, are left out"
    return replace(federation, splits=splits), said


def _check_negative(federation: Federation, y: Tensor, mark: int) -> None:
    """Negative labels are no classes: they are left out, or a mistake."""
    wrong = (y < 0) & (y != IGNORED) & (y != mark)
    if not wrong.any():
        return
    for i, who in enumerate(federation.clients):
        for split in federation.splits.values():
            rows = split.rows(i)
            bad = y[rows][wrong[rows]]
            if len(bad):
                remedy = f"is no class; set local.loss_options.ignore_index = {int(bad[0])} to leave it out"
                raise KinfolkError(f"data.{who}.y", int(bad[0]), f"{remedy}, or write {IGNORED}")


def _without(split: Split, here: Tensor) -> Split:
    """The split without some rows of the pool."""
    keep = ~here[split.row]
    before = torch.cat([keep.new_zeros(1, dtype=torch.int64), keep.cumsum(0)])
    return Split(before[split.start], split.row[keep], split.of)
