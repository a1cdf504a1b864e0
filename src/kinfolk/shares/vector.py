"""A model as one vector and back: what is shared are its floating-point tensors, buffers included.

And what becomes of a sum of scaled models, the personal aggregated model (PAM): of who asked for it, or of a
member.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.shares.context import Context
from kinfolk.shares.messages import entry, row
from kinfolk.types import Client, Tree


def to_vector(tree: Tree) -> tuple[Tensor, tuple[tuple[str, int], ...]]:
    """The floating-point leaves end to end, and the table of their names and lengths.

    >>> to_vector({"w": torch.ones(1, 2), "n": torch.tensor(3), "b": torch.zeros(1)})
    (tensor([1., 1., 0.]), (('w', 2), ('b', 1)))
    """
    shared = {name: leaf for name, leaf in tree.items() if leaf.is_floating_point()}
    if not shared:
        raise KinfolkError("model", list(tree), "has no floating-point tensors to share")
    return torch.cat([leaf.reshape(-1) for leaf in shared.values()]), layers_of(tree)


def layers_of(tree: Tree) -> tuple[tuple[str, int], ...]:
    """Names and lengths of the floating-point leaves.

    >>> layers_of({"w": torch.ones(1, 2), "n": torch.tensor(3)})
    (('w', 2),)
    """
    return tuple((name, leaf.numel()) for name, leaf in tree.items() if leaf.is_floating_point())


def to_tree(vec: Tensor, like: Tree) -> Tree:
    """The model behind a vector, with the shapes and types of `like`; whole numbers are taken from there.

    >>> to_tree(torch.tensor([1.0, 2.0]), {"w": torch.zeros(2, 1), "n": torch.tensor(3)})["w"]
    tensor([[1.],
            [2.]])
    """
    size = sum(leaf.numel() for leaf in like.values() if leaf.is_floating_point())
    if tuple(vec.shape) != (size,):
        raise KinfolkError("vector", tuple(vec.shape), f"must hold {size} numbers")
    tree, start = {}, 0
    for name, leaf in like.items():
        if leaf.is_floating_point():
            tree[name] = vec[start : start + leaf.numel()].reshape(leaf.shape).to(leaf)
            start += leaf.numel()
        else:
            tree[name] = leaf
    return tree


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
