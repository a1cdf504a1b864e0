"""A start from what clients train alone: one model for everyone, some epochs, then k-means on the results.

Who has more rows takes more steps and gets farther from the start, so that among clients of unlike size
k-means on models finds sizes. There it is shown w_i - w at unit length: which way a client went, not how far.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.algorithms.blocks.near_centre import squared_distances
from kinfolk.clustering.distances import flat
from kinfolk.clustering.kmeans import kmeans, nearest
from kinfolk.clustering.outliers import outlying
from kinfolk.clustering.sketch import Sketch, width_for
from kinfolk.learning.learner import Learner
from kinfolk.script import Request, ask, fold
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Fit, Task
from kinfolk.types import Client, Stack, Tree

# Bytes of client models that are held for an exact k-means; beyond, distances are taken on sketches.
EXACT = 1 << 30
# Clients whose models k-means sees; of more, a sample decides and the others join the nearest centre.
MOST = 4096


def warm_task(learner: Learner, epochs: int) -> Task:
    """A task: train the received model for so many epochs, in an order of rows of its own."""
    plan = replace(learner.plan, epochs=epochs, steps=0)
    return replace(learner.train(), passes=(Fit((learner.descent(),), plan),), stream="warm", extra=1)


def without_head(learner: Learner) -> tuple[str, ...]:
    """The parameters before the last layer, in which clients differ by their labels; all if there are none.

    >>> from torch import nn
    >>> from kinfolk.learning.losses import find_loss
    >>> net = nn.ModuleDict({"body": nn.Linear(2, 3), "head": nn.Linear(3, 2)})
    >>> without_head(Learner(net, find_loss("cross_entropy"), 2))
    ('body.weight', 'body.bias')
    """
    return tuple(n for n in learner.names if n not in learner.head) or learner.names


def drawn_groups(clients: int, k: int, seed: Seed) -> Tensor:
    """Random groups of equal size, [clients].

    >>> drawn_groups(6, 3, Seed(0)).bincount()
    tensor([2, 2, 2])
    """
    return torch.from_numpy(seed.numpy("cluster", "start").permutation(clients) % k)


def warm_kmeans(
    first: Tree,
    names: Sequence[str],
    k: int,
    restarts: int,
    context: RoundContext,
    aggregate: Aggregator,
    aside: float = 0.0,
    directions: bool | None = None,
) -> Generator[Request, Any, tuple[Tree, dict[Client, int]] | None]:
    """Everyone does the task "warm" from `first`; (means of the groups [K, ...], group of each client).

    None if fewer than k clients answered. Clients
    that lie more than `aside` times as far from others as most do have no part in it, nor a group yet.
    With `directions` k-means compares which way clients went from `first`, not how far; None: only where
    they have unlike numbers of rows, since who takes more steps gets farther.
    """
    asked = context.clients
    if len(asked) > MOST:
        drawn = context.seed.numpy("cluster", "sample").permutation(len(asked))[:MOST]
        asked = tuple(context.clients[i] for i in sorted(drawn.tolist()))
    # By the number of all clients: a sample of many is sketched too, so that memory does not grow with them.
    sketch = sketch_for(first, names, len(context.clients), context.seed)
    points = Points(tuple(names), sketch)
    who, size, table, held = yield from _trained(first, points, asked, context.room)
    far = outlying(table, aside)
    table, who = table[~far], tuple(c for c, out in zip(who, far.tolist(), strict=True) if not out)
    if len(who) < k:
        return None
    if directions is None:
        directions = not bool((size == size[0]).all())
    origin = points.row(first) if directions else None
    found = kmeans(directions_from(origin, table), k, context.seed, restarts)
    labels = dict(zip(who, found.labels.tolist(), strict=True))
    keep = {n: t.expand(k, *t.shape) for n, t in first.items()}
    means = aggregate.fold(keep, lambda chunk: _of(labels, chunk))
    if held is not None:
        centres, _, _ = means.end(means.add(means.begin(), held.at(who)))
    else:  # the same work again gives the same models: their means are taken without holding them all
        centres, _, _ = yield from fold(means, "warm", who, {"model": first}, again=who)
    if len(asked) < len(context.clients) and not aside:  # those not asked may lie far away too

        def join(chunk: Stack) -> Tensor:
            if origin is None:
                return squared_distances(chunk.tree("model"), centres, names).argmin(1)
            return nearest(directions_from(origin, points.rows(chunk)), found.centres)[0]

        near = aggregate.fold(centres, join)
        centres, labels, _ = yield from fold(near, "warm", context.clients, {"model": first}, again=asked)
    return centres, labels


def directions_from(origin: Tensor | None, table: Tensor) -> Tensor:
    """Which way each row lies from an origin, [clients, D] of unit length; without one, rows as they are."""
    if origin is None:
        return table
    updates = table - origin
    return updates / updates.square().sum(1, keepdim=True).sqrt().clamp(min=1e-12)


def _trained(
    first: Tree, points: Points, asked: Sequence[Client], room: int
) -> Generator[Request, Any, tuple[tuple[Client, ...], Tensor, Tensor, Stack | None]]:
    """(clients, their rows of data, what each made of `first` as a row, the models if held), by name."""
    if not _fit(first, len(asked), points.sketch, room):
        who, size, table = yield from fold(points, "warm", asked, {"model": first})
        return who, size, table, None
    got = yield from ask("warm", asked, {"model": first})
    if not got.clients:
        return (), torch.zeros(0), torch.zeros(0, 1), None
    held = got.at(got.clients)
    return held.clients, held.size, points.rows(held), held


def _fit(first: Tree, clients: int, sketch: Sketch | None, room: int) -> bool:
    """Whether the models of so many clients are held, which spares training them twice."""
    # By the whole models: those that are compared may be a small part of them.
    size = 4 * clients * sum(t.numel() for t in first.values())
    return size <= room if room else size <= EXACT and sketch is None


def sketch_for(model: Tree, names: Sequence[str], clients: int, seed: Seed) -> Sketch | None:
    """None where all models together are small enough to be held as they are."""
    if 4 * clients * sum(model[n].numel() for n in names) <= EXACT:
        return None
    return Sketch.of({n: tuple(model[n].shape) for n in names}, width_for(clients, 0.25), seed)


def _of(labels: Mapping[Client, int], chunk: Stack) -> Tensor:
    return torch.tensor([labels[c] for c in chunk.clients], dtype=torch.int64)


@dataclass(frozen=True)
class Points:
    """A fold: every client's parameters as one row, or a sketch of them.

    What the script receives: (clients, their rows of data [clients], points [clients, D]) by name.
    """

    names: tuple[str, ...]
    sketch: Sketch | None

    def begin(self) -> dict[Client, tuple[int, Tensor]]:
        """Nobody yet."""
        return {}

    def add(self, total: dict[Client, tuple[int, Tensor]], chunk: Stack) -> dict[Client, tuple[int, Tensor]]:
        """The rows of a chunk."""
        mine = zip(chunk.size.tolist(), self.rows(chunk).unbind(), strict=True)
        return total | dict(zip(chunk.clients, mine, strict=True))

    def rows(self, chunk: Stack) -> Tensor:
        """One row for each client of a chunk."""
        return self._flat(chunk.tree("model"))

    def row(self, model: Tree) -> Tensor:
        """One model as a row, [1, D]."""
        return self._flat({n: t[None] for n, t in model.items()})

    def _flat(self, models: Tree) -> Tensor:
        mine = {n: models[n] for n in self.names}
        return flat(mine, self.names) if self.sketch is None else self.sketch.apply(mine)

    def end(self, total: dict[Client, tuple[int, Tensor]]) -> tuple[tuple[Client, ...], Tensor, Tensor]:
        """All rows in order of names."""
        who = tuple(sorted(total))
        size = torch.tensor([total[c][0] for c in who], dtype=torch.int64)
        return who, size, torch.stack([total[c][1] for c in who]) if who else torch.zeros(0, 1)
