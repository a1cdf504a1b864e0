"""Rows and a network, tried together before anything trains: token ids, and whole numbers that are features.

Whole numbers stay whole. A network that does not take them but takes the same rows as floats gets floats, as
one of linear layers does; an embedding gets its ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.by_path import one_line
from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation
from kinfolk.learning.network import run
from kinfolk.types import LENGTHS, Rows, named_leaves

# An embedding, how many ids it has, and what it was asked for.
Wrong = tuple[str, int, Tensor]
# Whole numbers up to this are exact in float32.
EXACT = 1 << 24
# Inputs of whole numbers of which every choice is tried as floats.
_MOST_TRIED = 5
# A row with more ids than this is a sequence, whose positions share an embedding; others may have several.
_SEQUENCE = 32


def fit_rows(module: nn.Module, federation: Federation, output: str = "") -> tuple[Federation, str]:
    """The federation as a network takes it, and what there is to say of that.

    >>> from kinfolk.federation.own_data.arrays import from_arrays
    >>> rows = from_arrays({"ann": (torch.tensor([[1, 2], [3, 9]]), [0, 1])})
    >>> fit_rows(nn.Linear(2, 2), rows)[0].x.dtype, fit_rows(nn.Embedding(10, 2), rows)[0].x.dtype
    (torch.float32, torch.int64)
    >>> fit_rows(nn.Embedding(9, 2), rows)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: data.ann.x = 9: the embedding of the network has ids 0 to 8; ...
    """
    whole = whole_inputs(federation)
    if not whole or federation.maker is not None or not federation.rows:
        return federation, ""
    row = federation.take(torch.zeros(1, dtype=torch.int64))[0]
    with _scoring(module):
        for count in range(min(len(whole), _MOST_TRIED) + 1):
            for names in combinations(whole, count):
                if _takes(module, floating(row, names), output):
                    fitted = as_floats(federation, names) if names else federation
                    check_ids(module, fitted, [name for name in whole if name not in names], output)
                    return fitted, _said(federation, names) if names else ""
    return federation, ""


def whole_inputs(federation: Federation) -> list[str]:
    """The inputs that reach a network as whole numbers or truth values.

    >>> from kinfolk.federation.own_data.arrays import from_arrays
    >>> whole_inputs(from_arrays({"ann": ({"age": [[1], [2]], "size": [[0.5], [1.5]]}, [0, 1])}))
    ['x.age']
    """
    if federation.scale is not None:
        return []
    inputs = named_leaves("x", federation.x)
    return [n for n, t in inputs.items() if not t.is_floating_point() and not n.endswith(LENGTHS)]


def _said(federation: Federation, names: tuple[str, ...]) -> str:
    """That whole numbers have become floats, and whether that has cost digits."""
    inputs = named_leaves("x", federation.x)
    said = f"{' and '.join(names)}: whole numbers that the network takes as floats only, given as float32"
    rounded = [n for n in names if inputs[n].dtype == torch.int64 and bool((inputs[n].abs() > EXACT).any())]
    return said + (f"; those beyond {EXACT} are rounded in {', '.join(rounded)}" if rounded else "")


def as_floats(federation: Federation, names: tuple[str, ...]) -> Federation:
    """The federation with some of its inputs as float32; bytes stay bytes where they are all there is."""
    if isinstance(federation.x, Tensor) and federation.x.dtype == torch.uint8:
        return replace(federation, scale=(1.0, 0.0))
    return replace(federation, x=floating(federation.x, names))


def floating(rows: Rows, names: tuple[str, ...]) -> Rows:
    """Rows with some of their tensors as float32.

    >>> floating({"age": torch.tensor([1]), "word": torch.tensor([2])}, ("x.age",))
    {'age': tensor([1.]), 'word': tensor([2])}
    """
    if isinstance(rows, Tensor):
        return rows.float() if names else rows
    return {n: t.float() if f"x.{n}" in names else t for n, t in rows.items()}


@contextmanager
def _scoring(module: nn.Module) -> Iterator[None]:
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train()


def _takes(module: nn.Module, rows: Rows, output: str) -> bool:
    """Whether a network runs on some rows; an id beyond its embedding is another matter."""
    wrong, error = _tried(module, rows, output)
    return bool(wrong) or error is None


def _tried(module: nn.Module, rows: Rows, output: str) -> tuple[list[Wrong], Exception | None]:
    """What embeddings were asked for in vain, and what the network raised."""
    with _watched(module) as wrong:
        try:
            run(module, rows, output)
        except Exception as error:  # whatever a user's network says of rows that it does not take
            return wrong, error
    return wrong, None


@contextmanager
def _watched(module: nn.Module) -> Iterator[list[Wrong]]:
    """Within: embeddings note what they are asked for and do not have, as (layer, ids, what was asked)."""
    wrong: list[Wrong] = []

    def note(name: str, ids: int) -> Any:
        def look(_: nn.Module, given: tuple[Any, ...]) -> None:
            asked = given[0] if given else None
            if (
                isinstance(asked, Tensor)
                and asked.numel()
                and not 0 <= int(asked.min()) <= int(asked.max()) < ids
            ):
                wrong.append((name, ids, asked))

        return look

    kinds = nn.Embedding | nn.EmbeddingBag
    layers = [(name, m) for name, m in module.named_modules() if isinstance(m, kinds)]
    hooks = [m.register_forward_pre_hook(note(name, m.num_embeddings)) for name, m in layers]
    try:
        yield wrong
    finally:
        for hook in hooks:
            hook.remove()


def check_ids(module: nn.Module, federation: Federation, whole: list[str], output: str) -> None:
    """Refuse ids that an embedding of the network does not have, naming the client and the id.

    Only rows with the largest and the smallest numbers are run.
    """
    inputs = named_leaves("x", federation.x)
    used = torch.unique(torch.cat([split.row for split in federation.splits.values()]))
    for name in whole:
        rows = _extremes(inputs[name], used)
        if not len(rows) or _tried(module, federation.take(rows)[0], output) == ([], None):
            continue
        for row in rows:
            wrong, error = _tried(module, federation.take(row[None])[0], output)
            field = f"data.{_owner(federation, int(row))}.{name}"
            if wrong:
                layer, ids, asked = wrong[0]
                bad = asked[(asked < 0) | (asked >= ids)].flatten()[0]
                called = f"embedding {layer!r}" if layer else "embedding"
                remedy = (
                    f"the {called} of the network has ids 0 to {ids - 1}; make it larger or correct the id"
                )
                raise KinfolkError(field, int(bad), remedy)
            if error is not None:
                reason = f"the network does not take this row ({one_line(error)})"
                raise KinfolkError(field, int(inputs[name][row].max()), f"{reason}; correct its numbers")


def _extremes(leaf: Tensor, used: Tensor) -> Tensor:
    """Rows in which a number is largest or smallest: of all numbers, or of each place of a short row."""
    if leaf.dtype == torch.bool:
        return used[:0]
    table = leaf[used].reshape(len(used), -1)
    if table.shape[1] > _SEQUENCE:
        places = torch.stack([table.amax(1).argmax(), table.amin(1).argmin()])
    else:
        places = torch.cat([table.argmax(0), table.argmin(0)])
    return used[torch.unique(places)]


def _owner(federation: Federation, row: int) -> str:
    """The first client that has a row."""
    for i, who in enumerate(federation.clients):
        if any(bool((split.rows(i) == row).any()) for split in federation.splits.values()):
            return who
    return "x"
