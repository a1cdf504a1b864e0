"""Layer-wise shares as published: each layer cut into random positive pieces. Kept for reproduction only.

Palanisamy Sundar et al.: Subjective Logic-based Decentralized Federated Learning for Non-IID Data. ARES 2024.

A share is a positive multiple of every layer, so a single member learns the direction of everything;
`tests/shares/test_rebuilding.py` makes a working model out of it. The member's own piece stays in the sum: as
printed, the formula adds up what a member sent, which is its own model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.shares.context import Context, check_split
from kinfolk.shares.plain import parts_of, total
from kinfolk.shares.scheme import Note, Response, Share, unheard
from kinfolk.types import Client


@dataclass(frozen=True)
class Layerwise:
    """X_l1 ... X_ln >= 0 from a flat Dirichlet, summing to 1: member j gets sigma * X_lj * layer l.

    >>> ctx = Context("ann", 0, ("bob", "cyd"), (1.0, 1.0), (("w", 2), ("b", 1)))
    >>> shares = Layerwise(entropy=bytes).split(torch.tensor([1.0, 2.0, 5.0]), 1.0, "bob", ctx.members, ctx)
    >>> shares["bob"]["part"] + shares["cyd"]["part"]
    tensor([1., 2., 5.])
    """

    hides: ClassVar[bool] = False
    layers: str = "tensor"  # what a layer is: one tensor, or all tensors of one module
    min_members: int = 3
    max_share: float = 0.5
    entropy: Callable[[int], bytes] = os.urandom

    def __post_init__(self) -> None:
        if self.layers not in ("tensor", "module"):
            raise KinfolkError("layers", self.layers, "choose tensor or module")

    def split(
        self, vec: Tensor, sigma: float, me: Client, members: Sequence[Client], ctx: Context
    ) -> dict[Client, Share]:
        """The scaled layers, each times a random number of its own for every member."""
        check_split(vec, sigma, me, members, ctx)
        draw = np.random.Generator(
            np.random.PCG64(np.random.SeedSequence(np.frombuffer(self.entropy(32), "<u4")))
        )
        names = [self._layer(name) for name, _ in ctx.layers]
        cuts = {layer: draw.dirichlet(np.ones(len(ctx.members))) for layer in dict.fromkeys(names)}
        table = torch.from_numpy(np.stack([cuts[layer] for layer in names])).to(vec.device)
        lengths = torch.tensor([length for _, length in ctx.layers], device=vec.device)
        scaled = vec.detach().double() * sigma
        return {
            to: {"part": (scaled * table[:, j].repeat_interleave(lengths)).to(vec.dtype)}
            for j, to in enumerate(ctx.members)
        }

    def _layer(self, name: str) -> str:
        return name if self.layers == "tensor" else name.rpartition(".")[0]

    def respond(self, shares: Mapping[Client, Share], me: Client, ctx: Context) -> Response:
        """The sum of all shares that were sent to this member, and of the one it kept."""
        ctx.place(me)
        parts = parts_of(shares, ctx.members, "part", ctx)
        return {"sum": total(parts).to(parts[0].dtype)}

    def reconstruct(self, responses: Mapping[Client, Response], ctx: Context, note: Note = unheard) -> Tensor:
        """The sum of the responses."""
        return total(parts_of(responses, ctx.members, "sum", ctx))

    def needs(self, n: int) -> int:
        """All of n responses."""
        return n

    def traffic(self, n: int, size: int, item: int = 4) -> int:
        """n - 1 shares and one response of each member.

        >>> Layerwise().traffic(25, 11_173_962 + 9_600) / 1e9
        27.958905
        """
        return n * n * size * item
