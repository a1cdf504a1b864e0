"""New rows for a network whose inputs are whole numbers, several tensors or padded sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.experiment import outline as outlines
from kinfolk.experiment.outline import Outline
from kinfolk.federation.own_data.loaded import Array
from kinfolk.federation.own_data.structure import Leaf, Sequences, padded, parsed
from kinfolk.types import LENGTHS, Rows


def structured_input(x: Any, outline: Outline) -> Rows:
    """Rows as the network of a run takes them; sequences are padded as they were for training.

    >>> tokens = Outline((), (), 2, 2, (), (), None, "", {"0": ((4,), "int64"), "0.lengths": ((), "int64")})
    >>> structured_input([[3, 1], [2]], tokens)
    {'0': tensor([[3, 1, 0, 0],
            [2, 0, 0, 0]]), '0.lengths': tensor([2, 1])}
    """
    names = [name for name in outline.inputs if not name.endswith(LENGTHS)]
    if isinstance(x, pd.DataFrame):
        x = x.to_numpy()
    given = parsed(x, "x")
    one = names[0] if len(names) == 1 else None
    if not isinstance(given, dict) and one in ("", "0"):
        given = {one: given}
    if not isinstance(given, dict) or set(given) != set(names):
        have = sorted(given) if isinstance(given, dict) else "one array"
        raise KinfolkError("x", have, f"give {', '.join(names) or 'one array'}, as the run had them")
    made: dict[str, Tensor] = {}
    for name in names:
        made |= _input(name, given, outline)
    counts = {name: len(t) for name, t in made.items()}
    if len(set(counts.values())) > 1:
        raise KinfolkError("x", counts, "give as many rows of each")
    return made.get("", made)


def _input(name: str, given: Mapping[str, Leaf], outline: Outline) -> dict[str, Tensor]:
    """One input, with its lengths if it was padded."""
    leaf, field = given[name], f"x.{name}".rstrip(".")
    shape, kind = outline.inputs[name]
    if name + LENGTHS in outline.inputs:
        rows, lengths = padded(_short(leaf, shape[0], field), shape[0], 0)
        return {name: _tensor(rows, (shape, kind), field), name + LENGTHS: torch.from_numpy(lengths)}
    if not isinstance(leaf, Sequences):
        return {name: _tensor(leaf, (shape, kind), field)}
    if "mask" in name and shape:
        return {name: _tensor(padded(_short(leaf, shape[0], field), shape[0], 0)[0], (shape, kind), field)}
    if len({row.shape for row in leaf.rows}) > 1:
        raise KinfolkError(field, "rows of differing length", f"give rows of shape {list(shape)}")
    return {name: _tensor(np.stack(leaf.rows), (shape, kind), field)}


def _short(leaf: Leaf, longest: int, field: str) -> Leaf:
    for place, row in enumerate(leaf.rows if isinstance(leaf, Sequences) else leaf):
        if len(row) > longest:
            remedy = f"the longest sequence of the run has {longest}; cut it"
            raise KinfolkError(field, f"row {place + 1} of length {len(row)}", remedy)
    return leaf


def _tensor(array: Array, leaf: outlines.Leaf, field: str) -> Tensor:
    """The array in the type that the network was trained on, if it is of that shape and kind."""
    shape, kind = leaf
    if array.dtype.kind not in "biuf" or tuple(array.shape[1:]) != shape:
        wanted = ", ".join(map(str, ("rows", *shape)))
        raise KinfolkError(field, f"{array.dtype} {list(array.shape)}", f"give numbers of shape [{wanted}]")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise KinfolkError(field, "NaN or infinity", "fill it or leave the row out")
        if kind != "float32" and not (array == np.rint(array)).all():
            raise KinfolkError(field, str(array.dtype), f"the run was trained on {kind}; give whole numbers")
    return torch.from_numpy(np.ascontiguousarray(array.astype(kind)))
