"""A sum of scaled models made into a personal aggregated model (PAM): by who asked for it, or by a member."""

from __future__ import annotations

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.shares.context import Context
from kinfolk.shares.messages import entry, row
from kinfolk.shares.vector import to_tree, to_vector
from kinfolk.types import Client, Tree


def average(model: Tree, whole: Tensor, total: float) -> Tree:
    """(M + sum_i sigma_i M_i) / (1 + sum_i sigma_i).

    >>> average({"w": torch.tensor([1.0])}, torch.tensor([2.0]).double(), 1.0)
    {'w': tensor([1.5000])}
    """
    own = to_vector(model)[0].detach().double()
    return to_tree((own + whole.to(own.device)) / (1 + total), model)


def part_in(message: object, model: Tree, me: Client, ctx: Context) -> Tree:
    """The same for a member, out of the sum that its own model is part of: without its own term.

    >>> ctx = Context("ann", 0, ("bob", "cyd"), (0.5, 0.5), (("w", 1),))
    >>> message = {"id": row(ctx.id), "sum": torch.tensor([3.0]).double()}
    >>> part_in(message, {"w": torch.tensor([2.0])}, "bob", ctx)  # (2 + 0.5 * 4) / 1.5
    {'w': tensor([2.6667])}
    """
    whole = entry(message, "sum", torch.float64, (ctx.size,), ctx.requester)
    if not torch.equal(entry(message, "id", torch.uint8, (32,), ctx.requester).cpu(), row(ctx.id)):
        raise KinfolkError(f"sum of {ctx.requester!r}", None, "is of another exchange")
    own, sigma = to_vector(model)[0].detach().double(), ctx.sigma[ctx.place(me)]
    mixed = average(model, whole.to(own.device) - sigma * own, ctx.total - sigma)
    if not all(bool(leaf.isfinite().all()) for leaf in mixed.values()):
        raise KinfolkError(f"sum of {ctx.requester!r}", None, "holds values that are not finite")
    return mixed
