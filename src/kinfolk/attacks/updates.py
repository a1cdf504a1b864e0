"""What an attacker sends in place of the model that it trained."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kinfolk.learning.noise import normal
from kinfolk.types import Tree

SCALE = 10.0  # how many times its update a "scaled" attacker sends
NOISE = 3.0  # standard deviation of "noise", in those of the update
ABSURD = 9e17  # every number of an "absurd" reply: finite, and below what no model may hold (1e18)


def _noise(moved: Tensor, began: Tensor, draw: Tensor) -> Tensor:
    return NOISE * moved.std(correction=0) * normal(draw, (len(moved),))


def _as_long(like: Tensor, draw: Tensor) -> Tensor:
    """Noise of the same norm."""
    z = normal(draw, (len(like),))
    ratio: Tensor = torch.linalg.vector_norm(like) / torch.linalg.vector_norm(z)
    return ratio * z


# kind -> (what it is added to, numbers out of (the update, where it began, a key of draws)), all floats of a
# tree end to end in float64.
_DRAWN: dict[str, tuple[str, Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "noise": ("sent", _noise),
    "free_noise": ("began", lambda moved, began, draw: _as_long(moved, draw)),
    "sybil": ("began", _noise),
    # Where nothing was sent, as a gradient, as long as what was made.
    "own_cluster": (
        "nothing",
        lambda moved, began, draw: _as_long(torch.where(began.any(), began, moved), draw),
    ),
    "absurd": ("nothing", lambda moved, began, draw: torch.full_like(moved, ABSURD)),
}
BENDING = ("sign_flip", "scaled", "unchanged", *_DRAWN)
# Those whose ids draw the same numbers in every round: they are one owner's.
COLLUDING = ("sybil", "own_cluster")


def altered(kind: str, sent: Tree, before: Tree, draw: Tensor) -> Tree:
    """What an attacker sends instead of a tree; integer entries stay, a leaf not in `before` began at 0.

    >>> altered("sign_flip", {"w": torch.tensor([3.0])}, {"w": torch.tensor([1.0])}, torch.tensor(0))
    {'w': tensor([-1.])}
    """
    floats = {n: t for n, t in sent.items() if t.is_floating_point()}
    if not floats:
        return sent
    moved = {n: t - before[n] if n in before else t for n, t in floats.items()}
    began = {n: before[n] if n in before else torch.zeros_like(t) for n, t in floats.items()}
    if kind == "unchanged":
        return {**sent, **began}
    if kind in ("sign_flip", "scaled"):
        more = -2 if kind == "sign_flip" else SCALE - 1
        return {**sent, **{n: t + more * moved[n] for n, t in floats.items()}}
    base, rule = _DRAWN[kind]
    numbers = torch.split(rule(_flat(moved), _flat(began), draw), [t.numel() for t in floats.values()])
    parts = {n: p.reshape(t.shape).to(t.dtype) for (n, t), p in zip(floats.items(), numbers, strict=True)}
    if base != "nothing":
        parts = {n: (floats if base == "sent" else began)[n] + p for n, p in parts.items()}
    return {**sent, **parts}


def _flat(tree: Tree) -> Tensor:
    return torch.cat([t.flatten().double() for t in tree.values()])
