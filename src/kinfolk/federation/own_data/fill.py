"""Missing values filled by one number per column, which only training rows decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Split
from kinfolk.federation.own_data.cells import Floats
from kinfolk.federation.own_data.columns import FillRule, Recipe

if TYPE_CHECKING:
    from kinfolk.federation.own_data.loaded import Arrays


def fill_in(
    parts: Sequence[Arrays], train: Split, rule: FillRule, names: Sequence[str], recipe: Recipe | None
) -> tuple[list[Arrays], Recipe]:
    """Rows without gaps by client, and the recipe with the values that fill them, which training rows decide.

    For "mean" clients tell the sum and the count of each column, for "median" the median of each of theirs.

    >>> from kinfolk.federation.federation import pack
    >>> import torch
    >>> x = np.array([[1.0], [3.0], [np.nan], [100.0]])
    >>> fill_in([x], pack([torch.tensor([0, 1, 2])]), "mean", ["age"], None)[0][0].tolist()
    [[1.0], [3.0], [2.0], [100.0]]
    """
    tables = [x for x in parts if not isinstance(x, dict) and x.ndim == 2 and x.dtype.kind in "fiu"]
    if len(tables) < len(parts):
        raise KinfolkError("fill", rule, "only columns of numbers have values to fill; leave it out")
    recipe = recipe or Recipe()
    if not isinstance(rule, str):
        values = np.broadcast_to(np.asarray(rule, dtype=np.float64), tables[0].shape[1:]).copy()
    else:
        pool = np.concatenate(tables).astype(np.float64)
        own = [pool[train.rows(i).numpy()] for i in range(len(train.of))]
        values = _means(own) if rule == "mean" else _medians(own)
    values[list(recipe.indicators)] = 0.0
    if np.isnan(values).any():
        place = int(np.isnan(values).argmax())
        column = names[place] if names else f"x[{place}]"
        remedy = f"column {column!r} has no value in any training row; give a number, or use --columns"
        raise KinfolkError("fill", rule, remedy)
    recipe = replace(recipe, fill=tuple(values.tolist()))
    return [recipe.filled(x) for x in tables], recipe


def _means(own: Sequence[Floats]) -> Floats:
    count = np.sum([(~np.isnan(x)).sum(0) for x in own], axis=0)
    total = np.sum([np.nansum(x, axis=0) for x in own], axis=0)
    means: Floats = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
    return means


def _medians(own: Sequence[Floats]) -> Floats:
    """The medians of clients' medians; clients without a value are left out."""
    table = np.array([[_middle(column) for column in x.T] for x in own])
    return np.array([_middle(column) for column in table.T])


def _middle(values: Floats) -> float:
    there = values[~np.isnan(values)]
    return float(np.median(there)) if len(there) else float("nan")
