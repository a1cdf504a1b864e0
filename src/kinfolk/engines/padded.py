"""The row plans of a chunk of clients, padded to one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk import types
from kinfolk.engines.one import changes, step_keys
from kinfolk.federation.federation import Federation, Split
from kinfolk.learning.plan import batches, few, unlimited
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Augment, Fit, Plan, Scan
from kinfolk.types import Client, plain_rows

# (x, y, row, weight) of one step, every leaf [clients, batch, ...]; if it draws, then a key [clients].
Rows = tuple[types.Rows, types.Rows, Tensor, Tensor, *tuple[Tensor, ...]]


@dataclass(frozen=True)
class Padded:
    """The plans of a chunk of clients for one pass; the flags live on the host."""

    data: Federation
    pool: Tensor  # [steps, clients, batch] rows of the pool
    row: Tensor  # [steps, clients, batch] positions among the client's rows
    weight: Tensor  # [steps, clients, batch] 1 for real rows, 0 for padding
    active: Tensor  # [steps, clients] whether the client takes this step
    whole: list[bool]  # per step: no padding at all
    everyone: list[bool]  # per step: every client takes it
    steps: list[int]  # per client: how many steps it takes
    augment: Augment | None
    way: tuple[Tensor, ...]  # one of [steps, clients, batch]: how each row is changed; none if they are not
    key: tuple[Tensor, ...]  # one of [steps, clients]: what dropout goes by; none if no step draws

    def __len__(self) -> int:
        return len(self.whole)

    def tensors(self) -> tuple[Tensor, ...]:
        """(pool, row, weight, active), the keys if steps draw, and the ways if rows are changed."""
        return self.pool, self.row, self.weight, self.active, *self.key, *self.way

    def batch(self, step: int) -> Rows:
        """(x, y, row, weight) of one step, every leaf [clients, batch, ...], and the key if it draws."""
        way, key = ([t[step] for t in some] for some in (self.way, self.key))
        x, y = seen(self.data, self.augment, self.pool[step], *way)
        return x, y, self.row[step], self.weight[step], *key


def seen(
    data: Federation, augment: Augment | None, pool: Tensor, way: Tensor | None = None
) -> tuple[types.Rows, types.Rows]:
    """Rows of the pool (x, y) as a batch has them, changed if they are to be."""
    x, y = data.take(pool)
    return (x if augment is None or way is None else augment(plain_rows(x), way)), y


class _Count:
    """Stands for a generator that draws 0, 1, 2, ...: a plan of such draws shows where each one goes."""

    def __init__(self) -> None:
        self.drawn = 0

    def permutation(self, n: int) -> NDArray[np.int64]:
        """The next n numbers."""
        self.drawn += n
        return np.arange(self.drawn - n, self.drawn)


@lru_cache(maxsize=4096)
def _layout(plan: Plan, n: int) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
    """Of a client of n rows: which draw goes where, [steps, batch]; the sizes of its batches; its draws.

    Padding repeats a row of the same batch. Any other, say of a client whose rows overflow, might have a
    loss that is not finite, and 0 times that is not 0.
    """
    count = _Count()
    steps = batches(replace(plan, shuffle=True), n, cast(np.random.Generator, count))
    sizes = np.array([len(drawn) for drawn in steps], dtype=np.int32)
    places = np.zeros((len(steps), max(sizes, default=1)), dtype=np.int64)
    for t, drawn in enumerate(steps):
        places[t], places[t, : len(drawn)] = drawn[0], drawn
    return places, sizes, count.drawn


def padded(
    one: Fit | Scan,
    number: int,
    stream: str,
    data: Federation,
    who: Sequence[Client],
    context: RoundContext,
    device: torch.device,
) -> Padded:
    """The plans of these clients for pass number `number` of a task.

    Each is what `batches` gives for the client; they are laid out for many at once.
    """
    split = data.splits[one.plan.split]
    counts = [split.count(data.place(c)) for c in who]
    layouts = [_layout(unlimited(one.plan), one.plan.kept(n)) for n in counts]
    steps = max((len(places) for places, _, _ in layouts), default=0)
    width = max((places.shape[1] for places, _, _ in layouts if len(places)), default=1)
    row = np.zeros((steps, len(who), width), dtype=np.int32)
    size = np.zeros((steps, len(who)), dtype=np.int32)
    way = np.zeros((*row.shape,) if one.plan.augment else (0,), dtype=np.int32)
    key = np.zeros((*size.shape,) if one.plan.draws else (0,), dtype=np.int64)
    for i, (c, n, (places, sizes, drawn)) in enumerate(zip(who, counts, layouts, strict=True)):
        if not len(places):
            continue
        t, w = places.shape
        words = (stream, context.round, c, number)
        row[:t, i, :w], size[:t, i] = _visits(one.plan, n, places, drawn, context.seed, words), sizes
        if w < width:
            row[:t, i, w:] = row[:t, i, :1]
        changed = changes(one.plan, int(sizes.sum()), stream, number, c, context)
        if changed is not None:
            way[:t, i][np.arange(width) < sizes[:, None]] = changed
        keys = step_keys(one.plan, t, stream, number, c, context)
        if keys is not None:
            key[:t, i] = keys
    drawn_by = (torch.from_numpy(key).to(device),) if one.plan.draws else ()
    return _on_device(data, split, who, row, size, (one.plan.augment, way), drawn_by, device)


def _visits(
    plan: Plan, n: int, places: NDArray[np.int64], drawn: int, seed: Seed, words: tuple[str | int, ...]
) -> NDArray[np.int64]:
    """The rows of a client of n rows that a layout of its draws stands for, [steps, batch]."""
    if not plan.shuffle:
        return places % plan.kept(n)
    draw = seed.numpy(*words)
    kept = few(plan, n, draw)
    m = n if kept is None else len(kept)
    rows: NDArray[np.int64] = np.concatenate([draw.permutation(m) for _ in range(drawn // m)])[places]
    return rows if kept is None else kept[rows]


def _on_device(
    data: Federation,
    split: Split,
    who: Sequence[Client],
    row: NDArray[np.int32],
    size: NDArray[np.int32],
    changed: tuple[Augment | None, NDArray[np.int32]],
    key: tuple[Tensor, ...],
    device: torch.device,
) -> Padded:
    """Only rows and sizes travel; the rest is worked out where it is needed."""
    # A client without rows takes no step; where it points matters to nobody, but it must point somewhere.
    first = torch.tensor([split.first(data.place(c)) for c in who]).clamp(max=max(len(split.row) - 1, 0))
    there = torch.from_numpy(row).to(device).long()
    sizes = torch.from_numpy(size).to(device)
    place = first.to(device)[:, None] + there
    pool = split.row.to(device)[place] if len(split.row) else place
    weight = (torch.arange(row.shape[2], device=device) < sizes[:, :, None]).float()
    whole = [bool(full) for full in (size == row.shape[2]).all(axis=1)]
    everyone = [bool(fewest > 0) for fewest in size.min(axis=1, initial=1)]
    augment, way = changed
    drawn = (torch.from_numpy(way).to(device).long(),) if augment else ()
    steps = (size > 0).sum(axis=0).tolist()
    return Padded(data, pool, there, weight, sizes > 0, whole, everyone, steps, augment, drawn, key)
