"""What an update looks like beside others: a few numbers for each client, for the report on conduct.

Of every tensor at most SAMPLED numbers are looked at, at places that are drawn once for all. Under random
signs they are folded into WIDTH sums, so that directions of updates can be compared without holding models.
Nobody computes with these numbers: a run has the same bits without them.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from kinfolk.streams import Seed
from kinfolk.types import Stack, Tree

# Numbers of one tensor that are looked at: the cost does not grow with the model.
SAMPLED = 1024
# Numbers of a sketch: directions that have nothing in common have a cosine of up to about 2 / sqrt(WIDTH).
WIDTH = 128
# Numbers by which two models are told apart: a sum of a sketch under random signs each.
MARKS = 2
_SEED = Seed(0)


def sketch(tree: Tree, like: Tree) -> Tensor:
    """The sketch of every model, [..., WIDTH] in float64 on the host; leaves of `like` say what one model is.

    >>> like = {"w": torch.zeros(3)}
    >>> one, two = sketch({"w": torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]])}, like)
    >>> bool((2 * one == two).all()), round(float(one.norm() ** 2))
    (True, 14)
    """
    parts = []
    for name, one in like.items():
        places, signs = _places(name, one.numel(), tree[name].device)
        flat = tree[name].flatten(tree[name].dim() - one.dim()) if one.dim() else tree[name].unsqueeze(-1)
        parts.append(flat.index_select(-1, places).double() * signs)
    seen = torch.cat(parts, -1).cpu()
    seen = torch.nn.functional.pad(seen, (0, -seen.shape[-1] % WIDTH))
    return seen.reshape(*seen.shape[:-1], -1, WIDTH).sum(-2)


def look(chunk: Stack, moved: Tensor, reply: Tensor, length: Tensor, sent: Tensor) -> Stack:
    """What is kept of the replies of a chunk: lengths of updates and of what was sent, sketches, marks.

    >>> from kinfolk.types import Client
    >>> one = Stack.of({Client("a"): (1, {"model": {"w": torch.ones(3)}})})
    >>> ones = torch.ones(1, WIDTH, dtype=torch.float64)
    >>> sorted(look(one, ones, ones, torch.ones(1), torch.ones(1)).body)
    ['length', 'marks', 'replied', 'sent', 'sketch']
    """
    signs = _signs()
    body = {
        "length": length.double(),
        "sent": sent.double(),
        "sketch": moved.float(),
        "marks": moved @ signs,
        "replied": reply @ signs,
    }
    return Stack(chunk.clients, chunk.size.cpu(), body)


@lru_cache(maxsize=4096)
def _places(name: str, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Which numbers of a tensor are looked at, and the signs they get; few stand for many."""
    draw = _SEED.numpy("conduct", name)
    places = torch.arange(size)
    if size > SAMPLED:
        places = torch.unique(torch.from_numpy(draw.integers(0, size, SAMPLED)))
    signs = torch.from_numpy(draw.integers(0, 2, len(places)) * 2.0 - 1) * (size / len(places)) ** 0.5
    return places.to(device), signs.to(device)


@lru_cache(maxsize=1)
def _signs() -> Tensor:
    return torch.from_numpy(_SEED.numpy("conduct", "marks").integers(0, 2, (WIDTH, MARKS)) * 2.0 - 1)


def cosines(sketches: Tensor, group: Tensor) -> Tensor:
    """How much each update points where those of the others of its group point, [clients].

    The cosine to the mean of the others' directions: a long update has no more say than a short one. NaN
    where there are fewer than two others, or an update is none.

    >>> cosines(torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0]]), torch.zeros(3, dtype=torch.int64))
    tensor([0.7071, 0.7071, 0.0000], dtype=torch.float64)
    """
    length = sketches.double().norm(dim=1, keepdim=True)
    unit = torch.where(length > 0, sketches.double() / length.clamp(min=1e-300), 0.0)
    _, place = torch.unique(group, return_inverse=True)
    kinds = int(place.max()) + 1 if len(place) else 0
    moved = (length[:, 0] > 0).double()
    sums = unit.new_zeros(kinds, unit.shape[1]).index_add_(0, place, unit)
    many = moved.new_zeros(kinds).index_add_(0, place, moved)
    others = sums[place] - unit
    cosine = (unit * others).sum(1) / others.norm(dim=1).clamp(min=1e-300)
    known = (moved > 0) & (many[place] >= 3)
    return torch.where(known, cosine, torch.nan)
