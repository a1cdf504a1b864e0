"""Rows in, predictions out: rows are checked and scaled as in training, labels are named as the data do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kinfolk.errors import KinfolkError, near
from kinfolk.experiment.outline import Outline
from kinfolk.experiment.structured_input import structured_input
from kinfolk.federation.own_data.cells import column_kind
from kinfolk.federation.own_data.columns import Recipe
from kinfolk.federation.own_data.images import resized
from kinfolk.learning.losses import logits_last
from kinfolk.learning.network import run
from kinfolk.types import Rows, map_rows, row_count, row_leaves

BATCH = 256  # rows a call, as in scoring
BYTES = 255


def rows_for(x: Any, outline: Outline, client: str | None = None) -> Rows:
    """Rows as the network takes them, [rows, ...]; rows of another shape or kind are refused.

    They are given as they were before the run standardised its own; `client` says whose they are, if each
    has statistics of its own.

    >>> from kinfolk.types import Client
    >>> outline = Outline((Client("ann"),), (2,), 2, 2, (), ("age", "size"), None, "")
    >>> rows_for(pd.DataFrame({"size": [2.0], "age": [1.0]}), outline)
    tensor([[1., 2.]])
    >>> rows_for(np.zeros((4, 3)), outline)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: x = [4, 3]: give rows of shape [rows, 2]
    """
    if outline.inputs:
        return structured_input(x, outline)
    if outline.recipe and outline.recipe.resize and not isinstance(x, pd.DataFrame):
        x = resized([_array(row) for row in x], outline.recipe.resize, "x")
    values = _frame(x, outline) if isinstance(x, pd.DataFrame) else _array(x)
    if tuple(values.shape[1:]) != tuple(outline.shape) or values.ndim < 1:
        wanted = ", ".join(map(str, ("rows", *outline.shape)))
        one = "; put one row into a list: x[None]" if tuple(values.shape) == tuple(outline.shape) else ""
        raise KinfolkError("x", list(values.shape), f"give rows of shape [{wanted}]{one}")
    if outline.recipe is not None:
        values = outline.recipe.filled(values)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise KinfolkError("x", f"row {row + 1}", "holds NaN or infinity; fill it or leave the row out")
    rows = _scaled(values, outline)
    statistics = outline.scaling.of(client) if outline.scaling else None
    return rows if statistics is None else statistics.apply(rows)


def _scaled(values: NDArray[Any], outline: Outline) -> Tensor:
    """Bytes are scaled as they were for training; floats must be so already."""
    if outline.pixels is None:
        return torch.from_numpy(values.astype(np.float32))
    factor, offset = outline.pixels
    if values.dtype.kind in "iub":
        if values.size and not (values.min() >= 0 and values.max() <= BYTES):
            raise KinfolkError("x", int(values.max()), f"the run was trained on bytes; give 0 to {BYTES}")
        return torch.from_numpy(values.astype(np.uint8)).float() * factor + offset
    low, high = sorted((offset, BYTES * factor + offset))
    slack = 1e-3 * (high - low)
    if values.size and not (values.min() >= low - slack and values.max() <= high + slack):
        remedy = f"scaled rows lie from {low:g} to {high:g}; give bytes (uint8), which are scaled for you"
        raise KinfolkError("x", f"{values.min():g} to {values.max():g}", remedy)
    return torch.from_numpy(values.astype(np.float32))


def _array(x: Any) -> NDArray[Any]:
    try:
        values = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
    except (ValueError, TypeError) as error:
        raise KinfolkError("x", type(x).__name__, "give an array, a tensor or a data frame") from error
    if values.dtype.kind not in "biuf" or values.ndim < 1:
        raise KinfolkError("x", str(values.dtype), "give rows of numbers: an array, a tensor or a data frame")
    return values


def _frame(frame: pd.DataFrame, outline: Outline) -> NDArray[Any]:
    """The columns of the run, in its order; others are left alone."""
    named = frame.set_axis([str(name) for name in frame.columns], axis=1)
    recipe = outline.recipe or Recipe()
    wanted = recipe.names or outline.feature_names or tuple(named.columns)
    for name in wanted:
        if name not in named.columns:
            others = [other for other in named.columns if other not in wanted]
            hint = near(name, others) if others else f"there are {len(named.columns)} columns"
            raise KinfolkError("x", name, f"this column of the run is missing; {hint}")
    if len(set(named.columns)) < len(named.columns):
        raise KinfolkError("x", list(named.columns), "a column occurs twice; give every column its own name")
    if recipe.names:
        x = recipe.encode(named, "x", np.arange(1, len(named) + 1))
        _check_gaps(x, recipe)
        return x
    for name in wanted:
        if column_kind(named[name]) not in ("whole", "float", "bool"):
            raise KinfolkError(
                f"x.{name}", str(named[name].dtype), "give a column of numbers, nothing missing"
            )
        if named[name].isna().any() and recipe.fill is None:
            row = int(named[name].isna().to_numpy().argmax())
            raise KinfolkError(f"x.{name}", f"row {row + 1}", "is missing; fill it or leave the row out")
    values: NDArray[Any] = named[list(wanted)].to_numpy(dtype=np.float64, na_value=np.nan)
    if outline.feature_names or len(outline.shape) == 1:
        return values
    if values.shape[1] != int(np.prod(outline.shape)):
        size = int(np.prod(outline.shape))
        raise KinfolkError("x", values.shape[1], f"give {size} columns, the values of {list(outline.shape)}")
    shaped: NDArray[Any] = values.reshape(len(values), *outline.shape)
    whole = outline.pixels is not None and bool((shaped == np.rint(shaped)).all())
    return shaped.astype(np.int64) if whole else shaped


def _check_gaps(x: NDArray[Any], recipe: Recipe) -> None:
    if recipe.fill is None and np.isnan(x).any():
        row, column = np.argwhere(np.isnan(x))[0]
        name = recipe.features[column]
        raise KinfolkError(f"x.{name}", f"row {row + 1}", "is missing; fill it or leave the row out")


def unused(columns: Sequence[str], outline: Outline) -> list[str]:
    """Columns of a table that a prediction does not look at.

    >>> from kinfolk.types import Client
    >>> unused(["age", "y"], Outline((Client("ann"),), (1,), 2, 2, (), ("age",), None, ""))
    ['y']
    """
    used = (outline.recipe.names if outline.recipe else ()) or outline.feature_names
    return [name for name in columns if name not in used] if used else []


def outputs(network: nn.Module, rows: Rows, outline: Outline, output: str = "") -> Tensor:
    """What the network gives for rows, [rows, outputs]; per position [rows, positions..., classes]."""
    parts = []
    with torch.no_grad():
        for at in range(0, row_count(rows), BATCH):
            batch = map_rows(lambda t, at=at: t[at : at + BATCH], rows)  # type: ignore[misc]
            out = _answer(network, batch, output).float()
            if outline.kind == "positions":
                parts.append(logits_last(out, outline.class_axis))
            else:
                parts.append(out.reshape(row_count(batch), -1))
    return torch.cat(parts) if parts else torch.zeros(0, outline.outputs)


def _answer(network: nn.Module, rows: Rows, output: str) -> Tensor:
    try:
        return run(network, rows, output)
    except IndexError as error:  # PyTorch's word for an id that an embedding does not have
        ids = [t for t in row_leaves(rows) if not t.is_floating_point() and t.numel()]
        least, most = (
            int(f([int(g(t)) for t in ids] or [0])) for f, g in ((min, torch.min), (max, torch.max))
        )
        remedy = "an embedding of the network has no such id; give ids as the run had them"
        raise KinfolkError("x", least if least < 0 else most, remedy) from error


def said(out: Tensor, outline: Outline, proba: bool = False) -> NDArray[Any]:
    """Outputs as labels in the data's own words, or as probabilities [rows, classes].

    >>> from kinfolk.types import Client
    >>> outline = Outline((Client("ann"),), (2,), 2, 2, ("no", "yes"), (), None, "")
    >>> said(torch.tensor([[0.0, 3.0]]), outline), said(torch.zeros(1, 2), outline, proba=True)
    (array(['yes'], dtype='<U3'), array([[0.5, 0.5]]))
    """
    if outline.kind in ("numbers", "any"):
        if proba:
            raise KinfolkError("proba", True, "the run predicts numbers, which have no probabilities")
        if outline.scaling and outline.scaling.target:
            out = outline.scaling.target.undo(out)
        return np.asarray(out[:, 0] if outline.outputs == 1 and out.dim() == 2 else out)
    if outline.kind == "labels":  # each is there or not
        return np.asarray(out.double().sigmoid() if proba else (out > 0).long())
    if outline.kind == "binary":
        out = torch.cat([torch.zeros_like(out), out], 1)
    if proba:
        return np.asarray(out.double().softmax(-1))
    place: NDArray[np.int64] = np.asarray(out.argmax(-1))
    names = outline.class_names
    if not names or names == tuple(map(str, range(len(names)))):
        return place
    if names == ("False", "True"):
        return place.astype(bool)
    # A network may have more classes for a position than the data.
    return np.array([*names, *map(str, range(len(names), out.shape[-1]))])[place]
