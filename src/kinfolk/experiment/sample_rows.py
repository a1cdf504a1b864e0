"""A few training rows of a few clients, where rows are images: to see what a group of clients has.

Only if they are asked for (`run.pictures = "rows"`): between organisations nobody sees the rows of others,
and a report is handed on more easily than data are.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.experiment.picture_files import write_samples
from kinfolk.federation.federation import Federation
from kinfolk.learning.image_bytes import are_images, image_bytes
from kinfolk.streams import Few
from kinfolk.types import Client, plain_rows

MOST_CLIENTS, ROWS = 48, 5  # clients in all, and rows of each
PER_GROUP = 8  # clients of a known group

Sample = tuple[str, int, NDArray[np.uint8]]


def write_sample_rows(federation: Federation, few: Few, run: Path) -> None:
    """Write them into a run folder; nothing where rows are no images."""
    rows = sample_rows(federation, few)
    if rows:
        write_samples(run, rows)


def sample_rows(federation: Federation, few: Few) -> list[Sample]:
    """(client, label, image) of some clients of every known group, or of some of all.

    Of each client the first rows of different labels; -1 where a row has no class of its own.

    >>> from kinfolk.federation.own_data.arrays import from_arrays
    >>> from kinfolk.streams import Seed
    >>> rows = torch.rand(9, 1, 8, 8), torch.tensor([2, 2, 2, 0, 0, 0, 1, 1, 1])
    >>> held = from_arrays({"ann": rows}, test={"ann": rows})
    >>> [(who, label, image.shape) for who, label, image in sample_rows(held, Few(Seed(0), held.clients))][:2]
    [('ann', 0, (8, 8)), ('ann', 1, (8, 8))]
    """
    if isinstance(federation.x, dict):
        return []
    who = some_clients(federation, few)
    held = federation.among(who)
    found: list[tuple[Client, int, Tensor]] = []
    for c in who:
        mine = held.splits["train"].rows(held.place(c))
        found += [(c, label, row) for label, row in _different(held, mine)]
    if not found:
        return []
    x = plain_rows(held.take(torch.stack([row for _, _, row in found]))[0])
    if not are_images(x):
        return []
    images = image_bytes(x, float(x.amin()), float(x.amax())).numpy()
    return [(str(c), label, image) for (c, label, _), image in zip(found, images, strict=True)]


def some_clients(federation: Federation, few: Few) -> tuple[Client, ...]:
    """Some clients of every known group; of all, where none is known or there are more groups than that."""
    if federation.truth is None or len(torch.unique(federation.truth)) > MOST_CLIENTS:
        return few.of(federation.clients, MOST_CLIENTS)
    groups = torch.unique(federation.truth).tolist()
    each = min(PER_GROUP, MOST_CLIENTS // len(groups))
    of = dict(zip(federation.clients, federation.truth.tolist(), strict=True))
    chosen = [few.of([c for c in federation.clients if of[c] == g], each) for g in groups]
    return tuple(sorted(c for some in chosen for c in some))


def _different(federation: Federation, rows: Tensor) -> list[tuple[int, Tensor]]:
    """(label, row) of ROWS rows: the first of each label, then the second of each, and so on."""
    y = federation.y
    if isinstance(y, dict) or not federation.classes or y.dim() != 1:
        return [(-1, row) for row in rows[:ROWS]]
    seen: dict[int, int] = {}
    order = []
    for place, label in enumerate(y[rows.to(y.device)].tolist()):
        seen[label] = seen.get(label, 0) + 1
        order.append((seen[label], label, place))
    return [(label, rows[place]) for _, label, place in sorted(order)[:ROWS]]
