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

from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation
from kinfolk.learning.network import run
from kinfolk.types import LENGTHS, named_leaves

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
    with _scoring(module):
        if _takes(module, federation, torch.zeros(1, dtype=torch.int64), output):
            check_ids(module, federation, whole, output)
            return federation, ""
        for count in range(1, min(len(whole), _MOST_TRIED) + 1):
            for names in combinations(whole, count):
                floats = as_floats(federation, names)
                if _takes(module, floats, torch.zeros(1, dtype=torch.int64), output):
                    rest = [name for name in whole if name not in names]
                    check_ids(module, floats, rest, output)
                    return floats, _said(federation, names)
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
    x = federation.x
    if isinstance(x, Tensor):
        bytes_ = x.dtype == torch.uint8
        return replace(federation, scale=(1.0, 0.0)) if bytes_ else replace(federation, x=x.float())
    return replace(federation, x={n: t.float() if f"x.{n}" in names else t for n, t in x.items()})


@contextmanager
def _scoring(module: nn.Module) -> Iterator[None]:
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train()


def _takes(module: nn.Module, federation: Federation, rows: Tensor, output: str) -> bool:
    """Whether a network runs on some rows; an id beyond its embedding is another matter."""
    try:
        with _watched(module) as wrong:
            run(module, federation.take(rows)[0], output)
    except Exception:  # whatever a user's network says of rows that it does not take
        return bool(wrong)
    return True


@contextmanager
def _watched(module: nn.Module) -> Iterator[list[tuple[str, int, Tensor]]]:
    """Within: embeddings note what they are asked for and do not have, as (layer, ids, what was asked)."""
    wrong: list[tuple[str, int, Tensor]] = []

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
        for row in _extremes(inputs[name], used):
            with _watched(module) as wrong:
                try:
                    run(module, federation.take(row[None])[0], output)
                except Exception:
                    if not wrong:
                        raise
            if wrong:
                layer, ids, asked = wrong[0]
                bad = asked[(asked < 0) | (asked >= ids)].flatten()[0]
                who = f"data.{_owner(federation, int(row))}.{name}"
                called = f"embedding {layer!r}" if layer else "embedding"
                remedy = (
                    f"the {called} of the network has ids 0 to {ids - 1}; make it larger or correct the id"
                )
                raise KinfolkError(who, int(bad), remedy)


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
